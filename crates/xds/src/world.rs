//! The seam between the server and the application that it serves.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::Hash;
use std::net::SocketAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Node;
use tonic::{Extensions, Status, metadata::MetadataMap};

use crate::{Interest, Names, ResourceSet, Source};

/// The application: what the server has to know about the world that it serves.
///
/// All functions are called from several threads. Those that are not `async` never perform I/O.
pub trait World: Sized + Send + Sync + 'static {
    /// One immutable state of everything that resources are built from.
    type Snapshot: Send + Sync + 'static;
    /// What is known of one connected node for as long as its stream lasts.
    type Client: Send + Sync + 'static;
    /// The decisions that equal proxies share. Equal classes get equal resources: a generator sees
    /// the class, never the client.
    type Class: Eq + Hash + Send + Sync + 'static;
    /// What changed from one published snapshot to the next.
    type Update: Send + Sync + 'static;

    /// Decides whether a node may connect, from the first request of its stream.
    ///
    /// Work that takes long (asking a token review) belongs here and delays this stream only. An
    /// error ends the stream with that status.
    fn admit(
        &self,
        snapshot: &Self::Snapshot,
        node: &Node,
        peer: &Peer,
    ) -> impl Future<Output = Result<Self::Client, Status>> + Send;

    /// Returns the class that a client belongs to in this snapshot.
    fn classify(&self, snapshot: &Self::Snapshot, client: &Self::Client) -> Self::Class;

    /// Returns whether a change can move clients to other classes. `false` saves asking
    /// [`classify`](Self::classify) for every connection.
    fn regroups(&self, change: &Change<'_, Self>) -> bool {
        let _ = change;
        true
    }

    /// Returns which resources of one type and class a change can touch.
    ///
    /// Naming too much costs time, naming too little loses updates. A class that is not touched
    /// costs nothing: no generator runs and no connection wakes up.
    fn touched(&self, change: &Change<'_, Self>, class: &Self::Class, type_url: &str) -> Touched {
        let _ = (change, class, type_url);
        Touched::Everything
    }

    /// Returns a short, opaque id of the snapshot. It rides in versions and nonces, so that a dump
    /// of a client tells which state of the world it has. No `/` and no spaces.
    fn root(&self, snapshot: &Self::Snapshot) -> Arc<str>;

    /// Returns whether this object may be left out for clients that reject what is built from it.
    ///
    /// A client decides by its rejections alone, so this is for objects whose absence makes nothing
    /// less safe: patches and telemetry, not policies. By default none.
    fn may_set_aside(&self, object: &Source) -> bool {
        let _ = object;
        false
    }

    /// Returns the same state of the world without these objects; `None` when that makes no
    /// difference.
    fn set_aside(
        &self,
        snapshot: &Arc<Self::Snapshot>,
        objects: &BTreeSet<Source>,
    ) -> Option<Arc<Self::Snapshot>> {
        let _ = (snapshot, objects);
        None
    }

    /// Returns whether a change touches this object itself, so that it may come back after it was
    /// set aside.
    fn changes(&self, change: &Change<'_, Self>, object: &Source) -> bool {
        let _ = (change, object);
        true
    }

    /// Returns whether requests of this type only report something to the server (the health of a
    /// workload): they are neither subscribed to nor answered.
    fn is_report(&self, type_url: &str) -> bool {
        let _ = type_url;
        false
    }

    /// Takes in a report of an admitted client.
    fn report(&self, client: &Self::Client, report: &Report<'_>) {
        let _ = (client, report);
    }
}

/// What [`World::report`] is told.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report<'a> {
    /// The type URL of the request.
    pub type_url: &'a str,
    /// The message of its `error_detail`, if it has one.
    pub error: Option<&'a str>,
}

/// One step from an older snapshot to a newer one.
pub struct Change<'a, W: World> {
    /// The snapshot before. `None` for the first one.
    pub from: Option<&'a W::Snapshot>,
    /// The snapshot after.
    pub to: &'a W::Snapshot,
    /// What lies between them.
    pub update: &'a W::Update,
}

impl<W: World> fmt::Debug for Change<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("first", &self.from.is_none())
            .finish_non_exhaustive()
    }
}

/// Which resources of one type a change can touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Touched {
    /// None of them.
    #[default]
    Nothing,
    /// At most these. The generator is then asked for these names only, also of a type that can be
    /// subscribed to as a whole; a name that it leaves out no longer exists.
    Named(Names),
    /// Possibly all of them.
    Everything,
}

impl Touched {
    /// Returns what two changes can touch together.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        match (self, other) {
            (Self::Everything, _) | (_, Self::Everything) => Self::Everything,
            (Self::Nothing, other) | (other, Self::Nothing) => other,
            (Self::Named(a), Self::Named(b)) => {
                Self::Named(a.iter().chain(b.iter()).cloned().collect())
            }
        }
    }
}

/// Builds the resources of one type.
///
/// Pure: the result depends on the three arguments alone. It runs on a thread for CPU work and
/// never blocks. Bad configuration is skipped and reported, never a panic; should one happen, the
/// class keeps the set that it has.
pub trait Generator<W: World>: Send + Sync {
    /// Returns the resources of `class` that `interest` asks for.
    ///
    /// Of a type that cannot be subscribed to as a whole ([`TypeFacts::wildcard`] is false) every
    /// resource depends on its own name only, never on the other names of the interest: the server
    /// asks for new names alone and keeps what it has.
    ///
    /// [`TypeFacts::wildcard`]: crate::TypeFacts::wildcard
    fn generate(
        &self,
        snapshot: &W::Snapshot,
        class: &W::Class,
        interest: &Interest,
    ) -> ResourceSet;
}

impl<W, F> Generator<W> for F
where
    W: World,
    F: Fn(&W::Snapshot, &W::Class, &Interest) -> ResourceSet + Send + Sync,
{
    fn generate(
        &self,
        snapshot: &W::Snapshot,
        class: &W::Class,
        interest: &Interest,
    ) -> ResourceSet {
        self(snapshot, class, interest)
    }
}

/// The other end of a stream.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Peer {
    /// Where the connection comes from, when the transport knows.
    pub address: Option<SocketAddr>,
    /// The headers of the call, such as `authorization`.
    pub metadata: MetadataMap,
    /// What the transport and its layers attached, such as verified certificates.
    pub extensions: Extensions,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Touched {
        Touched::Named(names.iter().copied().collect())
    }

    #[track_caller]
    fn check(older: Touched, newer: Touched, expected: &Touched) {
        assert_eq!(&older.merge(newer), expected);
    }

    #[test]
    fn touches_merge_to_the_larger() {
        check(Touched::Nothing, Touched::Nothing, &Touched::Nothing);
        check(Touched::Nothing, named(&["a"]), &named(&["a"]));
        check(named(&["b"]), named(&["a"]), &named(&["a", "b"]));
        check(named(&["b"]), Touched::Nothing, &named(&["b"]));
        check(named(&["b"]), Touched::Everything, &Touched::Everything);
        check(Touched::Everything, named(&["b"]), &Touched::Everything);
    }
}
