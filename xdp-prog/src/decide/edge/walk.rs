//! The walk of a packet over the owners of its slot.
//!
//! The owners are tried one after the other. The tries are counted from the end of the list, so a list that grows meanwhile
//! shifts nothing:
//!
//! ```text
//! tries left    count + 1   count       ...   1           0
//! tried         current     newest past ...   oldest past current, which delivers whatever it is
//!               or the pin
//! ```
//!
//! Each try at another machine is pinned, and the last one takes the pin away. So the pin that stays is that of the owner
//! which kept the connection. What this machine's own pods know shows at once, and is pinned then.
//!
//! If the flow has a pin nevertheless, what the first owner returns goes there, without a walk and its allowance: the packet
//! was under way when another one of the flow was pinned, or a SYN has marked the pin ([`Pin`]) and was forged.
//!
//! A datagram does not tell whether its flow is new, and no owner refuses it. So its walk begins at the newest past owner, and
//! the edge pays for it before the first try:
//!
//! ```text
//! tries left    count + 1   count         ...   count - 2     0
//! tried         the pin     newest past   ...   third newest  current
//! ```
//!
//! Each try is pinned, the last one too. A datagram that finds the young pin of a walk has the tries that the walk has left
//! there, and makes the rest of the walk by itself.

mod pins;

use crate::{
    abi::{BACKEND_POD, Backend, MAX_PAST_OWNERS, MODE_IPIP, Past, Tag, Tuple},
    decide::{allowance::take_return, owner::ANY_BACKEND},
    parse::TcpFlags,
    reason::DropReason,
    wire::protocol,
    world::{PinTable, World},
};

/// How long after a change of its slot's owner a flow of datagrams without a pin is looked for at past owners, in seconds:
/// as long as a node knows a flow that idles (RFC 4787 section 4.3).
pub(super) const DATAGRAM_SECONDS: u16 = 300;
/// Largest number of past owners at which a datagram is tried.
const MOST_TRIED_WITH_DATAGRAMS: u32 = 3;

/// The backend that did not know a packet's connection.
pub(super) trait Ignorant {
    /// Tells whether this backend is the one.
    fn is<T: World>(&self, tables: &T, id: u32) -> bool;
}

/// The backend with this id.
pub(super) struct WithId(pub(super) u32);

impl Ignorant for WithId {
    #[inline(always)]
    fn is<T: World>(&self, _: &T, id: u32) -> bool {
        self.0 == id
    }
}

/// Why a packet is not tried again.
pub(super) enum Refusal {
    /// Another owner's turn it was, the one with this id.
    OutOfTurn(u32),
    Dropped(DropReason),
}

/// The owners of a slot.
pub(super) struct Walk {
    /// Index of the slot.
    index: u32,
    past: Past,
    /// Id of the current owner; 0 for none.
    current: u32,
    /// Transport protocol of the flow; a word, because it may lie on the BPF stack.
    protocol: u32,
    /// Whether owners return what they do not know, to where it came from.
    has_returns: bool,
    /// The flags of backends that may get the packet: [`ANY_BACKEND`] or [`Backend::OWN_POD`].
    reach: u32,
    /// Not 0 for the client's RST. What a node returns of it leaves the flow's pins as they are: the flow ends, and the SYN of the
    /// client's next one may have passed.
    is_reset: u32,
}

impl Walk {
    /// Finds the owners of a slot, for a packet of a flow of this transport protocol.
    #[inline(always)]
    pub(super) fn of<T: World>(tables: &T, index: u32, protocol: u8) -> Self {
        let slot = tables.slot(index).unwrap_or_default();
        Self {
            index,
            // The word of a slot without a past says nothing.
            past: if slot.has_past() {
                tables.past(index)
            } else {
                Past::default()
            },
            current: slot.owner(),
            protocol: protocol.into(),
            has_returns: true,
            reach: ANY_BACKEND,
            is_reset: 0,
        }
    }

    /// Returns the same walk for a segment with these flags.
    #[inline(always)]
    pub(super) const fn with_flags(self, flags: TcpFlags) -> Self {
        Self {
            is_reset: flags.rst() as u32,
            ..self
        }
    }

    /// Returns the same walk for a packet that backends with these flags alone may get.
    #[inline(always)]
    pub(super) const fn within(self, reach: u32) -> Self {
        Self { reach, ..self }
    }

    /// Returns the same walk, of which the verifier knows nothing: a loop that follows is checked once for all walks.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "are 32 bits wide")]
    pub(super) fn opaque<T: World>(&self, tables: &T) -> Self {
        let opaque = |number: u32| tables.opaque(number.into()) as u32;
        Self {
            index: self.index,
            past: Past(opaque(self.past.0)),
            current: opaque(self.current),
            protocol: opaque(self.protocol),
            has_returns: self.has_returns,
            reach: self.reach,
            is_reset: self.is_reset,
        }
    }

    /// Tells whether the flow has no beginning that a packet shows: all but TCP.
    #[inline(always)]
    pub(super) const fn is_of_datagrams(&self) -> bool {
        self.protocol != protocol::TCP as u32
    }

    /// Returns the id of the current owner; 0 for none.
    #[inline(always)]
    pub(super) const fn current(&self) -> u32 {
        self.current
    }

    /// Tells whether flows of the slot may have pins.
    #[inline(always)]
    pub(super) const fn is_pinned(&self) -> bool {
        self.past.is_pinned()
    }

    /// Returns the walk for a service in this mode. Owners return nothing by L2 DSR, as machines without Guideway, and to
    /// outer sources that are the flows' own, since no route need lead there. The current owner tells, or else the newest
    /// one: the service's entry does not say of what kind its backends were.
    #[inline(always)]
    pub(super) fn by_mode<T: World>(self, tables: &T, mode: u32) -> Self {
        let id = if self.current != 0 || !self.has_past() {
            self.current
        } else {
            self.past_owner(tables, 0)
        };
        let has_returns = match tables.backend(id) {
            Some(backend) if id != 0 => returns(tables, backend),
            _ => true,
        };
        Self {
            has_returns: mode == MODE_IPIP && has_returns,
            ..self
        }
    }

    /// Tells whether owners return what they do not know.
    #[inline(always)]
    pub(super) const fn has_returns(&self) -> bool {
        self.has_returns
    }

    /// Tells whether the slot has past owners.
    #[inline(always)]
    pub(super) const fn has_past(&self) -> bool {
        self.past.count() != 0
    }

    /// Returns the tries of a packet that goes to the current owner first: one for each past owner, and one for the
    /// current owner again.
    #[inline(always)]
    pub(super) const fn all_tries(&self) -> u32 {
        match self.past.count() {
            0 => 0,
            count => count + 1,
        }
    }

    /// Tells whether the slot changed hands less than so many seconds ago.
    #[inline(always)]
    pub(super) fn has_just_changed<T: World>(&self, tables: &T, seconds: u16) -> bool {
        self.has_past()
            && tables
                .past_owner(self.past.offset())
                .has_ended_within(seconds, tables.now())
    }

    /// Tells whether a past owner of the slot may get packets.
    #[inline(always)]
    pub(super) const fn may_get(&self, backend: &Backend) -> bool {
        if self.has_returns {
            self.may_try(backend)
        } else {
            backend.may_keep()
        }
    }

    /// Tells whether a past owner may be asked about a connection.
    #[inline(always)]
    const fn may_try(&self, backend: &Backend) -> bool {
        backend.may_be_tried() && self.may_reach(backend)
    }

    /// Tells whether packets of this walk may go to a backend.
    #[inline(always)]
    const fn may_reach(&self, backend: &Backend) -> bool {
        backend.has_flags(self.reach)
    }

    /// Returns the tries that a walk of datagrams has left after it has tried an owner; all of them if it does not try the
    /// owner as a past one.
    #[inline(always)]
    pub(super) fn tries_after<T: World>(&self, tables: &T, id: u32) -> u32 {
        for place in 0..MOST_TRIED_WITH_DATAGRAMS {
            if place < self.past.count() && self.past_owner(tables, place) == id {
                return self.past.count() - place;
            }
        }
        self.all_tries()
    }

    /// Returns the owner that follows one which did not know the flow, and the tries that are left after it; id 0 if
    /// there is none.
    #[inline(always)]
    pub(super) fn step<T: World, I: Ignorant>(
        &self,
        tables: &T,
        flow: &Tuple,
        ignorant: &I,
        tries: u32,
    ) -> Result<(u32, u32), Refusal> {
        let count = self.past.count();
        if tries == 0 || tries > self.all_tries() {
            return Err(Refusal::Dropped(DropReason::ReturnUnexpected));
        }
        let is_first = tries == count + 1;
        let tried = if is_first {
            self.current
        } else {
            self.past_owner(tables, count - tries)
        };
        if !ignorant.is(tables, tried) {
            // Of the segments under way when a pinned connection ends, the first takes the pin away.
            if !is_first || !(self.unpin(tables, flow, ignorant) || self.lists(tables, ignorant)) {
                return Err(Refusal::OutOfTurn(tried));
            }
            if self.current != 0 {
                let left = if self.is_of_datagrams() { 0 } else { tries };
                return Ok((self.current, left));
            }
        } else if self.is_of_datagrams() {
            if is_first {
                return Ok((self.current, 0));
            }
        } else if is_first || self.begins_with_past(tables, tries) {
            if let Some(pinned) = self.pinned_elsewhere(tables, flow, ignorant) {
                return Ok((pinned, self.all_tries()));
            }
            if !take_return(tables) {
                return Err(Refusal::Dropped(DropReason::ReturnLimited));
            }
            // If one is left, it is to the owner that did not know the flow, or does not count.
            if self.past.is_pinned() {
                self.remove_pin(tables, PinTable::Kept, flow);
            }
        }
        Ok(self.first_from(tables, count + 1 - tries))
    }

    /// Returns the newest past owner that may be tried, and the tries that are left after it.
    #[inline(always)]
    pub(super) fn newest<T: World>(&self, tables: &T) -> Option<(u32, u32)> {
        match self.first_from(tables, 0) {
            (_, 0) => None,
            found => Some(found),
        }
    }

    /// Returns the number of past owners, for a loop over them. What the verifier finds out about the number in one loop,
    /// it does not know in the next one.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "four bits")]
    pub(super) fn count_for_loop<T: World>(&self, tables: &T) -> u32 {
        tables.opaque(self.past.count().into()) as u32 & Tag::MAX_TRIES
    }

    /// Returns the id of the owner at a place of the list.
    #[inline(always)]
    pub(super) fn past_owner<T: World>(&self, tables: &T, place: u32) -> u32 {
        tables.past_owner(self.past.offset() + place).backend()
    }

    /// Tells whether so many tries are those of the first one, where the slot has no current owner.
    #[inline(always)]
    fn begins_with_past<T: World>(&self, tables: &T, tries: u32) -> bool {
        self.current == 0 && self.newest(tables).is_some_and(|(_, first)| first == tries)
    }

    /// Tells whether the list has the backend.
    #[inline(always)]
    pub(super) fn lists<T: World, I: Ignorant>(&self, tables: &T, ignorant: &I) -> bool {
        let count = self.count_for_loop(tables);
        for place in 0..MAX_PAST_OWNERS {
            if place >= count {
                break;
            }
            if ignorant.is(tables, self.past_owner(tables, place)) {
                return true;
            }
        }
        false
    }

    /// Returns the first owner from this place of the list that may be tried, else the current one, after which no try
    /// is left.
    #[inline(always)]
    fn first_from<T: World>(&self, tables: &T, from: u32) -> (u32, u32) {
        if self.is_of_datagrams() {
            return self.first_for_datagrams(tables, from);
        }
        let count = self.count_for_loop(tables);
        for step in 0..MAX_PAST_OWNERS {
            let place = from + step;
            if place >= count {
                break;
            }
            let id = self.past_owner(tables, place);
            if let Some(backend) = tables.backend(id)
                && self.may_try(backend)
            {
                return (id, count - place);
            }
        }
        (self.current, 0)
    }

    /// As [`Self::first_from`], for a datagram.
    #[inline(always)]
    fn first_for_datagrams<T: World>(&self, tables: &T, from: u32) -> (u32, u32) {
        let count = self.past.count();
        // Linux 6.1 takes a loop that begins at a variable for one without end.
        for place in 0..MOST_TRIED_WITH_DATAGRAMS {
            if place < from || place >= count {
                continue;
            }
            let id = self.past_owner(tables, place);
            if let Some(backend) = tables.backend(id)
                && self.may_try(backend)
            {
                // A node that cannot return it would give it to the pod, whatever it is.
                return if is_source_spread(tables, backend) {
                    (self.current, 0)
                } else {
                    (id, count - place)
                };
            }
        }
        (self.current, 0)
    }
}

/// Tells whether a backend's node returns what it does not know: that of a pod, to an outer source to which there is a way.
#[inline(always)]
pub(super) fn returns<T: World>(tables: &T, backend: &Backend) -> bool {
    backend.flags & BACKEND_POD != 0 && !is_source_spread(tables, backend)
}

/// Tells whether packets to a backend have outer sources of their flows' own, to which nothing is returned.
#[inline(always)]
fn is_source_spread<T: World>(tables: &T, backend: &Backend) -> bool {
    match tables.next_hop(backend.next_hop) {
        Some(hop) => !backend.is_own_pod() && hop.spread != 0,
        None => false,
    }
}
