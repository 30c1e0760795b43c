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
    abi::{Backend, FLOW_FIN_POD, PodFlow, Tuple, age},
    flow_state,
    parse::Segment,
    verdict::SeenByPod,
    wire::protocol,
    world::{FlowTable, SocketState, World},
};

/// What is known of a flow; a word, because it may lie on the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Known {
    /// Nothing.
    No,
    /// An earlier packet has proved it.
    Proved,
    /// This packet proves it, or the socket at the pod; or it is one of datagrams, and not answered yet.
    Unnoted,
}

/// Looks for the flow that the client sends as `forward` to a pod, under the client's own port at the pod or another
/// one. Where there is no TCP header, `segment` proves nothing.
#[inline(always)]
pub(crate) fn find<T: World>(
    tables: &T,
    forward: &Tuple,
    pod: &Backend,
    segment: &Segment,
) -> Known {
    let seen_by_pod = flow_lookup::seen_by_pod(tables, forward, &pod.pod);
    let at = |port| at_port(tables, forward, (pod, seen_by_pod), port, segment);
    match at(forward.source_port()) {
        Known::No => {}
        known => return known,
    }
    match flow_lookup::find_and_renew_forward(tables, forward, &pod.pod) {
        Some((port, _)) => at(port.to_be_bytes()),
        None => Known::No,
    }
}

/// Looks for the flow under one of its possible ports.
#[inline(always)]
fn at_port<T: World>(
    tables: &T,
    forward: &Tuple,
    (pod, seen_by_pod): (&Backend, SeenByPod),
    port: [u8; 2],
    segment: &Segment,
) -> Known {
    let (seen, unseen) = seen_by_pod.seen_and_unseen(forward);
    let key = Tuple::new(seen, pod.pod, port, pod.port, forward.protocol());
    let (client, service) = (forward.source_port(), forward.destination_port());
    let now = tables.now();
    let is_tcp = forward.protocol() == protocol::TCP;
    let socket = if is_tcp {
        tables.socket_state(&key, pod.namespace)
    } else {
        SocketState::UNKNOWN
    };
    let proved = tables.with_flow(FlowTable::Established, &key, |flow| {
        if !flow.is_between(client, unseen, service, seen_by_pod.flag()) {
            return false;
        }
        if !is_tcp {
            return age(flow.seen, now) < flow_state::IDLE_UDP_NS;
        }
        if socket.is_open() {
            flow.note_socket(true);
            return true;
        }
        !flow_state::is_over(flow, now) && may_go_on(flow, socket, segment)
    });
    match proved {
        Some(true) => return Known::Proved,
        Some(false) => return Known::No,
        None => {}
    }
    let unproved = tables.with_flow(FlowTable::Embryonic, &key, |flow| {
        if !flow.is_between(client, unseen, service, seen_by_pod.flag()) {
            return false;
        }
        if !is_tcp {
            return age(flow.seen, now) < flow_state::IDLE_TRANSITORY_NS;
        }
        unproved::is_proof(flow, segment) || socket.is_open()
    });
    // Without an entry, the socket alone tells.
    if unproved.unwrap_or(socket.is_open()) {
        Known::Unnoted
    } else {
        Known::No
    }
}

/// Tells whether a segment may belong to a proved connection, by what the pod's kernel has of it. A client repeats its FIN if
/// the pod's ACK was lost.
#[inline(always)]
const fn may_go_on(flow: &PodFlow, socket: SocketState, segment: &Segment) -> bool {
    let ends = flow.state() & flow_state::CLOSED;
    let waits_for_client = ends == FLOW_FIN_POD || segment.flags.fin();
    !flow.has_had_socket() || socket.is_answered(waits_for_client)
}
