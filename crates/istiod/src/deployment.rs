//! What is deployed for gateways that do not say where they are reached: a workload and its service, made from
//! a template, and written by the leader when they are not as they should be.

mod image;
mod overlay;
mod render;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use controllers::{
    Seen, follow,
    leader::View,
    wishes::Wishes,
    writer::{Part, Resource, Target, Wanted},
};
use intake::kubernetes::{Phase, Tables};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};
use model::{Kind, MeshState, NamespacedName};
use parking_lot::Mutex;
use render::{Made, Rendering};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use translate::report::Reports;

use crate::settings::writes::DeploymentSettings;

/// Time from a change until it is looked at.
const SETTLE: Duration = Duration::from_millis(100);
/// Events of objects that may wait.
const EVENTS: usize = 64;
/// By which name these wishes go.
const WHO: &str = "deployments";
/// Label of all that is deployed.
const MANAGED: &str = "gateway.istio.io/managed";

/// What is deployed, in the order in which it is written.
const KINDS: [Resource; 5] = [
    kind("", "v1", "ServiceAccount", "serviceaccounts"),
    kind("apps", "v1", "Deployment", "deployments"),
    kind("", "v1", "Service", "services"),
    kind(
        "autoscaling",
        "v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
    ),
    kind(
        "policy",
        "v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
    ),
];

const CLASS: Resource = kind(
    "gateway.networking.k8s.io",
    "v1",
    "GatewayClass",
    "gatewayclasses",
);

const fn kind(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
) -> Resource {
    Resource {
        group,
        version,
        kind,
        plural,
    }
}

/// Follows gateways, and what is deployed for them.
#[derive(Debug)]
pub(crate) struct Deploying {
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
    /// How what is read of the cluster is.
    pub tables: Tables,
    /// What is deployed beside what gateways say.
    pub settings: DeploymentSettings,
}

/// What decides about what is deployed, beside what is there.
struct Inputs {
    reports: Arc<Reports>,
    state: MeshState,
    knows_classes: bool,
}

impl Inputs {
    /// Tells whether the same should be deployed.
    fn is_same(&self, other: &Self) -> bool {
        let (a, b) = (&self.state, &other.state);
        let (x, y) = (&a.objects, &b.objects);
        Arc::ptr_eq(&self.reports, &other.reports)
            && self.knows_classes == other.knows_classes
            && x.kubernetes_gateways.ptr_eq(&y.kubernetes_gateways)
            && x.gateway_classes.ptr_eq(&y.gateway_classes)
            && x.config_maps.ptr_eq(&y.config_maps)
            && Arc::ptr_eq(&a.mesh, &b.mesh)
    }
}

/// An object that is deployed, as it was read.
type Known = BTreeMap<Target, (String, Value)>;

impl Deploying {
    /// Says what should be deployed whenever this replica leads, until it is told to stop.
    pub(crate) async fn run(mut self, client: Client, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                led = self.leads.wait_for(|leads| *leads) => if led.is_err() { return },
            }
            let term = stop.child_token();
            let mut tasks = JoinSet::new();
            let (seen, events) = mpsc::channel(EVENTS);
            for resource in KINDS {
                tasks.spawn(follow_kind(
                    client.clone(),
                    resource,
                    seen.clone(),
                    term.clone(),
                ));
            }
            drop(seen);
            self.lead(events, &stop).await;
            self.wishes.set(WHO, Vec::new());
            term.cancel();
            while tasks.join_next().await.is_some() {}
        }
    }

    /// Until another replica leads.
    async fn lead(
        &mut self,
        mut events: mpsc::Receiver<(Resource, Seen<DynamicObject>)>,
        stop: &CancellationToken,
    ) {
        let (mut known, mut listed) = (Known::new(), 0);
        let mut last: Option<Inputs> = None;
        self.reports.mark_changed();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = self.leads.changed() => {
                    if changed.is_err() || !*self.leads.borrow_and_update() {
                        return;
                    }
                }
                Some(event) = events.recv() => {
                    note(&mut known, &mut listed, event);
                    last = None;
                }
                Ok(()) = self.reports.changed() => {}
                Ok(()) = self.views.changed() => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(SETTLE) => {}
            }
            while let Ok(event) = events.try_recv() {
                note(&mut known, &mut listed, event);
                last = None;
            }
            self.views.mark_unchanged();
            let reports = self.reports.borrow_and_update().clone();
            // What is there of one kind may be what is missing, until it was listed.
            if listed & ALL_LISTED == ALL_LISTED {
                let inputs = Inputs {
                    reports,
                    state: self.latest.lock().clone(),
                    knows_classes: self.knows_classes(),
                };
                // Nearly all that changes in a mesh has nothing to do with it.
                if last.as_ref().is_none_or(|last| !last.is_same(&inputs)) {
                    self.wishes.set(WHO, self.look(&inputs, &known));
                    last = Some(inputs);
                }
            }
        }
    }

    /// Lists what should be written.
    fn look(&self, inputs: &Inputs, known: &Known) -> Vec<Wanted> {
        let Inputs {
            reports,
            state,
            knows_classes,
        } = inputs;
        let mut wanted = Vec::new();
        if self.settings.classes && *knows_classes {
            wanted.extend(missing_classes(state));
        }
        if !self.settings.gateways {
            return wanted;
        }
        let rendering = Rendering::new(state, &self.settings);
        for (name, report) in &reports.gateways {
            let gateway = state.objects.kubernetes_gateways.get(name);
            let (Some(gateway), Some(deployment)) = (gateway, &report.deployment) else {
                continue;
            };
            if gateway.meta.generation != report.generation || gateway.meta.deleting {
                continue;
            }
            match rendering.render(gateway, deployment) {
                Ok(made) => wanted.extend(made.into_iter().filter_map(|made| differs(known, made))),
                Err(error) => tracing::warn!(gateway = %name, %error, "gateway is not deployed"),
            }
        }
        wanted
    }

    /// Whether it is known which classes there are.
    fn knows_classes(&self) -> bool {
        let mut tables = self.tables.list().into_iter();
        tables.any(|table| table.kind == Kind::GatewayClass && table.phase == Phase::Synced)
    }
}

/// Bits of the kinds without which nothing is written.
const ALL_LISTED: u8 = (1 << KINDS.len()) - 1;

/// Takes in what is known of deployed objects.
fn note(known: &mut Known, listed: &mut u8, (resource, seen): (Resource, Seen<DynamicObject>)) {
    let entry = |object: DynamicObject| {
        let DynamicObject { metadata, data, .. } = object;
        let target = target(
            resource,
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default(),
        );
        let version = metadata.resource_version.clone().unwrap_or_default();
        let mut value = data;
        value["metadata"] = json!({
            "labels": metadata.labels,
            "annotations": metadata.annotations,
            "ownerReferences": metadata.owner_references,
        });
        (target, (version, value))
    };
    match seen {
        Seen::All(objects) => {
            known.retain(|target, _| target.resource != resource);
            known.extend(objects.into_iter().map(entry));
            let place = KINDS.iter().position(|known| *known == resource);
            *listed |= place.map_or(0, |place| 1 << place);
        }
        Seen::Put(object) => known.extend([entry(object)]),
        Seen::Gone(object) => {
            known.remove(&entry(object).0);
        }
    }
}

fn target(resource: Resource, namespace: &str, name: &str) -> Target {
    Target {
        resource,
        part: Part::Whole,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// What should be written so that an object is as it was made, if it is not: it was made otherwise, or
/// somebody has changed what was made.
fn differs(known: &Known, made: Made) -> Option<Wanted> {
    let known = known.get(&made.target);
    if known.is_some_and(|(_, object)| overlay::covers(object, &made.fields)) {
        return None;
    }
    Some(Wanted {
        target: made.target,
        fields: made.fields,
        seen: known.map(|(version, _)| version.clone()),
        strict: false,
    })
}

/// The classes that every mesh has, as far as they are not there.
fn missing_classes(state: &MeshState) -> Vec<Wanted> {
    let features = &state.features;
    let classes = [
        (
            &*features.default_gateway_class,
            &*features.gateway_controller,
            "The default Istio GatewayClass",
        ),
        (
            "istio-remote",
            "istio.io/unmanaged-gateway",
            "Remote to this cluster. Does not deploy or affect configuration.",
        ),
        (
            "istio-waypoint",
            "istio.io/mesh-controller",
            "The default Istio waypoint GatewayClass",
        ),
        (
            "istio-east-west",
            "istio.io/eastwest-controller",
            "The default GatewayClass for Istio East West Gateways",
        ),
    ];
    let missing = classes.into_iter().filter(|(name, ..)| {
        let name = NamespacedName::new("", *name);
        !state.objects.gateway_classes.contains_key(&name)
    });
    missing
        .map(|(name, controller, description)| Wanted {
            target: target(CLASS, "", name),
            fields: json!({"spec": {"controllerName": controller, "description": description}}),
            seen: None,
            strict: false,
        })
        .collect()
}

/// Follows all objects of one kind that are deployed for gateways.
async fn follow_kind(
    client: Client,
    resource: Resource,
    all: mpsc::Sender<(Resource, Seen<DynamicObject>)>,
    stop: CancellationToken,
) {
    let named = GroupVersionKind::gvk(resource.group, resource.version, resource.kind);
    let api = Api::all_with(
        client,
        &ApiResource::from_gvk_with_plural(&named, resource.plural),
    );
    let (seen, mut events) = mpsc::channel(1);
    let pass = async {
        while let Some(event) = events.recv().await {
            if all.send((resource, event)).await.is_err() {
                return;
            }
        }
    };
    let labelled = ListParams::default().labels(MANAGED);
    tokio::join!(follow(api, &labelled, seen, stop), pass);
}

#[cfg(test)]
mod tests;
