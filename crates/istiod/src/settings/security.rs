//! Settings of identities: the authority, its certificates, who may ask.

use std::{path::PathBuf, time::Duration};

use security::Lifetimes;
use serde::Deserialize;

use super::{Reader, Source};

/// The part of the settings that concerns identities.
#[derive(Clone, PartialEq, Debug)]
pub struct SecuritySettings {
    /// Folder of a plugged-in authority, used when there is one; `ROOT_CA_DIR`, `./etc/cacerts`.
    pub authority_folder: PathBuf,
    /// Lifetime of certificates where a request names none, 24h, and the longest one, 2160h;
    /// `DEFAULT_WORKLOAD_CERT_TTL`, `MAX_WORKLOAD_CERT_TTL`.
    pub lifetimes: Lifetimes,
    /// Lifetime of a root that is made at the start; `CITADEL_SELF_SIGNED_CA_CERT_TTL`, 87600h.
    pub root_lifetime: Duration,
    /// What tokens must be for, one of these; `TOKEN_AUDIENCES`, `istio-ca`.
    pub audiences: Vec<String>,
    /// An issuer of tokens, as JSON with `issuer`, `jwks_uri` and `audiences`; `JWT_RULE`, none.
    pub issuer_rule: Option<IssuerRule>,
    /// Streams of the secure port are authenticated; `XDS_AUTH`, true.
    pub authenticates: bool,
    /// An authenticated proxy must be of the namespace and service account that it names;
    /// `PILOT_ENABLE_XDS_IDENTITY_CHECK`, true.
    pub checks_identity: bool,
    /// Further host names of the control plane; `ISTIOD_CUSTOM_HOST`, none.
    pub hosts: Vec<String>,
    /// Service accounts, by namespace and name, of agents that may ask for certificates of the pods of
    /// their nodes; `CA_TRUSTED_NODE_ACCOUNTS`, none.
    pub agents: Vec<(String, String)>,
    /// What is seen over HTTP, and by whom.
    pub views: ViewSettings,
}

/// Settings of the HTTP ports (observability §7).
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a variable of its own"
)]
pub struct ViewSettings {
    /// There are debug pages, and that for people, at all; `ENABLE_DEBUG_ON_HTTP`, true.
    pub debug: bool,
    /// Identities of other namespaces than the system's see their own only;
    /// `ENABLE_DEBUG_ENDPOINT_AUTH`, true.
    pub by_namespace: bool,
    /// Namespaces whose identities see everything, too; `DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES`, none.
    pub allowed: Vec<String>,
    /// Tokens prove who asks; as `XDS_AUTH`. Without, only callers of the same host are answered.
    pub authenticates: bool,
    /// Metrics are for callers of the same host; `METRICS_LOCALHOST_ACCESS_ONLY`, false.
    pub local_metrics: bool,
}

/// The issuer of `JWT_RULE`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuerRule {
    /// The claim `iss`.
    pub issuer: String,
    /// Where its keys are; empty where its `OpenID` configuration says it.
    #[serde(default, alias = "jwks_uri")]
    pub jwks_uri: String,
    /// One of these must be in the claim `aud`; those of `TOKEN_AUDIENCES` by default.
    #[serde(default)]
    pub audiences: Vec<String>,
}

impl IssuerRule {
    /// Reads the JSON of the variable.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let rule: Self = serde_json::from_str(text).ok()?;
        (!rule.issuer.is_empty()).then_some(rule)
    }
}

impl SecuritySettings {
    /// Reads them.
    pub(super) fn read(reader: &mut Reader<'_, impl Source>) -> Self {
        const EXPECTED: &str = "a duration of at least a minute, such as 24h";
        let mut lifetime = |variable, default| {
            let range = Duration::from_mins(1)..=Duration::from_hours(100 * 365 * 24);
            reader.duration_in(variable, default, range, EXPECTED)
        };
        let defaults = Lifetimes::default();
        let lifetimes = Lifetimes {
            default: lifetime("DEFAULT_WORKLOAD_CERT_TTL", defaults.default),
            max: lifetime("MAX_WORKLOAD_CERT_TTL", defaults.max),
        };
        let ten_years = Duration::from_hours(10 * 365 * 24);
        let root_lifetime = lifetime("CITADEL_SELF_SIGNED_CA_CERT_TTL", ten_years);
        let authenticates = reader.flag("XDS_AUTH", true);
        let mut list = |variable, default: &[&str]| {
            let default = default.iter().map(|text| (*text).to_owned()).collect();
            reader.parsed(
                variable,
                default,
                "names with commas between them",
                |text| {
                    Some(
                        text.split(',')
                            .map(|item| item.trim().to_owned())
                            .filter(|item| !item.is_empty())
                            .collect(),
                    )
                },
            )
        };
        Self {
            lifetimes,
            root_lifetime,
            audiences: list("TOKEN_AUDIENCES", &["istio-ca"]),
            hosts: list("ISTIOD_CUSTOM_HOST", &[]),
            views: ViewSettings {
                allowed: list("DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES", &[]),
                debug: reader.flag("ENABLE_DEBUG_ON_HTTP", true),
                by_namespace: reader.flag("ENABLE_DEBUG_ENDPOINT_AUTH", true),
                local_metrics: reader.flag("METRICS_LOCALHOST_ACCESS_ONLY", false),
                authenticates,
            },
            agents: reader.parsed(
                "CA_TRUSTED_NODE_ACCOUNTS",
                Vec::new(),
                "namespace/name of service accounts with commas between",
                accounts,
            ),
            issuer_rule: reader.parsed(
                "JWT_RULE",
                None,
                "a JSON object with issuer, jwks_uri and audiences",
                |text| IssuerRule::parse(text).map(Some),
            ),
            authority_folder: reader.parsed(
                "ROOT_CA_DIR",
                PathBuf::from("./etc/cacerts"),
                "a folder",
                |text| Some(text.into()),
            ),
            authenticates,
            checks_identity: reader.flag("PILOT_ENABLE_XDS_IDENTITY_CHECK", true),
        }
    }
}

/// Reads service accounts.
fn accounts(text: &str) -> Option<Vec<(String, String)>> {
    let items = text.split(',').map(str::trim).filter(|t| !t.is_empty());
    items
        .map(|item| {
            let (namespace, name) = item.split_once('/')?;
            let whole = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
            whole.then(|| (namespace.to_owned(), name.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_have_a_namespace_and_a_name() {
        let pair = |ns: &str, name: &str| (ns.to_owned(), name.to_owned());
        let two = Some(vec![pair("istio-system", "ztunnel"), pair("a", "b")]);
        assert_eq!(accounts("istio-system/ztunnel, a/b,"), two);
        for wrong in ["ztunnel", "/ztunnel", "a/", "a/b/c", "a/b,c"] {
            assert_eq!(accounts(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_rule_is_json() {
        let rule = IssuerRule::parse(r#"{"issuer": "i", "jwks_uri": "u", "audiences": ["a"]}"#);
        let expected = IssuerRule {
            issuer: "i".to_owned(),
            jwks_uri: "u".to_owned(),
            audiences: vec!["a".to_owned()],
        };
        assert_eq!(rule, Some(expected));
        for wrong in ["", "{}", r#"{"issuer": ""}"#, "issuer: i"] {
            assert_eq!(IssuerRule::parse(wrong), None, "{wrong}");
        }
    }
}
