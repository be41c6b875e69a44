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

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use bytes::Bytes;
use envoy_types::pb::envoy::config::route::v3::VirtualHost;
use model::{Labels, Protocol, Service, fingerprint, host};
use pushctx::{ConsolidatedRule, EgressListener, ProxyClass, PushContext, ServicePiece};
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use xds::{Body, Source};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    catch_all, domains, frame,
    inputs::{self, ClientView, RouteInputs, Unknown},
    name::RouteName,
    virtual_hosts,
};
use crate::cache::Cache;

/// From how many services on a configuration is made of parts.
pub(super) const LARGE: usize = 512;
/// Parts that are kept, each of up to some hundred services.
const CACHED_PARTS: usize = 8_000;
/// What a virtual host is encoded to, in bytes, roughly.
const ABOUT_HOST: usize = 480;
/// The bits of a hash that choose its slot.
const SLOT_BITS: u64 = 0xffff_ffff;
/// Slots for each virtual host in the search for equal domains: 16 to 32 for each domain, mostly.
const SLOTS_OF_DOMAIN: usize = 32;
/// Stands for the namespace of a proxy that has none of a part's services in its own.
const ELSEWHERE: &str = "-";

/// The parts that were built.
#[derive(Debug)]
pub(super) struct Parts(Cache<Arc<Part>>);

impl Default for Parts {
    fn default() -> Self {
        Self(Cache::new(CACHED_PARTS))
    }
}

/// The virtual hosts of some services, encoded.
#[derive(Debug)]
pub(super) struct Part {
    hosts: Vec<HostOfPart>,
    /// All of them, as fields of a configuration.
    bytes: Bytes,
    sources: Vec<Source>,
}

#[derive(Debug)]
struct HostOfPart {
    service: Arc<str>,
    name: String,
    /// Hashes of its domains.
    domains: Vec<u64>,
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
        least: usize,
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
                let client = routed.client.for_plain(&piece);
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
    pub(super) fn assemble(&self, cache: &Parts) -> Option<(Body, Vec<Source>)> {
        let part = |piece: &PieceInputs<'_>| {
            cache
                .0
                .get_or_build(piece.fingerprint(), || Arc::new(piece.build()))
        };
        let (parts, routed) = rayon::join(
            || self.pieces.par_iter().map(part).collect::<Vec<Arc<Part>>>(),
            || virtual_hosts::unsettled(&self.routed),
        );
        let taken = &self.routed.services;
        let count = parts.iter().map(|part| part.hosts.len()).sum::<usize>() + routed.len();
        let mut hosts = Vec::with_capacity(count);
        hosts.extend(routed.iter().map(Host::Routed));
        for part in &parts {
            let kept = part
                .hosts
                .iter()
                .filter(|h| !taken.contains_key(&h.service));
            hosts.extend(kept.map(|host| Host::Plain(part, host)));
        }
        if !hosts.is_sorted_by(|a, b| a.name() <= b.name()) {
            hosts.par_sort_unstable_by(|a, b| a.name().cmp(b.name()));
        }
        if compete(&hosts) {
            return None;
        }
        let mut joined = Joined::default();
        joined.push(frame::head(&self.routed.name));
        for host in hosts {
            match host {
                Host::Plain(part, host) => joined.extend(part, &host.place),
                Host::Routed(host) => joined.push(encoded(host)),
            }
        }
        joined.push(encoded(&catch_all::virtual_host(&self.routed.client)));
        joined.push(frame::tail());
        let mut sources: Vec<Source> = self.routed.sources();
        sources.reserve_exact(parts.iter().map(|part| part.sources.len()).sum());
        for part in &parts {
            sources.extend_from_slice(&part.sources);
        }
        Some((joined.finish(), sources))
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
    fn for_plain(&self, piece: &ServicePiece<'_>) -> Self {
        // Which short names a host has depends on whether it is of the proxy's own namespace
        // (`domains`): where none is, any other namespace will do.
        let domain = match self.domain.split_once(".svc.") {
            Some((_, suffix)) if !piece.iter().any(|service| is_near(service, &self.domain)) => {
                format!("{ELSEWHERE}.svc.{suffix}")
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

/// Tells whether some name of a service ends in a domain.
fn is_near(service: &Service, domain: &str) -> bool {
    let aliases = service.attributes.aliases.iter();
    let mut names = aliases
        .map(|alias| &alias.hostname)
        .chain([&service.hostname]);
    names.any(|name| name.ends_with(domain))
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
        let mut hosts = Vec::with_capacity(inputs.services.len());
        let mut bytes = Vec::with_capacity(ABOUT_HOST * inputs.services.len());
        for service in inputs.services.values() {
            for host in virtual_hosts::of_plain(service, &inputs) {
                let (name, domains) = (host.name.clone(), hashes(&host).collect());
                let start = bytes.len();
                frame::host(&host, &mut bytes);
                hosts.push(HostOfPart {
                    service: service.hostname.clone(),
                    name,
                    domains,
                    place: start..bytes.len(),
                });
            }
        }
        frame::canonicalize(&mut bytes);
        bytes.shrink_to_fit();
        Part {
            hosts,
            bytes: bytes.into(),
            sources: inputs.sources(),
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

/// A virtual host of a configuration, with all the domains that it would like to have.
#[derive(Clone, Copy)]
enum Host<'a> {
    Plain(&'a Arc<Part>, &'a HostOfPart),
    Routed(&'a VirtualHost),
}

impl Host<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Plain(_, host) => &host.name,
            Self::Routed(host) => &host.name,
        }
    }
}

/// Hashes of the domains of a virtual host.
fn hashes(host: &VirtualHost) -> impl Iterator<Item = u64> + '_ {
    host.domains
        .iter()
        .map(|domain| xxh3_64(domains::lowercase(domain).as_bytes()))
}

/// Tells whether two virtual hosts, sorted by name, want the same name or domain. That two different
/// domains have one hash is as good a reason to look closer.
fn compete(hosts: &[Host<'_>]) -> bool {
    if hosts
        .windows(2)
        .any(|pair| pair[0].name() == pair[1].name())
    {
        return true;
    }
    // Nearly all have a slot to themselves; only those that share one are compared.
    let slots = SLOTS_OF_DOMAIN * hosts.len().next_power_of_two();
    let [mut taken, mut shared] = [Bits::new(slots), Bits::new(slots)];
    for_domains(hosts, |domain| {
        if taken.set(domain) {
            shared.set(domain);
        }
    });
    let mut compared = Vec::new();
    for_domains(hosts, |domain| {
        if shared.has(domain) {
            compared.push(domain);
        }
    });
    compared.sort_unstable();
    compared.windows(2).any(|pair| pair[0] == pair[1])
}

/// Visits the hashes of all domains of virtual hosts.
fn for_domains(hosts: &[Host<'_>], mut visit: impl FnMut(u64)) {
    for host in hosts {
        match host {
            Host::Plain(_, host) => host.domains.iter().copied().for_each(&mut visit),
            Host::Routed(host) => hashes(host).for_each(&mut visit),
        }
    }
}

/// A set of slots, which hashes choose.
struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// `slots` is a power of two.
    fn new(slots: usize) -> Self {
        Self {
            words: vec![0; slots.div_ceil(64)],
        }
    }

    fn place(&self, hash: u64) -> (usize, u64) {
        let slot = usize::try_from(hash & SLOT_BITS).unwrap_or_default();
        (slot / 64 % self.words.len(), 1 << (slot % 64))
    }

    /// Takes a slot; returns whether it was taken.
    fn set(&mut self, hash: u64) -> bool {
        let (word, bit) = self.place(hash);
        let taken = self.words[word] & bit != 0;
        self.words[word] |= bit;
        taken
    }

    fn has(&self, hash: u64) -> bool {
        let (word, bit) = self.place(hash);
        self.words[word] & bit != 0
    }
}

/// Bytes that are being joined. Neighbours in a part stay together.
#[derive(Default)]
struct Joined<'a> {
    done: Vec<Bytes>,
    run: Option<(&'a Arc<Part>, Range<usize>)>,
}

impl<'a> Joined<'a> {
    fn push(&mut self, bytes: Vec<u8>) {
        self.end_run();
        self.done.push(bytes.into());
    }

    fn extend(&mut self, part: &'a Arc<Part>, place: &Range<usize>) {
        match &mut self.run {
            Some((last, run)) if Arc::ptr_eq(last, part) && run.end == place.start => {
                run.end = place.end;
            }
            _ => {
                self.end_run();
                self.run = Some((part, place.clone()));
            }
        }
    }

    fn end_run(&mut self) {
        if let Some((part, run)) = self.run.take() {
            self.done.push(part.bytes.slice(run));
        }
    }

    fn finish(mut self) -> Body {
        self.end_run();
        self.done.into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
