//! Delivery to a pod of this machine, and the memory by which its replies are translated back.
//!
//! A flow enters `FLOWS_EMBRYONIC` with its first packet. It is moved to `FLOWS` when its client has proved that it is
//! where it says: by acknowledging the sequence number of the pod's SYN+ACK, which the TC egress program has noted, or
//! by what the pod would not send without that; until then, what the pod sends must answer the client
//! ([`super::unproved`]). So no forged source pushes out a flow in use, or makes another connection of its client the
//! VIP's. Of other protocols an answer proves nothing, and a resolver gets a flow with each question: what is answered
//! goes to `FLOWS_DATAGRAM`, where no TCP flow is.
//!
//! **Two VIPs of one pod.** The key names the client and the pod. A client port that talks to one pod by two of its
//! VIPs would need the same key twice. So the second flow gets another client port towards the pod, and has two keys:
//!
//! ```text
//! client:40000 -> VIP B:80    forward entry: port 51234        client:51234 -> pod:8080
//! client:40000 <- VIP B:80    reverse entry: VIP B:80, 40000   client:51234 <- pod:8080
//! ```
//!
//! Both entries are in the tables of all flows. The forward entry keeps the port for the client's next connection by
//! that VIP. So the pod sees one client use one tuple again, as without us, and takes it out of TIME_WAIT. A stage of
//! its own decides how flows begin ([`super::pod_flow`]); this module finds flows that go on.
//!
//! **Ends.** A FIN counts from both sides, a RST from the pod alone, because anybody can forge the client's. A flow
//! that has ended keeps its key for as long as the pod may hold it in TIME_WAIT.
//!
//! **Notes.** What finds its flow in a table notes it for the packets of the next second, of either direction and on
//! any CPU: one look at one cache line finds it again. A note is of a flow that is answered and goes on; what begins
//! or ends one, and what is of another VIP, asks the tables and puts the note right. What comes from an edge has notes
//! of its own, which spare it all other look-ups too ([`super::noted`]).
//!
//! **Hairpin.** The client may be the chosen pod itself, or this machine (its own processes, and pods behind its
//! masquerade). Such a client must be hidden from the pod. The pod would take its own address for a forgery, and the
//! stack does the same with an address of its machine (a martian); the reply would leave this machine by no device at
//! all. So the address that the client talks to replaces the client's, with the client's port:
//!
//! ```text
//! client:port -> VIP:80        client <- VIP:80         turned round at the uplink
//! VIP:port    -> pod:8080      VIP:port <- pod:8080     leaves by the uplink, as all replies
//! ```
//!
//! The reply is routed as packets for the VIP are, to an uplink. There the TC egress program translates both ends and
//! hands the reply back to the stack as if it had come in. A node address as the source was the alternative. It would
//! need `accept_local` on the uplinks, a second hook at the pods, and ports that may be taken.

use crate::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_NODE_PORT, AddressKey, Backend, DeliveryNote, FLOW_FIN_CLIENT,
        FLOW_FIN_POD, FLOW_RESET, PodFlow, RENEWAL_NS, Tuple, age,
    },
    decide::address::addresses,
    flow::FlowKey,
    frame::Frame,
    ip::Ip,
    parse::TcpFlags,
    verdict::{ClientAtPod, Deliver, SeenByPod},
    wire::protocol,
    world::{FlowTable, Flows, Inserted, Tables},
};

/// Idle time after which another VIP may take over a TCP flow's key (RFC 5382 section 5, REQ-5: 2 h 4 min).
pub const IDLE_TCP_NS: u64 = 7_440_000_000_000;
/// How long replies are still translated if the pod has not answered their flow, or if the flow has ended (RFC 5382:
/// 4 min).
pub const IDLE_TRANSITORY_NS: u64 = 240_000_000_000;
/// Idle time after which another VIP may take over a UDP flow's key (RFC 4787 section 4.3, REQ-5: 2 min at least, 5
/// min recommended).
pub const IDLE_UDP_NS: u64 = 300_000_000_000;

/// How long an unproved flow keeps its key from a flow by another VIP for which no other key is free.
pub const HOLD_UNPROVED_NS: u64 = 3_000_000_000;
/// How long an ended flow keeps its key: as long as Linux keeps TIME_WAIT (`TCP_TIMEWAIT_LEN`), plus the lag of its
/// time.
pub const HOLD_ENDED_NS: u64 = 60_000_000_000 + RENEWAL_NS;

/// The result of looking a packet's flow up under one key; a word, because it lies on the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum FlowLookup {
    /// The packet's flow; its client has proved its address, or the pod has answered.
    Established,
    /// The packet's flow, not proved yet.
    Embryonic,
    /// Another flow, which keeps the key.
    Held,
    /// Another flow, not proved yet; it loses the key to a new flow for which no other key is free.
    Unproved,
    /// Another flow, which is over; it loses the key to a new flow.
    Idle,
    /// No flow.
    Unknown,
}

impl FlowLookup {
    /// Tells whether the packet's own flow was found.
    #[inline(always)]
    pub(crate) const fn is_known(self) -> bool {
        matches!(self, Self::Established | Self::Embryonic)
    }
}

/// Finds and renews the flow of a delivered packet, if the pod sees the client's own address and port. Only the stage
/// `PodFlow` uses the TCP header of a flow that is not proved.
#[inline(always)]
pub(crate) fn look_up<F: Frame, T: Tables + Flows>(
    frame: &F,
    tables: &T,
    deliver: &Deliver<'_>,
) -> Option<FlowLookup> {
    let (client, address) = addresses(frame, deliver.family, deliver.l3)?;
    let key = deliver.key(client, deliver.source_port());
    let goes_on = deliver.flags.goes_on();
    if goes_on
        && let Some(known) = tables.noted_flow(&key)
        && known.is_between(
            deliver.source_port(),
            address,
            deliver.destination_port(),
            0,
        )
    {
        note_delivery(tables, deliver, &known);
        return Some(FlowLookup::Established);
    }
    let (lookup, known) = look_up_at(tables, deliver, &key, address, SeenByPod::Client);
    if lookup == FlowLookup::Established {
        note(tables, &key, &known);
        if goes_on && known.state() == 0 {
            note_delivery(tables, deliver, &known);
        } else if !goes_on {
            tables.forget_deliveries(&known.forward_key(&key));
        }
    }
    Some(lookup)
}

/// Looks a packet's flow up under one of its possible keys, renews it, and returns it too. `unseen` is the one that
/// the pod does not see of the client's address and the address that the client talks to.
#[inline(always)]
pub(crate) fn look_up_at<T: Flows>(
    tables: &T,
    deliver: &Deliver<'_>,
    key: &Tuple,
    unseen: AddressKey,
    seen_by_pod: SeenByPod,
) -> (FlowLookup, PodFlow) {
    let now = tables.now();
    let state = end_state(deliver.flags, FLOW_FIN_CLIENT);
    let client = deliver.source_port();
    for table in [FlowTable::Established, FlowTable::Embryonic] {
        let lookup = tables.with_flow(table, key, |known| {
            let to = deliver.destination_port();
            if !known.is_between(client, unseen, to, seen_by_pod.flag()) {
                return Err(standing(table, deliver.protocol, known, now));
            }
            if deliver.flags.begins_connection() {
                known.begin_anew(deliver.outer_length(), now);
            } else {
                known.renew(state, now);
            }
            Ok(*known)
        });
        match lookup {
            Some(Ok(known)) if table == FlowTable::Established => {
                return (FlowLookup::Established, known);
            }
            Some(Ok(known)) => return (FlowLookup::Embryonic, known),
            Some(Err(other)) => return (other, PodFlow::default()),
            None => {}
        }
    }
    (FlowLookup::Unknown, PodFlow::default())
}

/// Moves a flow to the table of flows whose client is proved, or that the pod has answered.
#[inline(always)]
pub(crate) fn move_to_established<T: Flows>(tables: &T, key: &Tuple, flow: &PodFlow) {
    // This order lets every packet find one of the two entries.
    match tables.insert_flow(FlowTable::Established, key, flow) {
        Inserted::Done | Inserted::Exists => tables.remove_flow(FlowTable::Embryonic, key),
        // The next packet with such news tries again.
        Inserted::Full => {}
    }
}

/// Returns the address and port by which a pod sees the client of a flow that was delivered to it.
#[inline(always)]
pub(crate) fn client_at_pod<A: Ip, T: Tables + Flows>(
    tables: &T,
    flow: &FlowKey<A>,
    pod: &Backend,
) -> ClientAtPod {
    let forward = Tuple::new(
        flow.source.key(),
        flow.destination.key(),
        flow.source_port,
        flow.destination_port,
        flow.protocol,
    );
    let seen_by_pod = seen_by_pod(tables, &forward, &pod.pod);
    let own = u16::from_be_bytes(flow.source_port);
    if is_known(tables, &forward, seen_by_pod, pod, own) {
        return ClientAtPod {
            seen_by_pod,
            port: own,
        };
    }
    match find_forward(tables, &forward, &pod.pod) {
        Some((port, _)) => ClientAtPod { seen_by_pod, port },
        // The pod has seen no packet of this flow.
        None => ClientAtPod {
            seen_by_pod: SeenByPod::Client,
            port: own,
        },
    }
}

/// Tells whether the pod sees `port` as the client's in the flow that the client sends as `forward`.
#[inline(always)]
fn is_known<T: Flows>(
    tables: &T,
    forward: &Tuple,
    seen_by_pod: SeenByPod,
    pod: &Backend,
    port: u16,
) -> bool {
    let (seen, unseen) = seen_by_pod.seen_and_unseen(forward);
    let key = Tuple::new(
        seen,
        pod.pod,
        port.to_be_bytes(),
        pod.port,
        forward.protocol(),
    );
    for table in [FlowTable::Established, FlowTable::Embryonic] {
        let is_same = tables.with_flow(table, &key, |known| {
            known.is_between(
                forward.source_port(),
                unseen,
                forward.destination_port(),
                seen_by_pod.flag(),
            )
        });
        if let Some(is_same) = is_same {
            return is_same;
        }
    }
    false
}

/// Finds the port that a pod sees in place of the client's own, and renews that entry.
#[inline(always)]
pub(crate) fn find_forward<T: Flows>(
    tables: &T,
    key: &Tuple,
    pod: &AddressKey,
) -> Option<(u16, FlowTable)> {
    let now = tables.now();
    for table in [FlowTable::Established, FlowTable::Embryonic] {
        let port = tables.with_flow(table, key, |known| {
            if !known.is_forward() || known.third_address.words() != pod.words() {
                return None;
            }
            known.renew(0, now);
            Some(u16::from_be_bytes(known.port()))
        });
        match port {
            Some(Some(port)) => return Some((port, table)),
            Some(None) => return None,
            None => {}
        }
    }
    None
}

/// Tells whether a pod sees the client of a flow or, because the client must be hidden, the flow's destination.
#[inline(always)]
pub(crate) fn seen_by_pod<T: Tables>(tables: &T, forward: &Tuple, pod: &AddressKey) -> SeenByPod {
    const THIS_MACHINE: u32 = ADDRESS_LOCAL | ADDRESS_NODE_PORT;
    let client = forward.source();
    if client.words() == pod.words() || tables.address_flags(&client) & THIS_MACHINE != 0 {
        SeenByPod::Destination
    } else {
        SeenByPod::Client
    }
}

/// Notes an answered flow for the packets of the next second, unless it has begun to end or has another client port,
/// for which a note has no room.
#[inline(always)]
pub(crate) fn note<T: Flows>(tables: &T, key: &Tuple, flow: &PodFlow) {
    if flow.state() == 0 && !flow.has_other_port(key) {
        tables.note_flow(key, flow);
    } else {
        tables.forget_note(key);
    }
}

/// Notes a delivery of an answered flow that goes on, whose client has its own port at the pod.
#[inline(always)]
fn note_delivery<T: Flows>(tables: &T, deliver: &Deliver<'_>, flow: &PodFlow) {
    let (service, backend) = (deliver.service, deliver.id);
    if let Some(note) = DeliveryNote::new(deliver.note, service, backend, flow.seen) {
        tables.note_delivery(deliver.note, note);
    }
}

/// Tells how firmly a flow keeps its key from another one.
#[inline(always)]
const fn standing(table: FlowTable, protocol: u8, flow: &PodFlow, now: u64) -> FlowLookup {
    let idle = age(flow.seen, now);
    let hold = match table {
        FlowTable::Established => idle_limit(table, protocol, flow.state(), HOLD_ENDED_NS),
        FlowTable::Embryonic => HOLD_UNPROVED_NS,
    };
    if idle < hold {
        return FlowLookup::Held;
    }
    // The pod may still wait for the end of that handshake, and would take another SYN as part of it. It keeps no
    // such state for other protocols.
    let may_wait = match table {
        FlowTable::Established => false,
        FlowTable::Embryonic => protocol == protocol::TCP && idle < IDLE_TRANSITORY_NS,
    };
    if may_wait {
        FlowLookup::Unproved
    } else {
        FlowLookup::Idle
    }
}

/// Tells whether a flow has neither ended nor idled for too long.
pub const fn is_live(table: FlowTable, protocol: u8, flow: &PodFlow, now: u64) -> bool {
    age(flow.seen, now) < idle_limit(table, protocol, flow.state(), 0)
}

/// Returns how long a flow may idle, in ns; `ended` is the time for a flow that has ended.
#[inline(always)]
pub(crate) const fn idle_limit(table: FlowTable, protocol: u8, state: u8, ended: u64) -> u64 {
    const CLOSED: u8 = FLOW_FIN_CLIENT | FLOW_FIN_POD;
    match table {
        _ if state & FLOW_RESET != 0 || state & CLOSED == CLOSED => ended,
        FlowTable::Embryonic => IDLE_TRANSITORY_NS,
        FlowTable::Established if protocol == protocol::TCP => IDLE_TCP_NS,
        FlowTable::Established => IDLE_UDP_NS,
    }
}

/// Returns the state bits that a packet's flags set; `fin` is the bit for a FIN of the packet's sender.
#[inline(always)]
pub(crate) const fn end_state(flags: TcpFlags, fin: u8) -> u8 {
    if flags.fin() { fin } else { 0 }
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
            (FlowTable::Established, tcp, FLOW_FIN_POD, IDLE_TCP_NS),
            (FlowTable::Established, udp, 0, IDLE_UDP_NS),
            (FlowTable::Embryonic, tcp, 0, IDLE_TRANSITORY_NS),
            (FlowTable::Established, tcp, both, 0),
            (FlowTable::Established, tcp, FLOW_RESET, 0),
        ] {
            let vip = AddressKey::v4([192, 0, 2, 1]);
            let flow = PodFlow::new(&Tuple::default(), vip, [0, 80], 0, state, SEEN);
            let lives = |idle| is_live(table, protocol, &flow, SEEN + idle);
            assert!(
                limit == 0 || lives(limit - 1),
                "{table:?} {protocol} {state}"
            );
            assert!(!lives(limit), "{table:?} {protocol} {state}");
        }
    }
}
