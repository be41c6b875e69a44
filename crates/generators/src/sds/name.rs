//! Names of secrets: which object, and which part of it (gateways §18.1).

use model::NamespacedName;

/// Ends the names that mean the certificates which verify peers, instead of a key with its
/// certificate.
pub(super) const CA_SUFFIX: &str = "-cacert";

/// Where a secret is kept, and by which rule a proxy may have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Store {
    /// `kubernetes://`: a Secret of the proxy's own namespace.
    Secret,
    /// `kubernetes-gateway://`: a Secret that a Gateway of the proxy refers to.
    GatewaySecret,
    /// `configmap://`: public certificates.
    ConfigMap,
}

/// What a resource name stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SecretName {
    pub store: Store,
    /// The object as the name says it, with the suffix.
    pub object: NamespacedName,
}

impl SecretName {
    /// Understands a resource name; one without namespace is of `own`. `None` for everything that is
    /// not served.
    pub(super) fn parse(resource: &str, own: &str) -> Option<Self> {
        let (scheme, path) = resource.split_once("://")?;
        let mut parts = path.split('/');
        let (first, second) = (parts.next()?, parts.next());
        let (store, object) = match (scheme, second) {
            ("kubernetes", None) => (Store::Secret, (own, first)),
            ("kubernetes", Some(name)) => (Store::Secret, (first, name)),
            ("kubernetes-gateway", Some(name)) => (Store::GatewaySecret, (first, name)),
            ("configmap", Some(name)) => (Store::ConfigMap, (first, name)),
            _ => return None,
        };
        let (namespace, name) = object;
        (!namespace.is_empty() && !name.is_empty()).then(|| Self {
            store,
            object: NamespacedName::new(namespace, name),
        })
    }

    /// Tells whether it asks for certificates alone.
    pub(super) fn is_ca(&self) -> bool {
        self.store == Store::ConfigMap || self.object.name.ends_with(CA_SUFFIX)
    }

    /// The object without the suffix.
    pub(super) fn bare(&self) -> NamespacedName {
        let name = &*self.object.name;
        let name = name.strip_suffix(CA_SUFFIX).unwrap_or(name);
        NamespacedName::new(self.object.namespace.clone(), name)
    }
}

/// Lists the resource names under which proxies may have something of a Secret, or else of a
/// `ConfigMap`.
pub(crate) fn names_of(is_secret: bool, object: &NamespacedName) -> Vec<String> {
    let NamespacedName { namespace, name } = object;
    let bare = name.strip_suffix(CA_SUFFIX).unwrap_or(name);
    let with_suffix = format!("{name}{CA_SUFFIX}");
    let mut names = Vec::new();
    for name in [bare, name, &with_suffix] {
        if is_secret {
            names.push(format!("kubernetes://{name}"));
            names.push(format!("kubernetes://{namespace}/{name}"));
            names.push(format!("kubernetes-gateway://{namespace}/{name}"));
        } else {
            names.push(format!("configmap://{namespace}/{name}"));
        }
    }
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(resource: &str, expected: Option<(Store, &str, bool)>) {
        let found = SecretName::parse(resource, "own");
        let found = found
            .as_ref()
            .map(|name| (name.store, name.object.to_string(), name.is_ca()));
        let found = found
            .as_ref()
            .map(|(store, name, ca)| (*store, &**name, *ca));
        assert_eq!(found, expected, "{resource}");
    }

    #[test]
    fn names_say_store_object_and_part() {
        check("kubernetes://a", Some((Store::Secret, "own/a", false)));
        check(
            "kubernetes://a-cacert",
            Some((Store::Secret, "own/a-cacert", true)),
        );
        check("kubernetes://n/a", Some((Store::Secret, "n/a", false)));
        check("kubernetes://n/a/more", Some((Store::Secret, "n/a", false)));
        check(
            "kubernetes-gateway://n/a",
            Some((Store::GatewaySecret, "n/a", false)),
        );
        check("configmap://n/a", Some((Store::ConfigMap, "n/a", true)));
        for refused in [
            "kubernetes-gateway://a",
            "configmap://a",
            "kubernetes://",
            "kubernetes:///a",
            "invalid://a",
            "builtin://",
            "default",
            "",
        ] {
            check(refused, None);
        }
    }

    #[test]
    fn a_changed_object_concerns_all_names_that_may_show_it() {
        let names = names_of(true, &NamespacedName::new("n", "a-cacert"));
        for expected in [
            "kubernetes://a-cacert",
            "kubernetes://n/a",
            "kubernetes-gateway://n/a-cacert",
        ] {
            assert!(names.iter().any(|name| name == expected), "{expected}");
        }
        let names = names_of(false, &NamespacedName::new("n", "a"));
        assert_eq!(names, ["configmap://n/a", "configmap://n/a-cacert"]);
    }
}
