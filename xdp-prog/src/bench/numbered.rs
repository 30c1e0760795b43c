//! Frames with numbers: what the generator needs to make them, and what the sink counts.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::PORTS_PER_CLIENT;

/// Number of bytes at the front of each frame that [`super::program::GENERATE_NUMBERED`] writes: all headers, tag and
/// number.
pub const NUMBERED_LENGTH: usize = 96;
/// Bytes at the start of a numbered frame's payload: a tag of two bytes, and the number.
pub const NUMBER_LENGTH: usize = 6;
/// In the list of flows: a flow that no frame was of before.
pub const NEW_FLOW: u32 = u32::MAX;
/// Flows that differ in [`super::client`]: its address has 17 bits of its own, as 198.18.0.0/15 leaves.
pub const DISTINCT_FLOWS: u32 = PORTS_PER_CLIENT << 17;

/// Most threads of the generator.
pub const MOST_THREADS: u32 = 64;

/// A frame of flow 0 with number 0, and the places where others differ. All checksums are right.
///
/// The bytes of the client's address that differ, its port and the number are zero, so a checksum follows by adding
/// to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Numbered {
    /// The front of the frame; behind it come zeros.
    pub bytes: [u8; NUMBERED_LENGTH],
    /// Length of the frame, without its FCS.
    pub length: u32,
    /// Offset of the last four bytes of the client's address.
    pub address_at: u32,
    /// Offset of the client's port.
    pub port_at: u32,
    /// Offset of the transport checksum.
    pub check_at: u32,
    /// Offset of the IPv4 header's checksum; 0 in IPv6.
    pub ip_check_at: u32,
    /// Offset of the number.
    pub number_at: u32,
}

/// When the frames of a thread leave in a trial, how many have left, and which the next one is.
///
/// Each thread has flows of its own. Divided by the number of threads, the numbers of its frames leave its own number, and so
/// do its new flows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Pace {
    /// When the next frame is due, in ns of the monotonic clock.
    pub due: u64,
    /// Time from one frame to the next, in ns; 0 if each is due at once.
    pub interval: u64,
    /// How far the generator catches up with late frames, in ns.
    pub patience: u64,
    /// Frames that have left.
    pub sent: u32,
    /// Frames that leave at most.
    pub limit: u32,
    /// Sizes that take turns.
    pub sizes: u32,
    /// The size of the next frame.
    pub next_size: u32,
    /// Place in the list of flows where the thread's own begin.
    pub first_flow: u32,
    /// How many entries of the list are the thread's.
    pub flows: u32,
    /// Place in the list of the next frame's flow.
    pub next_flow: u32,
    /// The flow that stands for the next [`NEW_FLOW`].
    pub new_flow: u32,
    /// Services; flows go to them in turn.
    pub services: u32,
    /// Extra work for each frame ([`super::work`]).
    pub work: u32,
    /// What the extra work came to.
    pub worked: u32,
    /// The thread's number.
    pub thread: u32,
    /// Threads that send.
    pub threads: u32,
    /// Always zero.
    pub reserved: u32,
}

impl Pace {
    /// Returns the number of the next frame.
    #[inline(always)]
    pub const fn number(&self) -> u32 {
        self.sent
            .wrapping_mul(self.threads)
            .wrapping_add(self.thread)
    }

    /// Tells whether a frame is due, and sets when the next one is.
    #[inline(always)]
    pub fn is_due(&mut self, now: impl FnOnce() -> u64) -> bool {
        if self.sent >= self.limit {
            return false;
        }
        if self.interval == 0 {
            return true;
        }
        let now = now();
        if now < self.due {
            return false;
        }
        let made_up_for = now.saturating_sub(self.patience);
        self.due = self.due.max(made_up_for) + self.interval;
        true
    }

    /// Returns the flow of the frame that is due, which the list has as `listed`, and the frame's place among
    /// [`Numbered`]. Moves on. `None` if there is no Service.
    #[inline(always)]
    pub fn advance(&mut self, listed: u32) -> Option<(u32, u32)> {
        let flow = if listed == NEW_FLOW {
            let flow = self.new_flow % DISTINCT_FLOWS;
            self.new_flow = flow + self.threads;
            flow
        } else {
            listed
        };
        let service = flow.checked_rem(self.services)?;
        let place = service
            .wrapping_mul(self.sizes)
            .wrapping_add(self.next_size);
        self.next_size = turn(self.next_size, 0, self.sizes);
        self.next_flow = turn(self.next_flow, self.first_flow, self.flows);
        self.sent += 1;
        Some((flow, place))
    }
}

#[inline(always)]
const fn turn(place: u32, first: u32, length: u32) -> u32 {
    let next = place + 1;
    if next < first + length { next } else { first }
}

/// What a sink has counted of the frames with a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Counted {
    /// Frames.
    pub received: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames whose number is not above all of their thread before.
    pub reordered: u64,
    /// Offset of the tag in frames that arrive.
    pub tag_at: u32,
    /// The tag.
    pub tag: u32,
    /// Threads whose frames have a sequence each ([`Pace`]).
    pub threads: u32,
    /// Always zero.
    pub reserved: u32,
    /// For each thread, the number after the highest so far.
    pub next: [u32; MOST_THREADS as usize],
}

impl Default for Counted {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

impl Counted {
    /// Counts a frame with these bytes at the tag's offset; tells whether it has the tag.
    #[inline(always)]
    pub fn count(&mut self, [a, b, c, d, e, f]: [u8; NUMBER_LENGTH], length: u64) -> bool {
        if u32::from_be_bytes([0, 0, a, b]) != self.tag {
            return false;
        }
        let number = u32::from_be_bytes([c, d, e, f]);
        self.received += 1;
        self.bytes += length;
        let next = &mut self.next[self.thread_of(number)];
        if number < *next {
            self.reordered += 1;
        } else {
            *next = number.wrapping_add(1);
        }
        true
    }

    /// Returns the place of a frame's thread, without a division where there is one thread.
    #[inline(always)]
    const fn thread_of(&self, number: u32) -> usize {
        if self.threads > 1 {
            (number % self.threads % MOST_THREADS) as usize
        } else {
            0
        }
    }
}

crate::abi::plain_data! {
    Numbered: 120,
    Pace: 80,
    Counted: 296,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_keeps_its_interval_catches_up_a_little_and_ends_at_its_limit() {
        let mut pace = Pace {
            due: 100,
            interval: 10,
            patience: 20,
            limit: 7,
            sizes: 1,
            flows: 1,
            services: 1,
            threads: 1,
            ..Pace::default()
        };
        let mut sent_at = |now| {
            let due = pace.is_due(|| now);
            due && pace.advance(0).is_some()
        };
        assert!(!sent_at(99) && sent_at(100) && !sent_at(109) && sent_at(110));
        // Of the frames since 120, those of the last 20 ns are made up for.
        let made_up_for = (0..9).filter(|_| sent_at(1_000)).count();
        assert_eq!(made_up_for, 3);
        assert!(sent_at(1_010) && sent_at(1_020) && !sent_at(1_030));
        assert_eq!(pace.sent, pace.limit);
    }

    #[test]
    fn flows_have_a_service_each_and_new_ones_are_of_none_before() {
        let mut pace = Pace {
            sizes: 3,
            flows: 4,
            services: 2,
            new_flow: 10,
            threads: 1,
            ..Pace::default()
        };
        let list = [0, 1, NEW_FLOW, NEW_FLOW];
        let sent = [(); 5].map(|()| {
            let listed = list[pace.next_flow as usize];
            pace.advance(listed).unwrap()
        });
        assert_eq!(sent, [(0, 0), (1, 4), (10, 2), (11, 3), (0, 1)]);
    }

    #[test]
    fn threads_take_turns_with_numbers_and_new_flows_and_have_parts_of_the_list() {
        let list = [0, 2, NEW_FLOW, 1, 3, NEW_FLOW];
        let sent = [0, 1].map(|thread| {
            let mut pace = Pace {
                sizes: 1,
                services: 1,
                first_flow: thread * 3,
                next_flow: thread * 3,
                flows: 3,
                new_flow: 4 + thread,
                thread,
                threads: 2,
                ..Pace::default()
            };
            [(); 6].map(|()| {
                let (number, listed) = (pace.number(), list[pace.next_flow as usize]);
                (number, pace.advance(listed).unwrap().0)
            })
        });
        let [first, second] = sent;
        assert_eq!(first, [(0, 0), (2, 2), (4, 4), (6, 0), (8, 2), (10, 6)]);
        assert_eq!(second, [(1, 1), (3, 3), (5, 5), (7, 1), (9, 3), (11, 7)]);
    }

    #[test]
    fn a_sink_counts_its_tag_alone_and_what_came_late() {
        let mut counted = Counted {
            tag: 0x0102,
            threads: 1,
            ..Counted::default()
        };
        let mut count = |tag: u8, number| counted.count([1, tag, 0, 0, 0, number], 60);
        assert!(count(2, 0) && count(2, 2) && count(2, 1) && count(2, 3));
        assert!(!count(3, 4));
        assert_eq!((counted.received, counted.bytes), (4, 240));
        assert_eq!((counted.reordered, counted.next[0]), (1, 4));
    }

    #[test]
    fn a_sink_has_a_sequence_for_each_thread() {
        let late = |numbers: &[u8]| {
            let mut counted = Counted {
                threads: 3,
                ..Counted::default()
            };
            for &number in numbers {
                counted.count([0, 0, 0, 0, 0, number], 60);
            }
            counted.reordered
        };
        // Threads are not equally fast.
        assert_eq!(late(&[0, 3, 6, 1, 9, 4, 2]), 0);
        assert_eq!(late(&[0, 6, 1, 3, 4, 9]), 1);
    }
}
