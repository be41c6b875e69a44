//! Statuses of gateways and routes: what the leader's writer is told of them.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use controllers::{
    leader::View,
    wishes::Wishes,
    writer::{Part, Resource, Target, Wanted},
};
use k8s_openapi::jiff::Timestamp;
use model::{Kind, MeshState};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use translate::{
    report::Reports,
    status::{Status, Statuses, stamp},
};

/// Time from a change until statuses are looked at: what happens meanwhile is one look.
const SETTLE: Duration = Duration::from_millis(100);
/// By which name these wishes go.
const WHO: &str = "gateways";

/// Follows what was decided and what is there.
#[derive(Debug)]
pub(crate) struct Reporting {
    /// What the translation of the last published state decided.
    pub reports: watch::Receiver<Arc<Reports>>,
    /// Tells that there is another state.
    pub views: watch::Receiver<Option<View>>,
    /// The state.
    pub latest: Arc<Mutex<MeshState>>,
    /// Whether this replica writes.
    pub leads: watch::Receiver<bool>,
    /// Where it is written.
    pub wishes: Wishes,
    pub clock: fn() -> SystemTime,
}

impl Reporting {
    /// Says what statuses should be whenever this replica leads, until it is told to stop.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut memory = Memory::default();
        loop {
            let changed = tokio::select! {
                () = stop.cancelled() => return,
                changed = self.leads.changed() => changed,
                changed = self.reports.changed() => changed,
                changed = self.views.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
            if !*self.leads.borrow_and_update() {
                // Whoever leads then decides by what it reads; what was wanted here is old.
                memory = Memory::default();
                self.wishes.set(WHO, Vec::new());
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(SETTLE) => {}
            }
            self.views.mark_unchanged();
            let reports = self.reports.borrow_and_update().clone();
            let state = self.latest.lock().clone();
            let now = (self.clock)();
            let looked = tokio::task::spawn_blocking(move || {
                let wanted = memory.look(reports, state, now);
                (memory, wanted)
            });
            match looked.await {
                Ok((kept, wanted)) => {
                    memory = kept;
                    if let Some(wanted) = wanted {
                        self.wishes.set(WHO, wanted);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "statuses are not looked at");
                    memory = Memory::default();
                }
            }
        }
    }
}

/// What was looked at, and what was wanted.
#[derive(Default, Debug)]
struct Memory {
    statuses: Statuses,
    last: Option<(Arc<Reports>, MeshState)>,
    /// By target: the status without the times, and what was wanted because of it.
    wanted: BTreeMap<Target, (Value, Wanted)>,
}

impl Memory {
    /// Lists what should be written; `None` when that is what it was.
    fn look(
        &mut self,
        reports: Arc<Reports>,
        state: MeshState,
        now: SystemTime,
    ) -> Option<Vec<Wanted>> {
        let is_same = self
            .last
            .as_ref()
            .is_some_and(|(known, last)| Arc::ptr_eq(known, &reports) && same_tables(last, &state));
        if is_same {
            return None;
        }
        let found = self.statuses.update(&reports, &state);
        self.last = Some((reports, state));
        let now = format!("{:.0}", Timestamp::try_from(now).unwrap_or_default());
        let mut earlier = std::mem::take(&mut self.wanted);
        for status in found {
            let target = target(&status);
            // What is wanted still keeps the time since when it is.
            let known = earlier.remove(&target);
            let known = known.filter(|(known, wanted)| {
                *known == status.status && wanted.seen.as_deref() == Some(&*status.version)
            });
            let (unstamped, wanted) = known.unwrap_or_else(|| {
                let unstamped = status.status.clone();
                (unstamped, wish(target.clone(), status, &now))
            });
            self.wanted.insert(target, (unstamped, wanted));
        }
        Some(
            self.wanted
                .values()
                .map(|(_, wanted)| wanted.clone())
                .collect(),
        )
    }
}

fn wish(target: Target, status: Status, now: &str) -> Wanted {
    let Status {
        version,
        shared,
        mut status,
        ..
    } = status;
    stamp(&mut status, now);
    Wanted {
        target,
        fields: json!({"status": status}),
        seen: Some(version).filter(|version| !version.is_empty()),
        strict: shared,
    }
}

fn target(status: &Status) -> Target {
    Target {
        resource: resource(status.kind),
        part: Part::Status,
        namespace: status.name.namespace.to_string(),
        name: status.name.name.to_string(),
    }
}

/// Where objects of a kind are whose statuses are written.
fn resource(kind: Kind) -> Resource {
    let plural = match kind {
        Kind::Ingress => "ingresses",
        Kind::GatewayClass => "gatewayclasses",
        Kind::KubernetesGateway => "gateways",
        Kind::ListenerSet => "listenersets",
        Kind::GrpcRoute => "grpcroutes",
        Kind::TcpRoute => "tcproutes",
        Kind::TlsRoute => "tlsroutes",
        Kind::BackendTlsPolicy => "backendtlspolicies",
        // There are no statuses of others.
        _ => "httproutes",
    };
    Resource {
        group: kind.group(),
        version: "v1",
        kind: kind.name(),
        plural,
    }
}

/// Tells whether two states agree in all that statuses are compared with or made of, beside the reports.
fn same_tables(a: &MeshState, b: &MeshState) -> bool {
    let (x, y) = (&a.objects, &b.objects);
    x.gateway_classes.ptr_eq(&y.gateway_classes)
        && Arc::ptr_eq(&a.bundles, &b.bundles)
        && x.kubernetes_gateways.ptr_eq(&y.kubernetes_gateways)
        && x.listener_sets.ptr_eq(&y.listener_sets)
        && x.http_routes.ptr_eq(&y.http_routes)
        && x.grpc_routes.ptr_eq(&y.grpc_routes)
        && x.tcp_routes.ptr_eq(&y.tcp_routes)
        && x.tls_routes.ptr_eq(&y.tls_routes)
        && x.backend_tls_policies.ptr_eq(&y.backend_tls_policies)
        && x.ingresses.ptr_eq(&y.ingresses)
        && x.services.ptr_eq(&y.services)
        && (x.ingresses.is_empty() || x.pods.ptr_eq(&y.pods) && x.nodes.ptr_eq(&y.nodes))
        && a.services.ptr_eq(&b.services)
        && (x.kubernetes_gateways.is_empty() || a.endpoints.ptr_eq(&b.endpoints))
}
