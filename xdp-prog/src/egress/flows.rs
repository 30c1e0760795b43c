//! The flow that a packet of a pod belongs to.

use super::Memory;
use crate::{
    abi::{FLOW_FIN_CLIENT, FLOW_FIN_POD, FLOW_RESET, PodFlow, Tuple},
    decide::deliver::{self, FlowTable, IDLE_TCP_NS, IDLE_TRANSITORY_NS, IDLE_UDP_NS},
    parse::TcpFlags,
    wire::protocol,
};

/// Finds the flow that a pod's packet answers, and renews it.
///
/// An entry outlives its flow, as long as the table has room. What has idled
/// too long may be a connection to the pod itself from a port that was used for
/// a service before: such an entry is none.
#[inline(always)]
pub(super) fn answer<T: Memory>(
    tables: &T,
    key: &Tuple,
    protocol: u8,
    flags: TcpFlags,
) -> Option<PodFlow> {
    let now = tables.now();
    let state = pod_state(flags);
    if state == 0
        && !flags.accepts_connection()
        && let Some(flow) = tables.noted_flow(key)
    {
        return Some(flow);
    }
    if let Some(mut flow) = visit(tables, FlowTable::Answered, key, protocol, state, now) {
        if !is_fresh(&flow, FlowTable::Answered, protocol, now) {
            return None;
        }
        flow.renew(state, now);
        deliver::note(tables, key, &flow);
        return Some(flow);
    }
    let mut flow = visit(tables, FlowTable::Embryonic, key, protocol, state, now)?;
    if !is_fresh(&flow, FlowTable::Embryonic, protocol, now) {
        return None;
    }
    let is_established = protocol != protocol::TCP || !(flags.accepts_connection() || flags.rst());
    if is_established {
        flow.seen = now;
        flow.add_state(state);
        // In this order, so that the XDP program always finds one of the two.
        tables.insert_flow(FlowTable::Answered, key, &flow);
        tables.remove_flow(FlowTable::Embryonic, key);
    }
    Some(flow)
}

/// Finds the flow of a packet that is quoted, or that a fragment belongs to.
#[inline(always)]
pub(super) fn find<T: Memory>(tables: &T, key: &Tuple, protocol: u8) -> Option<PodFlow> {
    let now = tables.now();
    if let Some(flow) = tables.with_flow(FlowTable::Answered, key, |flow| *flow) {
        return is_fresh(&flow, FlowTable::Answered, protocol, now).then_some(flow);
    }
    let flow = tables.with_flow(FlowTable::Embryonic, key, |flow| *flow)?;
    is_fresh(&flow, FlowTable::Embryonic, protocol, now).then_some(flow)
}

/// Returns a flow as it was before this packet, which it notes if the flow is fresh.
#[inline(always)]
fn visit<T: Memory>(
    tables: &T,
    table: FlowTable,
    key: &Tuple,
    protocol: u8,
    state: u8,
    now: u64,
) -> Option<PodFlow> {
    tables.with_flow(table, key, |flow| {
        let before = *flow;
        if is_fresh(&before, table, protocol, now) {
            flow.renew(state, now);
        }
        before
    })
}

/// Tells whether a flow has been in use of late.
///
/// The same times after which another address may take its key over; but what
/// has ended is still translated for a while: last segments are sent again.
#[inline(always)]
const fn is_fresh(flow: &PodFlow, table: FlowTable, protocol: u8, now: u64) -> bool {
    const CLOSED: u8 = FLOW_FIN_CLIENT | FLOW_FIN_POD;
    let state = flow.state();
    let limit = match table {
        _ if state & FLOW_RESET != 0 || state & CLOSED == CLOSED => IDLE_TRANSITORY_NS,
        FlowTable::Embryonic => IDLE_TRANSITORY_NS,
        FlowTable::Answered if protocol == protocol::TCP => IDLE_TCP_NS,
        FlowTable::Answered => IDLE_UDP_NS,
    };
    now.saturating_sub(flow.seen) < limit
}

#[inline(always)]
const fn pod_state(flags: TcpFlags) -> u8 {
    (if flags.fin() { FLOW_FIN_POD } else { 0 }) | (if flags.rst() { FLOW_RESET } else { 0 })
}
