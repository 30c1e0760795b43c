//! Delivery to a pod of this machine, and the memory by which its replies are
//! translated back.
//!
//! A flow enters `FLOWS_EMBRYONIC` with its first packet and is moved to
//! `FLOWS` by the TC egress program when the pod sends more than a SYN+ACK, so
//! that no flood can push out a flow that is answered. The key names the client
//! and the pod: a client port that talks to one pod by two of its VIPs would
//! be one key, and is refused.

use super::{Clock, Decap, Family, Ip, balance::Choice};
use crate::{
    abi::{AddressKey, Backend, FLOW_FIN_CLIENT, FLOW_FIN_POD, FLOW_RESET, PodFlow, Tuple},
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
        choice: &Choice<'t>,
        decap: Option<Decap>,
    ) -> Self {
        Self {
            service: choice.service,
            id: choice.id,
            backend: choice.backend,
            decap,
            l3: packet.l3,
            l4: packet.l4,
            length: packet.length,
            family: A::FAMILY,
            protocol: packet.protocol,
            flags,
            ports: {
                let [a, b] = flow.source_port;
                let [c, d] = flow.destination_port;
                u32::from_ne_bytes([a, b, c, d])
            },
        }
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
    /// `FLOWS`: the pod has answered.
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
}

/// Notes the flow of a packet that is delivered.
///
/// # Errors
///
/// [`DropReason::FlowConflict`] where the client's port already talks to the
/// pod by another address; [`DropReason::FlowTableFull`].
#[inline(always)]
pub fn remember<F: Frame, T: Flows>(
    frame: &F,
    tables: &T,
    deliver: &Deliver<'_>,
) -> Result<(), DropReason> {
    let (client, address) = addresses(frame, deliver).ok_or(DropReason::NoHeadroom)?;
    let pod = deliver.backend;
    let key = Tuple::new(
        client,
        pod.pod,
        deliver.source_port(),
        pod.port,
        deliver.protocol,
    );
    let flow = PodFlow::new(
        address,
        deliver.destination_port(),
        deliver.outer_length(),
        client_state(deliver.flags),
        tables.now(),
    );
    for table in [FlowTable::Answered, FlowTable::Embryonic] {
        let met = tables.with_flow(table, &key, |known| {
            meet(
                known,
                &flow,
                idle_limit(table, deliver.protocol, known.state()),
            )
        });
        match met {
            Some(true) => return Ok(()),
            Some(false) => return Err(DropReason::FlowConflict),
            None => {}
        }
    }
    if tables.insert_flow(FlowTable::Embryonic, &key, &flow) {
        Ok(())
    } else {
        Err(DropReason::FlowTableFull)
    }
}

/// Reads source and destination address off the packet.
#[inline(always)]
fn addresses<F: Frame>(frame: &F, deliver: &Deliver<'_>) -> Option<(AddressKey, AddressKey)> {
    Some(match deliver.family {
        Family::V4 => {
            let header: &Ipv4 = frame.view(deliver.l3)?;
            (
                AddressKey::v4(header.source()),
                AddressKey::v4(header.destination()),
            )
        }
        Family::V6 => {
            let header: &Ipv6 = frame.view(deliver.l3)?;
            (
                AddressKey::v6(header.source),
                AddressKey::v6(header.destination),
            )
        }
    })
}

/// Updates a known flow by one that has the same key; false where they are two.
#[inline(always)]
const fn meet(known: &mut PodFlow, new: &PodFlow, idle_limit: u64) -> bool {
    if known.is_to_same(new) {
        known.add_state(new.state());
        known.seen = new.seen;
        return true;
    }
    if new.seen.saturating_sub(known.seen) < idle_limit {
        return false;
    }
    *known = *new;
    true
}

#[inline(always)]
const fn idle_limit(table: FlowTable, protocol: u8, state: u8) -> u64 {
    const CLOSED: u8 = FLOW_FIN_CLIENT | FLOW_FIN_POD;
    match table {
        _ if state & FLOW_RESET != 0 || state & CLOSED == CLOSED => 0,
        FlowTable::Embryonic => IDLE_TRANSITORY_NS,
        FlowTable::Answered if protocol == protocol::TCP => IDLE_TCP_NS,
        FlowTable::Answered => IDLE_UDP_NS,
    }
}

#[inline(always)]
const fn client_state(flags: TcpFlags) -> u8 {
    (if flags.fin() { FLOW_FIN_CLIENT } else { 0 }) | (if flags.rst() { FLOW_RESET } else { 0 })
}
