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
//! of its own, which spare it all other look-ups too ([`super::receive`]).
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
        PodFlow, Tuple, age,
    },
    decide::address::addresses,
    flow::FlowKey,
    flow_state,
    frame::Frame,
    ip::Ip,
    parse::Segment,
    verdict::{ClientAtPod, Delivery, SeenByPod},
    wire::{protocol, transport::Tcp},
    world::{FlowTable, Flows, Tables},
};

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
    /// Returns the result with this number, which has gone through [`Relay`](crate::world::Relay).
    #[inline(always)]
    pub(super) const fn of_number(number: u64) -> Self {
        match number {
            0 => Self::Established,
            1 => Self::Embryonic,
            2 => Self::Held,
            3 => Self::Unproved,
            4 => Self::Idle,
            _ => Self::Unknown,
        }
    }

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
    delivery: &Delivery<'_>,
) -> Option<FlowLookup> {
    let (client, address) = addresses(frame, delivery.family, delivery.l3)?;
    let key = delivery.key(client, delivery.source_port());
    let goes_on = delivery.flags.goes_on();
    if goes_on
        && let Some(known) = tables.noted_flow(&key)
        && delivery.is_of(&known, address, SeenByPod::Client)
    {
        note_delivery(tables, delivery, &known);
        return Some(FlowLookup::Established);
    }
    let (lookup, known) = look_up_at(tables, delivery, &key, address, SeenByPod::Client);
    if lookup == FlowLookup::Established {
        note(tables, delivery, &key, &known);
    }
    Some(lookup)
}

/// Notes a proved flow and the delivery for the packets of the next second, or forgets what is noted of a flow that ends.
#[inline(always)]
pub(super) fn note<T: Flows>(tables: &T, delivery: &Delivery<'_>, key: &Tuple, known: &PodFlow) {
    flow_state::note_or_forget(tables, key, known);
    if !delivery.flags.goes_on() {
        tables.forget_deliveries(&known.forward_key(key));
    } else if known.state() == 0 {
        note_delivery(tables, delivery, known);
    }
}

/// Looks a packet's flow up under one of its possible keys, renews it, and returns it too. `unseen` is the one that
/// the pod does not see of the client's address and the address that the client talks to.
#[inline(always)]
pub(crate) fn look_up_at<T: Flows>(
    tables: &T,
    delivery: &Delivery<'_>,
    key: &Tuple,
    unseen: AddressKey,
    seen_by_pod: SeenByPod,
) -> (FlowLookup, PodFlow) {
    let now = tables.now();
    let state = flow_state::end_state(delivery.flags, FLOW_FIN_CLIENT);
    for table in [FlowTable::Established, FlowTable::Embryonic] {
        let lookup = tables.with_flow(table, key, |known| {
            if !delivery.is_of(known, unseen, seen_by_pod) {
                return Err(standing(table, delivery.protocol, known, now));
            }
            if delivery.flags.begins_connection() {
                known.begin_anew(delivery.outer_length(), now);
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

/// Returns the tuple of a packet's flow as the client sends it.
#[inline(always)]
pub(crate) fn forward_tuple<F: Frame>(frame: &F, delivery: &Delivery<'_>) -> Option<Tuple> {
    let (client, address) = addresses(frame, delivery.family, delivery.l3)?;
    Some(Tuple::new(
        client,
        address,
        delivery.source_port(),
        delivery.destination_port(),
        delivery.protocol,
    ))
}

/// Reads the TCP header of a packet; its flags are zero if there is none.
#[inline(always)]
pub(crate) fn segment<F: Frame>(frame: &F, delivery: &Delivery<'_>) -> Segment {
    if delivery.protocol != protocol::TCP || delivery.is_later {
        return Segment::default();
    }
    match frame.view::<Tcp>(delivery.l4) {
        Some(header) => Segment::of(header),
        None => Segment::default(),
    }
}

/// Returns the address and port by which a pod sees the client of a flow that was delivered to it.
#[inline(always)]
pub(crate) fn client_at_pod<A: Ip, T: Tables + Flows>(
    tables: &T,
    flow: &FlowKey<A>,
    pod: &Backend,
) -> ClientAtPod {
    let forward = flow.tuple();
    let seen_by_pod = seen_by_pod(tables, &forward, &pod.pod);
    let own = u16::from_be_bytes(flow.source_port);
    if is_known(tables, &forward, seen_by_pod, pod, own) {
        return ClientAtPod {
            seen_by_pod,
            port: own,
        };
    }
    match find_and_renew_forward(tables, &forward, &pod.pod) {
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
pub(crate) fn find_and_renew_forward<T: Flows>(
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

/// Notes a delivery of an answered flow that goes on, whose client has its own port at the pod.
#[inline(always)]
fn note_delivery<T: Flows>(tables: &T, delivery: &Delivery<'_>, flow: &PodFlow) {
    let (service, backend) = (delivery.service, delivery.id);
    if let Some(note) = DeliveryNote::new(delivery.note_key, service, backend, flow.seen) {
        tables.note_delivery(delivery.note_key, note);
    }
}

/// Tells how firmly a flow keeps its key from another one.
#[inline(always)]
const fn standing(table: FlowTable, protocol: u8, flow: &PodFlow, now: u64) -> FlowLookup {
    let idle = age(flow.seen, now);
    let hold = match table {
        FlowTable::Established => {
            flow_state::idle_limit(table, protocol, flow.state(), flow_state::HOLD_ENDED_NS)
        }
        FlowTable::Embryonic => flow_state::HOLD_UNPROVED_NS,
    };
    if idle < hold {
        return FlowLookup::Held;
    }
    // The pod may still wait for the end of that handshake, and would take another SYN as part of it. It keeps no
    // such state for other protocols.
    let may_wait = match table {
        FlowTable::Established => false,
        FlowTable::Embryonic => protocol == protocol::TCP && idle < flow_state::IDLE_TRANSITORY_NS,
    };
    if may_wait {
        FlowLookup::Unproved
    } else {
        FlowLookup::Idle
    }
}
