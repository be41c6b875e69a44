//! The state machine.

mod tenant;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    fmt,
    time::{Duration, Instant},
};

use tenant::Tenant;

use crate::{
    Decision, Event, Idle, InvalidSettings, Limits, Now, Problem, Registration, Scope, Settings,
    Status, TenantInfo, TenantStatus,
};

/// How many of the noisiest objects a status names.
const NAMED: usize = 5;

/// The labels of a tenant.
pub type Labels = BTreeMap<String, String>;

/// Looks the labels of a tenant up.
type LabelsOf<T> = Box<dyn Fn(&T) -> Labels + Send + Sync>;

/// Admits the events of many tenants; `now` comes in, actions go out.
///
/// The owner calls [`on_event`](Self::on_event) for each event and [`on_timer`](Self::on_timer) when
/// [`deadline`](Self::deadline) has come. Both append to an [`Output`], which can be reused, so that an
/// event of a quiet tenant costs no allocation.
///
/// Tenants are remembered only while that makes a difference: one that has been quiet for a window is
/// forgotten.
pub struct Engine<E: Event> {
    settings: Settings<E::Tenant>,
    policy: Registration,
    labels: LabelsOf<E::Tenant>,
    tenants: BTreeMap<E::Tenant, Tenant<E>>,
    /// When tenants need attention: [`Tenant::wakeup`] of each that has one.
    wakeups: BTreeSet<(Instant, E::Tenant)>,
    /// When to look for tenants to forget; `None` while there are none.
    next_sweep: Option<Instant>,
}

/// What to do: pass on the releases, in order, and tell of the notices.
#[derive(Debug)]
pub struct Output<E: Event> {
    /// Events that go on, in order.
    pub released: Vec<Release<E>>,
    /// What happened, in order.
    pub notices: Vec<Notice<E::Tenant, E::Object>>,
}

impl<E: Event> Default for Output<E> {
    fn default() -> Self {
        Self {
            released: Vec::new(),
            notices: Vec::new(),
        }
    }
}

/// An event that goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release<E> {
    /// The event, merged if several were held.
    pub event: E,
    /// How many events it stands for, at least 1.
    pub events: u64,
    /// How long the oldest of them was held; zero for events that were not.
    pub waited: Duration,
    /// Why it goes on now.
    pub cause: Cause,
}

/// Why an event goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It, or the newest event merged into it, was not to be held.
    Passed,
    /// Its time came.
    Due,
    /// It is the urgent part of what is held, and has waited for the base delay.
    Urgent,
    /// Nothing is held any longer: shutdown, changed settings, or the tenant is deleted.
    Drained,
}

/// Something to log or to count.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice<T, O> {
    /// An event was held.
    Held {
        /// Whose.
        tenant: T,
    },
    /// Throttling of a tenant starts.
    Started(TenantStatus<T, O>),
    /// No event of the tenant was held for the maximum delay, so throttling has ended.
    Ended(TenantStatus<T, O>),
    /// A tenant that was throttled before has been quiet for a window, or is deleted.
    Forgotten {
        /// Which.
        tenant: T,
    },
}

impl<E: Event> fmt::Debug for Engine<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("settings", &self.settings)
            .field("policy", &self.policy)
            .field("tenants", &self.tenants.len())
            .finish_non_exhaustive()
    }
}

impl<E: Event> Engine<E> {
    /// Makes an engine whose tenants have no labels.
    ///
    /// # Errors
    /// [`InvalidSettings`] with everything that is out of range or that the policy refuses.
    pub fn new(
        settings: Settings<E::Tenant>,
        policy: Registration,
    ) -> Result<Self, InvalidSettings> {
        check(&settings, policy)?;
        Ok(Self {
            settings,
            policy,
            labels: Box::new(|_| Labels::new()),
            tenants: BTreeMap::new(),
            wakeups: BTreeSet::new(),
            next_sweep: None,
        })
    }

    /// Sets where the labels of a tenant are looked up: at its first event and once per window.
    #[must_use]
    pub fn with_labels(
        mut self,
        labels: impl Fn(&E::Tenant) -> Labels + Send + Sync + 'static,
    ) -> Self {
        self.labels = Box::new(labels);
        self
    }

    /// Whether anything is throttled.
    pub fn is_enabled(&self) -> bool {
        self.settings.enabled
    }

    /// Takes in `event`, which arrived at `now`.
    ///
    /// The parts of it that pass go on as one event.
    #[inline]
    pub fn on_event(&mut self, now: Now, event: E, out: &mut Output<E>) {
        if self.settings.enabled {
            self.admit(now, event, out);
        } else {
            out.released.push(Release::passed(event));
        }
    }

    fn admit(&mut self, now: Now, event: E, out: &mut Output<E>) {
        let passed = match event.scope() {
            Scope::Global => Some(Release::passed(event)),
            Scope::Tenant(tenant) if self.settings.exempt.contains(tenant) => {
                Some(Release::passed(event))
            }
            Scope::Tenant(tenant) => {
                // The counting comes first: in the common case nothing of the tenant is cloned.
                match self.tenants.get_mut(tenant) {
                    Some(known) if known.is_clear() => match known.decide(now) {
                        Decision::Pass => Some(Release::passed(event)),
                        Decision::Hold { until } => {
                            let tenant = tenant.clone();
                            self.hold(now, &tenant, until, event, out);
                            None
                        }
                    },
                    _ => {
                        let tenant = tenant.clone();
                        self.admit_part(now, &tenant, event, out)
                    }
                }
            }
            Scope::Mixed => {
                let mut together: Option<Release<E>> = None;
                for (tenant, part) in event.split() {
                    let passed = match tenant {
                        Some(tenant) if !self.settings.exempt.contains(&tenant) => {
                            self.admit_part(now, &tenant, part, out)
                        }
                        _ => Some(Release::passed(part)),
                    };
                    match (&mut together, passed) {
                        (Some(whole), Some(part)) => whole.append_part(part),
                        (None, Some(part)) => together = Some(part),
                        (_, None) => {}
                    }
                }
                together
            }
        };
        out.released.extend(passed);
    }

    /// Decides about the part of one tenant; returns what passes.
    fn admit_part(
        &mut self,
        now: Now,
        tenant: &E::Tenant,
        event: E,
        out: &mut Output<E>,
    ) -> Option<Release<E>> {
        let known = match self.tenants.entry(tenant.clone()) {
            btree_map::Entry::Occupied(known) => known.into_mut(),
            btree_map::Entry::Vacant(vacant) => {
                let info = TenantInfo {
                    name: tenant.to_string(),
                    labels: (self.labels)(tenant),
                };
                self.next_sweep
                    .get_or_insert(now.at + self.settings.limits.window);
                vacant.insert(Tenant::new((self.policy.build)(
                    &self.settings.limits,
                    &info,
                )))
            }
        };
        match known.decide(now) {
            Decision::Pass => {
                let release = known.pass(now.at, event);
                self.schedule(tenant);
                Some(release)
            }
            Decision::Hold { until } => {
                self.hold(now, tenant, until, event, out);
                None
            }
        }
    }

    fn hold(
        &mut self,
        now: Now,
        tenant: &E::Tenant,
        until: Instant,
        event: E,
        out: &mut Output<E>,
    ) {
        let Some(known) = self.tenants.get_mut(tenant) else {
            debug_assert!(false, "held for an unknown tenant");
            out.released.push(Release::passed(event));
            return;
        };
        let starts = known.hold(now.at, until, event, &self.settings.limits);
        out.notices.push(Notice::Held {
            tenant: tenant.clone(),
        });
        if starts && let Some(status) = known.status(now, tenant, &self.settings.limits, NAMED) {
            out.notices.push(Notice::Started(status));
        }
        known.release_due(now, &self.settings.limits, &mut out.released);
        self.schedule(tenant);
    }

    /// When [`on_timer`](Self::on_timer) is to be called next; `None` while nothing is remembered.
    pub fn deadline(&self) -> Option<Instant> {
        let wakeup = self.wakeups.first().map(|(at, _)| *at);
        wakeup.into_iter().chain(self.next_sweep).min()
    }

    /// Releases what is due at `now` and forgets the tenants that have been quiet. Calling it too early
    /// or twice does no harm.
    pub fn on_timer(&mut self, now: Now, out: &mut Output<E>) {
        while let Some((at, _)) = self.wakeups.first()
            && *at <= now.at
            && let Some((_, tenant)) = self.wakeups.pop_first()
        {
            let Some(known) = self.tenants.get_mut(&tenant) else {
                continue;
            };
            known.wakeup = None;
            known.release_due(now, &self.settings.limits, &mut out.released);
            if known.has_calmed(now.at, &self.settings.limits) {
                out.notices.extend(
                    known
                        .status(now, &tenant, &self.settings.limits, NAMED)
                        .map(Notice::Ended),
                );
                known.end();
            }
            self.schedule(&tenant);
        }
        if self.next_sweep.is_some_and(|at| at <= now.at) {
            self.sweep(now, out);
        }
    }

    fn sweep(&mut self, now: Now, out: &mut Output<E>) {
        let (limits, labels) = (&self.settings.limits, &self.labels);
        self.tenants.retain(|tenant, known| {
            if known.is_idle() && known.policy.on_idle(now) == Idle::Forget {
                if known.was_throttled {
                    out.notices.push(Notice::Forgotten {
                        tenant: tenant.clone(),
                    });
                }
                return false;
            }
            let info = TenantInfo {
                name: tenant.to_string(),
                labels: labels(tenant),
            };
            known.policy.configure(limits, &info);
            true
        });
        self.next_sweep = (!self.tenants.is_empty()).then(|| now.at + limits.window);
    }

    /// Releases everything that is held, in the order of the tenants, for shutdown. The engine goes on
    /// as before.
    pub fn drain(&mut self, now: Now, out: &mut Output<E>) {
        for known in self.tenants.values_mut() {
            out.released.extend(known.drain(now.at));
        }
        for (tenant, known) in &mut self.tenants {
            reschedule(&mut self.wakeups, tenant, known, &self.settings.limits);
        }
    }

    /// Forgets `tenant`, because it is deleted; what is held of it goes on at once.
    pub fn remove(&mut self, now: Now, tenant: &E::Tenant, out: &mut Output<E>) {
        let Some(mut known) = self.tenants.remove(tenant) else {
            return;
        };
        if let Some(at) = known.wakeup {
            self.wakeups.remove(&(at, tenant.clone()));
        }
        out.released.extend(known.drain(now.at));
        out.notices.extend(
            known
                .status(now, tenant, &self.settings.limits, NAMED)
                .map(Notice::Ended),
        );
        if known.was_throttled {
            out.notices.push(Notice::Forgotten {
                tenant: tenant.clone(),
            });
        }
    }

    /// Replaces the settings. What is held is bounded by the new limits; it goes on at once when the
    /// tenant has become exempt or nothing is throttled any longer.
    ///
    /// # Errors
    /// [`InvalidSettings`]; the old settings stay in force.
    pub fn set_settings(
        &mut self,
        now: Now,
        settings: Settings<E::Tenant>,
        out: &mut Output<E>,
    ) -> Result<(), InvalidSettings> {
        check(&settings, self.policy)?;
        let gone: Vec<E::Tenant> = self
            .tenants
            .keys()
            .filter(|tenant| !settings.enabled || settings.exempt.contains(tenant))
            .cloned()
            .collect();
        for tenant in gone {
            self.remove(now, &tenant, out);
        }
        self.settings = settings;
        for (tenant, known) in &mut self.tenants {
            let info = TenantInfo {
                name: tenant.to_string(),
                labels: (self.labels)(tenant),
            };
            known.policy.configure(&self.settings.limits, &info);
            known.bound(&self.settings.limits);
            reschedule(&mut self.wakeups, tenant, known, &self.settings.limits);
        }
        self.next_sweep = (!self.tenants.is_empty()).then(|| now.at + self.settings.limits.window);
        self.on_timer(now, out);
        Ok(())
    }

    /// How many events are held.
    pub fn staged(&self) -> u64 {
        self.tenants.values().map(Tenant::staged).sum()
    }

    /// Describes the settings and the throttled tenants.
    pub fn status(&self, now: Now) -> Status<E::Tenant, E::Object> {
        Status {
            enabled: self.settings.enabled,
            policy: self.policy.name,
            limits: self.settings.limits.clone(),
            exempt: self.settings.exempt.iter().cloned().collect(),
            tracked: self.tenants.len(),
            throttled: self
                .tenants
                .iter()
                .filter_map(|(tenant, known)| {
                    known.status(now, tenant, &self.settings.limits, NAMED)
                })
                .collect(),
        }
    }

    fn schedule(&mut self, tenant: &E::Tenant) {
        if let Some(known) = self.tenants.get_mut(tenant) {
            reschedule(&mut self.wakeups, tenant, known, &self.settings.limits);
        }
    }
}

/// Brings `wakeups` up to date with what `known` needs.
fn reschedule<E: Event>(
    wakeups: &mut BTreeSet<(Instant, E::Tenant)>,
    tenant: &E::Tenant,
    known: &mut Tenant<E>,
    limits: &Limits,
) {
    let wanted = known.next_wakeup(limits);
    if wanted == known.wakeup {
        return;
    }
    if let Some(at) = known.wakeup {
        wakeups.remove(&(at, tenant.clone()));
    }
    if let Some(at) = wanted {
        wakeups.insert((at, tenant.clone()));
    }
    known.wakeup = wanted;
}

fn check<T>(settings: &Settings<T>, policy: Registration) -> Result<(), InvalidSettings> {
    let mut problems: Vec<Problem> = settings.limits.problems();
    problems.extend((policy.check)(&settings.limits));
    if problems.is_empty() {
        Ok(())
    } else {
        Err(InvalidSettings(problems))
    }
}

impl<E> Release<E> {
    fn passed(event: E) -> Self {
        Self {
            event,
            events: 1,
            waited: Duration::ZERO,
            cause: Cause::Passed,
        }
    }
}

impl<E: Event> Release<E> {
    /// Joins two parts of one event (or what was held with them).
    fn append_part(&mut self, other: Self) {
        self.event.merge(other.event);
        self.events = self.events.max(other.events);
        self.waited = self.waited.max(other.waited);
    }
}
