//! Finds the flow of a pod's packet.

use super::Memory;
use crate::{
    abi::{FLOW_FIN_POD, FLOW_RESET, PodFlow, Tuple, age},
    decide::node::unproved::{self, Judgement},
    flow_state::{self, IDLE_TRANSITORY_NS},
    parse::{Segment, TcpFlags},
    wire::protocol,
    world::FlowTable,
};

/// Finds the flow that a pod's packet answers, and renews it. `segment` holds the fields of its TCP header.
///
/// An entry stays after its flow has ended, as long as the table has room. If it has idled for too long, the packet
/// may be of a connection to the pod itself, from a port that was used for a service before. Such an entry does not
/// count.
#[inline(always)]
pub(super) fn find_and_renew<T: Memory>(
    tables: &T,
    key: &Tuple,
    segment: &Segment,
) -> Option<PodFlow> {
    let flags = segment.flags;
    let fin = flow_state::end_state(flags, FLOW_FIN_POD);
    let reset = if flags.rst() { FLOW_RESET } else { 0 };
    let is_plain = fin | reset == 0 && !flags.accepts_connection();
    if is_plain && let Some(flow) = tables.noted_flow(key) {
        return Some(flow);
    }
    let now = tables.now();
    let met = visit(tables, FlowTable::Established, key, now, |flow| {
        flow.renew(fin | reset, now);
        if flags.accepts_connection() && key.protocol() == protocol::TCP {
            flow.forget_socket();
        }
    });
    if let Some(met) = met {
        let flow = met?;
        flow_state::note_or_forget(tables, key, &flow);
        if fin | reset != 0 {
            tables.forget_deliveries(&flow.forward_key(key));
        }
        return Some(flow);
    }
    // In other protocols than TCP, any packet counts as an answer.
    let mut judgement = Judgement::Proof;
    // A RST does not end an embryonic flow: it may answer a forged segment, and the connection may still begin.
    let flow = visit(tables, FlowTable::Embryonic, key, now, |flow| {
        if key.protocol() == protocol::TCP {
            judgement = unproved::judge(flow, segment);
        }
        if judgement == Judgement::Unrelated {
            return;
        }
        flow.renew(fin, now);
        if flags.accepts_connection() {
            unproved::accept(flow, segment.sequence);
        }
    })??;
    match judgement {
        Judgement::Unrelated => return None,
        Judgement::Answer => {}
        Judgement::Proof => move_both_entries(tables, key, &flow, now),
    }
    Some(flow)
}

/// Moves a flow, with both of its entries, to the tables of answered flows.
#[inline(always)]
fn move_both_entries<T: Memory>(tables: &T, key: &Tuple, flow: &PodFlow, now: u64) {
    flow_state::move_to_established(tables, key, &flow.established(now));
    if !flow.has_other_port(key) {
        return;
    }
    let forward = flow.forward_key(key);
    let entry = PodFlow::forward(&forward, key.destination(), key.source_port(), now);
    flow_state::move_to_established(tables, &forward, &entry);
}

/// Tells whether a segment without a flow, whose client's packets have this key, may belong to one that former tables have:
/// its connection began after flows were copied from there, and will be copied. Untranslated, it would make the client end
/// the connection.
#[inline(always)]
pub(super) fn may_be_uncopied<T: Memory>(tables: &T, key: &Tuple, flags: TcpFlags) -> bool {
    let copied_by = tables.config().map_or(0, |config| config.flows_copied_by);
    copied_by != 0
        && tables.now() < copied_by
        && key.protocol() == protocol::TCP
        && !flags.begins_connection()
        && tables.is_egress_port(u16::from_be_bytes(key.destination_port()))
}

/// Finds the flow of a quoted packet or of a fragment.
#[inline(always)]
pub(super) fn find<T: Memory>(tables: &T, key: &Tuple) -> Option<PodFlow> {
    let now = tables.now();
    match visit(tables, FlowTable::Established, key, now, |_| {}) {
        Some(met) => met,
        None => visit(tables, FlowTable::Embryonic, key, now, |_| {})?,
    }
}

/// Runs `renew` on a flow. The outer option is `None` if the flow is unknown, the inner one if it is no longer in
/// use.
#[inline(always)]
fn visit<T: Memory>(
    tables: &T,
    table: FlowTable,
    key: &Tuple,
    now: u64,
    renew: impl FnOnce(&mut PodFlow),
) -> Option<Option<PodFlow>> {
    tables.with_flow(table, key, |flow| {
        if !is_fresh(flow, table, key.protocol(), now) {
            return None;
        }
        renew(flow);
        Some(*flow)
    })
}

/// Tells whether a flow was in use recently, and has this key at its pod.
///
/// The times are those after which another address may take over the key. A flow that has ended is still translated
/// for a while, because its last segments may be sent again.
#[inline(always)]
const fn is_fresh(flow: &PodFlow, table: FlowTable, protocol: u8, now: u64) -> bool {
    let limit = flow_state::idle_limit(table, protocol, flow.state(), IDLE_TRANSITORY_NS);
    !flow.is_forward() && age(flow.seen, now) < limit
}
