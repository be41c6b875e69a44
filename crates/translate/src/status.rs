//! Statuses of Gateway API objects and Ingresses, from what translation decided ([`Reports`]).
//!
//! [`Statuses`] says what each status should be that is not so yet: it compares with the status that was
//! read with the object, so that a restart writes nothing. A condition keeps the time of its last
//! transition while its status is the same; parts of a status that are others' stay as they are.

mod address;
mod compare;
mod condition;

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use model::{Config, Kind, MeshState, NamespacedName, api::gateway_api::ParentReference, bundle};
use serde_json::{Map, Value, json};

use self::{
    address::Reach,
    compare::{covers, is_same},
    condition::{Conditions, Means, TRANSITION},
};
use crate::report::{GatewayReport, ListenerReport, PolicyReport, Reports, RouteReport, Verdict};

/// A policy says so many ancestors at most.
const ANCESTORS: usize = 16;
/// A route has so many parents at most.
const PARENTS: usize = 32;

/// Features of the Gateway API that are supported, by the names that its conformance suite gives them,
/// sorted. `docs/gateway-api-features.md` says which test shows each.
pub const FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "Gateway",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayInfrastructurePropagation",
    "GatewayListenerSet",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetries",
    "HTTPRouteSchemeRedirect",
    "Mesh",
    "MeshClusterIPMatching",
    "MeshConsumerRoute",
    "MeshHTTPRouteRedirectPath",
    "MeshHTTPRouteRewritePath",
    "ReferenceGrant",
    "ServiceImport",
    "TCPRoute",
    "TLSRoute",
];

/// A status that is not as it should be.
#[derive(Clone, PartialEq, Debug)]
pub struct Status {
    /// The kind of the object.
    pub kind: Kind,
    /// Its namespace and name.
    pub name: NamespacedName,
    /// The version of the object that this was decided by.
    pub version: String,
    /// Parts of it are others': it may only be written while the object is still of that version.
    pub shared: bool,
    /// What it should be.
    pub status: Value,
}

/// Compares statuses with what they should be, one state after the other.
#[derive(Default, Debug)]
pub struct Statuses {
    /// What was found of routes, which are many.
    known: BTreeMap<(Kind, NamespacedName), Known>,
}

/// What was found of a route, and from what.
struct Known {
    route: Arc<dyn Any + Send + Sync>,
    report: Arc<RouteReport>,
    found: Option<Status>,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Known").field(&self.found).finish()
    }
}

impl Statuses {
    /// Lists the statuses that are not as they should be. Times of transitions that happen now are empty:
    /// [`stamp`] fills them in.
    ///
    /// An object is passed over while its report is of another generation: a newer report is on its way.
    pub fn update(&mut self, reports: &Reports, state: &MeshState) -> Vec<Status> {
        let mut writer = Writer {
            state,
            known: std::mem::take(&mut self.known),
            still: BTreeMap::new(),
            found: Vec::new(),
        };
        writer.classes(reports);
        writer.gateways(reports);
        writer.listener_sets(reports);
        let objects = &state.objects;
        writer.routes(reports, Kind::HttpRoute, &objects.http_routes, |r| {
            &r.parent_refs
        });
        writer.routes(reports, Kind::GrpcRoute, &objects.grpc_routes, |r| {
            &r.parent_refs
        });
        writer.routes(reports, Kind::TcpRoute, &objects.tcp_routes, |r| {
            &r.parent_refs
        });
        writer.routes(reports, Kind::TlsRoute, &objects.tls_routes, |r| {
            &r.parent_refs
        });
        writer.policies(reports);
        writer.ingresses(reports);
        self.known = writer.still;
        writer.found
    }
}

/// Fills in the time of transitions that happen `now`, in RFC 3339.
pub fn stamp(status: &mut Value, now: &str) {
    match status {
        Value::Object(fields) => {
            for (field, value) in fields {
                if field == TRANSITION && *value == "" {
                    *value = json!(now);
                } else {
                    stamp(value, now);
                }
            }
        }
        Value::Array(entries) => entries.iter_mut().for_each(|entry| stamp(entry, now)),
        _ => {}
    }
}

/// Gathers statuses.
struct Writer<'a> {
    state: &'a MeshState,
    /// What was found of routes before, and what holds still.
    known: BTreeMap<(Kind, NamespacedName), Known>,
    still: BTreeMap<(Kind, NamespacedName), Known>,
    found: Vec<Status>,
}

/// One of our entries of a list: what it is about, and the conditions that follow known ones.
type Entry<'a> = (Value, Box<dyn Fn(Option<&Value>) -> Value + 'a>);

impl Writer<'_> {
    fn put<T>(&mut self, kind: Kind, object: &Config<T>, status: Value, shared: bool) {
        self.found.extend(changed(kind, object, status, shared));
    }

    fn classes(&mut self, reports: &Reports) {
        let unsupported = bundle::unsupported(&self.state.bundles);
        for name in &reports.classes {
            let Some(class) = self.state.objects.gateway_classes.get(name) else {
                continue;
            };
            let known = class.meta.status.as_deref();
            let mut conditions = Conditions::new(known, class.meta.generation);
            conditions.put(
                "Accepted",
                Means::True,
                "Accepted",
                "Handled by Istio controller",
            );
            // What is of another release is read all the same, as far as it can be.
            let (means, reason, message) = match &unsupported {
                None => {
                    let message = "The installed version of the Gateway API is supported";
                    (Means::True, "SupportedVersion", message)
                }
                Some(message) => (Means::False, "UnsupportedVersion", message.as_str()),
            };
            conditions.put("SupportedVersion", means, reason, message);
            let mut status = json!({"conditions": conditions.finish()});
            if class.spec.controller_name == self.state.features.gateway_controller {
                let features = FEATURES.iter().map(|name| json!({"name": name}));
                status["supportedFeatures"] = features.collect();
            }
            self.put(Kind::GatewayClass, class, status, false);
        }
    }

    fn gateways(&mut self, reports: &Reports) {
        for (name, report) in &reports.gateways {
            let Some(gateway) = self.state.objects.kubernetes_gateways.get(name) else {
                continue;
            };
            let meta = &gateway.meta;
            if meta.generation != report.generation {
                continue;
            }
            let known = meta.status.as_deref();
            let ports = report.listeners.iter().filter(|listener| listener.served);
            let reach = Reach::find(self.state, report, ports.map(|listener| listener.port));
            let mut status = json!({
                "conditions": Self::of_gateway(known, report, &reach),
                "listeners": Self::listeners(known, &report.listeners, report.generation),
            });
            // An address that was told is not taken back: clients may have it.
            if !reach.addresses.is_empty() {
                status["addresses"] = Value::Array(reach.addresses);
            }
            let allows_sets = gateway.spec.allowed_listeners.is_some();
            if allows_sets || report.listener_sets > 0 {
                status["attachedListenerSets"] = json!(report.listener_sets);
            }
            self.put(Kind::KubernetesGateway, gateway, status, false);
        }
    }

    fn of_gateway(known: Option<&Value>, report: &GatewayReport, reach: &Reach) -> Value {
        let mut conditions = Conditions::new(known, report.generation);
        match &report.accepted {
            Err(_) => conditions.verdict("Accepted", &report.accepted, "Accepted", ""),
            Ok(()) if report.listeners.iter().any(|listener| !is_valid(listener)) => {
                let message = "Some listeners are not valid";
                conditions.put("Accepted", Means::True, "ListenersNotValid", message);
            }
            Ok(()) => conditions.put("Accepted", Means::True, "Accepted", "Resource accepted"),
        }
        match (&report.accepted, &reach.programmed) {
            (Err(refusal), _) => {
                conditions.put("Programmed", Means::False, "Invalid", &refusal.message);
            }
            (Ok(()), programmed) => {
                let message = format!(
                    "Resource programmed, assigned to service(s) {}",
                    reach.services.join(" and ")
                );
                conditions.verdict("Programmed", programmed, "Programmed", &message);
            }
        }
        if let Some(resolved) = &report.resolved {
            let message = "All references resolved";
            conditions.verdict("ResolvedRefs", resolved, "ResolvedRefs", message);
        }
        conditions.finish()
    }

    fn listeners(known: Option<&Value>, reports: &[ListenerReport], generation: i64) -> Value {
        const NONE: &str = "No errors found";
        let known = known.and_then(|known| known.get("listeners")?.as_array());
        let listeners = reports.iter().map(|report| {
            let known = known.and_then(|known| {
                known
                    .iter()
                    .find(|listener| listener["name"] == *report.name)
            });
            let mut conditions = Conditions::new(known, generation);
            conditions.verdict("Accepted", &report.accepted, "Accepted", NONE);
            match &report.alone {
                Ok(()) => conditions.put("Conflicted", Means::False, "NoConflicts", NONE),
                Err(refusal) => {
                    conditions.put("Conflicted", Means::True, refusal.reason, &refusal.message);
                }
            }
            match why_not(report) {
                None => conditions.put("Programmed", Means::True, "Programmed", NONE),
                Some(message) => {
                    conditions.put("Programmed", Means::False, "Invalid", message);
                }
            }
            conditions.verdict("ResolvedRefs", &report.resolved, "ResolvedRefs", NONE);
            let kinds = report.kinds.iter();
            let kinds: Vec<_> = kinds
                .map(|kind| json!({"group": Kind::HttpRoute.group(), "kind": kind}))
                .collect();
            json!({
                "name": report.name,
                "attachedRoutes": report.attached,
                "supportedKinds": kinds,
                "conditions": conditions.finish(),
            })
        });
        listeners.collect()
    }

    fn listener_sets(&mut self, reports: &Reports) {
        for (name, report) in &reports.listener_sets {
            let Some(set) = self.state.objects.listener_sets.get(name) else {
                continue;
            };
            if set.meta.generation != report.generation {
                continue;
            }
            let known = set.meta.status.as_deref();
            let mut conditions = Conditions::new(known, report.generation);
            let valid = report
                .listeners
                .iter()
                .filter(|listener| is_valid(listener));
            let (valid, all) = (valid.count(), report.listeners.len());
            if report.accepted.is_err() {
                conditions.verdict("Accepted", &report.accepted, "Accepted", "");
                conditions.verdict("Programmed", &report.accepted, "Programmed", "");
            } else if valid == 0 {
                let message = "No listener is valid";
                conditions.put("Accepted", Means::False, "ListenersNotValid", message);
                conditions.put("Programmed", Means::False, "ListenersNotValid", message);
            } else {
                let (reason, message) = if valid < all {
                    ("ListenersNotValid", "Some listeners are not valid")
                } else {
                    ("Accepted", "Resource accepted")
                };
                conditions.put("Accepted", Means::True, reason, message);
                conditions.put(
                    "Programmed",
                    Means::True,
                    "Programmed",
                    "Resource programmed",
                );
            }
            let status = json!({
                "conditions": conditions.finish(),
                "listeners": Self::listeners(known, &report.listeners, report.generation),
            });
            self.put(Kind::ListenerSet, set, status, false);
        }
    }

    fn routes<T: Send + Sync + 'static>(
        &mut self,
        reports: &Reports,
        kind: Kind,
        table: &model::Table<T>,
        references: impl Fn(&T) -> &[ParentReference],
    ) {
        for (name, route) in table {
            let key = (kind, name.clone());
            let Some(report) = reports.routes.get(&key) else {
                continue;
            };
            let is_same = |known: &Known| {
                std::ptr::addr_eq(Arc::as_ptr(&known.route), Arc::as_ptr(route))
                    && Arc::ptr_eq(&known.report, report)
            };
            let known = match self.known.remove(&key).filter(is_same) {
                Some(known) => known,
                None => Known {
                    route: route.clone(),
                    report: report.clone(),
                    found: (route.meta.generation == report.generation)
                        .then(|| self.route(kind, route, report, references(&route.spec)))
                        .flatten(),
                },
            };
            self.found.extend(known.found.clone());
            self.still.insert(key, known);
        }
    }

    fn route<T>(
        &self,
        kind: Kind,
        route: &Config<T>,
        report: &RouteReport,
        references: &[ParentReference],
    ) -> Option<Status> {
        let known = entries(route, "parents");
        let mut ours: Vec<Entry<'_>> = Vec::new();
        for parent in &report.parents {
            let Some(reference) = references.get(parent.reference) else {
                continue;
            };
            let reference = parent_ref(reference);
            if ours.iter().any(|(known, _)| is_same(known, &reference)) {
                continue;
            }
            let conditions = |known: Option<&Value>| {
                let mut conditions = Conditions::new(known, report.generation);
                let message = "Route was valid";
                conditions.verdict("Accepted", &parent.accepted, "Accepted", message);
                let message = "All references resolved";
                conditions.verdict("ResolvedRefs", &parent.resolved, "ResolvedRefs", message);
                conditions.finish()
            };
            ours.push((reference, Box::new(conditions)));
        }
        let (entries, shared) = self.merge(known, "parentRef", &ours, PARENTS)?;
        changed(kind, route, json!({"parents": entries}), shared)
    }

    fn policies(&mut self, reports: &Reports) {
        for (name, report) in &reports.policies {
            let Some(policy) = self.state.objects.backend_tls_policies.get(name) else {
                continue;
            };
            if policy.meta.generation != report.generation {
                continue;
            }
            let gateways = report.gateways.iter();
            let mut ancestors: Vec<Value> = gateways
                .map(|gateway| {
                    json!({
                        "group": Kind::KubernetesGateway.group(),
                        "kind": "Gateway",
                        "namespace": &*gateway.namespace,
                        "name": &*gateway.name,
                    })
                })
                .collect();
            if ancestors.is_empty() {
                let targets = policy.spec.target_refs.iter();
                ancestors.extend(targets.map(|target| {
                    json!({"group": target.group, "kind": target.kind, "name": target.name})
                }));
            }
            let conditions = |known: Option<&Value>| Self::of_policy(known, report);
            let mut ours: Vec<Entry<'_>> = Vec::new();
            for ancestor in ancestors {
                if !ours.iter().any(|(known, _)| *known == ancestor) {
                    ours.push((ancestor, Box::new(conditions)));
                }
            }
            let merged = self.merge(
                entries(policy, "ancestors"),
                "ancestorRef",
                &ours,
                ANCESTORS,
            );
            drop(ours);
            if let Some((entries, shared)) = merged {
                let status = json!({"ancestors": entries});
                self.put(Kind::BackendTlsPolicy, policy, status, shared);
            }
        }
    }

    fn of_policy(known: Option<&Value>, report: &PolicyReport) -> Value {
        let mut conditions = Conditions::new(known, report.generation);
        let valid = "Configuration is valid";
        conditions.verdict("Accepted", &report.accepted, "Accepted", valid);
        let message = "All references resolved";
        conditions.verdict("ResolvedRefs", &report.resolved, "ResolvedRefs", message);
        conditions.finish()
    }

    /// Puts our entries into a list of which each controller has its own: those of others stay, ours that
    /// are not ours any more go, new ones come last. Returns the list, and whether others have a part in
    /// it; `None` when there is nothing to be said and nothing was.
    fn merge(
        &self,
        known: &[Value],
        reference: &str,
        ours: &[Entry<'_>],
        limit: usize,
    ) -> Option<(Vec<Value>, bool)> {
        let controller = &self.state.features.gateway_controller;
        let entry = |place: &Value, conditions: Value| {
            let mut entry = Map::new();
            entry.insert(reference.to_owned(), place.clone());
            entry.insert("controllerName".to_owned(), json!(controller));
            entry.insert("conditions".to_owned(), conditions);
            Value::Object(entry)
        };
        let mut merged = Vec::new();
        let (mut shared, mut placed) = (false, BTreeSet::new());
        for known in known {
            if known["controllerName"] != *controller.as_str() {
                shared = true;
                merged.push(known.clone());
                continue;
            }
            let place = ours
                .iter()
                .position(|(place, _)| is_same(&known[reference], place));
            if let Some(place) = place.filter(|place| placed.insert(*place)) {
                let (reference, conditions) = &ours[place];
                merged.push(entry(reference, conditions(Some(known))));
            }
        }
        for (number, (reference, conditions)) in ours.iter().enumerate() {
            if !placed.contains(&number) && merged.len() < limit {
                merged.push(entry(reference, conditions(None)));
            }
        }
        (!merged.is_empty() || !known.is_empty()).then_some((merged, shared))
    }

    fn ingresses(&mut self, reports: &Reports) {
        if reports.ingresses.is_empty() {
            return;
        }
        let addresses = Value::Array(address::of_ingresses(self.state));
        for name in &reports.ingresses {
            let Some(ingress) = self.state.objects.ingresses.get(name) else {
                continue;
            };
            let known = ingress.meta.status.as_deref();
            let known = known.and_then(|known| known.get("loadBalancer")?.get("ingress"));
            // Without any address there is nothing to be said, unless something was.
            if known.is_none() && addresses == json!([]) {
                continue;
            }
            let status = json!({"loadBalancer": {"ingress": addresses}});
            self.put(Kind::Ingress, ingress, status, false);
        }
    }
}

/// The status that an object should have, if it has another.
fn changed<T>(kind: Kind, object: &Config<T>, status: Value, shared: bool) -> Option<Status> {
    let meta = &object.meta;
    let known = meta.status.as_ref();
    if known.is_some_and(|known| covers(known, &status)) {
        return None;
    }
    Some(Status {
        kind,
        name: meta.namespaced_name(),
        version: meta.resource_version.clone(),
        shared,
        status,
    })
}

/// The list of entries that controllers have in the status of an object.
fn entries<'a, T>(object: &'a Config<T>, field: &str) -> &'a [Value] {
    let status = object.meta.status.as_deref();
    let list = status.and_then(|status| status.get(field)?.as_array());
    list.map_or(&[], Vec::as_slice)
}

/// Whether a listener is served, as far as it decides that itself.
fn is_valid(listener: &ListenerReport) -> bool {
    why_not(listener).is_none()
}

/// Why a listener is not served; `None` if it is.
fn why_not(listener: &ListenerReport) -> Option<&str> {
    if listener.served {
        return None;
    }
    let verdicts: [&Verdict; 3] = [&listener.accepted, &listener.alone, &listener.resolved];
    let refusal = verdicts
        .into_iter()
        .find_map(|verdict| verdict.as_ref().err());
    Some(refusal.map_or("The gateway cannot be served", |refusal| &*refusal.message))
}

/// A reference as routes write it.
fn parent_ref(reference: &ParentReference) -> Value {
    let texts = [
        (
            "group",
            Some(
                reference
                    .group
                    .as_deref()
                    .unwrap_or(Kind::HttpRoute.group()),
            ),
        ),
        ("kind", Some(reference.kind.as_deref().unwrap_or("Gateway"))),
        ("namespace", reference.namespace.as_deref()),
        ("name", Some(&*reference.name)),
        ("sectionName", reference.section_name.as_deref()),
    ];
    let texts = texts.into_iter();
    let mut fields: Map<String, Value> = texts
        .filter_map(|(field, text)| Some((field.to_owned(), json!(text?))))
        .collect();
    if let Some(port) = reference.port {
        fields.insert("port".to_owned(), json!(port));
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests;
