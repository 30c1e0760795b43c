//! The bench's own programs: a generator, a sink, and yardsticks.
//!
//! Each of them knows the layout of its frames, so none parses: offsets are constants.
#![no_std]
#![no_main]
// For two instructions of `context`.
#![feature(asm_experimental_arch)]

#[path = "../guideway/context.rs"]
mod context;

use aya_ebpf::{
    bindings::{
        TC_ACT_SHOT, TC_ACT_UNSPEC,
        xdp_action::{XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX},
    },
    btf_maps::{Array, HashMap, PerCpuArray},
    helpers::{bpf_ktime_get_ns, bpf_redirect},
    macros::{btf_map, classifier, xdp},
    programs::{TcContext, XdpContext},
};
use context::XdpFrame;
use xdp_prog::{
    abi::{ServiceKeyV4, ServiceKeyV6, Traffic, size},
    bench::{
        Counted, Cursor, LISTED_LENGTH, Listed, Macs, NUMBER_LENGTH, NUMBERED_LENGTH, Numbered,
        OuterTemplate, PATTERN_LENGTH, Pace, Pattern, Schedule, TEMPLATE_LENGTH, Template, client,
        work,
    },
    csum::{self, Sum},
    frame::{Frame, FrameMut},
    wire::{
        ethernet::{self, Ethernet},
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol::{TCP, UDP},
        transport::Ports,
    },
};

#[btf_map]
static TEMPLATE: Array<Template, 1> = Array::new();
#[btf_map]
static PATTERN: Array<Pattern, 1> = Array::new();
#[btf_map]
static CURSOR: Array<Cursor, 1> = Array::new();
#[btf_map]
static LIST: Array<Listed, 1> = Array::new();
#[btf_map]
static SCHEDULE: Array<Schedule, 1> = Array::new();
#[btf_map]
static NUMBERED: Array<Numbered, 1> = Array::new();
#[btf_map]
static FLOWS: Array<u32, 1> = Array::new();
#[btf_map]
static PACE: PerCpuArray<Pace, 1> = PerCpuArray::new();
#[btf_map]
static COUNTED: PerCpuArray<Counted, 1> = PerCpuArray::new();
#[btf_map]
static MACS: Array<Macs, 1> = Array::new();
#[btf_map]
static OUTER: Array<OuterTemplate, 1> = Array::new();
#[btf_map]
static RECEIVED: Array<Traffic, 1> = Array::new();
#[btf_map]
static SERVICES_V4: HashMap<ServiceKeyV4, u32, { size::SERVICES }> = HashMap::new();
#[btf_map]
static SERVICES_V6: HashMap<ServiceKeyV6, u32, { size::SERVICES }> = HashMap::new();

#[xdp]
fn generate_v4(ctx: XdpContext) -> u32 {
    generate(&ctx, |frame, address, port| {
        let header: &mut Ipv4 = frame.view_mut(Ethernet::LENGTH)?;
        let [_, b, c, d] = address.to_be_bytes();
        header.source = [header.source[0], b, c, d];
        let check = u16::from_be_bytes(header.checksum);
        header.checksum = csum::update(check, Sum::ZERO.add_u32(address)).to_be_bytes();
        let ports: &mut Ports = frame.view_mut(Ethernet::LENGTH + Ipv4::LENGTH)?;
        ports.source = port.to_be_bytes();
        Some(())
    })
}

#[xdp]
fn generate_v6(ctx: XdpContext) -> u32 {
    generate(&ctx, |frame, address, port| {
        let source_end: &mut [u8; 4] = frame.view_mut(Ethernet::LENGTH + 20)?;
        *source_end = address.to_be_bytes();
        let ports: &mut Ports = frame.view_mut(Ethernet::LENGTH + Ipv6::LENGTH)?;
        ports.source = port.to_be_bytes();
        Some(())
    })
}

#[inline(always)]
fn generate(
    ctx: &XdpContext,
    set_client: impl Fn(&mut XdpFrame<'_>, u32, u16) -> Option<()>,
) -> u32 {
    let write = || {
        let flow = next_flow()?;
        let mut frame = XdpFrame::new(ctx);
        *frame.view_mut::<[u8; TEMPLATE_LENGTH]>(0)? = TEMPLATE.get(0)?.bytes;
        let (address, port) = client(flow);
        set_client(&mut frame, address, port)
    };
    // For live frames, XDP_TX is a redirect to the device that the context names.
    write().map_or(XDP_ABORTED, |()| XDP_TX)
}

/// Mask that keeps offsets within the verifier's limit.
const OFFSETS: u32 = 0x7f;

#[xdp]
fn generate_pattern(ctx: XdpContext) -> u32 {
    let write = || {
        let flow = next_flow()?;
        let pattern = PATTERN.get(0)?;
        let (address, port) = client(flow);
        let mut frame = XdpFrame::new(&ctx);
        *frame.view_mut::<[u8; PATTERN_LENGTH]>(0)? = pattern.bytes;
        let address = pattern.address.wrapping_add(address);
        let service = pattern
            .service
            .wrapping_add(flow.checked_rem(pattern.services)?);
        *frame.view_mut((pattern.service_at & OFFSETS) as usize)? = service.to_be_bytes();
        *frame.view_mut((pattern.address_at & OFFSETS) as usize)? = address.to_be_bytes();
        *frame.view_mut((pattern.port_at & OFFSETS) as usize)? = port.to_be_bytes();
        Some(())
    };
    write().map_or(XDP_ABORTED, |()| XDP_TX)
}

#[xdp]
fn generate_list(ctx: XdpContext) -> u32 {
    let send = || {
        let schedule = SCHEDULE.get_ptr_mut(0)?;
        // SAFETY: one generator runs, on one CPU at a time.
        let schedule = unsafe { &mut *schedule };
        // SAFETY: the helper has no preconditions.
        let now = unsafe { bpf_ktime_get_ns() };
        if now < schedule.due {
            return None;
        }
        let made_up_for = now.saturating_sub(schedule.patience);
        schedule.due = schedule.due.max(made_up_for) + schedule.interval;
        let frame = LIST.get(schedule.next)?;
        let next = schedule.next + 1;
        schedule.next = if next < schedule.frames { next } else { 0 };
        schedule.worked = work(schedule.work, next);
        *XdpFrame::new(&ctx).view_mut::<[u8; LISTED_LENGTH]>(0)? = frame.bytes;
        // SAFETY: the helper has no preconditions; frames for an unknown device are dropped.
        Some(unsafe { bpf_redirect(frame.device, 0) })
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an action"
    )]
    send().map_or(XDP_DROP, |action| action as u32)
}

#[xdp]
fn generate_numbered(ctx: XdpContext) -> u32 {
    let send = || {
        let pace = PACE.get_ptr_mut(0)?;
        // SAFETY: the entry is this CPU's own, and the kernel runs a batch of frames with softirqs off.
        let pace = unsafe { &mut *pace };
        // SAFETY: the helper has no preconditions.
        if !pace.is_due(|| unsafe { bpf_ktime_get_ns() }) {
            return None;
        }
        let number = pace.number();
        pace.worked = work(pace.work, pace.sent);
        let (flow, place) = pace.advance(*FLOWS.get(pace.next_flow)?)?;
        let numbered = NUMBERED.get(place)?;
        let mut frame = XdpFrame::new(&ctx);
        *frame.view_mut::<[u8; NUMBERED_LENGTH]>(0)? = numbered.bytes;
        let (address, port) = client(flow);
        // What the address adds to its zeros it adds to the checksums.
        let at_address: &mut [u8; 4] = frame.view_mut((numbered.address_at & OFFSETS) as usize)?;
        let base = u32::from_be_bytes(*at_address);
        *at_address = (base | address).to_be_bytes();
        let added = Sum::ZERO.add_u32(address);
        *frame.view_mut((numbered.port_at & OFFSETS) as usize)? = port.to_be_bytes();
        *frame.view_mut((numbered.number_at & OFFSETS) as usize)? = number.to_be_bytes();
        let check: &mut [u8; 2] = frame.view_mut((numbered.check_at & OFFSETS) as usize)?;
        let all = added.add_u16(port).add_u32(number);
        *check = add_to_checksum(*check, all);
        if numbered.ip_check_at != 0 {
            let check: &mut [u8; 2] = frame.view_mut((numbered.ip_check_at & OFFSETS) as usize)?;
            *check = add_to_checksum(*check, added);
        }
        frame.truncate(numbered.length as usize).then_some(())
    };
    // Where no frame is due, nothing is sent; a reader of the count sees that.
    send().map_or(XDP_DROP, |()| XDP_TX)
}

/// All ones stand for zero: that is right in every protocol, and in UDP zero means that there is none.
#[inline(always)]
fn add_to_checksum(check: [u8; 2], added: Sum) -> [u8; 2] {
    csum::udp_checksum(csum::update(u16::from_be_bytes(check), added)).to_be_bytes()
}

#[xdp]
fn sink_numbered(ctx: XdpContext) -> u32 {
    let frame = XdpFrame::new(&ctx);
    let length = (ctx.data_end() - ctx.data()) as u64;
    match count_numbered(|at| frame.view(at).copied(), length) {
        Some(true) => XDP_DROP,
        _ => XDP_PASS,
    }
}

#[classifier]
fn sink_numbered_skb(ctx: TcContext) -> i32 {
    match count_numbered(|at| ctx.load(at).ok(), ctx.len().into()) {
        Some(true) => TC_ACT_SHOT,
        _ => TC_ACT_UNSPEC,
    }
}

/// Counts a frame if its bytes, of which `read` returns those at an offset, have the tag; tells whether they do.
#[inline(always)]
fn count_numbered(
    read: impl FnOnce(usize) -> Option<[u8; NUMBER_LENGTH]>,
    length: u64,
) -> Option<bool> {
    let counted = COUNTED.get_ptr_mut(0)?;
    // SAFETY: the entry is this CPU's own, and a driver or the stack hands frames over with softirqs off.
    let counted = unsafe { &mut *counted };
    let bytes = read((counted.tag_at & OFFSETS) as usize)?;
    Some(counted.count(bytes, length))
}

#[inline(always)]
fn next_flow() -> Option<u32> {
    let cursor = CURSOR.get_ptr_mut(0)?;
    // SAFETY: one generator runs, on one CPU.
    let cursor = unsafe { &mut *cursor };
    Some(cursor.advance())
}

#[xdp]
fn sink(ctx: XdpContext) -> u32 {
    count((ctx.data_end() - ctx.data()) as u64);
    XDP_DROP
}

#[classifier]
fn sink_skb(ctx: TcContext) -> i32 {
    count(ctx.len().into());
    TC_ACT_SHOT
}

#[inline(always)]
fn count(bytes: u64) {
    if let Some(received) = RECEIVED.get_ptr_mut(0) {
        // SAFETY: all frames come in on one CPU.
        let received = unsafe { &mut *received };
        received.packets += 1;
        received.bytes += bytes;
    }
}

#[xdp]
fn floor(_: XdpContext) -> u32 {
    XDP_TX
}

#[xdp]
fn null(ctx: XdpContext) -> u32 {
    let send = || {
        let mut frame = XdpFrame::new(&ctx);
        let header: &Ethernet = frame.view(0)?;
        let protocol = match u16::from_be_bytes(header.ether_type) {
            ethernet::IPV4 => frame.view::<Ipv4>(Ethernet::LENGTH)?.protocol,
            ethernet::IPV6 => frame.view::<Ipv6>(Ethernet::LENGTH)?.next_header,
            // Only frames of a load have a tag.
            ethernet::VLAN => UDP,
            _ => return None,
        };
        if !matches!(protocol, TCP | UDP) {
            return None;
        }
        let header: &mut Ethernet = frame.view_mut(0)?;
        header.macs = MACS.get(0)?.bytes;
        Some(())
    };
    // Whoever looks for this machine's address is answered by the stack.
    send().map_or(XDP_PASS, |()| XDP_TX)
}

#[xdp]
fn static_v4(ctx: XdpContext) -> u32 {
    encapsulate::<{ Ethernet::LENGTH + Ipv4::LENGTH }>(&ctx).map_or(XDP_ABORTED, |()| XDP_TX)
}

#[xdp]
fn static_v6(ctx: XdpContext) -> u32 {
    encapsulate::<{ Ethernet::LENGTH + Ipv6::LENGTH }>(&ctx).map_or(XDP_ABORTED, |()| XDP_TX)
}

#[inline(always)]
fn encapsulate<const LENGTH: usize>(ctx: &XdpContext) -> Option<()> {
    #[expect(clippy::cast_possible_truncation, reason = "20 or 40 bytes")]
    let outer = (LENGTH - Ethernet::LENGTH) as i32;
    let mut frame = XdpFrame::new(ctx);
    if !frame.move_start(-outer) {
        return None;
    }
    *frame.view_mut::<[u8; LENGTH]>(0)? = *OUTER.get(0)?.bytes.first_chunk()?;
    Some(())
}

#[xdp]
fn hit_v4(ctx: XdpContext) -> u32 {
    hit(&ctx, |frame| {
        let header: &Ipv4 = frame.view(Ethernet::LENGTH)?;
        let ports: &Ports = frame.view(Ethernet::LENGTH + Ipv4::LENGTH)?;
        let key = ServiceKeyV4::new(header.destination(), ports.destination, header.protocol);
        // SAFETY: the value is one aligned integer and never changes.
        unsafe { SERVICES_V4.get(key) }.copied()
    })
}

#[xdp]
fn hit_v6(ctx: XdpContext) -> u32 {
    hit(&ctx, |frame| {
        let header: &Ipv6 = frame.view(Ethernet::LENGTH)?;
        let ports: &Ports = frame.view(Ethernet::LENGTH + Ipv6::LENGTH)?;
        let key = ServiceKeyV6::new(header.destination, ports.destination, header.next_header);
        // SAFETY: as in `hit_v4`.
        unsafe { SERVICES_V6.get(key) }.copied()
    })
}

/// Sends the frame back on a hit. A miss drops it, so that the sink's count shows it.
#[inline(always)]
fn hit(ctx: &XdpContext, look_up: impl Fn(&XdpFrame<'_>) -> Option<u32>) -> u32 {
    match look_up(&XdpFrame::new(ctx)) {
        Some(id) if id != 0 => XDP_TX,
        _ => XDP_DROP,
    }
}

#[xdp]
fn pass(_: XdpContext) -> u32 {
    XDP_PASS
}

#[classifier]
fn pass_skb(_: TcContext) -> i32 {
    TC_ACT_UNSPEC
}

/// Loops forever, so that the verifier refuses a program that could panic.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

// As for the `guideway` program, although the helpers in use are open to all.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
