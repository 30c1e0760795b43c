//! Flows to pods of this machine that begin, are being proved, or have another client port at the pod. A flow that
//! goes on by the client's own port does not come here (`flow_lookup::look_up`, `known::find_proved`), unless stage `ask`
//! knows it although it is not proved.
//!
//! ```text
//! the client's own port -- of this flow                              -> renewed, or moved to `FLOWS`
//!  |                       not
//!  v
//! the forward entry ------ names a port of this flow                 -> likewise, or put back in its place
//!  |                       none, or another flow has the port now
//!  v
//! the client's own port -- free, or of a flow that is over           -> this flow's
//!  |                       of a flow that goes on, and this is no SYN -> dropped
//!  v
//! ports by hash ---------- the first that is free                    -> this flow's, and a forward entry
//!  |                       each is taken
//!  v
//! the client's own port -- of a flow that was not proved for 3 s     -> this flow's, else dropped
//! ```
//!
//! No flow begins from a VIP, because no client has one: the answers would go to a service, which would answer again.

use super::{
    flow_lookup::{self, FlowLookup},
    unproved,
};
use crate::{
    abi::{FLOW_FIN_CLIENT, PodFlow, Tuple},
    decide::{address::is_no_client, flow_of::opaque_tuple},
    flow_state,
    frame::Frame,
    parse::Segment,
    reason::DropReason,
    verdict::{ClientAtPod, Delivery, SeenByPod},
    wire::protocol,
    world::{FlowTable, Inserted, Relay, World},
};

/// Number of ports that are tried before a flow is refused, beside that of the forward entry: the client's own and others.
pub const PORT_TRIES: u32 = 18;

/// Ports below this are for the superuser. Their clients get other ports of that kind (RFC 6056 section 3.2 has the
/// rest).
const PRIVILEGED: u16 = 1024;
const LEAST_PRIVILEGED: u16 = 512;

/// Finds the port by which the pod sees a packet's flow. The flow may begin with this packet.
///
/// The result of each part goes through [`Relay`], so that the kernel verifies the next part
/// once.
///
/// # Errors
///
/// [`DropReason::FlowConflict`], [`DropReason::UnknownFlow`], [`DropReason::FlowTableFull`],
/// [`DropReason::SourceIsVip`].
#[inline(always)]
pub fn settle<'t, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
) -> Result<(Delivery<'t>, ClientAtPod), DropReason> {
    let Some((delivery, is_new)) = Delivery::handed_over(tables) else {
        return Err(DropReason::UnknownPod);
    };
    let Some(forward) = flow_lookup::forward_tuple(frame, &delivery) else {
        return Err(DropReason::NoHeadroom);
    };
    let flow = Flow {
        delivery: &delivery,
        forward,
        seen_by_pod: flow_lookup::seen_by_pod(tables, &forward, &delivery.backend.pod),
    };
    let place = flow.find(tables, is_new)?;
    let Some(mut place) = place.relayed(tables) else {
        return Err(DropReason::StageMissing);
    };
    flow.take(tables, &mut place, &flow_lookup::segment(frame, &delivery))?;
    let client_at_pod = ClientAtPod {
        seen_by_pod: flow.seen_by_pod,
        port: place.port,
    };
    // Relayed one after the other: for an empty pair, the compiler would store values that it never wrote.
    let Some(delivery) = delivery.relayed(tables) else {
        return Err(DropReason::StageMissing);
    };
    let Some(client_at_pod) = client_at_pod.relayed(tables) else {
        return Err(DropReason::StageMissing);
    };
    Ok((delivery, client_at_pod))
}

/// Notes a client's packet of an unproved flow. Returns whether it proves the client's address.
#[inline(always)]
fn remember_segment<T: World>(tables: &T, key: &Tuple, segment: &Segment) -> bool {
    let is_proof = tables.with_flow(FlowTable::Embryonic, key, |flow| {
        unproved::remember(flow, segment);
        unproved::is_proof(flow, segment)
    });
    is_proof == Some(true)
}

/// A port by which a pod may see a flow, and the flow that was found there.
#[derive(Clone, Copy, Debug)]
struct Place {
    port: u16,
    tried: Tried,
    lookup: FlowLookup,
}

/// The origin of a port; a word, because it lies on the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Tried {
    /// It is the client's own.
    Own,
    /// The forward entry names it; the entry is among the answered flows.
    Established,
    /// The forward entry names it; the entry is among the embryonic flows.
    Embryonic,
    /// It is one of [`Ports`], by the flow's hash.
    ByHash,
}

impl Place {
    /// Passes all fields through [`Relay`](crate::world::Relay).
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
            lookup: FlowLookup::of_number(lookup),
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

/// The flow of the current packet.
struct Flow<'a> {
    delivery: &'a Delivery<'a>,
    /// The tuple of its packets as the client sends them.
    forward: Tuple,
    seen_by_pod: SeenByPod,
}

impl Flow<'_> {
    /// Returns the tuple as the pod sees it with this client port.
    #[inline(always)]
    fn key(&self, port: u16) -> Tuple {
        let (seen, _) = self.seen_by_pod.seen_and_unseen(&self.forward);
        self.delivery.key(seen, port.to_be_bytes())
    }

    /// Returns the flow's entry for that key.
    #[inline(always)]
    fn entry(&self, key: &Tuple, now: u64) -> PodFlow {
        let delivery = self.delivery;
        let (_, unseen) = self.seen_by_pod.seen_and_unseen(&self.forward);
        PodFlow::new(
            key,
            unseen,
            delivery.destination_port(),
            delivery.outer_length(),
            flow_state::end_state(delivery.flags, FLOW_FIN_CLIENT) | self.seen_by_pod.flag(),
            now,
        )
        .with_client_port(key, delivery.source_port())
    }

    /// Finds the port by which the pod sees the flow, or will see it: the client's own, that of the forward entry, or one
    /// of those by hash, in this order.
    #[inline(always)]
    fn find<T: World>(&self, tables: &T, is_new: bool) -> Result<Place, DropReason> {
        let own = Place {
            port: u16::from_be_bytes(self.delivery.source_port()),
            tried: Tried::Own,
            lookup: FlowLookup::Unknown,
        };
        let mut place = own;
        if !is_new || self.seen_by_pod != SeenByPod::Client {
            place = self.look_up_at(tables, own.port, own.tried);
        }
        let is_own_unproved = tables.opaque((place.lookup == FlowLookup::Unproved).into());
        let pod = &self.delivery.backend.pod;
        if !place.lookup.is_known()
            && let Some((port, table)) =
                flow_lookup::find_and_renew_forward(tables, &self.forward, pod)
        {
            let tried = match table {
                FlowTable::Established => Tried::Established,
                FlowTable::Embryonic => Tried::Embryonic,
            };
            place = self.look_up_at(tables, port, tried);
        }
        if place.lookup.is_known() || place.lookup == FlowLookup::Unknown {
            return Ok(place);
        }
        if !self.may_begin() {
            return Err(DropReason::UnknownFlow);
        }
        if place.lookup == FlowLookup::Idle {
            return Ok(place);
        }
        // SCTP's checksum covers the ports, so the flow must keep the client's port.
        if self.delivery.protocol != protocol::SCTP {
            let mut ports = Ports::of(&self.forward, seed(tables)).opaque(tables);
            for _ in 1..PORT_TRIES {
                let place = self.look_up_at(tables, ports.following(), Tried::ByHash);
                if !matches!(place.lookup, FlowLookup::Held | FlowLookup::Unproved) {
                    return Ok(place);
                }
            }
        }
        if is_own_unproved == 0 {
            return Err(DropReason::FlowConflict);
        }
        Ok(Place {
            lookup: FlowLookup::Idle,
            ..own
        })
    }

    /// Looks the flow up by a port.
    #[inline(always)]
    fn look_up_at<T: World>(&self, tables: &T, port: u16, tried: Tried) -> Place {
        Place {
            port,
            tried,
            lookup: self.look_up(tables, &opaque_tuple(tables, &self.key(port))),
        }
    }

    /// Adds the flow with this port, or moves it to the table where it belongs now.
    #[inline(always)]
    fn take<T: World>(
        &self,
        tables: &T,
        place: &mut Place,
        segment: &Segment,
    ) -> Result<(), DropReason> {
        let key = self.key(place.port);
        if place.lookup == FlowLookup::Embryonic && remember_segment(tables, &key, segment) {
            let mut entry = self.entry(&key, tables.now());
            // The ACK has not reached the pod yet: its socket is that of the handshake, or missing after a SYN cookie.
            let socket = tables.socket_state(&key, self.delivery.backend.namespace);
            if socket.is_known() {
                entry.note_socket(socket.has_socket());
            }
            flow_state::move_to_established(tables, &key, &entry);
            place.lookup = FlowLookup::Established;
        }
        if !place.lookup.is_known() {
            if self.seen_by_pod == SeenByPod::Client && is_no_client(tables, &self.forward.source())
            {
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

    /// Looks the flow up under a key.
    #[inline(always)]
    fn look_up<T: World>(&self, tables: &T, key: &Tuple) -> FlowLookup {
        let (_, unseen) = self.seen_by_pod.seen_and_unseen(&self.forward);
        flow_lookup::look_up_at(tables, self.delivery, key, unseen, self.seen_by_pod).0
    }

    /// Tells whether the packet may begin a flow whose key another flow has.
    #[inline(always)]
    fn may_begin(&self) -> bool {
        self.delivery.protocol != protocol::TCP || self.delivery.flags.begins_connection()
    }

    /// Adds the flow under this key, for which `lookup` was found. Returns false if another CPU has added the key
    /// first.
    #[inline(always)]
    fn begin<T: World>(
        &self,
        tables: &T,
        key: &Tuple,
        lookup: FlowLookup,
        segment: &Segment,
    ) -> Result<bool, DropReason> {
        if lookup == FlowLookup::Idle {
            // The old entry is not overwritten: a reader could see half of each.
            tables.remove_flow(FlowTable::Established, key);
            tables.remove_flow(FlowTable::Embryonic, key);
        }
        // The table may have evicted a flow whose note is still valid. Replies to the new flow must not find that
        // note.
        tables.forget_note(key);
        tables.forget_deliveries(&self.forward);
        let mut entry = self.entry(key, tables.now());
        unproved::remember(&mut entry, segment);
        match tables.insert_flow(FlowTable::Embryonic, key, &entry) {
            Inserted::Done => Ok(true),
            Inserted::Exists => Ok(false),
            Inserted::Full => Err(DropReason::FlowTableFull),
        }
    }

    /// Adds the forward entry, which names the port by which the pod sees the flow; or moves it to the table of the
    /// reverse entry.
    #[inline(always)]
    fn remember_port<T: World>(&self, tables: &T, place: &Place) -> Result<(), DropReason> {
        let key = &self.forward;
        let port = place.port.to_be_bytes();
        let entry = PodFlow::forward(key, self.delivery.backend.pod, port, tables.now());
        match place.tried {
            Tried::Embryonic if place.lookup == FlowLookup::Established => {
                flow_state::move_to_established(tables, key, &entry);
                return Ok(());
            }
            Tried::Own | Tried::Established | Tried::Embryonic => return Ok(()),
            Tried::ByHash => {}
        }
        // An entry that names another port or pod goes. The flow of a client that talks to the address as a pod
        // stays.
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

/// The client ports that a flow may get towards the pod, in the order in which they are tried.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    first: u16,
    count: u32,
    offset: u32,
    leap: u32,
}

impl Ports {
    /// Returns the ports for the flow that its client sends as `key`: privileged ports only if the client's is one.
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

    /// Returns the same ports, of which the verifier knows nothing: a loop over them is checked once for all clients.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "are at most 32 bits wide")]
    fn opaque<T: Relay>(self, tables: &T) -> Self {
        Self {
            first: tables.opaque(self.first.into()) as u16,
            count: tables.opaque(self.count.into()) as u32,
            offset: tables.opaque(self.offset.into()) as u32,
            leap: tables.opaque(self.leap.into()) as u32,
        }
    }

    /// Returns the next port.
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

/// Maps a hash to a number below `range`; the top bits count most.
#[inline(always)]
const fn scaled(hash: u32, range: u32) -> u32 {
    ((hash as u64 * range as u64) >> 32) as u32
}
