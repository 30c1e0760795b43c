//! Past owners of slots, and the flows that are pinned to one of them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::check::mix;
use super::{Backend, Tag, Tuple, plain_data};
use crate::words::{join_u32, split_u64};

plain_data! {
    Past: 4,
    PastPair: 8,
    PastOwner: 8,
    Pin: 8,
}

/// Largest number of past owners in a slot's list. After them, a packet is tried at the current owner again.
pub const MAX_PAST_OWNERS: u32 = Tag::MAX_TRIES - 1;

/// How long an owner stays in a slot's list after it has ceased to own the slot, in seconds.
pub const PAST_OWNER_SECONDS: u32 = 24 * 3600;

/// How long after a change of its slot's owner a connection without a pin is taken for an older one, in seconds, where
/// owners return nothing: longer than load balancers let connections idle.
pub const OLDER_CONNECTION_SECONDS: u16 = 600;

/// The same for a flow of datagrams, which does not show when it begins.
pub const OLDER_FLOW_SECONDS: u16 = 30;

/// Where the past owners of a slot are listed, in one word that is replaced at once; all zero for none.
///
/// ```text
///  31       28    27     26   25                         0
/// | count (4) | pinned | zero | first entry in HISTORY (26) |
/// ```
///
/// *Pinned* says that flows of the slot may have pins. Programs set it, and user space keeps it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Past(pub u32);

impl Past {
    /// Width of the offset in bits: `HISTORY` has at most 2^26 entries.
    pub const OFFSET_BITS: u32 = 26;
    const COUNT_SHIFT: u32 = 28;
    const PINNED: u32 = 1 << 27;

    /// Makes the word of a list of at most [`MAX_PAST_OWNERS`] entries.
    #[inline(always)]
    pub const fn new(offset: u32, count: u32) -> Self {
        debug_assert!(offset < 1 << Self::OFFSET_BITS && count <= MAX_PAST_OWNERS);
        Self(count << Self::COUNT_SHIFT | offset)
    }

    /// Returns the number of past owners. A count that cannot be is none.
    #[inline(always)]
    pub const fn count(self) -> u32 {
        let count = self.0 >> Self::COUNT_SHIFT;
        if count > MAX_PAST_OWNERS { 0 } else { count }
    }

    /// Returns the index of the newest past owner in `HISTORY`; the older ones follow.
    #[inline(always)]
    pub const fn offset(self) -> u32 {
        self.0 & ((1 << Self::OFFSET_BITS) - 1)
    }

    /// Tells whether flows of the slot may have pins.
    #[inline(always)]
    pub const fn is_pinned(self) -> bool {
        self.0 & Self::PINNED != 0
    }

    /// Returns the word of a slot whose flows may have pins.
    #[inline(always)]
    #[must_use]
    pub const fn pinned(self) -> Self {
        Self(self.0 | Self::PINNED)
    }
}

/// The words of two neighbouring slots, the even one first, as in [`SlotPair`](super::SlotPair).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct PastPair(pub u64);

impl PastPair {
    /// Makes a pair.
    #[inline(always)]
    pub const fn new([even, odd]: [Past; 2]) -> Self {
        Self(join_u32(even.0, odd.0))
    }

    /// Returns the word of the slot with this index.
    #[inline(always)]
    pub const fn of(self, index: u32) -> Past {
        let [even, odd] = split_u64(self.0);
        Past(if index & 1 == 0 { even } else { odd })
    }

    /// Returns the pair in which the slot with this index may have pins.
    #[inline(always)]
    #[must_use]
    pub const fn pinned(self, index: u32) -> Self {
        let [even, odd] = split_u64(self.0);
        if index & 1 == 0 {
            Self(join_u32(Past(even).pinned().0, odd))
        } else {
            Self(join_u32(even, Past(odd).pinned().0))
        }
    }
}

/// An entry of `HISTORY`: a backend that owned slots; all zero for none.
///
/// ```text
/// 63 62                        32 31      0
/// | zero | second of its end (31) | backend's id |
/// ```
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(transparent)]
pub struct PastOwner(pub u64);

impl PastOwner {
    /// Makes the entry of a backend that ceased to own in this second of the monotonic clock.
    pub const fn new(backend: u32, second: u32) -> Self {
        Self((second as u64 & 0x7fff_ffff) << 32 | backend as u64)
    }

    /// Returns the backend's id.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the low half")]
    pub const fn backend(self) -> u32 {
        self.0 as u32
    }

    /// Returns the second in which it ceased to own.
    #[inline(always)]
    pub const fn second(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Tells whether it ceased to own less than so many seconds before `now`, in ns of the monotonic clock, which may lag
    /// behind. Half of the seconds that an entry can tell are past ones.
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "modulo 2^31"
    )]
    pub const fn has_ended_within(self, seconds: u16, now: u64) -> bool {
        let now = (now / 1_000_000_000) as u32;
        // Without the bit that an entry lacks, the difference has the sign in front.
        let twice = (now.wrapping_sub(self.second()) << 1) as i32;
        twice < 2 * seconds as i32
    }
}

/// The backend that a flow is pinned to, when it was pinned, and a check of flow and backend, in one word that is read
/// with one load.
///
/// ```text
/// 63        40 39       32    31    30            0
/// | check (24) | moment (8) | marked | backend's id |
/// ```
///
/// The check reveals an element that the kernel has recycled for another flow, and an id that is another backend's by
/// now. Moments count 268 ms each, modulo 256.
///
/// A *marked* pin is that of a flow of which a SYN has come since. In place of the moment, it has the low byte of the id of
/// the owner that the SYN went to. The SYN may be forged, or begin the client's next connection. So that owner gets the
/// flow's packets, and the pinned one gets what it returns. Where another backend owns the slot by then, the pin does not
/// count: what that one returns may be of the connection that began with the SYN.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Pin(pub u64);

impl Pin {
    const MOMENT_SHIFT: u32 = 32;
    const CHECK_SHIFT: u32 = 40;
    const MOMENT: u64 = 0xff << Self::MOMENT_SHIFT;
    const MARK: u64 = 1 << 31;
    /// A moment is 2^28 ns.
    const MOMENT_NS_LOG2: u32 = 28;
    /// Moments after which a flow that was not returned belongs to its owner: a second at least.
    const STANDING: u8 = 5;

    /// Pins a flow, with the tuple of its packets as the client sends them, to a backend.
    #[inline(always)]
    pub const fn new(flow: &Tuple, id: u32, backend: &Backend, now: u64) -> Self {
        let moment = (Self::moment(now) as u64) << Self::MOMENT_SHIFT;
        Self(Self::check(flow, backend) << Self::CHECK_SHIFT | moment | id as u64)
    }

    /// Returns the pin once a SYN has gone to this owner of its slot.
    #[inline(always)]
    #[must_use]
    pub const fn marked(self, owner: u32) -> Self {
        let owner = (owner as u64 & 0xff) << Self::MOMENT_SHIFT;
        Self(self.0 & !Self::MOMENT | owner | Self::MARK)
    }

    /// Returns the pin without a mark, as one that was made at this moment.
    #[inline(always)]
    #[must_use]
    pub const fn unmarked(self, now: u64) -> Self {
        let moment = (Self::moment(now) as u64) << Self::MOMENT_SHIFT;
        Self(self.0 & !Self::MOMENT & !Self::MARK | moment)
    }

    /// Tells whether a SYN has come since.
    #[inline(always)]
    pub const fn is_marked(self) -> bool {
        self.0 & Self::MARK != 0
    }

    /// Tells whether a SYN has come since, and has gone to this owner; of 256 other owners, one passes for it.
    #[inline(always)]
    pub const fn is_marked_for(self, owner: u32) -> bool {
        self.is_marked() && self.0 == self.marked(owner).0
    }

    /// Tells whether the pin is a second old, so that the owner would have returned the flow by now. Of a flow that is
    /// idle for a minute, a packet may find the pin young again. A marked pin has no age.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the moment")]
    pub const fn has_stood(self, now: u64) -> bool {
        let moment = (self.0 >> Self::MOMENT_SHIFT) as u8;
        Self::moment(now).wrapping_sub(moment) >= Self::STANDING
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "modulo 256")]
    const fn moment(now: u64) -> u8 {
        (now >> Self::MOMENT_NS_LOG2) as u8
    }

    /// Returns the backend's id.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the low half")]
    pub const fn backend(self) -> u32 {
        (self.0 & !Self::MARK) as u32
    }

    /// Tells whether this is a pin of the flow, to the backend that has its id.
    #[inline(always)]
    pub const fn is_of(self, flow: &Tuple, backend: &Backend) -> bool {
        self.0 >> Self::CHECK_SHIFT == Self::check(flow, backend)
    }

    #[inline(always)]
    const fn check(flow: &Tuple, backend: &Backend) -> u64 {
        mix(backend.check() ^ flow.check() as u64) >> Self::CHECK_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::{super::AddressKey, *};

    #[test]
    fn past_keeps_its_fields_apart() {
        let past = Past::new((1 << 26) - 1, 0);
        assert_eq!((past.offset(), past.count()), ((1 << 26) - 1, 0));
        let past = Past::new(0, MAX_PAST_OWNERS);
        assert_eq!((past.offset(), past.count()), (0, 14));
        assert!(!past.is_pinned());
        let pinned = past.pinned();
        assert!(pinned.is_pinned());
        assert_eq!((pinned.offset(), pinned.count()), (0, 14));
        assert_eq!(Past(u32::MAX).count(), 0, "a count of 15 cannot be");
    }

    #[test]
    fn pair_holds_the_words_of_an_even_slot_and_the_next() {
        let (even, odd) = (Past::new(7, 2), Past::new(9, 3));
        let pair = PastPair::new([even, odd]);
        assert_eq!((pair.of(4), pair.of(5)), (even, odd));
        assert_eq!(pair.pinned(4), PastPair::new([even.pinned(), odd]));
        assert_eq!(pair.pinned(5), PastPair::new([even, odd.pinned()]));
    }

    #[test]
    fn past_owner_keeps_its_fields_apart() {
        let owner = PastOwner::new(u32::MAX, 0);
        assert_eq!((owner.backend(), owner.second()), (u32::MAX, 0));
        let owner = PastOwner::new(0, 0x7fff_ffff);
        assert_eq!((owner.backend(), owner.second()), (0, 0x7fff_ffff));
    }

    #[test]
    fn past_owner_has_ended_a_short_while_ago_or_at_a_moment_to_come() {
        const NS: u64 = 1_000_000_000;
        for second in [0, 1_000, 0x7fff_ff00] {
            let owner = PastOwner::new(1, second);
            let at = |later: i64| (i64::from(second) + (1 << 31) + later).unsigned_abs() * NS;
            for later in [-2, 0, 299] {
                assert!(owner.has_ended_within(300, at(later)), "{second} {later}");
            }
            for later in [300, 86_400] {
                assert!(!owner.has_ended_within(300, at(later)), "{second} {later}");
            }
        }
    }

    #[test]
    fn pin_is_of_its_flow_and_backend_alone() {
        let address = |byte| AddressKey::v4([10, 0, 0, byte]);
        let flow = |port| Tuple::new(address(1), address(2), [156, port], [0, 80], 6);
        let backend = Backend {
            address: [1; 16],
            pod: address(3),
            port: [31, 144],
            ..Backend::default()
        };
        let pin = Pin::new(&flow(1), 77, &backend, u64::MAX);
        assert_eq!(pin.backend(), 77);
        assert!(pin.is_of(&flow(1), &backend));
        assert!(!pin.is_of(&flow(2), &backend));
        for other in [
            Backend {
                address: [2; 16],
                ..backend
            },
            Backend {
                pod: address(4),
                ..backend
            },
            Backend {
                port: [31, 145],
                ..backend
            },
        ] {
            assert!(!pin.is_of(&flow(1), &other), "{other:?}");
        }
        // Whatever changes in an entry that a live backend has, its pins stay.
        let moved = Backend {
            next_hop: 9,
            flags: 9,
            owner: 9,
            ..backend
        };
        assert!(pin.is_of(&flow(1), &moved));
    }

    #[test]
    fn marked_pin_keeps_all_but_its_moment() {
        let (flow, backend) = (Tuple::default(), Backend::default());
        let pin = Pin::new(&flow, 0x7fff_ffff, &backend, 7 << 28);
        assert!(!pin.is_marked() && !pin.is_marked_for(0));
        let marked = pin.marked(0x1234);
        assert!(marked.is_marked() && marked.is_of(&flow, &backend));
        assert_eq!(marked.backend(), 0x7fff_ffff);
        assert!(marked.is_marked_for(0x1234) && !marked.is_marked_for(0x1235));
        assert!(marked.marked(0x1235).is_marked_for(0x1235));
        assert_eq!(marked.unmarked(7 << 28), pin);
        assert_eq!(pin.unmarked(7 << 28), pin);
    }

    #[test]
    fn pin_stands_after_a_second_whenever_it_was_made() {
        const SECOND: u64 = 1_000_000_000;
        let (flow, backend) = (Tuple::default(), Backend::default());
        for made in [0, SECOND, 68 * SECOND, 1 << 36, (1 << 40) - 1] {
            let pin = Pin::new(&flow, 1, &backend, made);
            assert!(!pin.has_stood(made), "{made}");
            assert!(!pin.has_stood(made + SECOND), "{made}");
            assert!(pin.has_stood(made + SECOND * 3 / 2), "{made}");
            assert!(pin.has_stood(made + 60 * SECOND), "{made}");
        }
    }
}
