//! Collects the inputs of load assignments from a snapshot and a class.

use std::{collections::BTreeMap, sync::Arc};

use model::{Labels, Protocol, ProxyType, Resolution, Service};
use pushctx::{ConsolidatedRule, ProxyClass, PushContext};

use super::{
    assignment::{AssignmentInputs, Purpose, depends_on_place},
    local::LocalInputs,
    network::Horizon,
    view::{EndpointView, Place},
};
use crate::{
    inputs::{Sealed, Shared},
    mtls::NamespacePolicies,
    names,
};

/// Everything that planning looks at, collected once per class.
#[derive(Debug)]
pub(crate) struct EndpointPlanner<'a> {
    snapshot: &'a PushContext,
    class: &'a ProxyClass,
    view: Shared<Sealed<EndpointView>>,
    place: Shared<Sealed<Place>>,
    horizon: Shared<Sealed<Horizon>>,
    policies: BTreeMap<Arc<str>, Shared<Sealed<NamespacePolicies>>>,
    no_policies: Shared<Sealed<NamespacePolicies>>,
}

impl<'a> EndpointPlanner<'a> {
    /// Collects what all assignments of a class share.
    pub(crate) fn new(snapshot: &'a PushContext, class: &'a ProxyClass) -> Self {
        let view = EndpointView::new(&class.proxy, snapshot.mesh(), snapshot.features());
        let place = Place {
            locality: class.locality.clone(),
            labels: class.labels.clone(),
        };
        let table = &snapshot.state().objects.peer_authentications;
        let root = snapshot.root_namespace();
        let of_namespace =
            |namespace: &str| Sealed::share(NamespacePolicies::new(table, root, namespace));
        // Namespaces without policies share those of the mesh.
        let mut policies = BTreeMap::new();
        for key in table.keys().filter(|key| *key.namespace != *root) {
            let namespace = &key.namespace;
            if !policies.contains_key(namespace) {
                policies.insert(namespace.clone(), of_namespace(namespace));
            }
        }
        Self {
            view: Sealed::share(view),
            place: Sealed::share(place),
            horizon: Sealed::share(Horizon::new(&snapshot.state().gateways)),
            policies,
            no_policies: of_namespace(root),
            snapshot,
            class,
        }
    }

    /// Copies the planner for a thread of its own.
    pub(crate) fn for_thread(&self) -> Self {
        let policies = self.policies.iter();
        Self {
            snapshot: self.snapshot,
            class: self.class,
            view: self.view.detached(),
            place: self.place.detached(),
            horizon: self.horizon.detached(),
            policies: policies
                .map(|(namespace, policies)| (namespace.clone(), policies.detached()))
                .collect(),
            no_policies: self.no_policies.detached(),
        }
    }

    /// Policies of mutual TLS in a service's namespace.
    fn policies(&self, service: &Service) -> &Shared<Sealed<NamespacePolicies>> {
        self.policies
            .get(&service.attributes.namespace)
            .unwrap_or(&self.no_policies)
    }

    /// Finds a visible service.
    pub(crate) fn service(&self, hostname: &str) -> Option<&'a Arc<Service>> {
        self.class.scope.service(hostname)
    }

    /// Finds a service that the class handles as a waypoint.
    pub(crate) fn handled(&self, hostname: &str) -> Option<&'a Arc<Service>> {
        self.class.waypoint.as_ref()?.service(hostname)
    }

    /// The rule for a service that the class handles as a waypoint.
    pub(crate) fn inbound_rule(&self, service: &Service) -> Option<&'a Arc<ConsolidatedRule>> {
        self.class.scope.inbound_rule(&service.hostname)
    }

    /// The rule for a service.
    pub(crate) fn rule(&self, service: &Service) -> Option<&'a Arc<ConsolidatedRule>> {
        self.class
            .scope
            .outbound_rule(&service.hostname, &self.class.labels)
    }

    /// Names of the assignments that clusters of the class's services wait for.
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        let router = self.class.proxy.proxy_type == ProxyType::Router;
        let eds = |service: &&Arc<Service>| match service.resolution {
            Resolution::ClientSideLb => true,
            Resolution::Passthrough => router,
            Resolution::DnsLb
            | Resolution::DnsRoundRobinLb
            | Resolution::Alias
            | Resolution::DynamicDns => false,
        };
        let mut names = Vec::new();
        for service in self.class.scope.services.iter().filter(eds) {
            let subsets = self
                .rule(service)
                .map_or(&[][..], |r| &r.config.spec.subsets);
            let subsets = || std::iter::once("").chain(subsets.iter().map(|s| s.name.as_str()));
            for port in service.ports.iter().filter(|p| p.protocol != Protocol::Udp) {
                let of_port = subsets();
                names.extend(
                    of_port.map(|s| names::outbound(port.port, s, &service.hostname).into()),
                );
            }
        }
        for service in self
            .class
            .waypoint
            .iter()
            .flat_map(|w| &w.services)
            .filter(eds)
        {
            let subsets = self
                .inbound_rule(service)
                .map_or(&[][..], |r| &r.config.spec.subsets);
            let subsets: Vec<&str> = subsets.iter().map(|s| s.name.as_str()).collect();
            for port in &service.ports {
                for kind in names::vip_kinds(port.protocol, &subsets) {
                    names.push(names::inbound_vip(port.port, &kind, &service.hostname).into());
                }
            }
        }
        names
    }

    /// Inputs of one assignment.
    pub(crate) fn inputs(
        &self,
        service: &Arc<Service>,
        port: u16,
        subset: &str,
        rule: Option<&Arc<ConsolidatedRule>>,
        purpose: Purpose,
    ) -> AssignmentInputs {
        let mut inputs = AssignmentInputs {
            view: self.view.clone(),
            place: None,
            service: Shared::new(service),
            port,
            subset: subset.to_owned(),
            rule: rule.map(Shared::new),
            endpoints: self.snapshot.endpoints_of(service).map(Shared::new),
            horizon: self.horizon.clone(),
            peer_authentications: self.policies(service).clone(),
            cluster_local: self.snapshot.is_cluster_local(&service.hostname),
            purpose,
        };
        if depends_on_place(
            service,
            &inputs.locality_setting(),
            inputs.detects_outliers(),
        ) {
            inputs.place = Some(self.place.clone());
        }
        inputs
    }

    /// Inputs of the proxy's own cluster; `None` when it does not discover itself.
    pub(crate) fn local(&self) -> Option<LocalInputs> {
        let metadata = &self.class.proxy.metadata;
        let target = self
            .class
            .targets
            .first()
            .filter(|_| metadata.enable_self_discovery)?;
        let assignment = self.inputs(
            &target.service,
            target.port.port,
            "",
            None,
            Purpose::Assignment,
        );
        let hash = |key: &str| self.label(key).to_owned();
        Some(LocalInputs {
            assignment: AssignmentInputs {
                place: None,
                ..assignment
            },
            workload: metadata.workload_name.clone(),
            hashes: LocalInputs::HASHES.map(hash),
            region: self.class.locality.region.clone(),
        })
    }

    fn label(&self, key: &str) -> &str {
        let labels: &Labels = &self.class.labels;
        labels.get(key).map_or("", String::as_str)
    }
}
