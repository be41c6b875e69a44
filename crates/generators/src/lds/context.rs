//! What planning looks at: one class in one snapshot.

use std::{net::IpAddr, sync::Arc};

use model::{
    AddressView, Features, Service, api,
    proxy::{InterceptionMode, NodeMetadata, Proxy},
};
use pushctx::{ConsolidatedRule, ProxyClass, PushContext, SidecarScope};

use super::address::{LocalAddresses, TakenPorts};

/// One class in one snapshot, with the facts that every part of planning needs.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// The snapshot.
    pub snapshot: &'a PushContext,
    /// The class.
    pub class: &'a ProxyClass,
    /// Which addresses of services the class uses.
    pub view: AddressView,
    /// Where its listeners bind.
    pub local: LocalAddresses,
}

impl<'a> Context<'a> {
    /// Reads the facts of `class`.
    pub(crate) fn new(snapshot: &'a PushContext, class: &'a ProxyClass) -> Self {
        Self {
            snapshot,
            class,
            view: AddressView::of(&class.proxy, snapshot.features()),
            local: LocalAddresses::of(class.proxy.ip_mode),
        }
    }

    /// Mesh configuration.
    pub(crate) fn mesh(&self) -> &'a api::MeshConfig {
        self.snapshot.mesh()
    }

    /// Feature flags.
    pub(crate) fn features(&self) -> &'a Features {
        self.snapshot.features()
    }

    /// The proxy, without its own identity.
    pub(crate) fn proxy(&self) -> &'a Proxy {
        &self.class.proxy
    }

    /// Node metadata.
    pub(crate) fn metadata(&self) -> &'a NodeMetadata {
        &self.class.proxy.metadata
    }

    /// What the class can see.
    pub(crate) fn scope(&self) -> &'a SidecarScope {
        &self.class.scope
    }

    /// How traffic reaches the proxy.
    pub(crate) fn interception(&self) -> InterceptionMode {
        self.metadata().interception_mode
    }

    /// Ports that listeners must not take.
    pub(crate) fn taken_ports(&self) -> TakenPorts<'a> {
        TakenPorts::new(&self.class.proxy, self.snapshot.mesh(), &self.local)
    }

    /// The proxy's own addresses; those of the class where only the family matters.
    pub(crate) fn own_addresses(&self) -> &'a [IpAddr] {
        self.class
            .addresses
            .as_deref()
            .unwrap_or(&self.class.proxy.addresses)
    }

    /// The settings that the proxy was started with, else the mesh's.
    pub(crate) fn proxy_config(&self) -> &'a api::MeshProxyConfig {
        match &self.class.proxy.metadata.proxy_config {
            Some(own) => own,
            None => &self.snapshot.mesh().default_config,
        }
    }

    /// Finds a service that the class sees.
    pub(crate) fn service(&self, hostname: &str) -> Option<&'a Arc<Service>> {
        self.class.scope.service(hostname)
    }

    /// Finds the rule that the class applies to a service.
    pub(crate) fn outbound_rule(&self, hostname: &str) -> Option<&'a Arc<ConsolidatedRule>> {
        self.class.scope.outbound_rule(hostname, &self.class.labels)
    }

    /// `IDLE_TIMEOUT` of the metadata, when it is a duration.
    pub(crate) fn idle_timeout(&self) -> Option<api::Duration> {
        self.class.proxy.metadata.idle_timeout.parse().ok()
    }
}
