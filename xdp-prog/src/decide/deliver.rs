//! Delivery to a pod of this machine, and the memory by which its replies are
//! translated back.
//!
//! A flow enters `FLOWS_EMBRYONIC` with its first packet and is moved to
//! `FLOWS` by the TC egress program when the pod sends more than a SYN+ACK: its
//! client is where it says, so no forged source pushes out a flow that is
//! answered. Of other protocols an answer proves nothing, and a resolver gets a
//! flow with each question: they go to `FLOWS_DATAGRAM`, where no TCP flow is.
//! The key names the client and the pod: a client port that talks to one pod by
//! two of its VIPs would be one key, and is refused.
//!
//! **Notes.** What finds its flow in a table notes it for the packets of the next second, of either direction and on
//! any CPU: one look at one cache line finds it again. A note is of a flow that is answered and goes on; what begins
//! or ends one, and what is of another VIP, asks the tables and puts the note right.
//!
//! **Hairpin.** A client that is the chosen pod itself, or this machine (its own
//! processes, and pods behind its masquerade), cannot be shown to the pod: the
//! pod would take its own address for a forgery, the stack takes that of its
//! machine for one (a martian), and the reply would leave this machine by no
//! device at all. The address that the client talks to takes the client's
//! place, with the client's port:
//!
//! ```text
//! client:port -> VIP:80        client <- VIP:80         turned round at the uplink
//! VIP:port    -> pod:8080      VIP:port <- pod:8080     leaves by the uplink, as all replies
//! ```
//!
//! The reply is routed to where packets for the VIP go, an uplink; there the TC
//! egress program translates both ends and hands it back to the stack as if it
//! had come in. A node address as source lost: it needs `accept_local` on the
//! uplinks, a second hook at the pods, and ports that may be taken.

use super::{
    Clock, Decap, Family, Ip, Tables,
    balance::Chosen,
    relay::{OFFSETS, Relay},
};
use crate::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_NODE_PORT, AddressKey, Backend, FLOW_FIN_CLIENT, FLOW_FIN_POD,
        FLOW_HAIRPIN, FLOW_RESET, PodFlow, Tag, Tuple, age,
    },
    flow::FlowKey,
    frame::Frame,
    parse::{Packet, TcpFlags},
    reason::DropReason,
    wire::{ipv4::Ipv4, ipv6::Ipv6, protocol},
};

/// Idle time after which another VIP may take over a TCP flow's key (RFC 5382 section 5, REQ-5: 2 h 4 min).
pub const IDLE_TCP_NS: u64 = 7_440_000_000_000;
/// The same for flows that the pod has not answered, and that have ended (RFC 5382: 4 min).
pub const IDLE_TRANSITORY_NS: u64 = 240_000_000_000;
/// The same for UDP (RFC 4787 section 4.3, REQ-5: 2 min at least, 5 min recommended).
pub const IDLE_UDP_NS: u64 = 300_000_000_000;

/// A packet on its way to a pod of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Deliver<'t> {
    /// Service id.
    pub service: u32,
    /// Backend id.
    pub id: u32,
    /// The pod.
    pub backend: &'t Backend,
    /// The outer header, if it came with one.
    pub decap: Option<Decap>,
    /// Offset of the packet's IP header.
    pub l3: usize,
    /// Offset of its transport header.
    pub l4: usize,
    /// Length of the packet.
    pub length: usize,
    /// The packet's family.
    pub family: Family,
    /// Its transport protocol.
    pub protocol: u8,
    /// Its TCP flags.
    pub flags: TcpFlags,
    /// Whether it is a fragment other than the first, which has no transport header.
    pub is_later: bool,
    /// Source and destination port as the client sent them; a word, because this lies on the BPF stack.
    ports: u32,
}

impl<'t> Deliver<'t> {
    /// Delivers a packet to the chosen pod.
    #[inline(always)]
    pub fn new<A: Ip>(
        packet: &Packet<A>,
        flow: &FlowKey<A>,
        flags: TcpFlags,
        chosen: &Chosen<'t>,
        decap: Option<Decap>,
    ) -> Self {
        Self {
            service: chosen.service,
            id: chosen.id,
            backend: chosen.backend,
            decap,
            l3: packet.l3,
            l4: packet.l4,
            length: packet.length,
            family: A::FAMILY,
            protocol: flow.protocol,
            flags,
            is_later: false,
            ports: {
                let [a, b] = flow.source_port;
                let [c, d] = flow.destination_port;
                u32::from_ne_bytes([a, b, c, d])
            },
        }
    }

    /// Returns the flow's key where the pod sees this client.
    #[inline(always)]
    fn key(&self, client: AddressKey) -> Tuple {
        let pod = self.backend;
        Tuple::new(client, pod.pod, self.source_port(), pod.port, self.protocol)
    }

    /// Returns the client's port, in wire order.
    #[inline(always)]
    pub const fn source_port(&self) -> [u8; 2] {
        let [a, b, ..] = self.ports.to_ne_bytes();
        [a, b]
    }

    /// Returns the port that the client talks to, in wire order.
    #[inline(always)]
    pub const fn destination_port(&self) -> [u8; 2] {
        let [.., a, b] = self.ports.to_ne_bytes();
        [a, b]
    }

    /// Carries everything but the backend through [`Relay`].
    #[inline(always)]
    pub fn relayed<T: Relay>(&self, tables: &T) -> Option<Self> {
        let words = tables.relay(self.to_words())?;
        Some(Self::from_words(words, self.backend))
    }

    /// Puts everything but the backend into numbers.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "one bit")]
    fn to_words(self) -> [u64; 4] {
        let (outer, room, class) = match &self.decap {
            Some(decap) => (decap.l3, decap.inner_room, decap.outer_class),
            None => (0, 0, 0),
        };
        [
            u64::from(self.service) << 32 | u64::from(self.id),
            (self.length as u64) << 32 | u64::from(self.ports),
            (self.l3 as u64) << 48 | (self.l4 as u64) << 32 | (outer as u64) << 16 | room as u64,
            u64::from_ne_bytes([
                self.family.bit() as u8,
                self.protocol,
                self.flags.0,
                u8::from(self.is_later),
                u8::from(self.decap.is_some()),
                class,
                0,
                0,
            ]),
        ]
    }

    /// Takes it out of the numbers again.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the fields apart")]
    fn from_words(words: [u64; 4], backend: &'t Backend) -> Self {
        let [ids, length, offsets, rest] = words;
        let [is_v6, protocol, flags, is_later, is_within, outer_class, ..] = rest.to_ne_bytes();
        let family = Family::of_bit(is_v6.into());
        let l3 = (offsets >> 48) as usize & OFFSETS;
        let decap = (is_within != 0).then_some(Decap {
            l3: (offsets >> 16) as usize & OFFSETS,
            inner_l3: l3,
            inner_room: (offsets & 0xffff) as usize,
            is_plain: true,
            inner: family,
            outer_class,
            tag: Tag::default(),
        });
        Self {
            service: (ids >> 32) as u32,
            id: ids as u32,
            backend,
            decap,
            l3,
            l4: (offsets >> 32) as usize & OFFSETS,
            length: (length >> 32) as usize,
            family,
            protocol,
            flags: TcpFlags(flags),
            is_later: is_later != 0,
            ports: length as u32,
        }
    }

    /// Length of the outer header that the packet came with; 0 for none.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "20 or 40")]
    const fn outer_length(&self) -> u8 {
        match &self.decap {
            Some(decap) => (decap.inner_l3 - decap.l3) as u8,
            None => 0,
        }
    }
}

/// The two tables of flows to pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowTable {
    /// `FLOWS`, and `FLOWS_DATAGRAM` of all but TCP: the pod has answered.
    Answered = 0,
    /// `FLOWS_EMBRYONIC`: it has not.
    Embryonic = 1,
}

/// The memory of flows to pods.
pub trait Flows: Clock {
    /// Runs `f` on a flow where it lies.
    fn with_flow<R>(
        &self,
        table: FlowTable,
        key: &Tuple,
        f: impl FnOnce(&mut PodFlow) -> R,
    ) -> Option<R>;
    /// Adds a flow, unless it is there. Returns whether it was added.
    fn insert_flow(&self, table: FlowTable, key: &Tuple, flow: &PodFlow) -> bool;
    /// Removes a flow.
    fn remove_flow(&self, table: FlowTable, key: &Tuple);
    /// Returns an answered flow that goes on, as some packet of the last second found it; without notes, none.
    #[inline(always)]
    fn noted_flow(&self, _: &Tuple) -> Option<PodFlow> {
        None
    }
    /// Notes an answered flow that goes on, as a packet has just found it.
    #[inline(always)]
    fn note_flow(&self, _: &Tuple, _: &PodFlow) {}
    /// Takes a flow's note away.
    #[inline(always)]
    fn forget_note(&self, _: &Tuple) {}
}

/// The clients whose place another address has taken, by flow as the pod sees it.
pub trait Hairpins {
    /// Returns the client.
    fn hairpin(&self, key: &Tuple) -> Option<AddressKey>;
    /// Remembers the client. Returns whether there was room.
    fn insert_hairpin(&self, key: &Tuple, client: &AddressKey) -> bool;
}

/// Whom the pod takes for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenAs {
    /// The client itself.
    Client,
    /// The address that the client talks to.
    Destination,
}

/// Puts the flow of a packet that is delivered into the tables, or renews it there.
///
/// # Errors
///
/// [`DropReason::FlowConflict`] where the client's port already talks to the
/// pod by another address; [`DropReason::FlowTableFull`].
#[inline(always)]
pub fn remember<F: Frame, T: Tables + Flows + Hairpins>(
    frame: &F,
    tables: &T,
    deliver: &Deliver<'_>,
) -> Result<SeenAs, DropReason> {
    let (client, address) =
        addresses(frame, deliver.family, deliver.l3).ok_or(DropReason::NoHeadroom)?;
    let mut key = deliver.key(client);
    let mut flow = PodFlow::new(
        address,
        deliver.destination_port(),
        deliver.outer_length(),
        end_state(deliver.flags, FLOW_FIN_CLIENT),
        tables.now(),
    );
    let goes_on = flow.state() == 0 && !deliver.flags.begins_connection();
    if goes_on
        && let Some(known) = tables.noted_flow(&key)
        && known.is_to_same(&flow)
    {
        return Ok(SeenAs::Client);
    }
    if refresh(tables, deliver, &key, &flow, true)? {
        return Ok(SeenAs::Client);
    }
    let mut seen_as = SeenAs::Client;
    if is_here(tables, &client, &deliver.backend.pod) {
        seen_as = SeenAs::Destination;
        key = deliver.key(address);
        flow.add_state(FLOW_HAIRPIN);
        let is_same = match tables.hairpin(&key) {
            Some(known) => known.words() == client.words(),
            None => true,
        };
        let is_known = refresh(tables, deliver, &key, &flow, is_same)?;
        if !tables.insert_hairpin(&key, &client) {
            return Err(DropReason::FlowTableFull);
        }
        if is_known {
            return Ok(seen_as);
        }
    }
    // The table may have evicted a flow whose note still counts; replies to this one must not find it.
    tables.forget_note(&key);
    // Another CPU may have added it meanwhile.
    if tables.insert_flow(FlowTable::Embryonic, &key, &flow)
        || refresh(tables, deliver, &key, &flow, true)?
    {
        Ok(seen_as)
    } else {
        Err(DropReason::FlowTableFull)
    }
}

/// Tells whom a pod takes for the client of a flow that has been delivered to it.
#[inline(always)]
pub(super) fn seen_as<A: Ip, T: Tables + Hairpins>(
    tables: &T,
    flow: &FlowKey<A>,
    pod: &Backend,
) -> SeenAs {
    let client = flow.source.key();
    if !is_here(tables, &client, &pod.pod) {
        return SeenAs::Client;
    }
    let key = Tuple::new(
        flow.destination.key(),
        pod.pod,
        flow.source_port,
        pod.port,
        flow.protocol,
    );
    match tables.hairpin(&key) {
        Some(hidden) if hidden.words() == client.words() => SeenAs::Destination,
        _ => SeenAs::Client,
    }
}

/// Tells whether the client is the chosen pod, or this machine.
#[inline(always)]
fn is_here<T: Tables>(tables: &T, client: &AddressKey, pod: &AddressKey) -> bool {
    client.words() == pod.words()
        || tables.address_flags(client) & (ADDRESS_LOCAL | ADDRESS_NODE_PORT) != 0
}

/// Updates a flow by a packet of it; false where it is not known.
///
/// # Errors
///
/// [`DropReason::FlowConflict`] where it is another flow that still lives.
#[inline(always)]
fn refresh<T: Flows>(
    tables: &T,
    deliver: &Deliver<'_>,
    key: &Tuple,
    flow: &PodFlow,
    is_same_client: bool,
) -> Result<bool, DropReason> {
    for table in [FlowTable::Answered, FlowTable::Embryonic] {
        let met = tables.with_flow(table, key, |known| {
            let is_same = is_same_client && known.is_to_same(flow);
            let limit = idle_limit(table, deliver.protocol, known.state(), 0);
            meet(known, flow, is_same, limit, deliver.flags).then_some(*known)
        });
        match met {
            Some(Some(known)) => {
                if table == FlowTable::Answered {
                    note(tables, key, &known);
                }
                return Ok(true);
            }
            Some(None) => return Err(DropReason::FlowConflict),
            None => {}
        }
    }
    Ok(false)
}

/// Notes an answered flow for the packets of the next second, unless it has begun to end.
#[inline(always)]
pub(crate) fn note<T: Flows>(tables: &T, key: &Tuple, flow: &PodFlow) {
    if flow.state() == 0 {
        tables.note_flow(key, flow);
    } else {
        tables.forget_note(key);
    }
}

/// Reads source and destination address off the packet.
#[inline(always)]
pub(super) fn addresses<F: Frame>(
    frame: &F,
    family: Family,
    l3: usize,
) -> Option<(AddressKey, AddressKey)> {
    Some(match family {
        Family::V4 => {
            let header: &Ipv4 = frame.view(l3)?;
            (
                AddressKey::v4(header.source()),
                AddressKey::v4(header.destination()),
            )
        }
        Family::V6 => {
            let header: &Ipv6 = frame.view(l3)?;
            (
                AddressKey::v6(header.source),
                AddressKey::v6(header.destination),
            )
        }
    })
}

/// Updates a known flow by one that has the same key; false where they are two.
#[inline(always)]
const fn meet(
    known: &mut PodFlow,
    new: &PodFlow,
    is_same: bool,
    idle_limit: u64,
    flags: TcpFlags,
) -> bool {
    // A port that is used again begins anew: what ended its last use does not count.
    if is_same && !flags.begins_connection() {
        known.renew(new.state(), new.seen);
        return true;
    }
    if !is_same && age(known.seen, new.seen) < idle_limit {
        return false;
    }
    *known = *new;
    true
}

/// Tells whether a flow has not ended, and has not been idle for too long.
pub const fn is_live(table: FlowTable, protocol: u8, flow: &PodFlow, now: u64) -> bool {
    age(flow.seen, now) < idle_limit(table, protocol, flow.state(), 0)
}

/// Returns how long a flow may idle; `ended` is for one that has ended.
#[inline(always)]
pub(crate) const fn idle_limit(table: FlowTable, protocol: u8, state: u8, ended: u64) -> u64 {
    const CLOSED: u8 = FLOW_FIN_CLIENT | FLOW_FIN_POD;
    match table {
        _ if state & FLOW_RESET != 0 || state & CLOSED == CLOSED => ended,
        FlowTable::Embryonic => IDLE_TRANSITORY_NS,
        FlowTable::Answered if protocol == protocol::TCP => IDLE_TCP_NS,
        FlowTable::Answered => IDLE_UDP_NS,
    }
}

/// Returns what a packet's flags say of its flow's end; `fin` is the bit for a FIN of its sender.
#[inline(always)]
pub(crate) const fn end_state(flags: TcpFlags, fin: u8) -> u8 {
    (if flags.fin() { fin } else { 0 }) | (if flags.rst() { FLOW_RESET } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_lives_until_it_ends_or_was_idle_for_too_long() {
        const SEEN: u64 = 1_000;
        let (tcp, udp) = (protocol::TCP, protocol::UDP);
        let both = FLOW_FIN_CLIENT | FLOW_FIN_POD;
        for (table, protocol, state, limit) in [
            (FlowTable::Answered, tcp, FLOW_FIN_POD, IDLE_TCP_NS),
            (FlowTable::Answered, udp, 0, IDLE_UDP_NS),
            (FlowTable::Embryonic, tcp, 0, IDLE_TRANSITORY_NS),
            (FlowTable::Answered, tcp, both, 0),
            (FlowTable::Answered, tcp, FLOW_RESET, 0),
        ] {
            let flow = PodFlow::new(AddressKey::v4([192, 0, 2, 1]), [0, 80], 0, state, SEEN);
            let lives = |idle| is_live(table, protocol, &flow, SEEN + idle);
            assert!(
                limit == 0 || lives(limit - 1),
                "{table:?} {protocol} {state}"
            );
            assert!(!lives(limit), "{table:?} {protocol} {state}");
        }
    }
}
