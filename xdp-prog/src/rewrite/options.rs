//! The IPv4 options of an echo reply.
//!
//! A host repeats the Record Route and Timestamp options of an echo request, and enters itself (RFC 1122 section
//! 3.2.2.6). It has no room to add any, and takes none away. So the reply is as long as its request.
//!
//! One such option is entered into. A packet has room for two only if both are short, and senders ask for one.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::view_mut;
use crate::{
    frame::{Frame, FrameMut, FrameSum},
    reason::DropReason,
    wire::ipv4::Ipv4,
};

/// Most options without operation that are skipped before the one that counts.
const MOST_PADDING: usize = 4;
/// An offset beyond all options: two tags, an outer IPv6 header, and an IPv4 header with options end before it.
const END_OF_HEADERS: usize = 128;
const NS_PER_MS: u64 = 1_000_000;
/// Marks a timestamp that does not count from midnight UT (RFC 791 section 3.1).
const NOT_UNIVERSAL: u32 = 1 << 31;

/// Kinds of options (RFC 791 section 3.1).
mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NO_OPERATION: u8 = 1;
    pub(super) const RECORD_ROUTE: u8 = 7;
    pub(super) const TIMESTAMP: u8 = 68;
}

/// Flags of a Timestamp option (RFC 791 section 3.1).
mod stamps {
    /// Timestamps alone.
    pub(super) const ALONE: u8 = 0;
    /// Each behind the address of the machine that entered it.
    pub(super) const WITH_ADDRESS: u8 = 1;
    /// Each behind an address that the sender gave; a machine enters its own only.
    pub(super) const OF_THESE: u8 = 3;
}

/// The front of an option. Short options end inside it; the ICMP header follows them, so the frame does not.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct OptionHeader {
    kind: u8,
    /// Bytes of the option, this header included.
    length: u8,
    /// Byte at which the next entry begins, counted from 1.
    pointer: u8,
    /// Of a Timestamp option: machines that found no room in the high half, flags in the low one.
    overflow_flags: u8,
}

/// Enters the destination of a packet into its Record Route and Timestamp options, and sums up its header.
///
/// `l3` and `l4` are the offsets of IP header and options' end, `now` is a time in nanoseconds that has no relation to
/// midnight.
///
/// # Errors
///
/// [`DropReason::IcmpOptions`] for any other option, for more than one, and for one that cannot be followed. The packet is
/// unchanged then.
#[inline(always)]
pub fn enter_options<F: FrameMut + FrameSum>(
    frame: &mut F,
    l3: usize,
    l4: usize,
    now: u64,
) -> Result<(), DropReason> {
    let own = view_mut::<Ipv4, _>(frame, l3)?.destination;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "wraps, as any such time does"
    )]
    let stamp = ((now / NS_PER_MS) as u32 | NOT_UNIVERSAL).to_be_bytes();
    let mut at = l3 + Ipv4::LENGTH;
    for _ in 0..MOST_PADDING {
        at = frame.opaque::<END_OF_HEADERS>(at);
        if view_mut::<OptionHeader, _>(frame, at)?.kind != kind::NO_OPERATION {
            break;
        }
        at += 1;
    }
    let at = frame.opaque::<END_OF_HEADERS>(at);
    let option = *view_mut::<OptionHeader, _>(frame, at)?;
    if at < l4 && option.kind != kind::END {
        let end = at + option.length as usize;
        if option.length < 3 || end > l4 || !is_last(frame, end, l4)? {
            return Err(DropReason::IcmpOptions);
        }
        match option.kind {
            kind::RECORD_ROUTE => _ = record(frame, at, &option, 4, &own)?,
            kind::TIMESTAMP => enter_stamp(frame, at, &option, &own, &stamp)?,
            _ => return Err(DropReason::IcmpOptions),
        }
    }
    let header = view_mut::<Ipv4, _>(frame, l3)?;
    header.checksum = [0; 2];
    let sum = frame.sum(l3, l4 - l3).ok_or(DropReason::NoHeadroom)?;
    view_mut::<Ipv4, _>(frame, l3)?.checksum = sum.checksum().to_be_bytes();
    Ok(())
}

/// Tells whether no option begins at `end`.
#[inline(always)]
fn is_last<F: Frame>(frame: &F, end: usize, l4: usize) -> Result<bool, DropReason> {
    let next = frame.view::<OptionHeader>(frame.opaque::<END_OF_HEADERS>(end));
    Ok(end == l4 || next.ok_or(DropReason::NoHeadroom)?.kind == kind::END)
}

/// Enters a time, and the own address where the option asks for it.
#[inline(always)]
fn enter_stamp<F: FrameMut>(
    frame: &mut F,
    at: usize,
    option: &OptionHeader,
    own: &[u8; 4],
    stamp: &[u8; 4],
) -> Result<(), DropReason> {
    if option.length < 4 {
        return Err(DropReason::IcmpOptions);
    }
    let [a, b, c, d] = *own;
    let [e, f, g, h] = *stamp;
    let both = [a, b, c, d, e, f, g, h];
    let has_room = match option.overflow_flags & 0x0f {
        stamps::ALONE => record(frame, at, option, 5, stamp)?,
        stamps::WITH_ADDRESS => record(frame, at, option, 5, &both)?,
        stamps::OF_THESE => {
            let place = entry(frame, at, option, 5, both.len())?;
            if let Some(place) = place
                && *view_mut::<[u8; 4], _>(frame, place)? == *own
            {
                record(frame, at, option, 5, &both)?;
            }
            true
        }
        _ => return Err(DropReason::IcmpOptions),
    };
    if !has_room {
        let header = view_mut::<OptionHeader, _>(frame, at)?;
        // A sixteenth machine without room cannot be counted.
        header.overflow_flags = match option.overflow_flags.checked_add(0x10) {
            Some(counted) => counted,
            None => return Err(DropReason::IcmpOptions),
        };
    }
    Ok(())
}

/// Writes the next entry of an option. Returns false if the option is full.
#[inline(always)]
fn record<F: FrameMut, const N: usize>(
    frame: &mut F,
    at: usize,
    option: &OptionHeader,
    first: u8,
    bytes: &[u8; N],
) -> Result<bool, DropReason> {
    let Some(place) = entry(frame, at, option, first, N)? else {
        return Ok(false);
    };
    *view_mut::<[u8; N], _>(frame, place)? = *bytes;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an entry has up to eight bytes"
    )]
    let length = N as u8;
    view_mut::<OptionHeader, _>(frame, at)?.pointer = option.pointer.wrapping_add(length);
    Ok(true)
}

/// Returns the offset of an option's next entry; `None` if the option has no room for `length` bytes more.
#[inline(always)]
fn entry<F: Frame>(
    frame: &F,
    at: usize,
    option: &OptionHeader,
    first: u8,
    length: usize,
) -> Result<Option<usize>, DropReason> {
    if option.pointer < first {
        return Err(DropReason::IcmpOptions);
    }
    let place = option.pointer as usize - 1;
    if place + length > option.length as usize {
        return Ok(None);
    }
    Ok(Some(frame.opaque::<END_OF_HEADERS>(at + place)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{csum::Sum, frame::HostFrame};

    const OWN: [u8; 4] = [10, 99, 0, 1];
    const L3: usize = 14;
    const L4: usize = L3 + Ipv4::LENGTH + 12;
    /// 3500 ms.
    const NOW: u64 = 3_500_000_000;
    const STAMP: [u8; 4] = [0x80, 0, 0x0d, 0xac];

    /// A packet to `OWN` with these options, and an ICMP header of zeros.
    fn packet(options: [u8; 12]) -> HostFrame {
        let mut bytes = [0; L4 + 8];
        bytes[L3] = 0x48;
        bytes[L3 + 3] = 40;
        bytes[L3 + 16..L3 + 20].copy_from_slice(&OWN);
        bytes[L4 - 12..L4].copy_from_slice(&options);
        HostFrame::new(&bytes)
    }

    #[test]
    fn timestamps_are_entered_where_there_is_room() {
        let [a, b, c, d] = OWN;
        let [e, f, g, h] = STAMP;
        for (asked, answered) in [
            (
                [68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                [68, 12, 9, 0, e, f, g, h, 0, 0, 0, 0],
            ),
            (
                [68, 12, 9, 0, 1, 2, 3, 4, 0, 0, 0, 0],
                [68, 12, 13, 0, 1, 2, 3, 4, e, f, g, h],
            ),
            (
                [68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0],
                [68, 12, 13, 1, a, b, c, d, e, f, g, h],
            ),
            (
                [68, 12, 5, 3, a, b, c, d, 0, 0, 0, 0],
                [68, 12, 13, 3, a, b, c, d, e, f, g, h],
            ),
        ] {
            let mut frame = packet(asked);
            assert_eq!(enter_options(&mut frame, L3, L4, NOW), Ok(()));
            assert_eq!(frame.bytes()[L4 - 12..L4], answered, "{asked:?}");
            let sum = Sum::ZERO.add_bytes(&frame.bytes()[L3..L4]);
            assert!(sum.is_valid(), "{asked:?}");
        }
    }
}
