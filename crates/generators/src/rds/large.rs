//! Configurations of very many services: made of parts that classes and snapshots share.
//!
//! Most services have no VirtualService, and their virtual hosts depend on nothing but the service
//! and few facts of the client. A part is what some neighbouring services come to, encoded. What a
//! change does not reach is joined as it is, so one changed service costs one part, and classes that
//! see the same have the same bytes.
//!
//! Virtual hosts of VirtualServices are built as in small configurations. When two virtual hosts
//! compete for a name or a domain, none of this applies: who came first counts then, and the whole is
//! built at once.

mod join;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use bytes::Bytes;
use envoy_types::pb::envoy::config::route::v3::VirtualHost;
use model::{Labels, Protocol, Service, fingerprint, host};
use pushctx::{ConsolidatedRule, EgressListener, ProxyClass, PushContext, ServicePiece};
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use xds::{Body, Source, Sources};

use super::{
    catch_all, domains, frame,
    inputs::{self, ClientView, RouteInputs, Unknown},
    name::RouteName,
    virtual_hosts,
};
use crate::cache::Cache;
use join::{Joined, Run};

/// From how many services on a configuration is made of parts.
pub(super) const LARGE: usize = 512;
/// Parts that are kept, each of up to some hundred services.
const CACHED_PARTS: usize = 8_000;
/// What a virtual host is encoded to, in bytes, roughly.
const ABOUT_HOST: usize = 480;
/// Stands for the namespace of a proxy that has none of a part's services in its own.
const ELSEWHERE: &str = "-";
/// What is between namespace and the mesh's domain.
const SVC: &str = ".svc.";

/// The parts that were built.
#[derive(Debug)]
pub(super) struct Parts {
    built: Cache<Arc<Part>>,
    /// The namespaces of the services of pieces.
    namespaces: Cache<Arc<BTreeSet<String>>>,
}

impl Default for Parts {
    fn default() -> Self {
        Self {
            built: Cache::new(CACHED_PARTS),
            namespaces: Cache::new(CACHED_PARTS),
        }
    }
}

impl Parts {
    /// The namespaces that names of a piece's services are in.
    fn namespaces(&self, piece: &ServicePiece<'_>) -> Arc<BTreeSet<String>> {
        self.namespaces.get_or_build(piece.fingerprint(), || {
            let names = piece.iter().flat_map(|service| {
                let aliases = service.attributes.aliases.iter();
                let aliases = aliases.map(|alias| &alias.hostname);
                aliases.chain([&service.hostname])
            });
            let namespaces = names.flat_map(|name| {
                let stems = name.match_indices(SVC).map(|(at, _)| &name[..at]);
                stems.filter_map(|stem| Some(stem.split_once('.')?.1.to_owned()))
            });
            Arc::new(namespaces.collect())
        })
    }
}

/// The virtual hosts of some services, encoded.
#[derive(Debug)]
struct Part {
    hosts: Vec<HostOfPart>,
    /// Names are in ascending order, each once.
    in_order: bool,
    /// Hashes of the domains of all of them, one after the other.
    domains: Vec<u64>,
    /// All of them, as fields of a configuration.
    bytes: Bytes,
    sources: Arc<[Source]>,
}

#[derive(Debug)]
struct HostOfPart {
    service: Arc<str>,
    name: Box<str>,
    /// Where its domains are.
    domains: Range<usize>,
    /// Where it is among the bytes.
    place: Range<usize>,
}

/// Everything that a large configuration is built from.
pub(super) struct LargeInputs<'a> {
    /// VirtualServices that take part, with the services that they may be for.
    routed: RouteInputs,
    pieces: Vec<PieceInputs<'a>>,
}

/// Everything that a part is built from.
struct PieceInputs<'a> {
    piece: ServicePiece<'a>,
    port: u16,
    rules: BTreeMap<String, Arc<ConsolidatedRule>>,
    client: ClientView,
}

impl<'a> LargeInputs<'a> {
    /// Gathers the inputs of a configuration; `None` when it is to be built at once: it is of another
    /// form, or of less than `least` services.
    pub(super) fn gather(
        context: &PushContext,
        class: &'a ProxyClass,
        name: &str,
        kind: &RouteName,
        (least, parts): (usize, &Parts),
    ) -> Option<Self> {
        let RouteName::Port(port) = *kind else {
            return None;
        };
        let listener = inputs::egress_listener(&class.scope.egress, port, name)?;
        let declared = listener.listener.as_ref().and_then(|l| l.port.as_ref());
        if listener.services.len() < least
            || port == 0
            || declared.is_some_and(|p| Protocol::parse(&p.protocol) == Protocol::HttpProxy)
        {
            return None;
        }
        let client = ClientView::of(context, class);
        let rule = |host: &str| {
            let rule = class.scope.outbound_rule(host, &class.labels)?;
            inputs::hashes(rule).then(|| rule.clone())
        };
        let has_rules = !context.destination_rules().is_empty();
        let routed = routed(listener, name, port, client, has_rules.then_some(&rule));
        let pieces = listener.services.pieces();
        let pieces = pieces
            .into_par_iter()
            .map(|piece| {
                let client = routed.client.for_plain(&parts.namespaces(&piece));
                let served = piece
                    .iter()
                    .filter(|service| has_rules && serves(service, port));
                let hosts = served.map(|service| domains::lowercase(&service.hostname));
                let rules = hosts.filter_map(|host| Some((host.to_string(), rule(&host)?)));
                let rules = rules.collect();
                PieceInputs {
                    piece,
                    port,
                    rules,
                    client,
                }
            })
            .collect();
        Some(Self { routed, pieces })
    }

    /// Hash of all inputs.
    pub(super) fn fingerprint(&self) -> u64 {
        let Self { routed, pieces } = self;
        let pieces: Vec<u64> = pieces.iter().map(PieceInputs::fingerprint).collect();
        fingerprint::of(&(routed.fingerprint(), pieces))
    }

    /// The same inputs in the form in which a configuration is built at once.
    pub(super) fn whole(&self) -> RouteInputs {
        let mut whole = self.routed.clone();
        let services = self.pieces.iter().flat_map(|inputs| inputs.piece.iter());
        whole.services = inputs::lookup(services, whole.port, &whole.client.addresses);
        let rules = self.pieces.iter().flat_map(|inputs| &inputs.rules);
        whole
            .rules
            .extend(rules.map(|(host, rule)| (host.clone(), rule.clone())));
        whole
    }

    /// Joins the parts, building those that are new. `None` when virtual hosts compete.
    pub(super) fn assemble(&self, parts: &Parts) -> Option<(Body, Sources)> {
        let part = |piece: &PieceInputs<'_>| {
            parts
                .built
                .get_or_build(piece.fingerprint(), || Arc::new(piece.build()))
        };
        let (parts, routed) = rayon::join(
            || self.pieces.par_iter().map(part).collect::<Vec<Arc<Part>>>(),
            || virtual_hosts::unsettled(&self.routed),
        );
        let taken = |host: &HostOfPart| self.routed.services.contains_key(&host.service);
        let mut runs: Vec<Run<'_>> = routed.iter().map(Run::Routed).collect();
        for part in &parts {
            if self.routed.services.is_empty() {
                runs.extend(Run::whole(part));
            } else {
                runs.extend(Run::without(part, taken));
            }
        }
        let runs = join::in_order(runs)?;
        if join::compete(&runs) {
            return None;
        }
        let mut joined = Joined::default();
        joined.push(frame::head(&self.routed.name));
        for run in runs {
            match run {
                Run::Plain(part, hosts) => joined.extend(part, &hosts),
                Run::Routed(host) => joined.push(encoded(host)),
            }
        }
        joined.push(encoded(&catch_all::virtual_host(&self.routed.client)));
        joined.push(frame::tail());
        let sources = parts.iter().map(|part| part.sources.clone());
        let sources = [self.routed.sources().into()].into_iter().chain(sources);
        Some((joined.finish(), sources.collect()))
    }
}

/// Finds the rule of a host, where it hashes requests.
type RuleOf<'a> = dyn Fn(&str) -> Option<Arc<ConsolidatedRule>> + 'a;

/// The VirtualServices that take part in a port's configuration, with all that they depend on.
fn routed(
    listener: &EgressListener,
    name: &str,
    port: u16,
    mut client: ClientView,
    rule: Option<&RuleOf<'_>>,
) -> RouteInputs {
    let mut matched: Vec<Arc<Service>> = Vec::new();
    let mut virtual_services = Vec::new();
    if !listener.virtual_services.is_empty() {
        let services = listener.services.iter().filter(|s| serves(s, port));
        let by_host: FxHashMap<_, _> = services
            .map(|service| (domains::lowercase(&service.hostname), service))
            .collect();
        let wild: Vec<&str> = by_host
            .keys()
            .map(AsRef::as_ref)
            .filter(|host| host::is_wildcard(host))
            .collect();
        for vs in listener.virtual_services.iter() {
            let mut concerned = port == 80;
            for asked in &vs.config.spec.hosts {
                let before = matched.len();
                if host::is_wildcard(asked) {
                    let services = by_host.iter();
                    let services = services.filter(|(name, _)| host::matches(asked, name));
                    matched.extend(services.map(|(_, service)| Arc::clone(service)));
                } else {
                    let service = by_host.get(domains::lowercase(asked).as_ref());
                    matched.extend(service.map(|service| Arc::clone(service)));
                }
                concerned |=
                    matched.len() > before || wild.iter().any(|name| host::matches(asked, name));
            }
            if concerned {
                virtual_services.push(vs.clone());
            }
        }
    }
    let services = inputs::lookup(&matched, port, &client.addresses);
    let owners = inputs::owners(listener, &virtual_services, &services, &matched);
    let mut rules = BTreeMap::new();
    if let Some(rule) = rule {
        let hosts = services.values().map(|service| &*service.hostname);
        let hosts = hosts.chain(inputs::destinations(&virtual_services));
        rules.extend(hosts.filter_map(|host| Some((host.to_owned(), rule(host)?))));
    }
    if !inputs::looks_at_labels(&virtual_services) {
        client.labels.clear();
    }
    RouteInputs {
        name: name.to_owned(),
        kind: RouteName::Port(port),
        port,
        services,
        virtual_services,
        owners,
        rules,
        client,
    }
}

/// Tells whether a service takes part in a port's configuration.
fn serves(service: &Service, port: u16) -> bool {
    let port = service.port(port);
    port.is_some_and(|port| port.protocol != Protocol::Udp)
}

impl ClientView {
    /// What virtual hosts of services without VirtualService depend on, the same for as many classes
    /// as can be.
    fn for_plain(&self, namespaces: &BTreeSet<String>) -> Self {
        // Which short names a host has depends on whether it is of the proxy's own namespace
        // (`domains`): where none is, any other namespace will do.
        let domain = match self.domain.split_once(SVC) {
            Some((own, suffix)) if !namespaces.contains(own) => {
                format!("{ELSEWHERE}{SVC}{suffix}")
            }
            _ => self.domain.clone(),
        };
        Self {
            namespace: Arc::default(),
            labels: Labels::default(),
            unknown: Unknown::Block,
            forwarded_host: false,
            plain_shadow_host: false,
            domain,
            ..self.clone()
        }
    }
}

impl PieceInputs<'_> {
    fn fingerprint(&self) -> u64 {
        // Named one by one, so that a new field cannot be forgotten.
        let Self {
            piece,
            port,
            rules,
            client,
        } = self;
        let rules: Vec<_> = rules.iter().map(|(h, r)| (h, r.fingerprint)).collect();
        fingerprint::of(&(piece.fingerprint(), port, rules, client.fingerprint()))
    }

    fn build(&self) -> Part {
        let inputs = RouteInputs {
            name: String::new(),
            kind: RouteName::Port(self.port),
            port: self.port,
            services: inputs::lookup(self.piece.iter(), self.port, &self.client.addresses),
            virtual_services: Vec::new(),
            owners: BTreeMap::new(),
            rules: self.rules.clone(),
            client: self.client.clone(),
        };
        let mut hosts: Vec<HostOfPart> = Vec::with_capacity(inputs.services.len());
        let mut domains = Vec::new();
        let mut bytes = Vec::with_capacity(ABOUT_HOST * inputs.services.len());
        for service in inputs.services.values() {
            for host in virtual_hosts::of_plain(service, &inputs) {
                let (first_domain, start) = (domains.len(), bytes.len());
                domains.extend(join::hashes(&host));
                frame::host(&host, &mut bytes);
                hosts.push(HostOfPart {
                    service: service.hostname.clone(),
                    name: host.name.into(),
                    domains: first_domain..domains.len(),
                    place: start..bytes.len(),
                });
            }
        }
        frame::canonicalize(&mut bytes);
        bytes.shrink_to_fit();
        Part {
            in_order: hosts.is_sorted_by(|a, b| a.name < b.name),
            hosts,
            domains,
            bytes: bytes.into(),
            sources: inputs.sources().into(),
        }
    }
}

/// Encodes one virtual host canonically.
fn encoded(host: &VirtualHost) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::host(host, &mut bytes);
    frame::canonicalize(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests;
