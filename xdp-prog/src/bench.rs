//! Names and layouts that the bench's own programs share with user space.
//!
//! The programs are a generator, a sink, and yardsticks for the `guideway` program; the `bench` crate explains the
//! method.

mod numbered;

pub use numbered::{
    Counted, DISTINCT_FLOWS, MOST_THREADS, NEW_FLOW, NUMBER_LENGTH, NUMBERED_LENGTH, Numbered, Pace,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Names of the programs in the bench's object.
pub mod program {
    /// Writes an IPv4 frame and sends it.
    pub const GENERATE_V4: &str = "generate_v4";
    /// Writes an IPv6 frame and sends it.
    pub const GENERATE_V6: &str = "generate_v6";
    /// Counts frames and frees them.
    pub const SINK: &str = "sink";
    /// Sends each frame back untouched.
    pub const FLOOR: &str = "floor";
    /// Puts the same outer IPv4 header before each frame and sends it back.
    pub const STATIC_V4: &str = "static_v4";
    /// Puts the same outer IPv6 header before each frame and sends it back.
    pub const STATIC_V6: &str = "static_v6";
    /// Sends each TCP and UDP packet on with other MAC addresses.
    pub const NULL: &str = "null";
    /// Looks an IPv4 service up and sends the frame back.
    pub const HIT_V4: &str = "hit_v4";
    /// Looks an IPv6 service up and sends the frame back.
    pub const HIT_V6: &str = "hit_v6";
    /// Writes a frame of any kind and sends it.
    pub const GENERATE_PATTERN: &str = "generate_pattern";
    /// Sends the frames of a list in turn, at the rate of a schedule.
    pub const GENERATE_LIST: &str = "generate_list";
    /// Sends numbered frames to many flows.
    pub const GENERATE_NUMBERED: &str = "generate_numbered";
    /// Counts numbered frames and frees them; hands all others to the stack.
    pub const SINK_NUMBERED: &str = "sink_numbered";
    /// Does the same as a TC program.
    pub const SINK_NUMBERED_SKB: &str = "sink_numbered_skb";
    /// Hands each frame to the stack untouched.
    pub const PASS: &str = "pass";
    /// Hands each packet on to the next TC program.
    pub const PASS_SKB: &str = "pass_skb";
    /// Counts packets and frees them, as a TC program.
    pub const SINK_SKB: &str = "sink_skb";
}

/// Names of the maps in the bench's object.
pub mod map {
    /// The kernel's hash map from an IPv4 service's key to its id.
    pub const SERVICES_V4: &str = "SERVICES_V4";
    /// The kernel's hash map from an IPv6 service's key to its id.
    pub const SERVICES_V6: &str = "SERVICES_V6";
    /// Array of one [`super::Template`].
    pub const TEMPLATE: &str = "TEMPLATE";
    /// Array of one [`super::Pattern`].
    pub const PATTERN: &str = "PATTERN";
    /// Array of one [`super::Cursor`]: the generator runs on one CPU.
    pub const CURSOR: &str = "CURSOR";
    /// Array of [`super::Listed`]; the loader sets its length.
    pub const LIST: &str = "LIST";
    /// Array of one [`super::Schedule`].
    pub const SCHEDULE: &str = "SCHEDULE";
    /// Array of [`super::Numbered`]: for each Service, each of the sizes in turn. The loader sets its length.
    pub const NUMBERED: &str = "NUMBERED";
    /// Array of flows, as `u32`: for each thread of the generator, its own in the order of their frames. The loader sets its
    /// length.
    pub const FLOWS: &str = "FLOWS";
    /// Array of one [`super::Pace`] for each CPU, where a thread of the generator may run.
    pub const PACE: &str = "PACE";
    /// Array of one [`super::Counted`] for each CPU: frames may come in on several.
    pub const COUNTED: &str = "COUNTED";
    /// Array of one [`super::Macs`].
    pub const MACS: &str = "MACS";
    /// Array of one [`super::OuterTemplate`].
    pub const OUTER: &str = "OUTER";
    /// Array of one [`crate::abi::Traffic`]: frames and their bytes; the sink runs on one CPU.
    pub const RECEIVED: &str = "RECEIVED";
}

/// Number of bytes at the front of each frame that the generator writes.
///
/// Frames are reused without being restored, so this covers everything that a program under test may change: the
/// Ethernet and IP headers and the ports.
pub const TEMPLATE_LENGTH: usize = 60;

/// The front of the frames of one trial, for flow 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Template {
    /// The bytes.
    pub bytes: [u8; TEMPLATE_LENGTH],
    /// Always zero.
    pub reserved: [u8; 4],
}

/// Length in bytes of the frames that [`program::GENERATE_PATTERN`] writes: an IPv6 outer header and every inner
/// packet fit.
pub const PATTERN_LENGTH: usize = 120;

/// The frames of one trial, for flow 0, and the places where flows differ.
///
/// Checksums are not updated: none of the programs checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Pattern {
    /// All bytes.
    pub bytes: [u8; PATTERN_LENGTH],
    /// Base address; a flow's address bits are added to it.
    pub address: u32,
    /// Offset of the four address bytes.
    pub address_at: u32,
    /// Offset of the port.
    pub port_at: u32,
    /// Base of the service's bytes; the number of a flow's service is added to it.
    pub service: u32,
    /// Offset of the four service bytes.
    pub service_at: u32,
    /// Number of services, which flows use in turn; at least one.
    pub services: u32,
}

/// Chooses the flow of the generator's next frame.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Cursor {
    /// Number of flows.
    pub flows: u32,
    /// The flow of the next frame.
    pub next: u32,
    /// State of the random number generator that chooses the next flow; 0 takes each flow in turn.
    pub random: u64,
}

impl Cursor {
    /// Returns the flow of the next frame and moves on.
    #[inline(always)]
    pub const fn advance(&mut self) -> u32 {
        let flow = self.next;
        self.next = if self.random != 0 {
            // Knuth's MMIX generator; its low bits repeat early.
            self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d);
            self.random = self.random.wrapping_add(0x1405_7b7e_f767_814f);
            (((self.random >> 32) * self.flows as u64) >> 32) as u32
        } else if flow + 1 < self.flows {
            flow + 1
        } else {
            0
        };
        flow
    }
}

/// Length in bytes of the frames that [`program::GENERATE_LIST`] sends; shorter ones are padded with a trailer.
pub const LISTED_LENGTH: usize = 76;

/// A frame and its egress device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Listed {
    /// The device's interface index in the network namespace of the generator.
    pub device: u32,
    /// The frame.
    pub bytes: [u8; LISTED_LENGTH],
}

/// Times at which the frames of a list leave, and the next frame.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Schedule {
    /// When the next frame is due, in ns of the monotonic clock.
    pub due: u64,
    /// Time from one frame to the next, in ns.
    pub interval: u64,
    /// How far the generator catches up with late frames, in ns.
    pub patience: u64,
    /// Frames in the list.
    pub frames: u32,
    /// Index of the next frame.
    pub next: u32,
    /// Extra work for each frame ([`work`]).
    pub work: u32,
    /// What the extra work came to.
    pub worked: u32,
}

/// Most extra work for a frame, in eighths of a step.
pub const MOST_WORK: u32 = 8 * 512;

/// Works for nothing, so that a frame takes longer: some steps, each of which needs the one before. Of eight frames in turn,
/// as many do a step more as there are eighths over. Returns what the steps come to, which has to be kept for the compiler
/// to leave them in.
#[inline(always)]
pub const fn work(eighths: u32, number: u32) -> u32 {
    let eighths = if eighths < MOST_WORK {
        eighths
    } else {
        MOST_WORK
    };
    let steps = (eighths + number % 8) / 8;
    let (mut value, mut step) = (number, 0);
    while step < steps && step < MOST_WORK / 8 {
        value = value.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        step += 1;
    }
    value
}

/// Ethernet and outer IP header that the static programs write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OuterTemplate {
    /// The bytes: 34 for IPv4, 54 for IPv6.
    pub bytes: [u8; 54],
    /// Always zero.
    pub reserved: [u8; 2],
}

/// MAC addresses that [`program::NULL`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Macs {
    /// Destination and source.
    pub bytes: [u8; 12],
    /// Always zero.
    pub reserved: [u8; 4],
}

/// Client ports per client address.
pub const PORTS_PER_CLIENT: u32 = 64;
/// The lowest client port.
const FIRST_PORT: u16 = 32_768;

/// Returns the parts in which a flow's frames differ: the low bits of the client's address, and the client's port.
#[inline(always)]
pub const fn client(flow: u32) -> (u32, u16) {
    let port = FIRST_PORT + (flow % PORTS_PER_CLIENT) as u16;
    (flow / PORTS_PER_CLIENT, port)
}

crate::abi::plain_data! {
    Template: 64,
    Pattern: 144,
    Cursor: 16,
    Listed: 80,
    Schedule: 40,
    Macs: 16,
    OuterTemplate: 56,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_eight_frames_some_do_a_step_more_and_work_ends() {
        let working = |eighths| {
            (0..8)
                .filter(|&number| work(eighths, number) != number)
                .count()
        };
        assert_eq!([0, 3, 8].map(working), [0, 3, 8]);
        // The first one does its second step last.
        assert_eq!(work(15, 0), work(8, 0));
        assert_ne!(work(16, 0), work(8, 0));
        assert_eq!(work(16, 0), work(8, work(8, 0)));
        assert_eq!(work(u32::MAX, 0), work(MOST_WORK, 0));
    }

    #[test]
    fn cursor_goes_round_in_turn_and_stays_among_the_flows_at_random() {
        let mut in_turn = Cursor {
            flows: 3,
            ..Cursor::default()
        };
        assert_eq!([(); 5].map(|()| in_turn.advance()), [0, 1, 2, 0, 1]);
        let mut random = Cursor {
            flows: 10,
            random: 1,
            ..Cursor::default()
        };
        let mut seen = [0_u32; 10];
        for _ in 0..10_000 {
            seen[random.advance() as usize] += 1;
        }
        assert!(
            seen.iter().all(|count| (800..1200).contains(count)),
            "{seen:?}"
        );
    }
}
