//! How long an entry of a pod's flow counts, and in which table it is.
//!
//! Packets to the pod ([`decide::node`](crate::decide::node)) and the pod's own ([`egress`](crate::egress)) keep the same
//! entries by these rules.

use crate::{
    abi::{FLOW_FIN_CLIENT, FLOW_FIN_POD, FLOW_RESET, PodFlow, RENEWAL_NS, Tuple, age},
    parse::TcpFlags,
    wire::protocol,
    world::{FlowTable, Flows, Inserted},
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

/// The state of a flow that both ends have closed.
pub(crate) const CLOSED: u8 = FLOW_FIN_CLIENT | FLOW_FIN_POD;

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

/// Notes an answered flow for the packets of the next second, unless it has begun to end or has another client port,
/// for which a note has no room.
#[inline(always)]
pub(crate) fn note_or_forget<T: Flows>(tables: &T, key: &Tuple, flow: &PodFlow) {
    if flow.state() == 0 && !flow.has_other_port(key) {
        tables.note_flow(key, flow);
    } else {
        tables.forget_note(key);
    }
}

/// Tells whether a flow has neither ended nor idled for too long.
pub const fn is_live(table: FlowTable, protocol: u8, flow: &PodFlow, now: u64) -> bool {
    age(flow.seen, now) < idle_limit(table, protocol, flow.state(), 0)
}

/// Tells whether a flow has ended, and the pod has left TIME_WAIT since.
#[inline(always)]
pub(crate) const fn is_over(flow: &PodFlow, now: u64) -> bool {
    let state = flow.state();
    (state & FLOW_RESET != 0 || state & CLOSED == CLOSED) && age(flow.seen, now) >= HOLD_ENDED_NS
}

/// Returns how long a flow may idle, in ns; `ended` is the time for a flow that has ended.
#[inline(always)]
pub(crate) const fn idle_limit(table: FlowTable, protocol: u8, state: u8, ended: u64) -> u64 {
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
    use crate::abi::AddressKey;

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
