//! NAT mode: a service that has its share of the table, and takes from its own flows for a new one.
//!
//! With many backends, the 32 ports that are tried for a new flow seldom have one that gives way. So flows that begin
//! are noted in a ring, over the oldest ones there: there are sixteen rings, and services share one if their ids have the
//! same remainder. Place 0 of a ring has its *hand*, the place that was written last.
//!
//! A service that has its share looks from the hand on, where a flood of forged SYNs has left its oldest half-open flow,
//! and the new flow gets that one's place. What a place says is only a hint, which the entries bear out: the CPUs write
//! places and hand without a lock.

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
/// Places of a ring, that of the hand among them: by default, a service may begin 100 000 flows a second before all that
/// its ring has are too young to give way.
#[expect(clippy::cast_possible_truncation, reason = "a constant")]
const PLACES: u32 = size::NAT_BEGUN as u32 / RINGS;
/// Places that are looked at for a new flow, each in a run of its own: the verifier gives up on a loop.
const LOOKS: u32 = 8;
/// [`HandOver::nat_progress`](crate::world::HandOver): how many were looked at.
const LOOKS_MASK: u32 = 0xf;

/// Decides what is to be done with a frame of this stage: it begins a flow, for which one of the service's goes.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let arrived = match requested_aside(frame, tables) {
        Ok(arrived) => arrived,
        Err(verdict) => return verdict,
    };
    let looks = (tables.handed_over().nat_progress & LOOKS_MASK) + 1;
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

/// Looks at one place, and removes the flow that is there if it is one of the service and gives way; tells whether it did.
#[inline(always)]
fn take_one<T: World>(tables: &T, arrived: &Arrived) -> bool {
    let service = arrived.service;
    let hand = hand(tables, service);
    let place = after(hand);
    let flow = tables.nat_begun(index(service, place));
    if flow == NatBegun::default() {
        // The ring has yet to come around.
        move_hand(tables, service, 0);
        return false;
    }
    // The new flow gets the place.
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

/// Returns the key of a flow's replies, if there is such a backend by now.
#[inline(always)]
fn reply_of<T: World>(tables: &T, arrived: &Arrived, flow: NatBegun) -> Option<Tuple> {
    let backend = tables.backend(flow.backend())?;
    let way = way(tables, arrived.family, backend).ok()?;
    let protocol = arrived.key.protocol();
    is_by_nat(backend).then(|| reply_key(backend, way.address, flow.port(), protocol))
}

/// Returns the index of a place in a service's ring. The rings are interleaved.
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
