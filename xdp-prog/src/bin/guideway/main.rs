//! The XDP program.
#![no_std]
#![no_main]

use aya_ebpf::{bindings::xdp_action, btf_maps::Array, macros::{btf_map, xdp}, programs::XdpContext};

#[btf_map]
static PROBE: Array<u64, 1024, 1024> = Array::new();

#[xdp(frags)]
pub fn guideway(ctx: XdpContext) -> u32 {
    let start = ctx.data();
    let end = ctx.data_end();
    if start + 34 > end { return xdp_action::XDP_PASS; }
    let p = start as *const [u8; 34];
    let b = unsafe { &*p };
    let ip = u32::from_be_bytes([b[30], b[31], b[32], b[33]]);
    if let Some(v) = PROBE.get(ip >> 22) { if *v == 7 { return xdp_action::XDP_DROP; } }
    xdp_action::XDP_PASS
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
