//! Which clusters and load assignments of a class a change can reach.
//!
//! It is read off the two snapshots, not off what a change says of itself: as long as nothing but
//! services, their endpoints and the rules for them differ, only resources of their hosts can.

use std::{collections::BTreeSet, sync::Arc};

use pushctx::{ClassKey, ProxyClass, PushContext};
use xds::{Names, Touched};

use crate::names;

/// The most hosts whose resources are named one by one; beyond it, looking at all of a class's
/// resources is not much dearer.
const MAX_HOSTS: usize = 1_000;

/// Tells which clusters and load assignments of a class may differ between two snapshots.
pub(crate) fn of_hosts(from: &PushContext, to: &PushContext, key: &Arc<ClassKey>) -> Touched {
    let hosts = to.hosts_changed_since(from);
    let Some(hosts) = hosts.filter(|hosts| hosts.len() <= MAX_HOSTS) else {
        return Touched::Everything;
    };
    let sides = [from, to].map(|context| context.resolve(key));
    // A waypoint also has what it handles for others, and what those send to.
    if sides.iter().any(|class| class.waypoint.is_some()) {
        return Touched::Everything;
    }
    let serves = |class: &ProxyClass| {
        let mut targets = class.targets.iter();
        targets.any(|target| hosts.contains(&target.service.hostname))
    };
    // What the proxies serve themselves reaches inbound clusters and gateways.
    if sides.iter().any(|class| serves(class)) || to.may_rename_clusters(&sides[1].workload()) {
        return Touched::Everything;
    }
    let mut names = BTreeSet::new();
    for class in &sides {
        for host in hosts {
            name_resources(class, host, &mut names);
        }
    }
    if names.is_empty() {
        Touched::Nothing
    } else {
        Touched::Named(names.into_iter().collect::<Names>())
    }
}

/// Names everything that is made for the service of a host.
fn name_resources(class: &ProxyClass, host: &str, names: &mut BTreeSet<String>) {
    let Some(service) = class.scope.service(host) else {
        return;
    };
    let rule = class.scope.outbound_rule(host, &class.labels);
    let subsets = rule.into_iter().flat_map(|rule| &rule.config.spec.subsets);
    let subsets: Vec<&str> = subsets.map(|subset| subset.name.as_str()).collect();
    for port in &service.ports {
        for subset in std::iter::once("").chain(subsets.iter().copied()) {
            names.insert(names::outbound(port.port, subset, host));
            names.insert(names::outbound_sni(port.port, subset, host));
        }
    }
}
