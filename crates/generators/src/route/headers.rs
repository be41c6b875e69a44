//! Header operations (routes §11.1).

use envoy_types::pb::envoy::config::{
    core::v3::{HeaderValue, HeaderValueOption, header_value_option::HeaderAppendAction},
    route::v3::{Route, weighted_cluster::ClusterWeight},
};
use model::api;

/// Envoy's four lists of header changes.
#[derive(Default)]
pub(super) struct HeaderChanges {
    request_add: Vec<HeaderValueOption>,
    request_remove: Vec<String>,
    response_add: Vec<HeaderValueOption>,
    response_remove: Vec<String>,
    /// The authority that the request changes ask for.
    pub(super) authority: Option<String>,
}

impl HeaderChanges {
    /// Translates header operations; absent ones change nothing.
    pub(super) fn of(headers: Option<&api::common::Headers>) -> Self {
        let Some(headers) = headers else {
            return Self::default();
        };
        let mut changes = Self::default();
        if let Some(request) = &headers.request {
            (changes.request_add, changes.request_remove) = lists(request);
            changes.authority = authority(&request.set).or_else(|| authority(&request.add));
        }
        if let Some(response) = &headers.response {
            (changes.response_add, changes.response_remove) = lists(response);
        }
        changes
    }

    /// Appends the changes to those of a route.
    pub(super) fn append_to(self, route: &mut Route) {
        route.request_headers_to_add.extend(self.request_add);
        route.request_headers_to_remove.extend(self.request_remove);
        route.response_headers_to_add.extend(self.response_add);
        route
            .response_headers_to_remove
            .extend(self.response_remove);
    }

    /// Puts the changes on one of several destinations.
    pub(super) fn put_on(self, cluster: &mut ClusterWeight) {
        cluster.request_headers_to_add = self.request_add;
        cluster.request_headers_to_remove = self.request_remove;
        cluster.response_headers_to_add = self.response_add;
        cluster.response_headers_to_remove = self.response_remove;
    }
}

/// Applies rule-level operations to a route; returns the authority that they ask for.
pub(super) fn apply(headers: Option<&api::common::Headers>, route: &mut Route) -> Option<String> {
    let mut changes = HeaderChanges::of(headers);
    let authority = changes.authority.take();
    changes.append_to(route);
    authority
}

/// Names that Envoy does not let anybody change.
fn is_reserved(name: &str) -> bool {
    name.starts_with(':') || name.eq_ignore_ascii_case("host")
}

fn lists(operations: &api::common::HeaderOperations) -> (Vec<HeaderValueOption>, Vec<String>) {
    let option = |(key, value): (&String, &String), action: HeaderAppendAction| HeaderValueOption {
        header: Some(HeaderValue {
            key: key.clone(),
            value: value.clone(),
            ..HeaderValue::default()
        }),
        append_action: action.into(),
        ..HeaderValueOption::default()
    };
    let set = operations.set.iter().filter(|(k, _)| !is_reserved(k));
    let add = operations.add.iter().filter(|(k, _)| !is_reserved(k));
    let added = set
        .map(|entry| option(entry, HeaderAppendAction::OverwriteIfExistsOrAdd))
        .chain(add.map(|entry| option(entry, HeaderAppendAction::AppendIfExistsOrAdd)))
        .collect();
    (
        added,
        operations
            .remove
            .iter()
            .filter(|k| !is_reserved(k))
            .cloned()
            .collect(),
    )
}

fn authority(headers: &model::Labels) -> Option<String> {
    let find = |name: &str| {
        headers
            .iter()
            .find(|(k, _)| k.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.clone())
    };
    find(":authority")
        .or_else(|| find("host"))
        .filter(|v| !v.is_empty())
}
