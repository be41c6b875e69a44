//! SPIFFE ids of workloads, and whether one fits what a proxy says of itself.

use std::{fmt, str::FromStr, sync::Arc};

use crate::Proxy;

/// The identity of a workload: `spiffe://<trust domain>/ns/<namespace>/sa/<service account>`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpiffeId {
    trust_domain: Arc<str>,
    namespace: Arc<str>,
    service_account: Arc<str>,
}

/// A text is no SPIFFE id of a workload.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not an identity of the form spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT")]
pub struct NoSpiffeId(String);

impl SpiffeId {
    /// Makes an identity of its parts.
    ///
    /// # Errors
    /// When a part is empty or holds other characters than letters, digits, `.`, `_` and `-`.
    pub fn new(
        trust_domain: &str,
        namespace: &str,
        service_account: &str,
    ) -> Result<Self, NoSpiffeId> {
        if [trust_domain, namespace, service_account]
            .into_iter()
            .all(is_segment)
        {
            return Ok(Self {
                trust_domain: trust_domain.into(),
                namespace: namespace.into(),
                service_account: service_account.into(),
            });
        }
        Err(NoSpiffeId(format!(
            "spiffe://{trust_domain}/ns/{namespace}/sa/{service_account}"
        )))
    }

    /// Who vouches for it.
    pub fn trust_domain(&self) -> &Arc<str> {
        &self.trust_domain
    }

    /// Namespace of the service account.
    pub fn namespace(&self) -> &Arc<str> {
        &self.namespace
    }

    /// Name of the service account.
    pub fn service_account(&self) -> &Arc<str> {
        &self.service_account
    }
}

/// Returns whether a text may be a segment of a SPIFFE id.
fn is_segment(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !text.is_empty() && text.chars().all(allowed) && text != "." && text != ".."
}

impl FromStr for SpiffeId {
    type Err = NoSpiffeId;

    fn from_str(text: &str) -> Result<Self, NoSpiffeId> {
        let wrong = || NoSpiffeId(text.chars().take(256).collect());
        let rest = text.strip_prefix("spiffe://").ok_or_else(wrong)?;
        let parts: Vec<&str> = rest.split('/').collect();
        match parts[..] {
            [trust_domain, "ns", namespace, "sa", account] => {
                Self::new(trust_domain, namespace, account).map_err(|_| wrong())
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (domain, namespace, account) =
            (&self.trust_domain, &self.namespace, &self.service_account);
        write!(f, "spiffe://{domain}/ns/{namespace}/sa/{account}")
    }
}

/// What the other end of a connection has proved to be.
///
/// A transport that authenticates attaches it to each call; where it is missing nothing was proved
/// and nothing was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Authenticated {
    /// Its identities, in the order of its certificate. Never empty.
    pub identities: Arc<[SpiffeId]>,
}

impl Authenticated {
    /// Returns the identity by which the proxy may be who it says it is: the first whose namespace is
    /// the proxy's and whose service account is the one of its metadata, if it names one (xds-server
    /// §5.3). The trust domain is not compared.
    pub fn verify(&self, proxy: &Proxy) -> Option<&SpiffeId> {
        let account = &proxy.metadata.service_account;
        self.identities.iter().find(|identity| {
            (proxy.namespace.is_empty() || identity.namespace == proxy.namespace)
                && (account.is_empty() || *identity.service_account == **account)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Node;

    #[track_caller]
    fn check(text: &str, valid: bool) {
        let parsed = text.parse::<SpiffeId>();
        assert_eq!(parsed.is_ok(), valid, "{parsed:?}");
        if let Ok(id) = parsed {
            assert_eq!(id.to_string(), text);
        }
    }

    #[test]
    fn identities_have_one_form() {
        check("spiffe://cluster.local/ns/default/sa/reviews", true);
        check("spiffe://a-b.svc.id.goog/ns/x/sa/y.z", true);
        check("spiffe://cluster.local/ns/default/sa/", false);
        check("spiffe:///ns/default/sa/x", false);
        check("spiffe://cluster.local/ns/a/sa/b/c", false);
        check("spiffe://cluster.local/ns/../sa/b", false);
        check("spiffe://cluster.local/ns/a b/sa/b", false);
        check("spiffe://cluster.local/ns/a%2f/sa/b", false);
        check("spiffe://cluster.local/sa/a/ns/b", false);
        check("https://cluster.local/ns/a/sa/b", false);
        check("", false);
    }

    #[track_caller]
    fn check_proxy(identities: &[&str], metadata: &serde_json::Value, expected: Option<&str>) {
        let node = Node {
            id: "sidecar~10.0.0.1~reviews.default~default.svc.cluster.local".to_owned(),
            metadata: metadata.as_object().unwrap().clone(),
            ..Node::default()
        };
        let proxy = Proxy::parse(&node).unwrap();
        let authenticated = Authenticated {
            identities: identities.iter().map(|i| i.parse().unwrap()).collect(),
        };
        let verified = authenticated.verify(&proxy).map(ToString::to_string);
        assert_eq!(verified.as_deref(), expected);
    }

    /// The table of xds-server §28.12.
    #[test]
    fn a_proxy_is_of_the_namespace_and_account_of_its_identity() {
        let reviews = "spiffe://cluster.local/ns/default/sa/reviews";
        let other = "spiffe://cluster.local/ns/other/sa/reviews";
        let foreign = "spiffe://old/ns/default/sa/reviews";
        let both = json!({"NAMESPACE": "default", "SERVICE_ACCOUNT": "reviews"});
        let namespace = json!({"NAMESPACE": "default"});
        let wrong = json!({"NAMESPACE": "default", "SERVICE_ACCOUNT": "ratings"});
        check_proxy(&[reviews], &both, Some(reviews));
        check_proxy(&[reviews], &namespace, Some(reviews));
        check_proxy(&[reviews], &wrong, None);
        check_proxy(&[other], &both, None);
        check_proxy(&[other, reviews], &both, Some(reviews));
        check_proxy(&[foreign], &both, Some(foreign));
    }
}
