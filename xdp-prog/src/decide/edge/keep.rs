//! Owners that return nothing: machines without Guideway behind IP-in-IP, and all that is sent by L2 DSR or has outer sources
//! of its flows' own.
//!
//! None of them tells that it does not know a connection. So for some minutes after a slot has changed hands, the edge notes
//! which connections are new, and takes the others for older ones. A SYN pins its flow to the current owner. A segment of a
//! flow without a pin goes to the newest past owner, and is pinned there. After these minutes it goes to the current owner:
//! connections that had a segment meanwhile have pins, and those that begin later need none.
//!
//! No datagram shows that its flow is new. So for half a minute all flows without a pin stay at the newest past owner that takes
//! new connections.

use super::{affinity::Affinity, walk::Walk};
use crate::{
    abi::{MAX_PAST_OWNERS, OLDER_CONNECTION_SECONDS, OLDER_FLOW_SECONDS, Tuple},
    decide::allowance::take_pin,
    world::{PinTable, World},
};

/// Returns the id of the owner that gets a packet; 0 if there is none. `begins` says that it begins a connection.
#[inline(always)]
pub(super) fn owner<T: World>(
    tables: &T,
    walk: &Walk,
    flow: &Tuple,
    affinity: &Affinity,
    begins: bool,
) -> u32 {
    let has_just_changed = walk.has_just_changed(
        tables,
        if walk.is_of_datagrams() {
            OLDER_FLOW_SECONDS
        } else {
            OLDER_CONNECTION_SECONDS
        },
    );
    let pinned = if walk.is_pinned() {
        pinned(tables, walk, flow, begins, has_just_changed)
    } else {
        0
    };
    // Who takes no new connections keeps those that he has, which datagrams do not show.
    let may_begin = |walk: &Walk| begins || walk.is_of_datagrams();
    if pinned != 0 && (!may_begin(walk) || takes_new(tables, pinned)) {
        if may_begin(walk) {
            affinity.renew(tables, pinned);
        }
        return pinned;
    }
    let kept = if may_begin(walk) || has_just_changed {
        affinity.kept(tables, walk)
    } else {
        0
    };
    let walk = &walk.opaque(tables);
    let owner = match kept {
        0 if begins || !has_just_changed => walk.current(),
        0 => newest(tables, walk),
        kept => kept,
    };
    if owner == 0 {
        return 0;
    }
    if may_begin(walk) {
        affinity.renew(tables, owner);
    }
    if may_begin(walk) && walk.is_pinned() {
        tables.remove_pin(PinTable::Kept, flow);
        tables.remove_pin(PinTable::Young, flow);
    }
    let is_apart = owner != walk.current();
    let needs_pin = if begins {
        is_apart || has_just_changed
    } else {
        // A flood of segments of no connection pins no more than this.
        is_apart && take_pin(tables)
    };
    if needs_pin {
        walk.pin(tables, flow, owner);
    }
    owner
}

/// Returns the id of the backend that a flow is pinned to; 0 for none.
#[inline(always)]
fn pinned<T: World>(
    tables: &T,
    walk: &Walk,
    flow: &Tuple,
    begins: bool,
    has_just_changed: bool,
) -> u32 {
    if let Some(pin) = walk.valid_pin(tables, PinTable::Kept, flow)
        && !pin.is_marked()
    {
        return pin.backend();
    }
    let Some(pin) = walk.valid_pin(tables, PinTable::Young, flow) else {
        return 0;
    };
    if pin.is_marked() {
        return 0;
    }
    // Those of older connections wait: many of them are not to push out pins of newer ones.
    let may_be_kept =
        walk.is_of_datagrams() || pin.backend() == walk.current() || !has_just_changed;
    if !begins && may_be_kept && pin.has_stood(tables.now()) {
        tables.set_pin(PinTable::Kept, flow, pin);
        tables.remove_pin(PinTable::Young, flow);
    }
    pin.backend()
}

/// Returns the id of the newest past owner at which flows stay, else that of the current one.
#[inline(always)]
fn newest<T: World>(tables: &T, walk: &Walk) -> u32 {
    let count = walk.count_for_loop(tables);
    for place in 0..MAX_PAST_OWNERS {
        if place >= count {
            break;
        }
        let id = walk.past_owner(tables, place);
        if let Some(backend) = tables.backend(id)
            && backend.may_keep()
            && (backend.takes_new != 0 || !walk.is_of_datagrams())
        {
            return id;
        }
    }
    walk.current()
}

#[inline(always)]
fn takes_new<T: World>(tables: &T, id: u32) -> bool {
    match tables.backend(id) {
        Some(backend) => backend.takes_new != 0,
        None => false,
    }
}
