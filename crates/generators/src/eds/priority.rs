//! Priorities and weights by locality (clusters-endpoints §19.8).

use std::collections::BTreeMap;

use model::{
    Labels, Locality, ProxyType,
    api::common::{LocalityDistribute, LocalityFailover},
};

use super::{
    group::{Group, Source},
    view::{EndpointView, Place},
};
use crate::locality::LocalitySetting;

/// The label that, as the first of a failover priority, keeps networks apart.
const NETWORK_LABEL: &str = "topology.istio.io/network";

/// Applies a setting to the groups. `failover` tells whether priorities may be assigned, `by_labels`
/// whether they may follow labels.
pub(super) fn apply(
    groups: &mut Vec<Group<'_>>,
    setting: &LocalitySetting<'_>,
    failover: bool,
    by_labels: bool,
    place: &Place,
    view: &EndpointView,
) {
    let labels = setting.failover_priority();
    match setting {
        LocalitySetting::None => {}
        LocalitySetting::ZoneAware(zone) => {
            if zone.enabled != Some(false) && view.proxy_type != ProxyType::Waypoint {
                if !labels.is_empty() && by_labels {
                    by_failover_priority(groups, &labels, &place.labels);
                }
                by_zone_awareness(groups, setting.failover(), &place.locality);
            }
        }
        LocalitySetting::Locality(_) | LocalitySetting::Forced(_) => {
            if !setting.distribute().is_empty() {
                distribute(groups, setting.distribute(), &place.locality);
            } else if failover && labels.is_empty() {
                by_region(groups, setting.failover(), &place.locality);
            } else if failover {
                if by_labels {
                    by_failover_priority(groups, &labels, &place.labels);
                }
                if !setting.failover().is_empty() {
                    by_region(groups, setting.failover(), &place.locality);
                }
            }
        }
    }
}

/// Gives the groups named by the first matching entry their shares; the others lose their members.
fn distribute(groups: &mut [Group<'_>], entries: &[LocalityDistribute], own: &Locality) {
    let Some(entry) = entries.iter().find(|e| matches(&e.from, own)) else {
        return;
    };
    let mut claimed = vec![false; groups.len()];
    for (pattern, share) in &entry.to {
        let mut members = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            if !claimed[at] && matches(pattern, &group.locality) {
                claimed[at] = true;
                members.push(at);
            }
        }
        let weight = |group: &Group<'_>| u64::from(group.weight.unwrap_or_default());
        let sum: u64 = members.iter().map(|at| weight(&groups[*at])).sum();
        for at in members {
            let own = weight(&groups[at]);
            let scaled = (u64::from(*share) * own)
                .checked_div(sum)
                .unwrap_or_default()
                + u64::from(sum > 0 && (u64::from(*share) * own) % sum != 0);
            groups[at].weight = Some(u32::try_from(scaled).unwrap_or(u32::MAX));
        }
    }
    for (group, claimed) in groups.iter_mut().zip(claimed) {
        if !claimed {
            group.members.clear();
        }
    }
}

/// Matches a locality against `region/zone/subzone`, where `*` and missing parts match all.
fn matches(pattern: &str, locality: &Locality) -> bool {
    let mut parts = pattern.splitn(3, '/');
    let mut part_matches = |value: &str, required: bool| match parts.next() {
        Some("*") => true,
        Some("") | None => !required,
        Some(part) => part == value,
    };
    part_matches(&locality.region, true)
        && part_matches(&locality.zone, false)
        && part_matches(&locality.subzone, false)
}

/// Failover by region, zone and subzone, over the priorities that are there.
fn by_region(groups: &mut [Group<'_>], failover: &[LocalityFailover], own: &Locality) {
    for group in groups.iter_mut() {
        let other = &group.locality;
        let distance = if own.region != other.region {
            let named = failover.iter().find(|f| f.from == *own.region);
            if named.is_some_and(|f| f.to != *other.region) {
                4
            } else {
                3
            }
        } else if own.zone != other.zone {
            2
        } else {
            u32::from(own.subzone != other.subzone)
        };
        group.priority = 5 * group.priority + distance;
    }
    compact(groups);
}

/// The own region first, then the one that a failover entry names, then the rest.
fn by_zone_awareness(groups: &mut [Group<'_>], failover: &[LocalityFailover], own: &Locality) {
    for group in groups.iter_mut() {
        let region = &group.locality.region;
        let named = failover.iter().find(|f| f.from == *own.region);
        let distance = if *region == own.region {
            0
        } else if named.is_some_and(|f| f.to == **region) {
            1
        } else {
            2
        };
        group.priority = 3 * group.priority + distance;
    }
    compact(groups);
}

/// Splits each group by how many of the labels its members share with the proxy.
fn by_failover_priority(groups: &mut Vec<Group<'_>>, priority: &[&str], own: &Labels) {
    if own.is_empty() {
        return;
    }
    let wanted: Vec<Wanted<'_>> = priority
        .iter()
        .map(|entry| Wanted::parse(entry, own))
        .collect();
    let network_first = priority.first() == Some(&NETWORK_LABEL);
    let mut split = Vec::with_capacity(groups.len());
    for mut group in std::mem::take(groups) {
        let mut ranks: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for member in std::mem::take(&mut group.members) {
            let rank = rank(&member.source, &wanted, network_first);
            ranks.entry(rank).or_default().push(member);
        }
        if ranks.is_empty() {
            split.push(group);
            continue;
        }
        for (rank, members) in ranks {
            let mut part = Group::new(group.locality.clone(), members);
            part.priority = rank;
            split.push(part);
        }
    }
    *groups = split;
    compact(groups);
}

/// One label of a failover priority with the value that counts as near.
struct Wanted<'a> {
    key: &'a str,
    value: &'a str,
}

impl<'a> Wanted<'a> {
    /// Reads `key` (the proxy's own value is near) or `key=value`.
    fn parse(entry: &'a str, own: &'a Labels) -> Self {
        let own_value = |key: &str| own.get(key).map_or("", String::as_str);
        match entry.split_once('=') {
            Some((key, value)) if !value.contains('=') => Self { key, value },
            Some((key, _)) => Self {
                key,
                value: own_value(key),
            },
            None => Self {
                key: entry,
                value: own_value(entry),
            },
        }
    }
}

/// How far a member is: 0 when all labels are equal, more the earlier one differs. Another network,
/// when it stands first, adds to that instead of ending the comparison.
fn rank(source: &Source<'_>, wanted: &[Wanted<'_>], network_first: bool) -> u32 {
    let size = u32::try_from(wanted.len()).unwrap_or(u32::MAX);
    let mut left = size;
    let mut penalty = 0;
    for (at, label) in wanted.iter().enumerate() {
        if source.label(label.key) != label.value {
            if at == 0 && network_first {
                penalty = size;
            } else {
                return left.saturating_add(penalty);
            }
        }
        left -= 1;
    }
    penalty
}

/// Renumbers the priorities in use from 0 without gaps.
fn compact(groups: &mut [Group<'_>]) {
    let mut used: Vec<u32> = groups.iter().map(|g| g.priority).collect();
    used.sort_unstable();
    used.dedup();
    for group in groups {
        let at = used.binary_search(&group.priority).unwrap_or_default();
        group.priority = u32::try_from(at).unwrap_or(u32::MAX);
    }
}
