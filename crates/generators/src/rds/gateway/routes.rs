//! The routes of one VirtualService on a gateway.

use std::collections::BTreeSet;

use envoy_types::pb::envoy::config::{
    core::v3::{HeaderValue, HeaderValueOption},
    route::v3::Route,
};
use model::{NamespacedName, fingerprint};

use super::{ClientView, Routed};
use crate::route::{self, RouteContext};

/// The routes of one VirtualService.
#[derive(Debug)]
pub(super) struct Routes {
    /// Hash of what they were made of.
    pub(super) hash: u64,
    pub(super) list: Vec<Route>,
}

/// What the routes of one VirtualService on one server are made of; its fingerprint is their key.
pub(super) struct RoutesInputs<'a> {
    pub(super) routed: &'a Routed,
    pub(super) gateway: &'a NamespacedName,
    /// The port as its author wrote it.
    pub(super) port: u32,
    pub(super) is_tls: bool,
    pub(super) client: (&'a ClientView, u64),
    pub(super) http3: Option<u32>,
}

impl RoutesInputs<'_> {
    pub(super) fn fingerprint(&self) -> u64 {
        // Named one by one, so that a new field cannot be forgotten.
        let Self {
            routed,
            gateway,
            port,
            is_tls,
            client: (_, client),
            http3,
        } = self;
        fingerprint::of(&(routed.fingerprint, gateway, port, is_tls, client, http3))
    }

    pub(super) fn build(&self) -> Vec<Route> {
        let client = self.client.0;
        let gateways = BTreeSet::from([self.gateway.to_string()]);
        let targets = self.routed.by_host();
        let service = |host: &str| targets.get(host).and_then(|target| target.service.clone());
        let rule = |host: &str| targets.get(host).and_then(|target| target.rule.clone());
        let mut routes = route::translate(
            &self.routed.vs,
            &RouteContext {
                listener_port: u16::try_from(self.port).unwrap_or_default(),
                gateways: &gateways,
                labels: &client.labels,
                namespace: &client.namespace,
                service: &service,
                rule: &rule,
                mesh_retry: client.retries.as_ref(),
                forwarded_host: client.forwarded_host,
                tls_server: self.is_tls,
                plain_shadow_host: client.plain_shadow_host,
                session: client.session.as_ref(),
                handles: None,
            },
        );
        if let Some(port) = self.http3 {
            for route in &mut routes {
                route.response_headers_to_add.push(alternative(port));
            }
        }
        routes
    }
}

/// Tells clients that HTTP/3 is spoken on a port (gateways §16).
fn alternative(port: u32) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key: "alt-svc".to_owned(),
            value: format!("h3=\":{port}\"; ma=86400"),
            ..HeaderValue::default()
        }),
        ..HeaderValueOption::default()
    }
}
