//! Names of clusters in statistics (clusters-endpoints §3.3).

use model::{Port, Service};

/// Separates the cluster's part from the rest of a statistic's name.
const DELIMITER: char = ';';

/// What a pattern can name.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatNameParts<'a> {
    /// The service; `None` for a listener of a Sidecar that no service reaches.
    pub service: Option<&'a Service>,
    /// The service's host name, or what stands for it.
    pub hostname: &'a str,
    /// Its port.
    pub port: &'a Port,
    /// The subset; empty for none.
    pub subset: &'a str,
    /// The workload port; 0 for outbound clusters.
    pub target_port: u16,
}

/// The alternative name of a cluster: its own, or what the mesh's pattern gives.
pub(super) fn alt_stat_name(pattern: &str, name: &str, parts: &StatNameParts<'_>) -> String {
    let mut result = if pattern.is_empty() {
        name.to_owned()
    } else {
        parts.fill(pattern)
    };
    result.push(DELIMITER);
    result
}

/// The alternative name of a cluster without a service.
pub(super) fn fixed(name: &str) -> String {
    let mut result = name.to_owned();
    result.push(DELIMITER);
    result
}

impl StatNameParts<'_> {
    /// Replaces the tokens of a pattern, one kind after the other.
    pub(super) fn fill(&self, pattern: &str) -> String {
        let (service, name) = match self.service.filter(|s| s.is_kubernetes()) {
            Some(service) => {
                let attributes = &service.attributes;
                (
                    format!("{}.{}", attributes.name, attributes.namespace),
                    &*attributes.name,
                )
            }
            None => (self.hostname.to_owned(), self.hostname),
        };
        pattern
            .replace("%SERVICE%", &service)
            .replace("%SERVICE_NAME%", name)
            .replace("%SERVICE_FQDN%", self.hostname)
            .replace("%SUBSET_NAME%", self.subset)
            .replace("%TARGET_PORT%", &self.target_port.to_string())
            .replace("%SERVICE_PORT%", &self.port.port.to_string())
            .replace("%SERVICE_PORT_NAME%", &self.port.name)
    }
}
