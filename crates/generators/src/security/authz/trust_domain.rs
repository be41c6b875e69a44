//! Trust domains of the mesh in principals (security-policy §10).

/// The trust domain that always means the mesh's own.
const DEFAULT: &str = "cluster.local";

/// Expands principals: a trust domain of the mesh stands for all of them.
pub(super) fn principals(values: &[String], domains: &[String]) -> Vec<String> {
    values.iter().flat_map(|v| principal(v, domains)).collect()
}

fn principal(value: &str, domains: &[String]) -> Vec<String> {
    let parts: Vec<&str> = value.split('/').collect();
    let [domain, ..] = parts[..] else {
        return vec![value.to_owned()];
    };
    if parts.len() != 5 || domain == "*" {
        return vec![value.to_owned()];
    }
    if domain != DEFAULT && !domains.iter().any(|d| same(domain, d)) {
        return vec![value.to_owned()];
    }
    let mut expanded: Vec<String> = Vec::with_capacity(domains.len());
    for own in domains {
        let covered = domain
            .strip_prefix('*')
            .is_some_and(|rest| own.ends_with(rest));
        let name = if covered {
            value.to_owned()
        } else {
            format!("{own}{}", &value[domain.len()..])
        };
        if !expanded.contains(&name) {
            expanded.push(name);
        }
    }
    expanded
}

/// Tells whether a principal's trust domain means one of the mesh.
fn same(domain: &str, own: &str) -> bool {
    let covers = |pattern: &str, name: &str| {
        pattern
            .strip_prefix('*')
            .is_some_and(|suffix| name.ends_with(suffix))
            || pattern
                .strip_suffix('*')
                .is_some_and(|prefix| name.starts_with(prefix))
    };
    domain == own || own == "*" || covers(domain, own) || covers(own, domain)
}

/// Expands trust domains: one of the mesh stands for all of them.
pub(super) fn domains(values: &[String], domains: &[String]) -> Vec<String> {
    let mut expanded: Vec<String> = Vec::new();
    for value in values {
        let own = std::slice::from_ref(value);
        for domain in if domains.contains(value) {
            domains
        } else {
            own
        } {
            if !expanded.contains(domain) {
                expanded.push(domain.clone());
            }
        }
    }
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: &str, expected: &[&str]) {
        let domains = ["td1".to_owned(), "td2".to_owned()];
        assert_eq!(principals(&[value.to_owned()], &domains), expected);
    }

    #[test]
    fn domains_of_the_mesh_stand_for_each_other() {
        check("td1/ns/a/sa/b", &["td1/ns/a/sa/b", "td2/ns/a/sa/b"]);
        check(
            "cluster.local/ns/a/sa/b",
            &["td1/ns/a/sa/b", "td2/ns/a/sa/b"],
        );
        check("other/ns/a/sa/b", &["other/ns/a/sa/b"]);
        check("*/ns/a/sa/b", &["*/ns/a/sa/b"]);
        check("td1/ns/a", &["td1/ns/a"]);
        check("*1/ns/a/sa/b", &["*1/ns/a/sa/b", "td2/ns/a/sa/b"]);
    }
}
