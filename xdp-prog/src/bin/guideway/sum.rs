//! Checksums over a number of bytes that is known only at run time.

use core::hint::black_box;

use aya_ebpf::{btf_maps::PerCpuArray, helpers::bpf_xdp_load_bytes, macros::btf_map};
use xdp_prog::{
    csum::Sum,
    frame::{FrameSum, LONGEST_SUM},
};

use crate::context::XdpFrame;

/// Scratch memory: a copy of the bytes, which may lie in several fragments, followed by zeros.
#[btf_map]
static SUM_SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

type Scratch = [u64; 256];
const _: () = assert!(LONGEST_SUM <= size_of::<Scratch>());

impl FrameSum for XdpFrame<'_> {
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "offsets and lengths of a few hundred bytes"
    )]
    fn sum(&self, offset: usize, length: usize) -> Option<Sum> {
        let scratch = SUM_SCRATCH.get_ptr_mut(0)?;
        // SAFETY: a per-CPU element that only this run uses.
        let scratch = unsafe { &mut *scratch };
        if length == 0 || length > LONGEST_SUM {
            return None;
        }
        for word in &mut *scratch {
            // SAFETY: a word of the scratch. The write is volatile, because the BPF target has no `memset`.
            unsafe { core::ptr::write_volatile(word, 0) };
        }
        // Up to Linux 6.1 the verifier learns nothing from a comparison with zero. With the mask it knows that the
        // length is at least one and at most that of the scratch.
        let length = (black_box(length - 1) & (size_of::<Scratch>() - 1)) + 1;
        let place = scratch.as_mut_ptr().cast();
        // SAFETY: the scratch is at least as long.
        let outcome =
            unsafe { bpf_xdp_load_bytes(self.ctx.ctx, offset as u32, place, length as u32) };
        if outcome != 0 {
            return None;
        }
        // The loop takes all of the scratch, whatever the length. A loop with a variable end costs the verifier as
        // many paths, and it forgets the bounds that `bpf_csum_diff` would need.
        let mut sum = Sum::ZERO;
        for word in scratch {
            sum = sum.add_array(&word.to_ne_bytes());
        }
        Some(sum)
    }
}
