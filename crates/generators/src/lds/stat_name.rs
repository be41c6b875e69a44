//! Patterns for names of statistics (listeners §8.3, §8.4).

use model::service::{Attributes, Registry};

use super::outbound::PortRef;

/// The names of a service that a pattern can ask for.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ServiceNames {
    /// `name.namespace` of Kubernetes services, else the host.
    pub short: String,
    /// Name of the object.
    pub name: String,
    /// The host.
    pub fqdn: String,
}

impl ServiceNames {
    /// Reads the names of a service known as `hostname`.
    pub(crate) fn of(hostname: &str, attributes: &Attributes) -> Self {
        Self {
            short: match attributes.registry {
                Registry::Kubernetes => format!("{}.{}", attributes.name, attributes.namespace),
                Registry::External => hostname.to_owned(),
            },
            name: attributes.name.to_string(),
            fqdn: hostname.to_owned(),
        }
    }
}

/// Expands `pattern` for an outbound destination; `%TARGET_PORT%` is unknown and becomes 0.
pub(crate) fn outbound(
    pattern: &str,
    hostname: &str,
    subset: &str,
    port: PortRef<'_>,
    attributes: &Attributes,
) -> String {
    let names = ServiceNames::of(hostname, attributes);
    expand(pattern, &names, subset, port.number, port.name).replace("%TARGET_PORT%", "0")
}

/// Expands `pattern` for an inbound chain; `%TARGET_PORT%` stays as it is.
pub(crate) fn inbound(pattern: &str, names: &ServiceNames, port: u16, port_name: &str) -> String {
    expand(pattern, names, "", port, port_name)
}

fn expand(pattern: &str, names: &ServiceNames, subset: &str, port: u16, port_name: &str) -> String {
    pattern
        .replace("%SERVICE%", &names.short)
        .replace("%SERVICE_NAME%", &names.name)
        .replace("%SERVICE_FQDN%", &names.fqdn)
        .replace("%SUBSET_NAME%", subset)
        .replace("%SERVICE_PORT%", &port.to_string())
        .replace("%SERVICE_PORT_NAME%", port_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_operators_expand() {
        let names = ServiceNames {
            short: "a.b".into(),
            name: "a".into(),
            fqdn: "a.b.svc".into(),
        };
        let pattern = "%SERVICE%_%SERVICE_NAME%_%SERVICE_FQDN%_%SERVICE_PORT%_%SERVICE_PORT_NAME%_%TARGET_PORT%";
        assert_eq!(
            inbound(pattern, &names, 80, "http"),
            "a.b_a_a.b.svc_80_http_%TARGET_PORT%"
        );
    }
}
