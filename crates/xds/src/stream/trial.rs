//! What a stream tells the quarantine of its class, and what follows.

use std::sync::Arc;

use tracing::{error, warn};

use super::Stream;
use crate::ads::Reaction;
use crate::class::{ClassCell, Published};
use crate::offload::offload;
use crate::quarantine::Next;
use crate::{Resource, Source, Version, World};

impl<W: World> Stream<'_, W> {
    /// Passes on what the client said about a response.
    pub(super) fn testify(&mut self, type_url: &str, reaction: &Reaction) {
        let culprits = reaction.rejected.as_deref().unwrap_or_default();
        let cell = self.cell();
        let message = self.ads.subscription(type_url).and_then(|s| s.error());
        let message = message.cloned().unwrap_or_default();
        for culprit in culprits {
            let suspected = self.suspected(culprit);
            let accepted = self.stand_in(type_url, culprit);
            let next = cell.quarantine.lock().on_rejected(
                &type_url.into(),
                &suspected,
                accepted.as_deref(),
                &message,
            );
            self.follow(next);
        }
        if reaction.acked.is_some() {
            let accepted = |name: &str| self.accepted(type_url, name);
            let next = cell.quarantine.lock().on_accepted(type_url, accepted);
            self.follow(next);
        }
    }

    /// Looks at what the class has in a state of the world: it may prove a suspect.
    pub(super) fn look_at_trial(&mut self, cell: &ClassCell<W>, view: &Published<W>) {
        if !cell.quarantine.lock().is_trying() {
            return;
        }
        let mut all = Vec::new();
        for subscription in self.ads.subscriptions() {
            if let Some(target) = subscription.target() {
                let type_url = subscription.type_url();
                let accepted = |name: &str| self.accepted(type_url, name);
                let mut quarantine = cell.quarantine.lock();
                all.push(quarantine.on_built(type_url, view.seq, target, accepted));
            }
        }
        for next in all {
            self.follow(next);
        }
    }

    /// Builds the class again if that is due.
    pub(super) async fn rebuild_if_due(&mut self) {
        if std::mem::take(&mut self.rebuild) {
            let (hub, cell) = (Arc::clone(self.hub), self.cell());
            if let Err(error) = offload(move || hub.rebuild(&cell)).await {
                error!(%error, "class not built again");
            }
        }
    }

    fn follow(&mut self, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Rebuild => self.rebuild = true,
            Next::Proved(aside) => {
                let (config, type_url) = (&*aside.source, &*aside.type_url);
                warn!(
                    config,
                    type_url,
                    resource = &*aside.resource,
                    "set aside until it changes"
                );
                self.hub.observer.set_aside(&self.link.info, &aside);
            }
        }
    }

    fn cell(&self) -> Arc<ClassCell<W>> {
        Arc::clone(&self.link.state.lock().cell)
    }

    /// Returns the resource with only those sources that may be set aside.
    fn suspected(&self, culprit: &Resource) -> Resource {
        let may = |source: &&Source| self.hub.world.may_set_aside(source);
        let sources: Vec<Source> = culprit.sources().iter().filter(may).cloned().collect();
        culprit.clone().with_sources(sources)
    }

    /// Returns what stands for a resource that is held back.
    fn stand_in(&self, type_url: &str, culprit: &Resource) -> Option<Arc<Resource>> {
        let subscription = self.ads.subscription(type_url)?;
        subscription
            .delivery()
            .rejected()
            .get(culprit.name())?
            .instead
            .clone()
    }

    /// Returns the version of a resource that the client accepted last.
    fn accepted(&self, type_url: &str, name: &str) -> Option<Version> {
        self.ads.subscription(type_url)?.delivery().accepted(name)
    }
}
