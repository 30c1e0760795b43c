//! Access to a packet of a TC program. The linear part is read with one comparison against the end pointer, the rest
//! through helpers.

use aya_ebpf::{
    bindings::{
        BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_MARK_MANGLED_0,
        BPF_F_PSEUDO_HDR, bpf_adj_room_mode::BPF_ADJ_ROOM_MAC,
    },
    helpers::{bpf_l4_csum_replace, bpf_skb_adjust_room, bpf_skb_pull_data, bpf_skb_store_bytes},
    programs::TcContext,
};
use xdp_prog::{
    csum::Sum,
    egress::{ChecksumField, Covered, Skb},
    family::Family,
    frame::{Frame, Wire},
    reason::DropReason,
    wire::ethernet::Ethernet,
};

use crate::context::opaque;

/// Bit of a packet's `tc_index`: the packet has been translated.
///
/// The field belongs to traffic control and stays with the packet through VLANs, bonds and bridges. The mark would
/// not do: routes of tunnels are chosen by it, and pod networks keep identities in it.
const TRANSLATED: u32 = 0x8000;

/// The packet of a TC context.
///
/// After every helper that may move the packet, its place is read again: the verifier invalidates the old pointers.
pub(crate) struct SkbFrame<'a> {
    ctx: &'a TcContext,
    start: usize,
    end: usize,
}

impl<'a> SkbFrame<'a> {
    #[inline(always)]
    pub(crate) fn new(ctx: &'a TcContext) -> Self {
        Self {
            ctx,
            start: ctx.data(),
            end: ctx.data_end(),
        }
    }

    #[inline(always)]
    fn moved(&mut self, outcome: i64) -> Result<(), DropReason> {
        self.start = self.ctx.data();
        self.end = self.ctx.data_end();
        if outcome == 0 {
            Ok(())
        } else {
            Err(DropReason::NotWritable)
        }
    }
}

impl Frame for SkbFrame<'_> {
    #[inline(always)]
    fn view<T: Wire>(&self, offset: usize) -> Option<&T> {
        let header = self.start + offset;
        if header + size_of::<T>() > self.end {
            return None;
        }
        // SAFETY: `header..header + size_of::<T>()` lies within the packet's linear part, `T` has alignment 1 and
        // accepts any bytes, and all code that writes them borrows the frame exclusively.
        Some(unsafe { &*(header as *const T) })
    }

    #[inline(always)]
    fn holds(&self, length: usize) -> bool {
        length <= self.length()
    }

    #[inline(always)]
    fn opaque<const LIMIT: usize>(&self, offset: usize) -> usize {
        // Known when this is compiled: packets without tags, as most are, pay nothing.
        if offset == Ethernet::LENGTH {
            return offset;
        }
        opaque::<LIMIT>(offset, self.end - self.start)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "offsets and lengths of a packet"
)]
impl Skb for SkbFrame<'_> {
    #[inline(always)]
    fn length(&self) -> usize {
        self.ctx.len() as usize
    }

    #[inline(always)]
    fn pull(&mut self, length: usize) {
        if length > self.end - self.start && length <= self.length() {
            // SAFETY: the context is the one that the kernel passed in. Bytes that cannot be pulled stay out of view.
            let outcome = unsafe { bpf_skb_pull_data(self.ctx.skb.skb, length as u32) };
            let _ = self.moved(outcome);
        }
    }

    #[inline(always)]
    fn view_mut<T: Wire>(&mut self, offset: usize) -> Option<&mut T> {
        let header = self.start + offset;
        if header + size_of::<T>() > self.end {
            return None;
        }
        // SAFETY: as in `view`; the exclusive borrow makes this the only reference. The verifier ensures that the
        // kernel has made the linear part this packet's own.
        Some(unsafe { &mut *(header as *mut T) })
    }

    #[inline(always)]
    fn store(&mut self, offset: usize, bytes: [u64; 2], length: usize) -> Result<(), DropReason> {
        // SAFETY: the context is the one that the kernel passed in. All callers store at most sixteen bytes, which
        // the verifier checks too.
        let outcome = unsafe {
            bpf_skb_store_bytes(
                self.ctx.skb.skb.cast(),
                offset as u32,
                bytes.as_ptr().cast(),
                length as u32,
                0,
            )
        };
        self.moved(outcome)
    }

    #[inline(always)]
    fn is_merged(&self) -> bool {
        // SAFETY: as in `mark`.
        unsafe { (*self.ctx.skb.skb).gso_size != 0 }
    }

    #[inline(always)]
    fn mark(&self) -> u32 {
        // SAFETY: the context is the one that the kernel passed in.
        unsafe { (*self.ctx.skb.skb).mark }
    }

    #[inline(always)]
    fn unmark(&mut self) {
        // SAFETY: as in `mark`; programs may write the field.
        unsafe { (*self.ctx.skb.skb).mark = 0 }
    }

    #[inline(always)]
    fn is_translated(&self) -> bool {
        // SAFETY: as in `mark`.
        unsafe { (*self.ctx.skb.skb).tc_index & TRANSLATED != 0 }
    }

    #[inline(always)]
    fn mark_translated(&mut self) {
        // SAFETY: as in `unmark`.
        unsafe { (*self.ctx.skb.skb).tc_index |= TRANSLATED }
    }

    #[inline(always)]
    fn grow(&mut self, outer: Family, length: usize) -> Result<(), DropReason> {
        let outer = match outer {
            Family::V4 => BPF_F_ADJ_ROOM_ENCAP_L3_IPV4,
            Family::V6 => BPF_F_ADJ_ROOM_ENCAP_L3_IPV6,
        };
        // SAFETY: the context is the one that the kernel passed in.
        let outcome = unsafe {
            bpf_skb_adjust_room(
                self.ctx.skb.skb.cast(),
                length as i32,
                BPF_ADJ_ROOM_MAC,
                u64::from(outer),
            )
        };
        self.moved(outcome)
    }

    #[inline(always)]
    fn replace_checksum(
        &mut self,
        field: ChecksumField,
        difference: Sum,
        covered: Covered,
    ) -> Result<(), DropReason> {
        let pseudo = match covered {
            Covered::PseudoHeader => BPF_F_PSEUDO_HDR,
            Covered::Segment => 0,
        };
        let zero = if field.zero_is_none {
            BPF_F_MARK_MANGLED_0
        } else {
            0
        };
        // SAFETY: the context is the one that the kernel passed in. A size of zero in the flags makes `to` the
        // difference.
        let outcome = unsafe {
            bpf_l4_csum_replace(
                self.ctx.skb.skb.cast(),
                field.offset as u32,
                0,
                u64::from(difference.for_kernel()),
                u64::from(pseudo | zero),
            )
        };
        self.moved(outcome)
    }
}
