//! Decides which peer is asked when, and has the tables take what it tells.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fastpath::tables::TakenOwners;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::ask::{Heard, Question, ask};
use super::digest::Digest;
use super::refusal::Refusal;
use super::state::Begun;
use super::{ComingKey, EXCHANGE_TIMEOUT, Key, Owners, PAUSE, PeerStates, SLOTS_AT_ONCE, Told};
use crate::desired::ServiceKey;
use crate::random::random;

/// How long an edge without a past waits for a peer that tells it one.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time until an edge without a past asks another peer beside one that does not answer.
const NEXT_PEER_DELAY: Duration = Duration::from_millis(500);
/// How long a peer that was not reached comes after all others, and is asked first or not at all. In a cluster it may be a
/// machine that is no edge.
const UNREACHED_PAUSE: Duration = Duration::from_secs(60);
/// How long an exchange that left nothing to take is not repeated, while nothing changes on both sides. Then owners that
/// differ all the time get a new moment.
const SETTLED: Duration = Duration::from_secs(600);

/// Connects to peers.
pub(crate) trait Connect: Clone + Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send;

    /// Lists the addresses of all edges; this one's may be among them.
    fn peers(&self) -> BTreeSet<SocketAddr>;

    /// Opens a connection.
    fn connect(
        &self,
        peer: SocketAddr,
    ) -> impl Future<Output = std::io::Result<Self::Stream>> + Send;
}

/// The exchanges that this edge begins.
#[derive(Debug)]
pub(crate) struct Turns<O, C> {
    key: ComingKey,
    pub(crate) owners: O,
    pub(crate) network: C,
    pub(crate) states: PeerStates,
    memory: HashMap<SocketAddr, Memory>,
}

/// What is remembered of a peer.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    /// The digests of the peer and of this edge after an exchange that left nothing to take, and when that was.
    settled: Option<(Digest, Digest, Instant)>,
    /// The last service that was asked for, if there was no time for the others.
    after: Option<ServiceKey>,
    /// When it was last asked in vain and not reached.
    unreached: Option<tokio::time::Instant>,
}

/// What came of an exchange.
#[derive(Debug)]
struct Exchanged {
    asked: Instant,
    heard: Heard,
}

impl<O: Owners, C: Connect> Turns<O, C> {
    pub(crate) fn new(key: ComingKey, owners: O, network: C, states: PeerStates) -> Self {
        Self {
            key,
            owners,
            network,
            states,
            memory: HashMap::new(),
        }
    }

    /// Takes the past from a peer. Gives up after 5 s. The log tells which.
    pub(crate) async fn begin(&mut self, has_own_past: bool) {
        if has_own_past {
            self.states.note_begun(Begun::WithOwnPast);
            return;
        }
        let begun = match timeout(BEGIN_TIMEOUT, self.take_from_first()).await {
            Ok(Some((peer, taken))) => {
                tracing::info!(%peer, slots = taken.slots, "the past of slots is taken from a peer");
                Begun::FromPeer
            }
            Ok(None) | Err(_) => {
                match self.network.peers().len() {
                    0 => tracing::info!("there is no other edge to take the past of slots from"),
                    peers => tracing::warn!(
                        peers,
                        "no peer tells the past of slots: connections that other edges keep at past owners may break here"
                    ),
                }
                Begun::Without
            }
        };
        self.states.note_begun(begun);
    }

    /// Asks one peer after the other until one has told; `None` if none does.
    async fn take_from_first(&mut self) -> Option<(SocketAddr, TakenOwners)> {
        let mut peers = self.peers_in_turn().into_iter();
        let key = &self.key.clone().await;
        let mut exchanges = FuturesUnordered::new();
        let turns = &*self;
        let (peer, exchanged) = loop {
            match peers.next() {
                Some(peer) => exchanges.push(async move {
                    let question = turns.question(peer);
                    (peer, turns.exchange(peer, key, &question).await)
                }),
                None if exchanges.is_empty() => return None,
                None => {}
            }
            match timeout(NEXT_PEER_DELAY, exchanges.next()).await {
                Ok(Some((peer, Ok(Some(exchanged))))) => break (peer, exchanged),
                Ok(Some((peer, Err(refusal)))) => turns.states.note_asked(peer, Err(refusal)),
                Ok(Some((_, Ok(None))) | None) | Err(_) => {}
            }
        };
        drop(exchanges);
        let taken = self.take(peer, exchanged).await.ok()?;
        Some((peer, taken))
    }

    /// Asks a random peer every 5 s, for ever.
    pub(crate) async fn run(mut self) {
        let mut pause = interval(PAUSE);
        pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pause.tick().await;
            self.turn().await;
        }
    }

    /// Asks a random peer.
    pub(super) async fn turn(&mut self) {
        let key = self.key.clone().await;
        for (asked, peer) in self.peers_in_turn().into_iter().enumerate() {
            if asked > 0 && self.was_unreached(&peer) {
                return;
            }
            let question = self.question(peer);
            let outcome = match self.exchange(peer, &key, &question).await {
                // This edge is one of the peers in a file for all of them.
                Ok(None) => continue,
                Ok(Some(exchanged)) => self.take(peer, exchanged).await.map(drop),
                Err(refusal) => Err(refusal),
            };
            let Err(refusal) = outcome else { return };
            let is_unreached = matches!(refusal, Refusal::Unreachable(_) | Refusal::TimedOut);
            let unreached = is_unreached.then(tokio::time::Instant::now);
            self.memory.entry(peer).or_default().unreached = unreached;
            let goes_on = matches!(refusal, Refusal::Unreachable(_));
            self.states.note_asked(peer, Err(refusal));
            if !goes_on {
                return;
            }
        }
    }

    /// Lists all peers in random order, those behind that were not reached lately.
    fn peers_in_turn(&mut self) -> Vec<SocketAddr> {
        let peers = self.network.peers();
        self.states.retain(&peers);
        self.memory.retain(|peer, _| peers.contains(peer));
        let mut peers: Vec<SocketAddr> = peers.into_iter().collect();
        peers.sort_by_cached_key(|peer| (self.was_unreached(peer), random()));
        peers
    }

    fn was_unreached(&self, peer: &SocketAddr) -> bool {
        let unreached = self.memory.get(peer).and_then(|memory| memory.unreached);
        unreached.is_some_and(|at| at.elapsed() < UNREACHED_PAUSE)
    }

    fn question(&self, peer: SocketAddr) -> Question {
        let memory = self.memory.get(&peer).copied().unwrap_or_default();
        let settled = memory.settled.filter(|(.., at)| at.elapsed() < SETTLED);
        Question {
            own: self.owners.summary(),
            settled: settled.map(|(theirs, ours, _)| (theirs, ours)),
            after: memory.after,
        }
    }

    /// Asks one peer; `None` if it is this agent.
    async fn exchange(
        &self,
        peer: SocketAddr,
        key: &Key,
        question: &Question,
    ) -> Result<Option<Exchanged>, Refusal> {
        let exchange = async {
            let stream = self.network.connect(peer).await?;
            let asked = Instant::now();
            let heard = ask(stream, key, &self.states.instance(), question).await?;
            Ok(heard.map(|heard| Exchanged { asked, heard }))
        };
        let outcome = timeout(EXCHANGE_TIMEOUT, exchange).await;
        outcome.map_err(|_| Refusal::TimedOut)?
    }

    /// Has the tables take what a peer told.
    async fn take(
        &mut self,
        peer: SocketAddr,
        Exchanged { asked, heard }: Exchanged,
    ) -> Result<TakenOwners, Refusal> {
        let mut all = TakenOwners::default();
        for page in &heard.pages {
            for told in in_portions(page.told()?) {
                let taken = self.owners.take(told, asked).await;
                let ending = || Refusal::Unreachable("the agent is ending".to_owned());
                let taken = taken.ok_or_else(ending)?;
                all.slots += taken.slots;
                all.left_out += taken.left_out;
            }
        }
        self.states.note_taken(all);
        let own = self.owners.summary().whole;
        let agrees = heard.whole == own;
        let is_settled = all.slots == 0 && heard.rest_after.is_none();
        let memory = self.memory.entry(peer).or_default();
        memory.unreached = None;
        memory.after = heard.rest_after;
        if is_settled && !agrees && !heard.was_settled {
            memory.settled = Some((heard.whole, own, Instant::now()));
        }
        self.states.note_asked(peer, Ok(agrees || is_settled));
        Ok(all)
    }
}

/// Divides what was told into portions that the tables take at one go.
fn in_portions(told: Told) -> Vec<Told> {
    let mut portions: Vec<Told> = Vec::new();
    let mut slots = SLOTS_AT_ONCE;
    for (key, owners) in told {
        if slots >= SLOTS_AT_ONCE {
            portions.push(Told::new());
            slots = 0;
        }
        slots += owners.slots.len();
        if let Some(portion) = portions.last_mut() {
            portion.push((key, owners));
        }
    }
    portions
}
