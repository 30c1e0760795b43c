//! The only access to packet memory of XDP programs; each access makes one comparison against the end pointer.

use core::{cell::Cell, mem::offset_of};

use aya_ebpf::{
    bindings::xdp_md,
    helpers::{bpf_xdp_adjust_head, bpf_xdp_adjust_tail, bpf_xdp_get_buff_len},
    programs::XdpContext,
};
use xdp_prog::{
    frame::{Frame, FrameMut, Wire},
    wire::ethernet::Ethernet,
};

/// The frame of an XDP context.
///
/// `data` and `data_end` are read once and kept. To the verifier, a second read is a new pointer, without the bounds
/// proved for the first one, which [`Frame::forget_views`] makes use of.
pub(crate) struct XdpFrame<'a> {
    pub(crate) ctx: &'a XdpContext,
    start: Cell<usize>,
    end: Cell<usize>,
    is_followed: bool,
}

impl<'a> XdpFrame<'a> {
    #[inline(always)]
    pub(crate) fn new(ctx: &'a XdpContext) -> Self {
        Self::of(ctx, false)
    }

    /// With `is_followed`, a constant at compile time, the verifier follows each offset, and packets pay nothing for
    /// [`Frame::opaque`].
    #[inline(always)]
    pub(crate) fn of(ctx: &'a XdpContext, is_followed: bool) -> Self {
        Self {
            ctx,
            start: Cell::new(ctx.data()),
            end: Cell::new(ctx.data_end()),
            is_followed,
        }
    }

    #[inline(always)]
    fn checked<T>(&self, offset: usize) -> Option<usize> {
        let header = self.start.get() + offset;
        (header + size_of::<T>() <= self.end.get()).then_some(header)
    }
}

impl Frame for XdpFrame<'_> {
    #[inline(always)]
    fn view<T: Wire>(&self, offset: usize) -> Option<&T> {
        let header = self.checked::<T>(offset)?;
        // SAFETY: `header..header + size_of::<T>()` lies within the packet, `T` has alignment 1 and accepts any
        // bytes, and nothing else writes them while the frame is borrowed.
        Some(unsafe { &*(header as *const T) })
    }

    #[inline(always)]
    fn holds(&self, length: usize) -> bool {
        // Not `start + length`: up to Linux 6.12 the verifier knows no bounds of a length that was swapped to host
        // order, and refuses to add such a number to a packet pointer.
        if length <= self.end.get() - self.start.get() {
            return true;
        }
        // SAFETY: the context pointer is the one the kernel passed in.
        length as u64 <= unsafe { bpf_xdp_get_buff_len(self.ctx.ctx) }
    }

    #[inline(always)]
    fn opaque<const LIMIT: usize>(&self, offset: usize) -> usize {
        if self.is_followed || offset == Ethernet::LENGTH {
            return offset;
        }
        opaque::<LIMIT>(offset, self.end.get() - self.start.get())
    }

    #[inline(always)]
    fn opaque_aside<const LIMIT: usize>(&self, offset: usize) -> usize {
        let unknown: usize;
        // The compiler must not take the difference from elsewhere: other packets would pay for a register that holds it.
        // SAFETY: two instructions that access nothing but registers.
        unsafe {
            core::arch::asm!(
                "{unknown} = {end}",
                "{unknown} -= {start}",
                unknown = out(reg) unknown,
                start = in(reg) self.start.get(),
                end = in(reg) self.end.get(),
                options(nomem, nostack),
            );
        }
        opaque::<LIMIT>(offset, unknown)
    }

    #[inline(always)]
    fn forget_views(&self) {
        let (start, end): (usize, usize);
        // The compiler, too, must forget: it concludes from a longer view that a shorter one is within the frame, which
        // the verifier does not.
        // SAFETY: reads two words of the context that the kernel passed in.
        unsafe {
            core::arch::asm!(
                "{start} = *(u32 *)({ctx} + {data})",
                "{end} = *(u32 *)({ctx} + {data_end})",
                ctx = in(reg) self.ctx.ctx,
                start = out(reg) start,
                end = out(reg) end,
                data = const offset_of!(xdp_md, data),
                data_end = const offset_of!(xdp_md, data_end),
                options(readonly, nostack),
            );
        }
        self.start.set(start);
        self.end.set(end);
    }
}

/// Returns an offset below `LIMIT`, of which the verifier knows nothing else; `unknown` is any number that it does not know.
#[inline(always)]
pub(crate) fn opaque<const LIMIT: usize>(offset: usize, unknown: usize) -> usize {
    const { assert!(LIMIT.is_power_of_two()) };
    add_and_subtract(offset, unknown) & (LIMIT - 1)
}

/// Returns the number, of which the verifier knows nothing from here on.
#[inline(always)]
pub(crate) fn add_and_subtract(mut number: usize, unknown: usize) -> usize {
    // SAFETY: two instructions that access nothing but the register.
    unsafe {
        core::arch::asm!(
            "{number} += {unknown}",
            "{number} -= {unknown}",
            number = inout(reg) number,
            unknown = in(reg) unknown,
            options(nomem, nostack),
        );
    }
    number
}

impl FrameMut for XdpFrame<'_> {
    #[inline(always)]
    fn view_mut<T: Wire>(&mut self, offset: usize) -> Option<&mut T> {
        let header = self.checked::<T>(offset)?;
        // SAFETY: as in `view`; the exclusive borrow of the frame makes this the only reference.
        Some(unsafe { &mut *(header as *mut T) })
    }

    #[inline(always)]
    fn move_start(&mut self, delta: i32) -> bool {
        // SAFETY: the context pointer is the one the kernel passed in.
        if unsafe { bpf_xdp_adjust_head(self.ctx.ctx, delta) } != 0 {
            return false;
        }
        self.start.set(self.ctx.data());
        self.end.set(self.ctx.data_end());
        true
    }

    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "frames are far shorter than 2 GiB"
    )]
    fn truncate(&mut self, length: usize) -> bool {
        // SAFETY: the context pointer is the one the kernel passed in.
        let delta = length as i32 - unsafe { bpf_xdp_get_buff_len(self.ctx.ctx) } as i32;
        if delta > 0 {
            return false;
        }
        // SAFETY: as above.
        if unsafe { bpf_xdp_adjust_tail(self.ctx.ctx, delta) } != 0 {
            return false;
        }
        self.start.set(self.ctx.data());
        self.end.set(self.ctx.data_end());
        true
    }
}
