//! Bounds-checked access to the bytes of a frame.
//!
//! The programs implement [`Frame`] over `data` and `data_end` of an XDP context, the host over a vector with
//! headroom. Offsets count from the first byte of the Ethernet header.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::csum::Sum;

/// The most bytes that [`FrameSum::sum`] takes: the longest quote of an ICMPv6 error.
pub const LONGEST_SUM: usize = 1280;

/// A header that can be viewed in place at any offset: alignment 1, no padding.
pub trait Wire: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Copy {}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Copy> Wire for T {}

/// Read access to a frame.
pub trait Frame {
    /// Returns the header at `offset`; `None` if the frame ends inside it.
    fn view<T: Wire>(&self, offset: usize) -> Option<&T>;

    /// Tells whether the frame has at least `length` bytes, multi-buffer fragments included.
    fn holds(&self, length: usize) -> bool;

    /// Returns an offset that is less than `LIMIT`, a power of two. A frame may hide everything else about it from
    /// the kernel's verifier.
    ///
    /// The verifier checks the code behind a header once for each offset that the header may have.
    #[inline(always)]
    fn opaque<const LIMIT: usize>(&self, offset: usize) -> usize {
        offset
    }

    /// As [`Self::opaque`], where few packets come, in the programs too that go without it elsewhere.
    #[inline(always)]
    fn opaque_aside<const LIMIT: usize>(&self, offset: usize) -> usize {
        self.opaque::<LIMIT>(offset)
    }

    /// Has the kernel's verifier forget how much of the frame has been viewed.
    ///
    /// The verifier checks the code that follows once for each length that it knows the frame to have.
    #[inline(always)]
    fn forget_views(&self) {}
}

/// Checksums over a number of bytes that is known only at run time.
pub trait FrameSum: Frame {
    /// Sums `length` bytes from `offset` on, multi-buffer fragments included.
    ///
    /// Returns `None` if the frame ends earlier, or for more than [`LONGEST_SUM`] bytes.
    fn sum(&self, offset: usize, length: usize) -> Option<Sum>;
}

/// Write access to a frame, and to its start and end.
pub trait FrameMut: Frame {
    /// Returns the header at `offset` for writing; `None` if the frame ends inside it.
    fn view_mut<T: Wire>(&mut self, offset: usize) -> Option<&mut T>;

    /// Moves the frame's start by `delta` bytes: a negative value adds room in front, a positive one cuts.
    ///
    /// Added bytes have no defined content. Returns false if the frame could not be moved.
    fn move_start(&mut self, delta: i32) -> bool;

    /// Cuts the frame to its first `length` bytes. Returns false if it could not be cut.
    fn truncate(&mut self, length: usize) -> bool;
}

#[cfg(not(target_arch = "bpf"))]
pub use host::HostFrame;

#[cfg(not(target_arch = "bpf"))]
mod host {
    extern crate alloc;

    use alloc::{vec, vec::Vec};

    use super::{Frame, FrameMut, FrameSum, LONGEST_SUM, Wire};
    use crate::csum::Sum;

    /// Bytes that the kernel keeps free in front of each frame (`XDP_PACKET_HEADROOM`).
    const HEADROOM: usize = 256;
    /// Length of an Ethernet header: `bpf_xdp_adjust_head` and `bpf_xdp_adjust_tail` refuse to make a frame shorter.
    const SHORTEST: usize = 14;

    /// A frame in memory with headroom in front: in memory of its own, or in somebody else's.
    #[derive(Clone, Debug)]
    pub struct HostFrame<B = Vec<u8>> {
        buffer: B,
        start: usize,
        end: usize,
    }

    impl HostFrame {
        /// Copies a frame and puts the kernel's headroom in front of it.
        pub fn new(bytes: &[u8]) -> Self {
            Self::with_headroom(bytes, HEADROOM)
        }

        /// Copies a frame and puts `headroom` free bytes in front of it.
        pub fn with_headroom(bytes: &[u8], headroom: usize) -> Self {
            let mut buffer = vec![0; headroom];
            buffer.extend_from_slice(bytes);
            Self {
                start: headroom,
                end: buffer.len(),
                buffer,
            }
        }
    }

    impl<'b> HostFrame<&'b mut [u8]> {
        /// Takes a buffer whose first `headroom` bytes are free; the frame ends where the buffer ends.
        pub fn behind(headroom: usize, buffer: &'b mut [u8]) -> Self {
            Self {
                start: headroom.min(buffer.len()),
                end: buffer.len(),
                buffer,
            }
        }
    }

    impl<B: AsRef<[u8]>> HostFrame<B> {
        /// Returns the frame's bytes.
        pub fn bytes(&self) -> &[u8] {
            let bytes = self.buffer.as_ref().get(self.start..self.end);
            bytes.unwrap_or_default()
        }

        /// Returns where the frame's bytes are in its buffer.
        pub const fn place(&self) -> core::ops::Range<usize> {
            self.start..self.end
        }
    }

    impl<B: AsRef<[u8]>> Frame for HostFrame<B> {
        fn view<T: Wire>(&self, offset: usize) -> Option<&T> {
            let (header, _) = T::ref_from_prefix(self.bytes().get(offset..)?).ok()?;
            Some(header)
        }

        fn holds(&self, length: usize) -> bool {
            self.bytes().len() >= length
        }
    }

    impl<B: AsRef<[u8]>> FrameSum for HostFrame<B> {
        fn sum(&self, offset: usize, length: usize) -> Option<Sum> {
            let bytes = self.bytes().get(offset..offset.checked_add(length)?)?;
            (length <= LONGEST_SUM).then(|| Sum::ZERO.add_bytes(bytes))
        }
    }

    impl<B: AsRef<[u8]> + AsMut<[u8]>> FrameMut for HostFrame<B> {
        fn view_mut<T: Wire>(&mut self, offset: usize) -> Option<&mut T> {
            let bytes = self.start.checked_add(offset)?..self.end;
            let bytes = self.buffer.as_mut().get_mut(bytes)?;
            let (header, _) = T::mut_from_prefix(bytes).ok()?;
            Some(header)
        }

        fn move_start(&mut self, delta: i32) -> bool {
            let Some(start) = isize::try_from(delta)
                .ok()
                .and_then(|d| self.start.checked_add_signed(d))
            else {
                return false;
            };
            if start + SHORTEST > self.end {
                return false;
            }
            self.start = start;
            true
        }

        fn truncate(&mut self, length: usize) -> bool {
            if length < SHORTEST || !self.holds(length) {
                return false;
            }
            self.end = self.start + length;
            true
        }
    }
}
