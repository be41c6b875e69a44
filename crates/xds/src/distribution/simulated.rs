//! Clients without connections, that hold everything and answer at once: to measure what questions
//! cost in a mesh that is too large to connect.

use std::sync::Arc;

use crate::delivery::Settled;
use crate::observer::{Protocol, StreamInfo};
use crate::server::Link;
use crate::status::Standing;
use crate::{Interest, Server, SubscriptionStatus, World};

/// Clients without connections.
#[derive(Debug)]
pub struct Simulated<W: World> {
    server: Server<W>,
    links: Vec<Arc<Link<W>>>,
}

impl<W: World> Simulated<W> {
    /// Adds clients, each with the id of its node. `None` before the first publication.
    pub fn new(
        server: &Server<W>,
        clients: impl IntoIterator<Item = (String, W::Client)>,
    ) -> Option<Self> {
        let hub = server.hub();
        let view = hub.current()?;
        let register = |(node, client): (String, W::Client)| {
            let info = |id| StreamInfo {
                id,
                node: node.into(),
                protocol: Protocol::Delta,
            };
            hub.register(info, client, Arc::clone(&view))
        };
        Some(Self {
            server: server.clone(),
            links: clients.into_iter().map(register).collect(),
        })
    }

    /// Has what is published built for every class: all is on its way, and nobody has answered.
    pub async fn build(&self) {
        let hub = self.server.hub();
        let Some(view) = hub.current() else { return };
        for cell in hub.classes.live() {
            for set in cell.live_sets() {
                set.at(hub, &view).await;
            }
        }
    }

    /// Has every client accept all of every type that is published.
    pub async fn accept(&self) {
        let hub = self.server.hub();
        let Some(view) = hub.current() else { return };
        for link in &self.links {
            let cell = Arc::clone(&link.state.lock().cell);
            let (mut sets, mut statuses) = (Vec::new(), Vec::new());
            for (index, served) in hub.registry.types().iter().enumerate() {
                let set = cell.set(index, &Interest::Everything, view.seq, None);
                let good = set.at(hub, &view).await;
                statuses.push(SubscriptionStatus {
                    type_url: served.type_url().into(),
                    interest: Interest::Everything,
                    nonce_sent: None,
                    nonce_acked: Some("root/1".into()),
                    resources: good.len(),
                    error: None,
                    held_back: Vec::new(),
                    standing: Standing {
                        good,
                        unsure: Vec::new(),
                        settled: Settled {
                            seq: view.seq,
                            at: None,
                            root: None,
                        },
                        waits_since: None,
                        tells_removals: true,
                    },
                });
                sets.push(set);
            }
            let mut state = link.state.lock();
            (state.sets, state.subscriptions) = (sets, statuses);
        }
    }
}
