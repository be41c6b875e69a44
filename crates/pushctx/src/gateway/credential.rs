//! Secrets that servers refer to, and who may have them (config-model §12.5, gateways §6.1).

use std::{collections::BTreeSet, sync::Arc};

use model::{
    Config,
    api::{
        Gateway,
        gateway::{Server, ServerTlsMode},
    },
};

use super::{MergedGateway, PARENT_NAMESPACE, SERVICE_ACCOUNT};
use crate::{PushContext, attach::of_namespace};

/// The annotation that names the Gateway API objects behind a Gateway.
const PARENTS: &str = "internal.istio.io/parents";
/// The annotation that names the secret with the certificate that is presented to backends.
const CLIENT_CERTIFICATE: &str = "internal.istio.io/backend-client-certificate";
/// What is added to a secret's name for the certificates that verify clients.
const CA_SUFFIX: &str = "-cacert";

/// A reference to a secret.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CredentialReference {
    /// Resource name of the secret.
    pub name: String,
    /// Further resource names that come with it.
    pub also: Vec<String>,
    /// The namespace of the Gateway object.
    pub gateway_namespace: Arc<str>,
    /// The namespace that a proxy must prove.
    pub namespace: Arc<str>,
    /// The service account that a proxy must prove; empty means any.
    pub service_account: String,
    /// The Gateway stems from a `ListenerSet`.
    pub listener_set: bool,
}

/// Lists the secrets of one server, as its settings write them.
pub(super) fn of_server(server: &Server, config: &Config<Gateway>) -> Vec<CredentialReference> {
    let Some(tls) = &server.tls else {
        return Vec::new();
    };
    let annotations = &config.meta.annotations;
    let reference = |name: String, also: Vec<String>| CredentialReference {
        name,
        also,
        gateway_namespace: config.meta.namespace.clone(),
        namespace: annotations
            .get(PARENT_NAMESPACE)
            .map_or_else(|| config.meta.namespace.clone(), |ns| ns.as_str().into()),
        service_account: annotations
            .get(SERVICE_ACCOUNT)
            .cloned()
            .unwrap_or_default(),
        listener_set: annotations
            .get(PARENTS)
            .is_some_and(|p| p.starts_with("ListenerSet/")),
    };
    let verifies = matches!(
        tls.mode,
        ServerTlsMode::Mutual | ServerTlsMode::OptionalMutual
    );
    let names = if tls.credential_names.is_empty() {
        std::slice::from_ref(&tls.credential_name)
    } else {
        &tls.credential_names[..]
    };
    let mut references: Vec<_> = names
        .iter()
        .filter(|name| !name.is_empty() && !name.starts_with("builtin://"))
        .map(|name| {
            let name = resource_name(name);
            let also = if verifies {
                vec![format!("{name}{CA_SUFFIX}")]
            } else {
                Vec::new()
            };
            reference(name, also)
        })
        .collect();
    if tls
        .ca_cert_credential_name
        .starts_with("kubernetes-gateway://")
    {
        references.push(reference(tls.ca_cert_credential_name.clone(), Vec::new()));
    }
    references
}

/// The secret with the certificate that a Gateway presents to backends. It is the Gateway API object's
/// own, whoever holds the listener.
pub(super) fn of_client(config: &Config<Gateway>) -> Option<CredentialReference> {
    let annotations = &config.meta.annotations;
    let name = annotations.get(CLIENT_CERTIFICATE)?.clone();
    let owner: Arc<str> = annotations
        .get(PARENT_NAMESPACE)
        .map_or_else(|| config.meta.namespace.clone(), |ns| ns.as_str().into());
    Some(CredentialReference {
        name,
        also: Vec::new(),
        gateway_namespace: owner.clone(),
        namespace: owner,
        service_account: annotations
            .get(SERVICE_ACCOUNT)
            .cloned()
            .unwrap_or_default(),
        listener_set: false,
    })
}

fn resource_name(name: &str) -> String {
    const KNOWN: [&str; 4] = [
        "kubernetes://",
        "kubernetes-gateway://",
        "configmap://",
        "invalid://",
    ];
    if KNOWN.iter().any(|scheme| name.starts_with(scheme)) {
        name.to_owned()
    } else {
        format!("kubernetes://{name}")
    }
}

/// Splits a resource name into namespace and name; a name without namespace is of `own`.
fn parse<'a>(resource: &'a str, own: &'a str) -> Option<(&'a str, &'a str)> {
    let (_, path) = resource.split_once("://")?;
    Some(path.split_once('/').unwrap_or((own, path)))
}

impl MergedGateway {
    /// Lists the resource names that a router may ask for on the strength of its Gateways, once its
    /// identity (namespace and service account) is verified.
    pub fn authorized_secrets(
        &self,
        context: &PushContext,
        namespace: &str,
        service_account: &str,
    ) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for reference in &self.credentials {
            let is_owner = *reference.namespace == *namespace
                && (reference.service_account.is_empty()
                    || reference.service_account == service_account);
            if is_owner && reference.may_be_read(context, namespace) {
                names.insert(reference.name.clone());
                names.extend(reference.also.iter().cloned());
            }
        }
        names
    }
}

impl CredentialReference {
    fn may_be_read(&self, context: &PushContext, identity: &str) -> bool {
        let lookup = if self.listener_set {
            &*self.gateway_namespace
        } else {
            identity
        };
        let Some((owner, secret)) = parse(&self.name, lookup) else {
            return false;
        };
        let is_near = *self.gateway_namespace == *identity || self.listener_set;
        if owner == lookup && is_near {
            return true;
        }
        let kind = if self.listener_set {
            "ListenerSet"
        } else {
            "Gateway"
        };
        of_namespace(&context.state().objects.reference_grants, owner).any(|grant| {
            let from = grant.spec.from.iter().any(|f| {
                f.group == "gateway.networking.k8s.io" && f.kind == kind && f.namespace == lookup
            });
            let to = grant.spec.to.iter().any(|t| {
                (t.group.is_empty() || t.group == "core")
                    && t.kind == "Secret"
                    && t.name
                        .as_deref()
                        .is_none_or(|name| name.is_empty() || name == secret)
            });
            from && to
        })
    }
}
