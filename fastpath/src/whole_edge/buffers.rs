//! The memory of a queue: so large that a frame of the device's MTU fits into one buffer.

use xdp_prog::whole_edge::ROOM;

/// Buffers of a queue: its RX and its TX ring may be full, and a batch in hand.
pub(super) const BUFFERS: u32 = 8192;
/// Sizes of a buffer. The kernel takes none that is larger than a page.
const SIZES: [u32; 2] = [2048, LARGEST];
const LARGEST: u32 = 4096;
/// Bytes that the kernel keeps in front of a frame (`XDP_PACKET_HEADROOM`).
const KERNEL_ROOM: u32 = 256;
/// Ethernet header and two VLAN tags, as many as are parsed.
const LINK: u32 = 14 + 2 * 4;
/// Bytes of a buffer that are no packet's.
#[expect(clippy::cast_possible_truncation, reason = "64 bytes")]
const OVERHEAD: u32 = KERNEL_ROOM + ROOM as u32 + LINK;

/// The largest MTU of an interface whose packets fit into buffers, in bytes.
pub const LARGEST_MTU: u32 = LARGEST - OVERHEAD;

/// Returns the size of buffers into which frames of an interface with this MTU fit, or the largest.
pub(super) fn buffer_size(mtu: u32) -> u32 {
    let mut sizes = SIZES.into_iter();
    let fitting = sizes.find(|size| mtu <= size - OVERHEAD);
    fitting.unwrap_or(LARGEST)
}

/// Returns the bytes that each receive queue of an interface with this MTU locks.
#[must_use]
pub fn locked_bytes(mtu: u32) -> u64 {
    u64::from(BUFFERS) * u64::from(buffer_size(mtu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_large_where_packets_are() {
        assert_eq!(LARGEST_MTU, 3754);
        let sizes = [1500, 1706, 1707, LARGEST_MTU, 9000].map(buffer_size);
        assert_eq!(sizes, [2048, 2048, 4096, 4096, 4096]);
        assert_eq!([1500, 3000].map(locked_bytes), [16 << 20, 32 << 20]);
    }
}
