//! Flows to pods of this machine that begin, whose clients prove that they are where they say, or that have another
//! client port at the pod. What goes on by the client's own port does not come here (`deliver::look_up`).
//!
//! ```text
//! the client's own port -- of this flow                 -> renewed, or moved to `FLOWS`
//!  |                       not
//!  v
//! the forward entry ------ names a port of this flow    -> likewise, or put back in its place
//!  |                       none, or a port that another flow has by now
//!  v
//! the client's own port -- nobody's, or of one that is over  -> this flow's
//!  |                       of one that goes on, and this is no SYN -> dropped
//!  v
//! ports by hash ---------- the first that is nobody's        -> this flow's, and a forward entry
//!  | each is taken
//!  v
//! the client's own port -- of one that has proved nothing for 3 s -> this flow's, else dropped
//! ```
//!
//! No flow begins at a VIP: nobody is a client there, and what a service answered would go to a service, which answers.

use super::{
    deliver::{self, FlowLookup},
    unproved,
};
use crate::{
    abi::{FLOW_FIN_CLIENT, PodFlow, Tuple},
    decide::address::{addresses, is_no_client},
    frame::Frame,
    parse::Segment,
    reason::DropReason,
    verdict::{Deliver, SeenAs, Shown},
    wire::{protocol, transport::Tcp},
    world::{FlowTable, Inserted, World},
};

/// Ports that are tried for a flow before it is refused: the client's own, that of the forward entry, and others.
pub const PORT_TRIES: u32 = 18;

/// The ports that only the superuser may use, of which clients get others that are (RFC 6056 section 3.2 has the rest).
const PRIVILEGED: u16 = 1024;
const LEAST_PRIVILEGED: u16 = 512;

/// Finds the port by which the pod sees a packet's flow, which may begin with it.
///
/// What each part yields goes through [`Relay`](crate::world::Relay), so that the kernel verifies the next one once.
///
/// # Errors
///
/// [`DropReason::FlowConflict`], [`DropReason::UnknownFlow`], [`DropReason::FlowTableFull`],
/// [`DropReason::SourceIsVip`].
#[inline(always)]
pub fn settle<'t, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
) -> Result<(Deliver<'t>, Shown), DropReason> {
    let Some((deliver, is_new)) = Deliver::handed_over(tables) else {
        return Err(DropReason::UnknownPod);
    };
    let Some((client, address)) = addresses(frame, deliver.family, deliver.l3) else {
        return Err(DropReason::NoHeadroom);
    };
    let forward = Tuple::new(
        client,
        address,
        deliver.source_port(),
        deliver.destination_port(),
        deliver.protocol,
    );
    let flow = Flow {
        deliver: &deliver,
        forward,
        seen_as: deliver::seen_as(tables, &forward, &deliver.backend.pod),
    };
    let place = flow.find(tables, is_new)?;
    let Some(mut place) = place.relayed(tables) else {
        return Err(DropReason::StageMissing);
    };
    flow.take(tables, &mut place, &segment(frame, &deliver))?;
    let shown = Shown {
        seen_as: flow.seen_as,
        port: place.port,
    };
    // One after the other: of a pair with nothing in it, the compiler would store what it never wrote.
    let Some(deliver) = deliver.relayed(tables) else {
        return Err(DropReason::StageMissing);
    };
    let Some(shown) = shown.relayed(tables) else {
        return Err(DropReason::StageMissing);
    };
    Ok((deliver, shown))
}

/// Reads the TCP header; one without flags where there is none.
#[inline(always)]
fn segment<F: Frame>(frame: &F, deliver: &Deliver<'_>) -> Segment {
    if deliver.protocol != protocol::TCP || deliver.is_later {
        return Segment::default();
    }
    match frame.view::<Tcp>(deliver.l4) {
        Some(header) => Segment::of(header),
        None => Segment::default(),
    }
}

/// Remembers a packet of a flow that has proved nothing. Returns whether it proves that the client is where it says.
#[inline(always)]
fn remember_segment<T: World>(tables: &T, key: &Tuple, segment: &Segment) -> bool {
    let is_proof = tables.with_flow(FlowTable::Embryonic, key, |flow| {
        unproved::remember(flow, segment);
        unproved::is_proof(flow, segment)
    });
    is_proof == Some(true)
}

/// A port by which a pod may see a flow, as it was found.
#[derive(Clone, Copy, Debug)]
struct Place {
    port: u16,
    tried: Tried,
    lookup: FlowLookup,
}

/// Where a port comes from; a word, because it lies on the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Tried {
    /// It is the client's own.
    Own,
    /// The forward entry names it, which is among the answered flows.
    Established,
    /// The forward entry names it, which is among the embryonic ones.
    Embryonic,
    /// It is one of [`Ports`].
    ByHash,
}

impl Place {
    /// Carries it through [`Relay`](crate::world::Relay).
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the port")]
    fn relayed<T: World>(self, tables: &T) -> Option<Self> {
        let words = [self.port.into(), self.tried as u64, self.lookup as u64, 0];
        let [port, tried, lookup, _] = tables.relay(words)?;
        Some(Self {
            port: port as u16,
            tried: match tried {
                0 => Tried::Own,
                1 => Tried::Established,
                2 => Tried::Embryonic,
                _ => Tried::ByHash,
            },
            lookup: match lookup {
                0 => FlowLookup::Established,
                1 => FlowLookup::Embryonic,
                2 => FlowLookup::Held,
                3 => FlowLookup::Unproved,
                4 => FlowLookup::Idle,
                _ => FlowLookup::Unknown,
            },
        })
    }
}

#[inline(always)]
fn seed<T: World>(tables: &T) -> u64 {
    match tables.config() {
        Some(config) => config.hash_seed,
        None => 0,
    }
}

/// A flow, of which the packet at hand is one.
struct Flow<'a> {
    deliver: &'a Deliver<'a>,
    /// Its packets as the client sends them.
    forward: Tuple,
    seen_as: SeenAs,
}

impl Flow<'_> {
    /// Returns the key of the packets as the pod sees them, by this port.
    #[inline(always)]
    fn key(&self, port: u16) -> Tuple {
        let (seen, _) = self.seen_as.seen_and_unseen(&self.forward);
        self.deliver.key(seen, port.to_be_bytes())
    }

    /// Returns what is remembered under that key.
    #[inline(always)]
    fn entry(&self, key: &Tuple, now: u64) -> PodFlow {
        let deliver = self.deliver;
        let (_, unseen) = self.seen_as.seen_and_unseen(&self.forward);
        PodFlow::new(
            key,
            unseen,
            deliver.destination_port(),
            deliver.outer_length(),
            deliver::end_state(deliver.flags, FLOW_FIN_CLIENT) | self.seen_as.flag(),
            now,
        )
        .with_client_port(key, deliver.source_port())
    }

    /// Finds the port by which the pod sees it, or is to see it.
    #[inline(always)]
    fn find<T: World>(&self, tables: &T, is_new: bool) -> Result<Place, DropReason> {
        let mut is_new = is_new && self.seen_as == SeenAs::Client;
        let mut ports = Ports::of(&self.forward, seed(tables));
        let mut port = u16::from_be_bytes(self.deliver.source_port());
        let mut tried = Tried::Own;
        let mut is_own_unproved = false;
        // The client's own port, the one of the forward entry, and those by hash.
        for _ in 0..PORT_TRIES {
            let lookup = if is_new {
                FlowLookup::Unknown
            } else {
                self.look_up(tables, &self.key(port))
            };
            is_new = false;
            let place = Place {
                port,
                tried,
                lookup,
            };
            if lookup.is_known() {
                return Ok(place);
            }
            if tried == Tried::Own {
                is_own_unproved = lookup == FlowLookup::Unproved;
            }
            if tried == Tried::Own
                && let Some((known, table)) =
                    deliver::find_forward(tables, &self.forward, &self.deliver.backend.pod)
            {
                port = known;
                tried = match table {
                    FlowTable::Established => Tried::Established,
                    FlowTable::Embryonic => Tried::Embryonic,
                };
                continue;
            }
            if lookup == FlowLookup::Unknown {
                return Ok(place);
            }
            if !self.may_begin() {
                return Err(DropReason::UnknownFlow);
            }
            if lookup == FlowLookup::Idle {
                return Ok(place);
            }
            if self.deliver.protocol == protocol::SCTP {
                // Its checksum covers the ports: the client's is the only one it can have.
                break;
            }
            port = ports.following();
            tried = Tried::ByHash;
        }
        if !is_own_unproved {
            return Err(DropReason::FlowConflict);
        }
        Ok(Place {
            port: u16::from_be_bytes(self.deliver.source_port()),
            tried: Tried::Own,
            lookup: FlowLookup::Idle,
        })
    }

    /// Takes it into the tables by this port, if it is not there, or to where it belongs by now.
    #[inline(always)]
    fn take<T: World>(
        &self,
        tables: &T,
        place: &mut Place,
        segment: &Segment,
    ) -> Result<(), DropReason> {
        let key = self.key(place.port);
        if place.lookup == FlowLookup::Embryonic && remember_segment(tables, &key, segment) {
            deliver::move_to_established(tables, &key, &self.entry(&key, tables.now()));
            place.lookup = FlowLookup::Established;
        }
        if !place.lookup.is_known() {
            if self.seen_as == SeenAs::Client && is_no_client(tables, &self.forward.source()) {
                return Err(DropReason::SourceIsVip);
            }
            if !self.begin(tables, &key, place.lookup, segment)?
                && !self.look_up(tables, &key).is_known()
            {
                // Another CPU was first, with a packet of another flow.
                return Err(DropReason::FlowConflict);
            }
        }
        self.remember_port(tables, place)
    }

    /// Finds it under this key.
    #[inline(always)]
    fn look_up<T: World>(&self, tables: &T, key: &Tuple) -> FlowLookup {
        let (_, unseen) = self.seen_as.seen_and_unseen(&self.forward);
        deliver::look_up_at(tables, self.deliver, key, unseen, self.seen_as).0
    }

    /// Tells whether the packet may begin a flow where another one has the key.
    #[inline(always)]
    fn may_begin(&self) -> bool {
        self.deliver.protocol != protocol::TCP || self.deliver.flags.begins_connection()
    }

    /// Puts it into the tables under this key, for which `lookup` was found. Returns whether it is there; not where
    /// another CPU was first.
    #[inline(always)]
    fn begin<T: World>(
        &self,
        tables: &T,
        key: &Tuple,
        lookup: FlowLookup,
        segment: &Segment,
    ) -> Result<bool, DropReason> {
        if lookup == FlowLookup::Idle {
            // Not in its place: a reader would see half of either.
            tables.remove_flow(FlowTable::Established, key);
            tables.remove_flow(FlowTable::Embryonic, key);
        }
        // The table may have evicted a flow whose note still counts; replies to this one must not find it.
        tables.forget_note(key);
        let mut entry = self.entry(key, tables.now());
        unproved::remember(&mut entry, segment);
        match tables.insert_flow(FlowTable::Embryonic, key, &entry) {
            Inserted::Done => Ok(true),
            Inserted::Exists => Ok(false),
            Inserted::Full => Err(DropReason::FlowTableFull),
        }
    }

    /// Writes the forward entry, which says by which port the pod sees the flow, where there is none, or moves it to where
    /// the other one lies.
    #[inline(always)]
    fn remember_port<T: World>(&self, tables: &T, place: &Place) -> Result<(), DropReason> {
        let key = &self.forward;
        let port = place.port.to_be_bytes();
        let entry = PodFlow::forward(key, self.deliver.backend.pod, port, tables.now());
        match place.tried {
            Tried::Embryonic if place.lookup == FlowLookup::Established => {
                deliver::move_to_established(tables, key, &entry);
                return Ok(());
            }
            Tried::Own | Tried::Established | Tried::Embryonic => return Ok(()),
            Tried::ByHash => {}
        }
        // One that names another port or pod, but not the flow of a client that talks to the address as to a pod.
        for table in [FlowTable::Established, FlowTable::Embryonic] {
            match tables.with_flow(table, key, |known| known.is_forward()) {
                Some(true) => tables.remove_flow(table, key),
                Some(false) => return Err(DropReason::FlowConflict),
                None => {}
            }
        }
        match tables.insert_flow(FlowTable::Embryonic, key, &entry) {
            Inserted::Done | Inserted::Exists => Ok(()),
            Inserted::Full => Err(DropReason::FlowTableFull),
        }
    }
}

/// The ports towards the pod that a flow may get, in the order in which they are tried.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    first: u16,
    count: u32,
    offset: u32,
    leap: u32,
}

impl Ports {
    /// Returns those of the flow that the client sends as `key`: of its own kind, privileged or not.
    #[inline(always)]
    pub const fn of(key: &Tuple, seed: u64) -> Self {
        let (first, count) = if u16::from_be_bytes(key.source_port()) < PRIVILEGED {
            (LEAST_PRIVILEGED, PRIVILEGED - LEAST_PRIVILEGED)
        } else {
            (PRIVILEGED, u16::MAX - PRIVILEGED)
        };
        let (hash, count) = (key.hash(seed), count as u32);
        Self {
            first,
            count,
            offset: scaled(hash, count),
            leap: 1 + scaled(hash << 16, count - 1),
        }
    }

    /// Returns the next one.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "below the number of ports")]
    pub const fn following(&mut self) -> u16 {
        let port = self.first.wrapping_add(self.offset as u16);
        self.offset += self.leap;
        if self.offset >= self.count {
            self.offset -= self.count;
        }
        port
    }
}

/// Scales the top bits of a hash to a number below `range`.
#[inline(always)]
const fn scaled(hash: u32, range: u32) -> u32 {
    ((hash as u64 * range as u64) >> 32) as u32
}
