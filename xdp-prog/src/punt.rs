//! Punts: frames that XDP cannot finish go to the agent, and come back mended.
//!
//! A fragment that arrives before its datagram's first one has to be held, and a packet that is too big has to be cut
//! in two. No XDP program can do that. [`Stage::Punt`] puts a [`PuntHeader`] in front and redirects the frame to the
//! AF_XDP socket of its queue. The agent holds a fragment until the first one has shown the ports, and cuts what is
//! too big into fragments. It sends each frame that comes of this, a [`PuntHeader`] in front again, into a veth pair of
//! its own. At the pair's other end the program `guideway_mended` takes that off, and goes on with the frame as if it
//! had just come in by the device that [`PuntHeader::device`] names.
//!
//! What is mended is a fragment, so it goes by the stages of fragments. [`Punt::may_follow`] says which frames are
//! punted a second time.
//!
//! [`Stage::Punt`]: crate::stage::Stage::Punt

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{
    abi::{AddressKey, CONFIG_MEND, Tuple},
    decide::key_of_datagram,
    frame::Frame,
    ip::{Ip, with_packet},
    parse::Packet,
    reason::{DropReason, PassReason, PuntReason},
    stage::Stage,
    verdict::{Ending, Verdict},
    wire::protocol,
    world::{HandOver, HandOvers, Tables},
};

/// Name of the program at the end of the veth pair by which mended frames come back.
pub const MENDED_PROGRAM: &str = "guideway_mended";

/// EtherType of [`PuntHeader`]: one for experiments (IEEE 802). Such frames are in the pair alone.
pub const PUNT_ETHER_TYPE: u16 = 0x88b5;

/// Longest frame that is punted, in bytes, [`PuntHeader`] included: a buffer of 4096 bytes less the 256 that the kernel
/// keeps.
pub const LONGEST_PUNT: usize = 3840;

/// What is in front of a frame between XDP and the agent. It begins like an Ethernet header, because the veth pair
/// judges it as one. `device`, `reason` and `size` are in native order, for they never leave the machine.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct PuntHeader {
    /// MAC of the pair's end where a mended frame comes back; zero in a frame that is punted.
    destination: [u8; 6],
    device: [u8; 4],
    reason: [u8; 2],
    /// [`PUNT_ETHER_TYPE`].
    pub ether_type: [u8; 2],
    size: [u8; 2],
}

impl PuntHeader {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();

    /// Makes that of a frame that came in by a device. `size` is the longest packet that fits where the frame was to
    /// go; 0 if that is not why it is punted.
    #[inline(always)]
    pub const fn new(device: u32, reason: u16, size: u16) -> Self {
        Self {
            destination: [0; 6],
            device: device.to_ne_bytes(),
            reason: reason.to_ne_bytes(),
            ether_type: PUNT_ETHER_TYPE.to_be_bytes(),
            size: size.to_ne_bytes(),
        }
    }

    /// Returns that of the frame on its way back, to the end of the pair with this MAC.
    #[must_use]
    pub const fn back_to(self, destination: [u8; 6]) -> Self {
        Self {
            destination,
            ..self
        }
    }

    /// Returns the index of the device that the frame came in by.
    #[inline(always)]
    pub const fn device(&self) -> u32 {
        u32::from_ne_bytes(self.device)
    }

    /// Returns the number of the reason why the frame is punted.
    #[inline(always)]
    pub fn reason_number(&self) -> u32 {
        u16::from_ne_bytes(self.reason).into()
    }

    /// Returns why the frame is punted; `None` for the number of no reason.
    pub fn reason(&self) -> Option<PuntReason> {
        PuntReason::ALL.get(self.reason_number() as usize).copied()
    }

    /// Returns the longest packet that fits where the frame was to go; 0 if that is not why it is punted.
    #[inline(always)]
    pub const fn size(&self) -> u16 {
        u16::from_ne_bytes(self.size)
    }
}

const _: () = assert!(PuntHeader::LENGTH == 16);

/// Returns the key of a queue in `PUNT_QUEUES`.
#[inline(always)]
pub const fn queue_key(device: u32, queue: u32) -> u64 {
    (device as u64) << 32 | queue as u64
}

/// Tells whether the agent mends packets.
#[inline(always)]
pub(crate) fn is_mending<T: Tables>(tables: &T) -> bool {
    let config = tables.config();
    config.is_some_and(|config| config.flags & CONFIG_MEND != 0)
}

/// Why a frame is punted, in one word: the number of the [`PuntReason`], and above it the longest packet that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Punt(u32);

impl Punt {
    /// A frame whose packet lacks something else than room.
    #[inline(always)]
    pub(crate) const fn new(reason: PuntReason) -> Self {
        Self(reason as u32)
    }

    /// A frame whose packet is longer than the `size` bytes that fit. `size` must fit into 16 bits.
    #[inline(always)]
    pub(crate) const fn too_big(size: u32) -> Self {
        Self(size << 16 | PuntReason::TooBig as u32)
    }

    /// Returns what the last stage has left for [`Stage::Punt`].
    #[inline(always)]
    pub fn handed_over<T: HandOvers>(tables: &T) -> Self {
        Self(tables.handed_over().detail)
    }

    /// Leaves a frame to [`Stage::Punt`].
    #[inline(always)]
    pub(crate) fn hand_over<T: HandOvers>(self, tables: &T) {
        tables.hand_over(HandOver {
            detail: self.0,
            ..HandOver::default()
        });
    }

    /// Returns what goes in front of the frame, which came in by a device.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the word apart")]
    pub const fn header(self, device: u32) -> PuntHeader {
        PuntHeader::new(device, self.0 as u16, (self.0 >> 16) as u16)
    }

    /// Returns the reason.
    #[inline(always)]
    pub const fn reason(self) -> PuntReason {
        const NODE_FRAGMENT: u32 = PuntReason::NodeFragment as u32;
        const TOO_BIG: u32 = PuntReason::TooBig as u32;
        match self.0 & 0xffff {
            NODE_FRAGMENT => PuntReason::NodeFragment,
            TOO_BIG => PuntReason::TooBig,
            _ => PuntReason::Fragment,
        }
    }

    /// Tells whether the frame may be punted although it was mended after a punt with the reason of this number: a
    /// fragment that was held may be too big where it is to go. What was cut fits, or its next hop has just changed.
    #[inline(always)]
    pub fn may_follow(self, former: u32) -> bool {
        self.reason() == PuntReason::TooBig && former != PuntReason::TooBig as u32
    }
}

/// Leaves a frame to [`Stage::Punt`].
#[inline(always)]
pub(crate) fn punt<'t, T: HandOvers>(tables: &T, reason: PuntReason) -> Verdict<'t> {
    Punt::new(reason).hand_over(tables);
    Verdict::Continue(Stage::Punt)
}

/// Returns what becomes of a frame of [`Stage::Punt`] that nobody takes.
#[inline(always)]
pub(crate) fn ending_without_agent<T: HandOvers>(tables: &T) -> Ending {
    match Punt::handed_over(tables).reason() {
        PuntReason::Fragment => Ending::Drop(DropReason::FragmentOutOfOrder),
        PuntReason::NodeFragment => Ending::Pass(PassReason::FragmentNotOurs),
        PuntReason::TooBig => Ending::Drop(DropReason::FragmentationNeeded),
    }
}

/// A later fragment in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaterFragment {
    /// The key of its datagram in `FRAGMENTS`.
    pub datagram: Tuple,
    /// Its source.
    pub source: AddressKey,
    /// Where it begins in the datagram's payload, in bytes.
    pub offset: u32,
    /// Bytes of the payload that it has.
    pub length: u32,
}

impl LaterFragment {
    /// Finds the later fragment of a frame, bare or in an outer header; `None` if the frame has none.
    pub fn of<F: Frame>(frame: &F) -> Option<Self> {
        with_packet!(frame, packet => in_packet(frame, &packet), _reason => None)
    }
}

fn in_packet<F: Frame, A: Ip>(frame: &F, packet: &Packet<A>) -> Option<LaterFragment> {
    let inner = match packet.protocol {
        protocol::IPV4 if !packet.is_fragment => crate::family::Family::V4,
        protocol::IPV6 if !packet.is_fragment => crate::family::Family::V6,
        _ => return later_fragment(packet),
    };
    with_packet!(frame, inner, at packet.l4, packet => later_fragment(&packet), _ => None)
}

fn later_fragment<A: Ip>(packet: &Packet<A>) -> Option<LaterFragment> {
    let length = (packet.l3 + packet.length).checked_sub(packet.l4)?;
    packet.is_later_fragment().then_some(LaterFragment {
        datagram: key_of_datagram(packet),
        source: packet.source.key(),
        offset: u32::from(packet.piece.offset) * 8,
        length: u32::try_from(length).ok()?,
    })
}
