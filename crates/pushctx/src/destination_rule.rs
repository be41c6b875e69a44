//! DestinationRules: consolidation per host and lookup (config-model §11).

mod merge;

use std::{cmp::Ordering, collections::BTreeSet, sync::Arc};

use imbl::OrdMap;
use model::{
    Config, ExportTo, MeshState, NamespacedName,
    api::DestinationRule,
    host::{self, is_wildcard, more_specific},
};
use rayon::prelude::*;

use crate::{
    diff,
    order::{CreationOrder, InOrder},
    table::{Few, HashTable},
};

/// One rule after merging every rule of the same host that fits.
#[derive(Clone, PartialEq, Debug)]
pub struct ConsolidatedRule {
    /// Metadata of the first rule and the merged content, its host expanded.
    pub config: Arc<Config<DestinationRule>>,
    /// Effective export set.
    pub export_to: ExportTo,
    /// The rules that went in, in order.
    pub sources: Vec<NamespacedName>,
    /// Hash of content and sources.
    pub fingerprint: u64,
}

/// Rules of one host for one client.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct FoundRules<'a> {
    pub(crate) list: &'a [Arc<ConsolidatedRule>],
    /// The client's namespace, when only what is exported to it counts.
    pub(crate) client: Option<&'a str>,
}

impl<'a> FoundRules<'a> {
    pub(crate) fn iter(self) -> impl DoubleEndedIterator<Item = &'a Arc<ConsolidatedRule>> {
        self.list.iter().filter(move |rule| {
            self.client.is_none_or(|client| {
                let set = &rule.export_to;
                set.is_empty() || set.contains("*") || set.contains(client)
            })
        })
    }
}

/// The rules of one host in one placement, in order.
pub(crate) type RuleList = Arc<[Arc<ConsolidatedRule>]>;

/// Namespace and expanded host.
type Place = (Arc<str>, Arc<str>);

/// All rules by placement (config-model §11.1).
#[derive(Clone, Default, Debug)]
pub struct DestinationRuleIndex {
    local: OrdMap<Arc<str>, Rules>,
    exported: OrdMap<Arc<str>, Rules>,
    root_private: Rules,
    members: HashTable<Place, Few<Member>>,
    root: Arc<str>,
}

impl DestinationRuleIndex {
    /// Finds the rules that a client of `client` applies to a host that is a service of namespace
    /// `service`, in order (config-model §11.4).
    pub(crate) fn find<'a>(
        &'a self,
        client: &'a str,
        service: &str,
        hostname: &str,
    ) -> FoundRules<'a> {
        let own = if *client == *self.root {
            self.root_private.most_specific(hostname)
        } else {
            self.local
                .get(client)
                .and_then(|rules| rules.most_specific(hostname))
        };
        if let Some(list) = own {
            return FoundRules { list, client: None };
        }
        // A more specific host hides others even when none of its rules is exported.
        [service, &self.root]
            .into_iter()
            .filter_map(|owner| self.exported.get(owner)?.most_specific(hostname))
            .map(|list| FoundRules {
                list,
                client: Some(client),
            })
            .find(|found| found.iter().next().is_some())
            .unwrap_or_default()
    }

    /// As [`DestinationRuleIndex::find`], as a list of its own.
    pub(crate) fn lookup(&self, client: &str, service: &str, hostname: &str) -> RuleList {
        self.find(client, service, hostname)
            .iter()
            .cloned()
            .collect()
    }

    /// Tells whether there is no rule at all.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Consolidates and indexes all rules of `state`.
    pub(crate) fn build(state: &MeshState) -> Self {
        let mut index = Self {
            root: root_namespace(state),
            ..Self::default()
        };
        let mut members: Vec<(Place, Member)> = state
            .objects
            .destination_rules
            .values()
            .map(|rule| (place(state, rule), Member::new(rule)))
            .collect();
        members.par_sort_unstable();
        let consolidator = Consolidator::new(state);
        let groups: Vec<_> = members.chunk_by(|a, b| a.0 == b.0).collect();
        let lists: Vec<_> = groups
            .par_iter()
            .map(|group| consolidator.consolidate(&group[0].0, group.iter().map(|(_, m)| m)))
            .collect();
        for (group, lists) in groups.iter().zip(lists) {
            let place = &group[0].0;
            let all = group.iter().map(|(_, m)| m.clone()).collect();
            if let Some(all) = Few::from_sorted(all) {
                index.members.insert(place.clone(), all);
            }
            index.set(place, lists);
        }
        index
    }

    /// Brings the index from `old` to `new`; returns it and the (namespace, host) pairs that look
    /// different.
    pub(crate) fn next(&self, old: &MeshState, new: &MeshState) -> (Self, BTreeSet<Place>) {
        let mut index = self.clone();
        let mut dirty = BTreeSet::new();
        for change in diff::changes(
            &old.objects.destination_rules,
            &new.objects.destination_rules,
        ) {
            let (before, after) = change.both();
            if let Some(rule) = before {
                let place = place(old, rule);
                index.change_members(&place, |members| {
                    members.retain(|m| *m != Member::new(rule));
                });
                dirty.insert(place);
            }
            if let Some(rule) = after {
                let place = place(new, rule);
                index.change_members(&place, |members| {
                    members.push(Member::new(rule));
                    members.sort_unstable();
                });
                dirty.insert(place);
            }
        }
        let consolidator = Consolidator::new(new);
        for place in &dirty {
            let members = index.members_of(place).to_vec();
            index.set(place, consolidator.consolidate(place, members.iter()));
        }
        (index, dirty)
    }

    fn members_of(&self, place: &Place) -> &[Member] {
        self.members.get(place).map_or(&[], Few::as_slice)
    }

    fn change_members(&mut self, place: &Place, change: impl FnOnce(&mut Vec<Member>)) {
        let mut members = self.members_of(place).to_vec();
        change(&mut members);
        match Few::from_sorted(members) {
            Some(members) => self.members.insert(place.clone(), members),
            None => self.members.remove(place),
        };
    }

    fn set(&mut self, (namespace, host): &Place, lists: Lists) {
        for (by_namespace, list) in [
            (&mut self.local, lists.local),
            (&mut self.exported, lists.exported),
        ] {
            if !list.is_empty() {
                by_namespace
                    .entry(namespace.clone())
                    .or_default()
                    .set(host, list);
            } else if let Some(rules) = by_namespace.get_mut(namespace) {
                rules.set(host, list);
                if rules.is_empty() {
                    by_namespace.remove(namespace);
                }
            }
        }
        if **namespace == *self.root {
            self.root_private.set(host, lists.root_private);
        }
    }
}

fn root_namespace(state: &MeshState) -> Arc<str> {
    state.root_namespace().into()
}

fn place(state: &MeshState, rule: &Config<DestinationRule>) -> Place {
    let namespace = &rule.meta.namespace;
    let host = host::expand(&rule.spec.host, namespace, &state.identity.domain);
    (namespace.clone(), host.as_ref().into())
}

/// A rule among those of its host: with selector first, then by creation (config-model §6.4).
#[derive(Clone, Debug)]
struct Member {
    plain: bool,
    rule: InOrder<Config<DestinationRule>>,
}

impl Member {
    fn new(rule: &Arc<Config<DestinationRule>>) -> Self {
        Self {
            plain: rule.spec.workload_selector.is_none(),
            rule: InOrder(rule.clone()),
        }
    }
}

impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Member {}

impl PartialOrd for Member {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Member {
    fn cmp(&self, other: &Self) -> Ordering {
        self.plain
            .cmp(&other.plain)
            .then_with(|| self.rule.0.by_creation(&other.rule.0))
    }
}

/// Rules by host, looked up by the most specific match; persistent.
#[derive(Clone, Default, Debug)]
pub(crate) struct Rules {
    plain: HashTable<Arc<str>, RuleList>,
    wildcard: OrdMap<Wildcard, RuleList>,
}

impl Rules {
    fn set(&mut self, host: &Arc<str>, list: RuleList) {
        match (is_wildcard(host), list.is_empty()) {
            (false, false) => self.plain.insert(host.clone(), list),
            (false, true) => self.plain.remove(&**host),
            (true, false) => self.wildcard.insert(Wildcard(host.clone()), list),
            (true, true) => self.wildcard.remove(&Wildcard(host.clone())),
        };
    }

    fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.wildcard.is_empty()
    }

    /// Follows [`model::host::HostMap::most_specific`].
    fn most_specific(&self, needle: &str) -> Option<&RuleList> {
        let rest = needle.strip_prefix('*');
        if rest.is_none()
            && let Some(list) = self.plain.get(needle)
        {
            return Some(list);
        }
        let rest = rest.unwrap_or(needle);
        self.wildcard
            .iter()
            .find(|(host, _)| rest.ends_with(&host.0[1..]))
            .map(|(_, list)| list)
    }
}

/// A wildcard host, the more specific first.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Wildcard(Arc<str>);

impl PartialOrd for Wildcard {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Wildcard {
    fn cmp(&self, other: &Self) -> Ordering {
        more_specific(&self.0, &other.0)
    }
}

/// The rules of one host for each placement.
struct Lists {
    local: RuleList,
    exported: RuleList,
    root_private: RuleList,
}

/// What consolidation needs to know of the mesh.
struct Consolidator {
    default_is_private: bool,
    root: Arc<str>,
    by_export: bool,
}

impl Consolidator {
    fn new(state: &MeshState) -> Self {
        let default = &state.mesh.default_destination_rule_export_to;
        Self {
            default_is_private: default.iter().any(|e| e.trim() == "."),
            root: root_namespace(state),
            by_export: state.features.enhanced_destination_rule_merge,
        }
    }

    /// Consolidates the rules of one host, given in order, once per placement (config-model §11.1).
    fn consolidate<'m>(
        &self,
        (namespace, host): &Place,
        members: impl Iterator<Item = &'m Member>,
    ) -> Lists {
        let rules: Vec<(&Arc<Config<DestinationRule>>, ExportTo)> = members
            .map(|m| (&m.rule.0, effective_export(&m.rule.0)))
            .collect();
        let own = &**namespace;
        let is_local =
            |e: &ExportTo| e.is_empty() || ["*", ".", own].iter().any(|entry| e.contains(entry));
        let is_private = |e: &ExportTo| {
            (e.is_empty() && self.default_is_private) || e.is_only(".") || e.is_only(own)
        };
        let merged = |keep: &dyn Fn(&ExportTo) -> bool| {
            let kept = rules.iter().filter(|(_, e)| keep(e)).cloned();
            merge::consolidate(host, kept, self.by_export)
        };
        let local = merged(&is_local);
        let same = rules.iter().all(|(_, e)| is_local(e) != is_private(e));
        let exported = if same {
            local.clone()
        } else {
            merged(&|e| !is_private(e))
        };
        let root_private = if **namespace == *self.root {
            merged(&is_private)
        } else {
            RuleList::default()
        };
        Lists {
            local,
            exported,
            root_private,
        }
    }
}

/// The declared export set; rules with selector stay in their namespace.
fn effective_export(rule: &Config<DestinationRule>) -> ExportTo {
    if rule.spec.workload_selector.is_some() {
        ExportTo::new(["."])
    } else {
        ExportTo::new(&rule.spec.export_to)
    }
}

#[cfg(test)]
mod tests;
