//! Node role: which flows are known here.
//!
//! A connection is known if `FLOWS` has it, until a while after its end: by then the client may use its port again, with another
//! owner of its slot. The pod's kernel is asked for the socket besides. While it has the connection open, the connection is
//! known whatever ends `FLOWS` has seen: anybody may have sent those of the client. If it has none although there has been
//! one, the client has reset the connection, of which nobody else hears. Where there has been none, that tells nothing: a
//! sidecar takes connections under other ports, and a stack in user space has no sockets.
//!
//! A connection that is not in `FLOWS` is known by a segment that proves it: it acknowledges the number of the pod's SYN+ACK.
//! It is also known if the pod's kernel has it open, unless `FLOWS_EMBRYONIC` has its key for another VIP: the tables may
//! have lost it.
//!
//! A flow of datagrams is known while it lives: to `FLOWS_DATAGRAM`, or to `FLOWS_EMBRYONIC` if the pod does not answer it.
//! Anybody may have begun it by a datagram in the client's name. But that one took the way that the client's own take.

use super::{flow_lookup, unproved};
use crate::{
    abi::{Backend, FLOW_FIN_CLIENT, FLOW_FIN_POD, PodFlow, Tuple, age},
    decide::address::addresses,
    flow_state,
    frame::Frame,
    parse::Segment,
    verdict::{Delivery, SeenByPod},
    wire::protocol,
    world::{FlowTable, SocketState, World},
};

/// Finds a delivered packet's flow among the proved ones, if the pod sees the client's own address and port. Renews it and
/// returns true if it goes on; returns `None` if no flow has that address and port.
#[inline(always)]
pub(super) fn find_proved<F: Frame, T: World>(
    frame: &F,
    tables: &T,
    delivery: &Delivery<'_>,
) -> Option<bool> {
    let (client, address) = addresses(frame, delivery.family, delivery.l3)?;
    let key = delivery.key(client, delivery.source_port());
    let segment = flow_lookup::segment(frame, delivery);
    let state = flow_state::end_state(delivery.flags, FLOW_FIN_CLIENT);
    let now = tables.now();
    let known = tables.with_flow(FlowTable::Established, &key, |flow| {
        if !delivery.is_of(flow, address, SeenByPod::Client) {
            return None;
        }
        let socket = socket_state(tables, &key, delivery.backend);
        if !goes_on(flow, &key, socket, &segment, now) {
            return None;
        }
        flow.renew(state, now);
        Some(*flow)
    })?;
    let Some(known) = known else {
        return Some(false);
    };
    if state != 0 {
        // The pod may have sent its own FIN while its kernel was asked, and the client's would be lost.
        tables.with_flow(FlowTable::Established, &key, |flow| {
            if delivery.is_of(flow, address, SeenByPod::Client) {
                flow.renew(state, now);
            }
        });
    }
    flow_lookup::note(tables, delivery, &key, &known);
    Some(true)
}

/// Tells whether the flow is known that the client sends as `forward` to a pod, under the client's own port at the pod or
/// another one. Where there is no TCP header, `segment` proves nothing. `has_no_entry` says that no proved flow has the
/// client's own address and port, if an earlier part has looked.
#[inline(always)]
pub(crate) fn is_known<T: World>(
    tables: &T,
    forward: &Tuple,
    pod: &Backend,
    segment: &Segment,
    has_no_entry: bool,
) -> bool {
    let seen_by_pod = flow_lookup::seen_by_pod(tables, forward, &pod.pod);
    let has_no_entry = has_no_entry && seen_by_pod == SeenByPod::Client;
    let at = |port, has_no_entry| {
        is_known_at(
            tables,
            forward,
            (pod, seen_by_pod),
            port,
            segment,
            has_no_entry,
        )
    };
    if at(forward.source_port(), has_no_entry) {
        return true;
    }
    match flow_lookup::find_and_renew_forward(tables, forward, &pod.pod) {
        Some((port, _)) => at(port.to_be_bytes(), false),
        None => false,
    }
}

/// Tells whether the flow is known under one of its possible ports. `has_no_entry` says that no proved flow has it.
#[inline(always)]
fn is_known_at<T: World>(
    tables: &T,
    forward: &Tuple,
    (pod, seen_by_pod): (&Backend, SeenByPod),
    port: [u8; 2],
    segment: &Segment,
    has_no_entry: bool,
) -> bool {
    let (seen, unseen) = seen_by_pod.seen_and_unseen(forward);
    let key = Tuple::new(seen, pod.pod, port, pod.port, forward.protocol());
    let (client, service) = (forward.source_port(), forward.destination_port());
    let now = tables.now();
    let socket = socket_state(tables, &key, pod);
    if !has_no_entry {
        let proved = tables.with_flow(FlowTable::Established, &key, |flow| {
            flow.is_between(client, unseen, service, seen_by_pod.flag())
                && goes_on(flow, &key, socket, segment, now)
        });
        if let Some(is_known) = proved {
            return is_known;
        }
    }
    let unproved = tables.with_flow(FlowTable::Embryonic, &key, |flow| {
        if !flow.is_between(client, unseen, service, seen_by_pod.flag()) {
            return false;
        }
        if key.protocol() != protocol::TCP {
            return age(flow.seen, now) < flow_state::IDLE_TRANSITORY_NS;
        }
        unproved::is_proof(flow, segment) || socket.is_open()
    });
    // Without an entry, the socket alone tells.
    unproved.unwrap_or(socket.is_open())
}

/// Returns what the pod's kernel has of a connection; nobody can tell of other flows.
#[inline(always)]
fn socket_state<T: World>(tables: &T, key: &Tuple, pod: &Backend) -> SocketState {
    if key.protocol() == protocol::TCP {
        tables.socket_state(key, pod.namespace)
    } else {
        SocketState::UNKNOWN
    }
}

/// Tells whether a proved flow with this key has not ended for the client, by its entry and what the pod's kernel has of it.
#[inline(always)]
fn goes_on(
    flow: &mut PodFlow,
    key: &Tuple,
    socket: SocketState,
    segment: &Segment,
    now: u64,
) -> bool {
    if key.protocol() != protocol::TCP {
        return age(flow.seen, now) < flow_state::IDLE_UDP_NS;
    }
    if socket.is_open() {
        flow.note_socket(true);
        return true;
    }
    !flow_state::is_over(flow, now) && may_go_on(flow, socket, segment)
}

/// Tells whether a segment may belong to a proved connection, by what the pod's kernel has of it. A client repeats its FIN if
/// the pod's ACK was lost.
#[inline(always)]
const fn may_go_on(flow: &PodFlow, socket: SocketState, segment: &Segment) -> bool {
    let ends = flow.state() & flow_state::CLOSED;
    let waits_for_client = ends == FLOW_FIN_POD || segment.flags.fin();
    !flow.has_had_socket() || socket.is_answered(waits_for_client)
}
