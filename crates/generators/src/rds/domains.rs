//! Names under which a service is reached (routes §7.2, §7.3).

use std::{borrow::Cow, net::IpAddr};

use model::{Resolution, Service, service::UNSPECIFIED_ADDRESS};

use super::inputs::ClientView;

/// The domains of a service's virtual host.
pub(super) struct Domains {
    /// All domains, in order.
    pub all: Vec<String>,
    /// Those among them that are only alternatives of the host name.
    pub alternatives: Vec<String>,
}

/// Lists the domains of a service. With `port` each is followed by its form with that port.
pub(super) fn of_service(service: &Service, port: Option<u16>, client: &ClientView) -> Domains {
    let mut all = Vec::new();
    let mut alternatives = Vec::new();
    let aliases = service
        .attributes
        .aliases
        .iter()
        .map(|alias| &alias.hostname);
    for hostname in std::iter::once(&service.hostname).chain(aliases) {
        push(&mut all, hostname.to_string(), port);
        let before = all.len();
        push_alternatives(&mut all, hostname, port, client);
        alternatives.extend_from_slice(&all[before..]);
    }
    if service.resolution == Resolution::Passthrough && service.is_kubernetes() {
        let wildcards: Vec<_> = all.iter().map(|domain| format!("*.{domain}")).collect();
        all.extend(wildcards);
    }
    for address in service.addresses_for(&client.addresses) {
        if !address.is_empty() && &*address != UNSPECIFIED_ADDRESS {
            push(&mut all, bracketed(&address), port);
        }
    }
    Domains { all, alternatives }
}

/// Writes an IPv6 literal in brackets and everything else as it is.
pub(super) fn bracketed(host: &str) -> String {
    match host.parse() {
        Ok(IpAddr::V6(_)) => format!("[{host}]"),
        _ => host.to_owned(),
    }
}

/// The lower-case form, mostly the text itself.
pub(super) fn lowercase(text: &str) -> Cow<'_, str> {
    let is_lower = text
        .bytes()
        .all(|b| b.is_ascii() && !b.is_ascii_uppercase());
    if is_lower {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.to_lowercase())
    }
}

fn push(domains: &mut Vec<String>, domain: String, port: Option<u16>) {
    match port {
        Some(port) => {
            let with_port = format!("{domain}:{port}");
            domains.push(domain);
            domains.push(with_port);
        }
        None => domains.push(domain),
    }
}

fn push_alternatives(
    domains: &mut Vec<String>,
    hostname: &str,
    port: Option<u16>,
    client: &ClientView,
) {
    if client.absolute_names {
        let absolute = format!("{hostname}.");
        let with_port = port.map(|port| format!("{absolute}:{port}"));
        if hostname.parse::<IpAddr>().is_err() {
            domains.push(absolute);
        }
        domains.extend(with_port);
    }
    for short in short_forms(hostname, &client.domain) {
        push(domains, short, port);
    }
}

/// Lists further names of a host as seen from the proxy's domain: with `absolute` the form with a
/// trailing dot, then short forms (routes §7.3).
pub(crate) fn alternative_names(hostname: &str, domain: &str, absolute: bool) -> Vec<String> {
    let mut names = Vec::new();
    if absolute && hostname.parse::<IpAddr>().is_err() {
        names.push(format!("{hostname}."));
    }
    names.extend(short_forms(hostname, domain));
    names
}

/// Short forms of a host name as seen from the proxy's domain.
fn short_forms(hostname: &str, domain: &str) -> Vec<String> {
    let Some(at) = domain.find(".svc.") else {
        return shared_suffix_forms(hostname, domain);
    };
    let Some(stem) = hostname.strip_suffix(&domain[at..]) else {
        return Vec::new();
    };
    let name = stem.split('.').next().unwrap_or_default();
    if stem.split_once('.').map(|(_, namespace)| namespace) == Some(&domain[..at]) {
        vec![name.to_owned(), format!("{stem}.svc"), stem.to_owned()]
    } else {
        vec![stem.to_owned(), format!("{stem}.svc")]
    }
}

/// Short forms outside Kubernetes: what is left of the labels that both names end with.
fn shared_suffix_forms(hostname: &str, domain: &str) -> Vec<String> {
    let labels: Vec<&str> = hostname.split('.').collect();
    let own: Vec<&str> = domain.split('.').collect();
    let shared = labels
        .iter()
        .rev()
        .zip(own.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let unique = &labels[..labels.len() - shared];
    if shared == 0 || unique.is_empty() {
        return Vec::new();
    }
    let mut forms = vec![unique.join(".")];
    if unique.len() == 2 {
        forms.push(format!("{}.{}", unique.join("."), labels[unique.len()]));
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_forms_depend_on_the_namespace() {
        for (hostname, domain, expected) in [
            (
                "web.a.svc.cluster.local",
                "a.svc.cluster.local",
                vec!["web", "web.a.svc", "web.a"],
            ),
            (
                "web.a.svc.cluster.local",
                "b.svc.cluster.local",
                vec!["web.a", "web.a.svc"],
            ),
            ("api.example.com", "a.svc.cluster.local", vec![]),
            ("aaa.example.local", "x.svc.cluster.local", vec![]),
            ("foo.local.campus.net", "local.campus.net", vec!["foo"]),
            (
                "foo.local.campus.net",
                "remote.campus.net",
                vec!["foo.local", "foo.local.campus"],
            ),
        ] {
            assert_eq!(
                short_forms(hostname, domain),
                expected,
                "{hostname} from {domain}"
            );
        }
    }
}
