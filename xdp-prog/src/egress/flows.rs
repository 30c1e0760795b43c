//! The flow that a packet of a pod belongs to.

use super::Memory;
use crate::{
    abi::{FLOW_FIN_POD, PodFlow, Tuple, age},
    decide::deliver::{self, FlowTable, IDLE_TRANSITORY_NS},
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
    let state = deliver::end_state(flags, FLOW_FIN_POD);
    if state == 0
        && !flags.accepts_connection()
        && let Some(flow) = tables.noted_flow(key)
    {
        return Some(flow);
    }
    if let Some(met) = visit(tables, FlowTable::Answered, key, protocol, state, now) {
        let flow = met?;
        deliver::note(tables, key, &flow);
        return Some(flow);
    }
    let mut flow = visit(tables, FlowTable::Embryonic, key, protocol, state, now)??;
    let is_established = protocol != protocol::TCP || !(flags.accepts_connection() || flags.rst());
    if is_established {
        flow.seen = now;
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

/// Renews a flow; within the outer option none if it is known, but no more in use.
#[inline(always)]
fn visit<T: Memory>(
    tables: &T,
    table: FlowTable,
    key: &Tuple,
    protocol: u8,
    state: u8,
    now: u64,
) -> Option<Option<PodFlow>> {
    tables.with_flow(table, key, |flow| {
        if !is_fresh(flow, table, protocol, now) {
            return None;
        }
        flow.renew(state, now);
        Some(*flow)
    })
}

/// Tells whether a flow has been in use of late.
///
/// The same times after which another address may take its key over; but what
/// has ended is still translated for a while: last segments are sent again.
#[inline(always)]
const fn is_fresh(flow: &PodFlow, table: FlowTable, protocol: u8, now: u64) -> bool {
    let limit = deliver::idle_limit(table, protocol, flow.state(), IDLE_TRANSITORY_NS);
    age(flow.seen, now) < limit
}
