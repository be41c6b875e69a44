//! SDS: secrets by name (gateways §18, xds-server §23).
//!
//! The certificates that Gateways and DestinationRules name by `credentialName`. Workload
//! certificates come from the proxy's agent.
//!
//! Keys are nowhere shown: objects and resources have debug forms without their content, and what
//! is made on the way is overwritten.

mod content;
mod name;
pub(crate) mod relevance;

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::Secret;
use model::{ConfigKey, Kind, NamespacedName, proxy::Identity};
use pushctx::{ProxyClass, PushContext};
use xds::{Interest, Resource, ResourceSet, Source};
use zeroize::Zeroizing;

use crate::proxy_config;
use content::{Authorities, KeyPair};
use name::{SecretName, Store};

/// Returns the secrets that `interest` names and the class may have; a missing, broken or denied one
/// is left out and takes nothing else with it.
pub(crate) fn generate(
    context: &PushContext,
    class: &ProxyClass,
    interest: &Interest,
) -> ResourceSet {
    let (Some(names), Some(identity)) = (interest.names(), &class.proxy.identity) else {
        return ResourceSet::default();
    };
    let server = Server {
        context,
        class,
        identity,
        referred: referred(context, class, identity, names.iter()),
    };
    let served = names.iter().filter_map(|name| server.secret(name));
    served.collect()
}

/// The secrets that the Gateways of a proxy refer to, if any of `names` depends on that.
fn referred<'a>(
    context: &PushContext,
    class: &ProxyClass,
    identity: &Identity,
    mut names: impl Iterator<Item = &'a Arc<str>>,
) -> BTreeSet<String> {
    match &class.gateway {
        Some(gateway)
            if identity.owns_gateways
                && names.any(|name| name.starts_with("kubernetes-gateway://")) =>
        {
            gateway.authorized_secrets(context, &identity.namespace, &identity.service_account)
        }
        _ => BTreeSet::new(),
    }
}

/// Serves one class of proxies.
struct Server<'a> {
    context: &'a PushContext,
    class: &'a ProxyClass,
    identity: &'a Identity,
    referred: BTreeSet<String>,
}

impl Server<'_> {
    fn secret(&self, resource: &Arc<str>) -> Option<Resource> {
        let refused = |reason: &str| {
            let account = &self.identity.service_account;
            let namespace = &self.identity.namespace;
            tracing::debug!(%resource, %namespace, %account, reason, "secret is not served");
            self.context.secret_errors().count();
        };
        let Some(name) = SecretName::parse(resource, &self.identity.namespace) else {
            refused("it is no name of a secret");
            return None;
        };
        if !self.may_have(&name, resource) {
            refused("the proxy may not have it");
            return None;
        }
        let Some((message, source)) = self.message(&name, resource) else {
            refused("there is none with the needed values");
            return None;
        };
        Some(finished(resource, message, &source))
    }

    /// Tells whether the proxy may have a secret (gateways §18.2).
    fn may_have(&self, name: &SecretName, resource: &str) -> bool {
        match name.store {
            Store::Secret => {
                name.object.namespace == self.identity.namespace
                    && (name.is_ca() || self.identity.reads_secrets)
            }
            Store::GatewaySecret => self.referred.contains(resource),
            Store::ConfigMap => true,
        }
    }

    /// Finds the object of a secret and reads it.
    fn message(&self, name: &SecretName, resource: &str) -> Option<(Secret, ConfigKey)> {
        let objects = &self.context.state().objects;
        if name.store == Store::ConfigMap {
            let bare = name.bare();
            let object = objects.config_maps.get(&bare)?;
            let message = Authorities::of_config_map(&object.spec)?.message(resource);
            return Some((message, key(Kind::ConfigMap, bare)));
        }
        if name.is_ca() {
            // The one without the suffix stands in for an object that does not exist, not for one that
            // lacks certificates.
            let found = objects.secrets.get(&name.object);
            let object = found.or_else(|| objects.secrets.get(&name.bare()))?;
            let message = Authorities::of_secret(&object.spec)?.message(resource);
            return Some((message, key(Kind::Secret, object.meta.namespaced_name())));
        }
        let object = objects.secrets.get(&name.object)?;
        let provider = proxy_config::of(self.context, self.class)
            .private_key_provider
            .as_ref();
        let message = KeyPair::of(&object.spec)?.message(resource, provider);
        Some((message, key(Kind::Secret, name.object.clone())))
    }
}

fn key(kind: Kind, object: NamespacedName) -> ConfigKey {
    ConfigKey::new(kind, object.namespace, object.name)
}

/// Encodes a secret into bytes that are overwritten when the last proxy is rid of them.
fn finished(name: &Arc<str>, mut message: Secret, source: &ConfigKey) -> Resource {
    let bytes = Zeroizing::new(envoy_json::canonical_vec(&message));
    content::wipe(&mut message);
    Resource::new(name.clone(), Bytes::from_owner(bytes))
        .with_sources(vec![Source::from(source.to_string())])
}

#[cfg(test)]
mod tests;
