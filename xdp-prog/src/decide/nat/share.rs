//! NAT mode: a service that has used its share of the table makes room for a new flow among its own flows.
//!
//! With many backends, the 32 ports that are tried for a new flow seldom include one that gives way. So every flow
//! that begins is noted in a ring, over the oldest entry there. There are sixteen rings; services share one if their
//! ids have the same remainder. Entry 0 of a ring holds its *hand*, the place that was written last.
//!
//! A service that has used its share looks at the places after the hand: there lies the oldest half-open flow of a
//! flood of forged SYNs. The new flow is noted in the place of the removed one. A place is only a hint, which the
//! flow's entries must confirm, because the CPUs write places and hands without a lock.

use super::{
    arrived::{Arrived, MADE_ROOM, SOUGHT, go_on, requested_aside},
    begin::{free, gives_way_by},
    to_backend::{is_by_nat, reply_key, way},
};
use crate::{
    abi::{NatBegun, Tuple, size},
    frame::Frame,
    stage::Stage,
    verdict::Verdict,
    world::{NatFlows, World},
};

const RINGS: u32 = 16;
/// Places of a ring, the hand's included. With the default size, a service may begin 100 000 flows a second before
/// all flows of its ring are too young to give way.
#[expect(clippy::cast_possible_truncation, reason = "a constant")]
const PLACES: u32 = size::NAT_BEGUN as u32 / RINGS;
/// Places that are looked at for a new flow. Each look is a run of the stage, because the verifier gives up on a
/// loop.
const LOOKS: u32 = 8;
/// [`HandOver::detail`](crate::world::HandOver): the number of places that were looked at.
const LOOKS_MASK: u32 = 0xf;

/// Looks for a flow of the service to remove; continues in this stage or in stage `NatBegin`.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let arrived = match requested_aside(frame, tables) {
        Ok(arrived) => arrived,
        Err(verdict) => return verdict,
    };
    let looks = (tables.handed_over().detail & LOOKS_MASK) + 1;
    let (progress, next) = if take_one(tables, &arrived) {
        (SOUGHT | MADE_ROOM, Stage::NatBegin)
    } else if looks == LOOKS {
        (SOUGHT, Stage::NatBegin)
    } else {
        (looks, Stage::NatShare)
    };
    go_on(tables, arrived.service, progress, next)
}

/// Notes a flow that begins.
#[inline(always)]
pub(super) fn note<T: NatFlows>(tables: &T, service: u32, backend: u32, port: [u8; 2]) {
    let place = after(hand(tables, service));
    let flow = NatBegun::new(backend, service, port);
    tables.note_nat_begun(index(service, place), flow);
    move_hand(tables, service, place);
}

/// Looks at one place and removes the flow there if it is the service's and gives way; tells whether it did.
#[inline(always)]
fn take_one<T: World>(tables: &T, arrived: &Arrived) -> bool {
    let service = arrived.service;
    let hand = hand(tables, service);
    let place = after(hand);
    let flow = tables.nat_begun(index(service, place));
    if flow == NatBegun::default() {
        // The ring has not been filled yet.
        move_hand(tables, service, 0);
        return false;
    }
    // The hand stays, so that the new flow is noted in this place.
    let is_taken = flow.is_of(service) && gives_way(tables, arrived, flow);
    if !is_taken {
        move_hand(tables, service, place);
    }
    is_taken
}

#[inline(always)]
fn gives_way<T: World>(tables: &T, arrived: &Arrived, flow: NatBegun) -> bool {
    let Some(reply) = reply_of(tables, arrived, flow) else {
        return false;
    };
    let Some(state) = tables.nat_state(&reply) else {
        return false;
    };
    let now = tables.now();
    gives_way_by(reply.protocol(), &state, now)
        && free(tables, arrived.service, &arrived.key, &reply, now, true)
}

/// Returns the key of a flow's replies; `None` if its backend does not exist any more or has left NAT mode.
#[inline(always)]
fn reply_of<T: World>(tables: &T, arrived: &Arrived, flow: NatBegun) -> Option<Tuple> {
    let backend = tables.backend(flow.backend())?;
    let way = way(tables, arrived.family, backend).ok()?;
    let protocol = arrived.key.protocol();
    is_by_nat(backend).then(|| reply_key(backend, way.address, flow.port(), protocol))
}

/// Returns the index of a place of a service's ring; the rings are interleaved.
#[inline(always)]
const fn index(service: u32, place: u32) -> u32 {
    place * RINGS + service % RINGS
}

#[inline(always)]
const fn after(place: u32) -> u32 {
    if place + 1 < PLACES { place + 1 } else { 1 }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "is a place")]
fn hand<T: NatFlows>(tables: &T, service: u32) -> u32 {
    tables.nat_begun(index(service, 0)).0 as u32 % PLACES
}

#[inline(always)]
fn move_hand<T: NatFlows>(tables: &T, service: u32, place: u32) {
    tables.note_nat_begun(index(service, 0), NatBegun(place.into()));
}
