//! The exchange of owners between edges.
//!
//! Edges that see the changes of a service at different times, or together, give its slots different histories. An edge
//! that lacks one of another's past owners would break the connections that routers move to it. So each edge asks a random
//! other one, every 5 s, who owns its slots and who did. What the other has and this edge lacks becomes a past owner here.
//!
//! ```text
//! asker                                       answerer
//!   greeting: version, nonce, instance  --->
//!                                       <---  greeting: version, nonce, instance
//!   which digest have all services?     --->
//!                                       <---  one number: the end, if it is the asker's own
//!   which have the services?            --->
//!                                       <---  key and digest of each
//!   who owns the slots of these?        --->
//!                                       <---  backends by address and port, lists of past owners, slots
//! ```
//!
//! Owners are told, not sets of backends: a release that makes other tables of a set is understood as well. Every request
//! and answer has an HMAC (RFC 2104) with the key that all edges share, over both nonces and its number, so an old one is
//! of no use to anybody. Nothing is secret in them but what services and backends there are.
//!
//! An answer changes nothing until all of an exchange has come and is consistent. What an edge refuses it counts, and it
//! names the peer.
//!
//! `key` authenticates, `frame` delimits, `message` encodes; `ask` and `answer` are the two sides of a connection;
//! `turns` decides who is asked when; `digest` tells what differs; `state` is what operators see.

mod answer;
mod ask;
mod digest;
mod frame;
mod key;
#[cfg(test)]
mod measure;
mod message;
mod refusal;
mod state;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fastpath::tables::{SlotOwners, TakenOwners};
use futures_util::future::{BoxFuture, Shared, join, join_all};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::desired::ServiceKey;

use self::answer::serve;
pub(crate) use self::digest::Summary;
pub use self::key::{Key, KeyError};
pub(crate) use self::state::PeerStates;
use self::turns::{Connect, Turns};

/// Time from one exchange to the next.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest duration of an exchange.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes that an exchange receives: what it lacks then is asked for in the next one.
const MOST_BYTES: usize = 32 << 20;
/// Slots whose owners the agent tells, digests or takes at one go. It does nothing else meanwhile.
pub(crate) const SLOTS_AT_ONCE: usize = 1 << 15;

/// Why an edge without a past is not ready yet.
pub(crate) const WAITS_FOR_PAST: &str =
    "no other edge has told the past of slots yet, see `peers` of the configuration";

/// The key, once it is known. Clones wait for the same.
pub(crate) type ComingKey = Shared<BoxFuture<'static, Key>>;

/// What peers are asked and answered with. Listeners are opened before the agent touches the dataplane.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) key: ComingKey,
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) states: PeerStates,
}

/// This edge, as the exchange needs it.
#[derive(Debug)]
pub(crate) struct OwnEdge<O> {
    pub(crate) owners: O,
    pub(crate) network: Network,
    /// Whether its tables had a past when it began.
    pub(crate) has_past: bool,
}

impl Exchange {
    /// Takes the past from a peer, unless the edge has one, and calls `begun`. Then asks and answers for ever.
    pub(crate) async fn run<O: Owners>(self, edge: OwnEdge<O>, begun: impl FnOnce()) {
        let OwnEdge {
            owners,
            network,
            has_past,
        } = edge;
        let Self {
            key,
            listeners,
            states,
        } = self;
        let mut turns = Turns::new(key.clone(), owners.clone(), network, states.clone());
        turns.begin(has_past).await;
        begun();
        // Who has no past yet is of no use to another edge that has none.
        let answers = listeners
            .into_iter()
            .map(|listener| serve(listener, key.clone(), owners.clone(), states.clone()));
        join(join_all(answers), turns.run()).await;
    }
}

/// The other edges, as the agent knows them.
#[derive(Clone, Debug)]
pub(crate) struct Network(pub(crate) watch::Receiver<BTreeSet<SocketAddr>>);

impl Connect for Network {
    type Stream = TcpStream;

    fn peers(&self) -> BTreeSet<SocketAddr> {
        self.0.borrow().clone()
    }

    async fn connect(&self, peer: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(peer).await
    }
}

/// A service's owners as an edge tells them.
pub(crate) type Told = Vec<(ServiceKey, SlotOwners)>;

/// What the exchange needs of the tables.
pub(crate) trait Owners: Clone + Send + Sync + 'static {
    /// Returns the digests of all services that edges share.
    fn summary(&self) -> Summary;

    /// Returns the owners of the first of these services, as many as are got at one go, but one at least; nothing for a
    /// service that is not shared. `None` if the tables are gone.
    fn owners(
        &self,
        keys: Vec<ServiceKey>,
    ) -> impl Future<Output = Option<Vec<Option<SlotOwners>>>> + Send;

    /// Takes what a peer told that was asked at this time. `None` if the tables are gone.
    fn take(&self, told: Told, asked: Instant) -> impl Future<Output = Option<TakenOwners>> + Send;
}
