//! Checksums over a number of bytes that is known only at run time.

use core::{hint::black_box, ptr};

use aya_ebpf::{
    btf_maps::PerCpuArray,
    helpers::{bpf_csum_diff, bpf_xdp_load_bytes},
    macros::btf_map,
};
use xdp_prog::{
    csum::Sum,
    frame::{FrameSum, LONGEST_SUM},
};

use crate::context::XdpFrame;

/// Scratch memory: a copy of the bytes, which may lie in several fragments, followed by zeros.
#[btf_map]
static SUM_SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

type Scratch = [u64; 256];
/// Number of words that `bpf_csum_diff` takes at most up to Linux 6.12 (`MAX_BPF_STACK`).
const CHUNK: usize = 64;
/// Number of words that are zeroed in one turn of a loop, of which the verifier goes through each.
const LINE: usize = 16;
/// Number of chunks that are summed, whatever the length: the verifier forgets the bounds of a variable length, which
/// `bpf_csum_diff` would need.
const SUMMED: usize = LONGEST_SUM.div_ceil(CHUNK * size_of::<u64>());
const _: () = assert!(LONGEST_SUM <= size_of::<Scratch>());

impl FrameSum for XdpFrame<'_> {
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "offsets and lengths of a few hundred bytes"
    )]
    fn sum(&self, offset: usize, length: usize) -> Option<Sum> {
        let scratch = SUM_SCRATCH.get_ptr_mut(0)?;
        // SAFETY: a per-CPU element that only this run uses.
        let scratch = unsafe { &mut *scratch };
        if length == 0 || length > LONGEST_SUM {
            return None;
        }
        let (lines, _) = scratch.as_chunks_mut::<LINE>();
        for line in lines.iter_mut().take(SUMMED * CHUNK / LINE) {
            for word in line {
                // SAFETY: a word of the scratch. The write is volatile, because the BPF target has no `memset`.
                unsafe { ptr::write_volatile(word, 0) };
            }
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
        let mut sum = 0;
        let (chunks, _) = scratch.as_chunks_mut::<CHUNK>();
        for chunk in chunks.iter_mut().take(SUMMED) {
            let (place, length) = (chunk.as_mut_ptr().cast(), size_of_val(chunk) as u32);
            // SAFETY: the helper reads one chunk of the scratch, and subtracts nothing.
            sum = unsafe { bpf_csum_diff(ptr::null_mut(), 0, place, length, sum) } as u32;
        }
        Some(Sum::of_kernel(sum))
    }
}
