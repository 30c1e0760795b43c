//! NAT mode: packets of a client that may prove their flow, or reset it.
//!
//! Packets of open flows do not come to this stage, except RSTs and packets after the backend has accepted another
//! connection.

use super::{
    arrived::{Arrived, HEEDED, go_on, requested_aside},
    lifetime::is_known,
    to_backend::{reply_key, way},
};
use crate::{
    abi::{
        NAT_ANSWERED, NAT_FIN_CLIENT, NAT_OPEN, NAT_RESET, NatForward, NatMark, RENEWAL_NS, Tuple,
    },
    frame::Frame,
    stage::Stage,
    verdict::Verdict,
    wire::protocol,
    world::{NatFlows, World},
};

/// Tells whether a client's packet may change the state of its flow.
#[inline(always)]
pub(super) fn is_of_use(entry: &NatForward, arrived: &Arrived, now: u64) -> bool {
    let is_tcp = arrived.key.protocol() == protocol::TCP;
    let is_answered = entry.mark.has(NAT_ANSWERED);
    if entry.mark.has(NAT_OPEN) {
        is_tcp && (is_answered || arrived.flags().rst())
    } else {
        is_tcp || is_answered || entry.mark.idle(now) >= RENEWAL_NS
    }
}

/// Takes note of a client's packet and continues in stage `Nat`.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let arrived = match requested_aside(frame, tables) {
        Ok(arrived) => arrived,
        Err(verdict) => return verdict,
    };
    heed(tables, &arrived);
    go_on(tables, arrived.service, HEEDED, Stage::Nat)
}

/// Finds the packet's flow and takes note of the packet.
#[inline(always)]
fn heed<T: World>(tables: &T, arrived: &Arrived) {
    let now = tables.now();
    let key = &arrived.key;
    let entry = match tables.see_nat_forward(key, |_| None) {
        Some(entry) if is_known(&entry, key, now) => entry,
        _ => return,
    };
    let Some(backend) = tables.backend(entry.backend()) else {
        return;
    };
    let Ok(way) = way(tables, arrived.family, backend) else {
        return;
    };
    let reply = reply_key(backend, way.address, entry.port(), key.protocol());
    if !entry.is_answered_as(&reply) {
        return;
    }
    if entry.mark.has(NAT_OPEN) && arrived.flags().rst() {
        note_reset(tables, arrived, entry.mark, &reply);
    } else {
        handshake(tables, arrived, entry.mark, &reply, now);
    }
}

/// Takes note of a packet of a flow that is not proved; the packet may be the proof.
#[inline(always)]
fn handshake<T: NatFlows>(tables: &T, arrived: &Arrived, mark: NatMark, reply: &Tuple, now: u64) {
    let key = &arrived.key;
    let Some(reverse) = tables.nat_state(reply) else {
        return;
    };
    let is_tcp = key.protocol() == protocol::TCP;
    let flags = arrived.flags();
    let is_proof = reverse.mark.has(NAT_ANSWERED)
        && (!is_tcp
            || (flags.acknowledges()
                && arrived.of_backend() == reverse.began_with.wrapping_add(1)));
    let renewed = if is_proof {
        let fin = if flags.fin() { NAT_FIN_CLIENT } else { 0 };
        let answered = if is_tcp { 0 } else { NAT_ANSWERED };
        NatMark::new(now, NAT_OPEN | answered | fin)
    } else if flags.begins_connection() || (!is_tcp && mark.idle(now) >= RENEWAL_NS) {
        NatMark::new(now, mark.flags())
    } else {
        return;
    };
    if !tables.replace_nat_mark(key, mark, renewed) {
        return;
    }
    tables.note_nat_reverse(reply, reverse.marked(renewed));
    if is_proof && !mark.has(NAT_OPEN) {
        tables.count_nat(arrived.service, 0, -1);
    }
}

/// A client's RST counts if its number is less than this ahead of the number that the backend expects. The value is
/// below the window of a new connection. A RST with a wrong number within the window makes the backend send an ACK
/// (RFC 5961 section 3.2), and that ACK cancels the RST here.
const RESET_WINDOW: u32 = 1 << 15;

/// Notes a client's RST, if its number is near the one that the backend expects: few senders who do not know the
/// connection hit such a number.
#[inline(always)]
fn note_reset<T: NatFlows>(tables: &T, arrived: &Arrived, mark: NatMark, reply: &Tuple) {
    let Some(state) = tables.nat_state(reply) else {
        return;
    };
    let is_near = arrived.of_client().wrapping_sub(state.expects) < RESET_WINDOW;
    if is_near && tables.replace_nat_mark(&arrived.key, mark, mark.with(NAT_RESET)) {
        tables.note_nat_reverse(reply, state.marked(state.mark.with(NAT_RESET)));
    }
}
