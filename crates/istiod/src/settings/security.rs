//! Settings of identities: the authority, its certificates, who may ask.

use std::{path::PathBuf, time::Duration};

use security::Lifetimes;

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
    /// Streams of the secure port are authenticated; `XDS_AUTH`, true.
    pub authenticates: bool,
    /// An authenticated proxy must be of the namespace and service account that it names;
    /// `PILOT_ENABLE_XDS_IDENTITY_CHECK`, true.
    pub checks_identity: bool,
    /// Further host names of the control plane; `ISTIOD_CUSTOM_HOST`, none.
    pub hosts: Vec<String>,
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
            authority_folder: reader.parsed(
                "ROOT_CA_DIR",
                PathBuf::from("./etc/cacerts"),
                "a folder",
                |text| Some(text.into()),
            ),
            authenticates: reader.flag("XDS_AUTH", true),
            checks_identity: reader.flag("PILOT_ENABLE_XDS_IDENTITY_CHECK", true),
        }
    }
}
