//! Punts: frames that XDP cannot finish go to the agent, and come back mended.
//!
//! A fragment that arrives before its datagram's first one has to be held, and so has a packet whose next hop is not
//! known yet; a packet that is too big has to be cut in two. No XDP program can do that. [`Stage::Punt`] puts a
//! [`PuntHeader`] in front and redirects the frame to the AF_XDP socket of its queue. The agent holds a fragment until
//! the first one has shown the ports, holds others until the tables have their next hop, and cuts what is too big into
//! fragments. It sends each frame that comes of this, as it came in and a [`PuntHeader`] in front again, into a veth
//! pair of its own. At the pair's other end the program `guideway_mended` takes that off, and goes on with the frame as
//! if it had just come in by the device that [`PuntHeader::device`] names.
//!
//! [`Punt::may_follow`] says which frames are punted a second time.
//!
//! A frame whose device takes none from XDP, as a bridge, is punted when all is done to it. The agent takes the
//! [`PuntHeader`] off and sends the frame by an AF_XDP socket of that device. It does not come back.
//!
//! [`Stage::Punt`]: crate::stage::Stage::Punt

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{
    abi::{AddressKey, CONFIG_MEND, Tuple},
    decide::key_of_datagram,
    frame::Frame,
    ip::{Ip, with_packet},
    parse::Packet,
    process::Action,
    reason::{DropReason, PassReason, PuntReason},
    stage::Stage,
    verdict::{Ending, Verdict},
    wire::protocol,
    world::{HandOver, HandOvers, Tables},
};

/// Name of the program at the end of the veth pair by which mended frames come back.
pub const MENDED_PROGRAM: &str = "guideway_mended";

/// Name of the program that takes the place of [`Stage::Punt`]'s on kernels without AF_XDP: it ends frames as if nobody
/// took them.
pub const UNPUNTED_PROGRAM: &str = "guideway_unpunted";

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
    /// MAC of the pair's end where a mended frame comes back. In a frame that is punted, the id of the backend to which
    /// no next hop is known, or the index of the device that takes no frames from XDP, in native order, or zeros.
    front: [u8; 6],
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
            front: [0; 6],
            device: device.to_ne_bytes(),
            reason: reason.to_ne_bytes(),
            ether_type: PUNT_ETHER_TYPE.to_be_bytes(),
            size: size.to_ne_bytes(),
        }
    }

    /// Returns that of a frame which is punted because no next hop to this backend is known.
    #[inline(always)]
    #[must_use]
    pub const fn lacking(self, backend: u32) -> Self {
        self.with_number(backend)
    }

    /// Returns that of a finished frame, which is to leave by the device with this index.
    #[inline(always)]
    #[must_use]
    pub const fn leaving_by(self, device: u32) -> Self {
        self.with_number(device)
    }

    #[inline(always)]
    const fn with_number(self, number: u32) -> Self {
        let [a, b, c, d] = number.to_ne_bytes();
        Self {
            front: [a, b, c, d, 0, 0],
            ..self
        }
    }

    /// Returns the id of the backend to which no next hop is known, if that is why the frame is punted.
    pub const fn backend(&self) -> u32 {
        self.number()
    }

    /// Returns the index of the device by which the frame is to leave, if it is punted because that takes no frames
    /// from XDP.
    pub const fn leaves_by(&self) -> u32 {
        self.number()
    }

    const fn number(&self) -> u32 {
        let [a, b, c, d, ..] = self.front;
        u32::from_ne_bytes([a, b, c, d])
    }

    /// Returns that of the frame on its way back, to the end of the pair with this MAC.
    #[must_use]
    pub const fn back_to(self, mac: [u8; 6]) -> Self {
        Self { front: mac, ..self }
    }

    /// Returns the MAC of the pair's end where the mended frame comes back.
    #[inline(always)]
    pub const fn mac(&self) -> [u8; 6] {
        self.front
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

/// Why a frame is punted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Punt {
    /// The number of the [`PuntReason`], and above it the longest packet that fits, 16 bits each.
    word: u32,
    /// The backend to which no next hop is known, or the device that takes no frames from XDP.
    number: u32,
}

impl Punt {
    /// A fragment whose ports are not known.
    #[inline(always)]
    const fn of_fragment(reason: PuntReason) -> Self {
        Self {
            word: reason as u32,
            number: 0,
        }
    }

    /// A frame whose packet is longer than the `size` bytes that fit. `size` must fit into 16 bits.
    #[inline(always)]
    pub(crate) const fn too_big(size: u32) -> Self {
        Self {
            word: size << 16 | PuntReason::TooBig as u32,
            number: 0,
        }
    }

    /// A frame for a backend to which no next hop is known.
    #[inline(always)]
    const fn without_next_hop(backend: u32) -> Self {
        Self {
            word: PuntReason::NextHop as u32,
            number: backend,
        }
    }

    /// A finished frame that is to leave by the device with this index.
    #[inline(always)]
    pub(crate) const fn leaving_by(device: u32) -> Self {
        Self {
            word: PuntReason::Carry as u32,
            number: device,
        }
    }

    /// Returns what the last stage has left for [`Stage::Punt`].
    #[inline(always)]
    pub fn handed_over<T: HandOvers>(tables: &T) -> Self {
        let known = tables.handed_over();
        Self {
            word: known.detail,
            number: known.backend,
        }
    }

    /// Leaves a frame to [`Stage::Punt`].
    #[inline(always)]
    pub(crate) fn hand_over<T: HandOvers>(self, tables: &T) {
        tables.hand_over(HandOver {
            detail: self.word,
            backend: self.number,
            ..HandOver::default()
        });
    }

    /// Returns what goes in front of the frame, which came in by a device.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the word apart")]
    pub const fn header(self, device: u32) -> PuntHeader {
        PuntHeader::new(device, self.word as u16, (self.word >> 16) as u16).with_number(self.number)
    }

    /// Returns the reason.
    #[inline(always)]
    pub const fn reason(self) -> PuntReason {
        const NODE_FRAGMENT: u32 = PuntReason::NodeFragment as u32;
        const TOO_BIG: u32 = PuntReason::TooBig as u32;
        const NEXT_HOP: u32 = PuntReason::NextHop as u32;
        const CARRY: u32 = PuntReason::Carry as u32;
        match self.word & 0xffff {
            NODE_FRAGMENT => PuntReason::NodeFragment,
            TOO_BIG => PuntReason::TooBig,
            NEXT_HOP => PuntReason::NextHop,
            CARRY => PuntReason::Carry,
            _ => PuntReason::Fragment,
        }
    }

    /// Tells whether the frame may be punted although it was mended after a punt with the reason of this number: the
    /// next hop of a fragment that was held may not be known, and what was held for either may be too big where it is
    /// to go. What was cut fits, unless its next hop has just changed. A finished frame does not come back.
    #[inline(always)]
    pub fn may_follow(self, former: u32) -> bool {
        const TOO_BIG: u32 = PuntReason::TooBig as u32;
        const NEXT_HOP: u32 = PuntReason::NextHop as u32;
        match self.reason() {
            PuntReason::TooBig => former != TOO_BIG,
            PuntReason::NextHop => former != TOO_BIG && former != NEXT_HOP,
            PuntReason::Fragment | PuntReason::NodeFragment => false,
            PuntReason::Carry => true,
        }
    }
}

/// Leaves a fragment whose ports are not known to [`Stage::Punt`].
#[inline(always)]
pub(crate) fn punt_fragment<'t, T: HandOvers>(tables: &T, reason: PuntReason) -> Verdict<'t> {
    Punt::of_fragment(reason).hand_over(tables);
    Verdict::Continue(Stage::Punt)
}

/// Drops a packet that cannot be sent to its backend. Where packets are mended, one that lacks the next hop alone is left
/// to [`Stage::Punt`].
#[inline(always)]
pub(crate) fn unsent<'t, T: Tables + HandOvers>(
    tables: &T,
    backend: u32,
    reason: DropReason,
) -> Verdict<'t> {
    if reason != DropReason::NextHopUnresolved || !is_mending(tables) {
        return Verdict::Drop(reason);
    }
    Punt::without_next_hop(backend).hand_over(tables);
    Verdict::Continue(Stage::Punt)
}

/// Returns what becomes of a frame of [`Stage::Punt`] that nobody takes.
#[inline(always)]
pub(crate) fn action_without_agent<T: HandOvers>(tables: &T) -> Result<Action, Ending> {
    let punt = Punt::handed_over(tables);
    match punt.reason() {
        PuntReason::Fragment => Err(Ending::Drop(DropReason::FragmentOutOfOrder)),
        PuntReason::NodeFragment => Err(Ending::Pass(PassReason::FragmentNotOurs)),
        PuntReason::TooBig => Err(Ending::Drop(DropReason::FragmentationNeeded)),
        PuntReason::NextHop => Err(Ending::Drop(DropReason::NextHopUnresolved)),
        // The device may take frames from XDP by now. Else the kernel counts the failure.
        PuntReason::Carry => Ok(Action::Redirect(punt.number)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_says_what_the_agent_has_to_know_and_brings_the_frame_back() {
        let punt = Punt::without_next_hop(0x0012_3456);
        let header = punt.header(7);
        let read = (header.device(), header.reason(), header.size());
        assert_eq!(read, (7, Some(PuntReason::NextHop), 0));
        assert_eq!(header.backend(), 0x0012_3456);
        let back = header.back_to([2, 0, 0, 0, 0, 9]);
        assert_eq!(back.mac(), [2, 0, 0, 0, 0, 9]);
        assert_eq!((back.device(), back.reason()), (7, header.reason()));
        assert_eq!(Punt::too_big(1480).header(7).size(), 1480);
        let finished = Punt::leaving_by(9).header(7);
        assert_eq!(finished.reason(), Some(PuntReason::Carry));
        assert_eq!((finished.device(), finished.leaves_by()), (7, 9));
    }

    #[test]
    fn nothing_is_punted_for_ever() {
        let punts = [
            Punt::of_fragment(PuntReason::Fragment),
            Punt::of_fragment(PuntReason::NodeFragment),
            Punt::without_next_hop(1),
            Punt::too_big(1480),
        ];
        // Each may only follow those before it.
        for (place, punt) in punts.iter().enumerate() {
            for former in &punts[place..] {
                assert!(!punt.may_follow(former.reason() as u32));
            }
        }
        for punt in &punts[2..] {
            assert!(punt.may_follow(PuntReason::Fragment as u32));
        }
        assert!(Punt::too_big(1480).may_follow(PuntReason::NextHop as u32));
    }
}
