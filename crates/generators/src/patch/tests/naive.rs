//! Law 6: by bucket the same patches apply in the same order as by the nested loop over all of them.
//!
//! The loop is written from the specification (§9 to §15) and shares no matching with the product.

use envoy_json::merge::{Lists, merge_any, merge_typed};
use envoy_types::pb::envoy::config::{
    cluster::v3::Cluster,
    core::v3::{address::Address, socket_address::PortSpecifier},
    listener::v3::{Filter, FilterChain, Listener, filter::ConfigType},
    route::v3::{RouteConfiguration, VirtualHost},
};
use model::api::envoy_filter::{Operation, PatchContext};
use proptest::{option, prelude::*, sample::select};

use super::*;
use crate::patch::{ClusterPatches, ListenerPatches, RouteNames, RoutePatches};

const ECHO: &str = "type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo";

fn in_context(patch: &Patch, pass: Pass) -> bool {
    match patch.matching.context {
        PatchContext::Any => true,
        PatchContext::SidecarInbound => pass == Pass::SidecarInbound,
        PatchContext::SidecarOutbound => pass == Pass::SidecarOutbound,
        PatchContext::Gateway => pass == Pass::Gateway,
        PatchContext::Waypoint => false,
    }
}

fn merges(patch: &Patch) -> Option<Lists> {
    match patch.operation {
        Operation::Merge => Some(Lists::Append),
        Operation::MergeAndReplaceList => Some(Lists::Replace),
        _ => None,
    }
}

fn merge<M: Message + Name + Default>(patch: &Patch, target: &mut M) {
    if let (Some(lists), Some(value)) = (merges(patch), &patch.value) {
        merge_typed(target, value, lists).unwrap();
    }
}

fn value<M: Message + Name + Default>(patch: &Patch) -> M {
    envoy_json::merge::to_typed(patch.value.as_ref().unwrap()).unwrap()
}

fn of_kind(patches: &[Arc<Patch>], kind: ApplyTo) -> impl Iterator<Item = &Arc<Patch>> {
    patches.iter().filter(move |patch| patch.apply_to == kind)
}

fn cluster_matches(patch: &Patch, name: &str, hosts: &[Arc<str>]) -> bool {
    let Some(wanted) = &patch.matching.cluster else {
        return true;
    };
    if !wanted.name.is_empty() {
        return wanted.name == name;
    }
    let parts: Vec<&str> = name.splitn(4, '|').collect();
    let part = |at: usize| parts.get(at).copied().unwrap_or_default();
    let host = if part(3).contains('|') { "" } else { part(3) };
    let candidates: Vec<&str> = if part(0) == "inbound" && !hosts.is_empty() {
        hosts.iter().map(|host| &**host).collect()
    } else {
        vec![host]
    };
    (wanted.subset.is_empty() || wanted.subset == part(2))
        && (wanted.service.is_empty() || candidates.contains(&wanted.service.as_str()))
        && (wanted.port_number == 0 || part(1).parse() == Ok(wanted.port_number))
}

fn naive_cluster(
    patches: &[Arc<Patch>],
    mut cluster: Cluster,
    hosts: &[Arc<str>],
    pass: Pass,
) -> Option<Cluster> {
    for patch in patches {
        if in_context(patch, pass) && cluster_matches(patch, &cluster.name, hosts) {
            if patch.operation == Operation::Remove {
                return None;
            }
            merge(patch, &mut cluster);
        }
    }
    Some(cluster)
}

fn port(listener: &Listener) -> Option<u32> {
    match listener.address.as_ref()?.address.as_ref()? {
        Address::SocketAddress(socket) => match socket.port_specifier {
            Some(PortSpecifier::PortValue(port)) => Some(port),
            _ => None,
        },
        _ => None,
    }
}

fn is_virtual(listener: &Listener) -> bool {
    listener.name == "virtualInbound" || listener.name == "virtualOutbound"
}

fn listener_matches(patch: &Patch, listener: &Listener) -> bool {
    let Some(wanted) = &patch.matching.listener else {
        return true;
    };
    if !wanted.name.is_empty() && wanted.name != listener.name {
        return false;
    }
    (patch.apply_to != ApplyTo::Listener && is_virtual(listener))
        || wanted.port_number == 0
        || port(listener) == Some(wanted.port_number)
}

fn chain_matches(patch: &Patch, listener: &Listener, chain: &FilterChain) -> bool {
    let Some(wanted) = &patch.matching.listener else {
        return true;
    };
    let own = chain.filter_chain_match.as_ref();
    let destination = own
        .and_then(|m| m.destination_port.as_ref())
        .map(|p| p.value);
    if is_virtual(listener) && wanted.port_number != 0 && destination != Some(wanted.port_number) {
        return false;
    }
    let Some(wanted) = &wanted.filter_chain else {
        return true;
    };
    (wanted.name.is_empty() || wanted.name == chain.name)
        && (wanted.sni.is_empty() || own.is_some_and(|m| m.server_names.contains(&wanted.sni)))
        && (wanted.destination_port == 0 || destination == Some(wanted.destination_port))
}

fn filter_name(patch: &Patch) -> Option<&str> {
    let chain = patch.matching.listener.as_ref()?.filter_chain.as_ref()?;
    Some(&chain.filter.as_ref()?.name)
}

fn naive_filters(patches: &[&Arc<Patch>], filters: &mut Vec<Filter>) {
    for patch in patches {
        let name = filter_name(patch);
        let found = name.and_then(|name| filters.iter().position(|f| f.name == name));
        match (patch.operation, name, found) {
            (Operation::Add, ..) | (Operation::InsertAfter, None, _) => filters.push(value(patch)),
            (Operation::InsertFirst, ..) | (Operation::InsertBefore, None, _) => {
                filters.insert(0, value(patch));
            }
            (Operation::InsertAfter, _, Some(at)) => filters.insert(at + 1, value(patch)),
            (Operation::InsertBefore, _, Some(at)) => filters.insert(at, value(patch)),
            (Operation::Replace, _, Some(at)) => filters[at] = value(patch),
            (Operation::Remove, Some(name), _) => filters.retain(|f| f.name != name),
            _ => {}
        }
    }
    for filter in filters {
        for patch in patches.iter().filter(|p| p.operation == Operation::Merge) {
            if filter_name(patch).is_some_and(|name| name != filter.name) {
                continue;
            }
            let patch: Filter = value(patch);
            let Some(ConfigType::TypedConfig(own)) = &mut filter.config_type else {
                continue;
            };
            if let Some(ConfigType::TypedConfig(new)) = &patch.config_type {
                merge_any(own, new).unwrap();
            }
            if !patch.name.is_empty() {
                filter.name = patch.name;
            }
        }
    }
}

fn naive_listener(patches: &[Arc<Patch>], mut listener: Listener, pass: Pass) -> Option<Listener> {
    for patch in of_kind(patches, ApplyTo::Listener) {
        if in_context(patch, pass) && listener_matches(patch, &listener) {
            if patch.operation == Operation::Remove {
                return None;
            }
            merge(patch, &mut listener);
        }
    }
    let mut chains = Vec::new();
    'chains: for mut chain in std::mem::take(&mut listener.filter_chains) {
        if chain.filters.is_empty() {
            continue;
        }
        for patch in of_kind(patches, ApplyTo::FilterChain) {
            if in_context(patch, pass)
                && patch.operation != Operation::Add
                && listener_matches(patch, &listener)
                && chain_matches(patch, &listener, &chain)
            {
                if patch.operation == Operation::Remove {
                    continue 'chains;
                }
                merge(patch, &mut chain);
            }
        }
        let of_filters: Vec<_> = of_kind(patches, ApplyTo::NetworkFilter)
            .filter(|p| in_context(p, pass) && listener_matches(p, &listener))
            .filter(|p| chain_matches(p, &listener, &chain))
            .collect();
        naive_filters(&of_filters, &mut chain.filters);
        chains.push(chain);
    }
    for patch in of_kind(patches, ApplyTo::FilterChain) {
        let adds = patch.operation == Operation::Add;
        if adds && in_context(patch, pass) && listener_matches(patch, &listener) {
            chains.extend(Some(value::<FilterChain>(patch)).filter(|c| !c.filters.is_empty()));
        }
    }
    listener.filter_chains = chains;
    Some(listener).filter(|listener| !listener.name.is_empty())
}

fn routes_match(patch: &Patch, routes: &str) -> bool {
    let wanted = patch.matching.route_configuration.as_ref();
    wanted.is_none_or(|wanted| {
        (wanted.name.is_empty() || wanted.name == routes)
            && (wanted.port_number == 0 || routes.parse() == Ok(wanted.port_number))
    })
}

fn host_matches(patch: &Patch, host: &VirtualHost) -> bool {
    let wanted = patch.matching.route_configuration.as_ref();
    wanted.and_then(|w| w.vhost.as_ref()).is_none_or(|wanted| {
        (wanted.name.is_empty() || wanted.name == host.name)
            && (wanted.domain_name.is_empty() || host.domains.contains(&wanted.domain_name))
    })
}

fn naive_routes(
    patches: &[Arc<Patch>],
    mut routes: RouteConfiguration,
    pass: Pass,
) -> RouteConfiguration {
    for patch in of_kind(patches, ApplyTo::RouteConfiguration) {
        if in_context(patch, pass) && routes_match(patch, &routes.name) {
            merge(patch, &mut routes);
        }
    }
    let name = routes.name.clone();
    let mut removed = Vec::new();
    'hosts: for host in &mut routes.virtual_hosts {
        for patch in of_kind(patches, ApplyTo::VirtualHost) {
            if in_context(patch, pass) && routes_match(patch, &name) && host_matches(patch, host) {
                match patch.operation {
                    Operation::Remove => {
                        removed.push(host.name.clone());
                        continue 'hosts;
                    }
                    Operation::Replace => *host = value(patch),
                    _ => merge(patch, host),
                }
            }
        }
    }
    for patch in of_kind(patches, ApplyTo::VirtualHost) {
        let adds = patch.operation == Operation::Add;
        if adds && in_context(patch, pass) && routes_match(patch, &name) {
            routes.virtual_hosts.push(value(patch));
        }
    }
    routes
        .virtual_hosts
        .retain(|host| !removed.contains(&host.name));
    routes
}

fn context() -> impl Strategy<Value = &'static str> {
    select(vec!["ANY", "ANY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND"])
}

/// Patches with operations that are random; `value` may change what they are found by.
fn patches(
    kinds: &'static [&'static str],
    matching: impl Strategy<Value = Value>,
    value: impl Strategy<Value = Value>,
) -> impl Strategy<Value = Vec<Value>> {
    let operation = select(vec![
        "MERGE",
        "MERGE",
        "MERGE",
        "MERGE_AND_REPLACE_LIST",
        "ADD",
        "INSERT_BEFORE",
        "INSERT_AFTER",
        "INSERT_FIRST",
        "REPLACE",
        "REMOVE",
    ]);
    let one = (select(kinds), context(), matching, operation, value);
    let one = one.prop_map(|(kind, context, mut matching, operation, value)| {
        matching["context"] = context.into();
        patch(kind, &matching, operation, &value)
    });
    proptest::collection::vec(one, 0..10)
}

/// An object of those fields that are there.
fn object(fields: Vec<(&str, Option<Value>)>) -> Value {
    let fields = fields.into_iter();
    fields
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn text(of: &'static [&'static str]) -> impl Strategy<Value = Option<Value>> {
    option::weighted(0.4, select(of).prop_map(Value::from))
}

fn number(of: &'static [u32]) -> impl Strategy<Value = Option<Value>> {
    option::weighted(0.4, select(of).prop_map(Value::from))
}

const CLUSTERS: &[&str] = &[
    "outbound|80||a",
    "outbound|80|v1|a",
    "outbound|81||b",
    "inbound|80||",
    "inbound|81||",
    "BlackHoleCluster",
    "odd",
];
const LISTENERS: &[&str] = &["l", "m", "virtualInbound", "virtualOutbound"];
const PORTS: &[u32] = &[80, 81];

fn cluster_patches() -> impl Strategy<Value = Vec<Value>> {
    let matching = (
        text(CLUSTERS),
        text(&["a", "b"]),
        text(&["v1", "v2"]),
        number(PORTS),
    );
    let matching = matching.prop_map(|(name, service, subset, port)| {
        json!({"cluster": object(vec![
            ("name", name.filter(|_| service.is_none())), ("service", service),
            ("subset", subset), ("portNumber", port)])})
    });
    let value = (text(CLUSTERS), select(vec!["s", "t", "u"]));
    let value = value.prop_map(|(name, stat)| {
        object(vec![("name", name), ("alt_stat_name", Some(stat.into()))])
    });
    patches(&["CLUSTER"], matching, value)
}

fn listener_patches() -> impl Strategy<Value = Vec<Value>> {
    let filter = option::of(select(vec!["f", "g", "h"]));
    let chain = (text(&["c", "d"]), text(&["s", "t"]), number(PORTS), filter);
    let chain = option::of(chain.prop_map(|(name, sni, port, filter)| {
        let filter = filter.map(|name| json!({"name": name}));
        object(vec![
            ("name", name),
            ("sni", sni),
            ("destinationPort", port),
            ("filter", filter),
        ])
    }));
    let matching = (text(LISTENERS), number(PORTS), chain);
    let matching = matching.prop_map(|(name, port, chain)| {
        json!({"listener": object(vec![("name", name), ("portNumber", port), ("filterChain", chain)])})
    });
    // Good for listeners, chains and filters alike.
    let value = select(vec!["l", "m", "c", "d", "f", "g", "h"]).prop_map(|n| json!({"name": n}));
    patches(
        &["LISTENER", "FILTER_CHAIN", "NETWORK_FILTER"],
        matching,
        value,
    )
}

fn route_patches() -> impl Strategy<Value = Vec<Value>> {
    let host = (text(&["v", "w"]), text(&["a", "b"]));
    let host = option::of(
        host.prop_map(|(name, domain)| object(vec![("name", name), ("domainName", domain)])),
    );
    let matching = (text(&["80", "x"]), number(PORTS), host);
    let matching = matching.prop_map(|(name, port, host)| {
        json!({"routeConfiguration": object(vec![
            ("name", name), ("portNumber", port), ("vhost", host)])})
    });
    let value = text(&["v", "w", "80", "81"]).prop_map(|name| object(vec![("name", name)]));
    patches(&["ROUTE_CONFIGURATION", "VIRTUAL_HOST"], matching, value)
}

fn listener() -> impl Strategy<Value = Value> {
    let chain = (
        select(vec!["", "c", "d"]),
        option::of((select(vec!["s", "t"]), select(PORTS))),
        proptest::collection::vec(select(vec!["f", "g"]), 0..3),
    );
    let chain = chain.prop_map(|(name, matching, filters)| {
        let filters: Vec<Value> = filters
            .iter()
            .map(|name| json!({"name": name, "typedConfig": {"@type": ECHO}}))
            .collect();
        let matching =
            matching.map(|(sni, port)| json!({"serverNames": [sni], "destinationPort": port}));
        object(vec![
            ("name", Some(name.into())),
            ("filterChainMatch", matching),
            ("filters", Some(filters.into())),
        ])
    });
    let chains = proptest::collection::vec(chain, 0..3);
    (select(LISTENERS), option::of(select(PORTS)), chains).prop_map(|(name, port, chains)| {
        let address =
            port.map(|p| json!({"socketAddress": {"address": "0.0.0.0", "portValue": p}}));
        object(vec![
            ("name", Some(name.into())),
            ("address", address),
            ("filterChains", Some(chains.into())),
        ])
    })
}

fn pass() -> impl Strategy<Value = Pass> {
    select(vec![
        Pass::SidecarInbound,
        Pass::SidecarOutbound,
        Pass::Gateway,
    ])
}

proptest! {
    #[test]
    fn clusters(
        patches in cluster_patches(),
        name in select(CLUSTERS),
        hosts in proptest::collection::vec(select(vec!["a", "b", "c"]), 0..3),
        pass in pass(),
    ) {
        let cluster: Cluster = read(&json!({"name": name}));
        let hosts: Vec<Arc<str>> = hosts.into_iter().map(Arc::from).collect();
        let all = prepared(&patches).patches;
        let expected = naive_cluster(&all, cluster.clone(), &hosts, pass);
        let indexed = index::<ClusterPatches>(&patches).apply(cluster, &hosts, &run(pass));
        prop_assert_eq!(indexed, expected);
    }

    #[test]
    fn listeners(patches in listener_patches(), listener in listener(), pass in pass()) {
        let listener: Listener = read(&listener);
        let all = prepared(&patches).patches;
        let expected = naive_listener(&all, listener.clone(), pass);
        let index: ListenerPatches = index(&patches);
        let concerned = index.concerns(&listener, pass);
        let indexed = index.apply(listener.clone(), &run(pass));
        prop_assert_eq!(&indexed, &expected);
        prop_assert!(concerned || indexed == Some(listener));
    }

    #[test]
    fn routes(
        patches in route_patches(),
        name in select(vec!["80", "81", "x"]),
        hosts in proptest::collection::vec((select(vec!["v", "w"]), select(vec!["a", "b"])), 0..4),
        pass in pass(),
    ) {
        let hosts: Vec<Value> = hosts
            .into_iter()
            .map(|(name, domain)| json!({"name": name, "domains": [domain]}))
            .collect();
        let routes: RouteConfiguration = read(&json!({"name": name, "virtualHosts": hosts}));
        let all = prepared(&patches).patches;
        let expected = naive_routes(&all, routes.clone(), pass);
        let mut indexed = routes;
        let names = RouteNames::of_sidecar(name);
        index::<RoutePatches>(&patches).apply(&mut indexed, &names, &run(pass));
        prop_assert_eq!(indexed, expected);
    }
}
