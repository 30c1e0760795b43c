//! Delivery to a pod of this machine, and the memory by which its replies are
//! translated back.
//!
//! A flow enters `FLOWS_EMBRYONIC` with its first packet. It is moved to `FLOWS` when its client has proved that it is
//! where it says: by acknowledging the sequence number of the pod's SYN+ACK, which the TC egress program has noted, or
//! by what the pod would not send without that; until then, what the pod sends must answer the client ([`super::unproved`]).
//! So no forged source pushes out a flow in use, or makes another connection of its client the VIP's. Of other protocols an
//! answer proves nothing, and a resolver gets a flow with each question: what is answered goes to `FLOWS_DATAGRAM`,
//! where no TCP flow is.
//!
//! **Two VIPs of one pod.** The key names the client and the pod: a client port that talks to one pod by two of its VIPs
//! would be one key. The second flow gets another client port towards the pod, and is then known under two keys:
//!
//! ```text
//! client:40000 -> VIP B:80    forward entry: port 51234        client:51234 -> pod:8080
//! client:40000 <- VIP B:80    reverse entry: VIP B:80, 40000   client:51234 <- pod:8080
//! ```
//!
//! Both lie in the tables of all flows. The forward entry keeps the port for the client's next connection by that VIP, so
//! that the pod sees one tuple used again by one client, as without us, and takes it out of TIME_WAIT. How such flows and
//! all others begin is decided in a stage of their own ([`super::pod_flow`]); here, what goes on is found again.
//!
//! **Ends.** A FIN counts from both sides, a RST from the pod alone: the client's may be anybody's. What has ended keeps
//! its key for as long as the pod may hold it in TIME_WAIT.
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

use crate::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_NODE_PORT, AddressKey, Backend, FLOW_FIN_CLIENT, FLOW_FIN_POD,
        FLOW_RESET, PodFlow, RENEWAL_NS, Tuple, age,
    },
    decide::address::addresses,
    flow::FlowKey,
    frame::Frame,
    ip::Ip,
    parse::TcpFlags,
    verdict::{Deliver, SeenAs, Shown},
    wire::protocol,
    world::{FlowTable, Flows, Inserted, Tables},
};

/// Idle time after which another VIP may take over a TCP flow's key (RFC 5382 section 5, REQ-5: 2 h 4 min).
pub const IDLE_TCP_NS: u64 = 7_440_000_000_000;
/// How long replies are translated of flows that the pod has not answered, and that have ended (RFC 5382: 4 min).
pub const IDLE_TRANSITORY_NS: u64 = 240_000_000_000;
/// The same for UDP (RFC 4787 section 4.3, REQ-5: 2 min at least, 5 min recommended).
pub const IDLE_UDP_NS: u64 = 300_000_000_000;

/// How long a flow whose client has proved nothing keeps its key from another VIP, also where no other key is free.
pub const HOLD_UNPROVED_NS: u64 = 3_000_000_000;
/// How long a flow that has ended does: as long as Linux keeps TIME_WAIT (`TCP_TIMEWAIT_LEN`), and what its time may lag.
pub const HOLD_ENDED_NS: u64 = 60_000_000_000 + RENEWAL_NS;

/// What is known of the flow of a packet under one key; a word, because it lies on the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum FlowLookup {
    /// The flow, whose client is where it says, or which the pod has answered.
    Established,
    /// The flow, which has proved nothing.
    Embryonic,
    /// Another flow, which keeps the key.
    Held,
    /// Another flow, which has proved nothing, and loses the key to a new one that finds no other.
    Unproved,
    /// Another flow, which is over, and loses the key to a new one.
    Idle,
    /// Nothing.
    Unknown,
}

impl FlowLookup {
    /// Tells whether the flow is there.
    #[inline(always)]
    pub(crate) const fn is_known(self) -> bool {
        matches!(self, Self::Established | Self::Embryonic)
    }
}

/// Finds the flow of a packet that is delivered, and renews it, where the pod sees the client as it is. What a TCP packet
/// tells of a flow that has proved nothing is left to the stage of flows that begin.
#[inline(always)]
pub(crate) fn look_up<F: Frame, T: Tables + Flows>(
    frame: &F,
    tables: &T,
    deliver: &Deliver<'_>,
) -> Option<FlowLookup> {
    let (client, address) = addresses(frame, deliver.family, deliver.l3)?;
    let key = deliver.key(client, deliver.source_port());
    let goes_on = !deliver.flags.fin() && !deliver.flags.begins_connection();
    if goes_on
        && let Some(known) = tables.noted_flow(&key)
        && known.is_between(
            deliver.source_port(),
            address,
            deliver.destination_port(),
            0,
        )
    {
        return Some(FlowLookup::Established);
    }
    let (lookup, known) = look_up_at(tables, deliver, &key, address, SeenAs::Client);
    if lookup == FlowLookup::Established {
        note(tables, &key, &known);
    }
    Some(lookup)
}

/// Looks a packet's flow up under one of the keys that it may have, and renews it; returns it as well. `unseen` is what
/// the pod does not see, of the client and the address that it talks to.
#[inline(always)]
pub(crate) fn look_up_at<T: Flows>(
    tables: &T,
    deliver: &Deliver<'_>,
    key: &Tuple,
    unseen: AddressKey,
    seen_as: SeenAs,
) -> (FlowLookup, PodFlow) {
    let now = tables.now();
    let state = end_state(deliver.flags, FLOW_FIN_CLIENT);
    let client = deliver.source_port();
    for table in [FlowTable::Established, FlowTable::Embryonic] {
        let lookup = tables.with_flow(table, key, |known| {
            let to = deliver.destination_port();
            if !known.is_between(client, unseen, to, seen_as.flag()) {
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

/// Moves a flow to those whose clients are where they say.
#[inline(always)]
pub(crate) fn move_to_established<T: Flows>(tables: &T, key: &Tuple, flow: &PodFlow) {
    // In this order, so that every packet finds one of the two.
    match tables.insert_flow(FlowTable::Established, key, flow) {
        Inserted::Done | Inserted::Exists => tables.remove_flow(FlowTable::Embryonic, key),
        // The next packet that tells as much tries again.
        Inserted::Full => {}
    }
}

/// Tells as whom a pod sees the client of a flow that has been delivered to it.
#[inline(always)]
pub(crate) fn shown<A: Ip, T: Tables + Flows>(
    tables: &T,
    flow: &FlowKey<A>,
    pod: &Backend,
) -> Shown {
    let forward = Tuple::new(
        flow.source.key(),
        flow.destination.key(),
        flow.source_port,
        flow.destination_port,
        flow.protocol,
    );
    let seen_as = seen_as(tables, &forward, &pod.pod);
    let own = u16::from_be_bytes(flow.source_port);
    if is_known(tables, &forward, seen_as, pod, own) {
        return Shown { seen_as, port: own };
    }
    match find_forward(tables, &forward, &pod.pod) {
        Some((port, _)) => Shown { seen_as, port },
        // No packet of it has been shown to the pod.
        None => Shown {
            seen_as: SeenAs::Client,
            port: own,
        },
    }
}

/// Tells whether the pod sees this port in the flow that its client sends as `forward`.
#[inline(always)]
fn is_known<T: Flows>(
    tables: &T,
    forward: &Tuple,
    seen_as: SeenAs,
    pod: &Backend,
    port: u16,
) -> bool {
    let (seen, unseen) = seen_as.seen_and_unseen(forward);
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
                seen_as.flag(),
            )
        });
        if let Some(is_same) = is_same {
            return is_same;
        }
    }
    false
}

/// Finds the port that a pod sees in the place of the client's, and renews that memory.
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

/// Tells whom a pod takes for the client that sends a flow as `forward`.
#[inline(always)]
pub(crate) fn seen_as<T: Tables>(tables: &T, forward: &Tuple, pod: &AddressKey) -> SeenAs {
    const THIS_MACHINE: u32 = ADDRESS_LOCAL | ADDRESS_NODE_PORT;
    let client = forward.source();
    if client.words() == pod.words() || tables.address_flags(&client) & THIS_MACHINE != 0 {
        SeenAs::Destination
    } else {
        SeenAs::Client
    }
}

/// Notes an answered flow for the packets of the next second, unless it has begun to end. A note has no room for a
/// client's second port.
#[inline(always)]
pub(crate) fn note<T: Flows>(tables: &T, key: &Tuple, flow: &PodFlow) {
    if flow.state() == 0 && !flow.has_other_port(key) {
        tables.note_flow(key, flow);
    } else {
        tables.forget_note(key);
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
    // The pod may still wait for the end of that handshake, and would answer another SYN as one of it. Of what is no
    // TCP, it knows nothing.
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
        FlowTable::Established if protocol == protocol::TCP => IDLE_TCP_NS,
        FlowTable::Established => IDLE_UDP_NS,
    }
}

/// Returns what a packet's flags say of its flow's end; `fin` is the bit for a FIN of its sender.
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
