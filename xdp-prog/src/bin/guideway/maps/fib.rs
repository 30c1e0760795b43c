//! The kernel's forwarding table (FIB).

use aya_ebpf::{
    bindings::{BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup as FibParams},
    btf_maps::{HashMap, PerCpuArray},
    helpers::bpf_fib_lookup,
    macros::btf_map,
    programs::XdpContext,
};
use xdp_prog::abi::{AddressKey, BACKEND_V4, Backend, HOP_GATEWAY, NextHop, TaggedLink, size};

use super::{NO_PREALLOC, read_once};

#[btf_map]
static VLANS: HashMap<u32, TaggedLink, { size::VLANS }, NO_PREALLOC> = HashMap::new();
/// Scratch: the arguments of a FIB look-up. Fields that are never set stay zero from the map's creation.
#[btf_map]
static FIB_PARAMETERS: PerCpuArray<FibParams, 1> = PerCpuArray::new();
/// Scratch: the result of a FIB look-up.
#[btf_map]
static FIB_SCRATCH: PerCpuArray<NextHop, 1> = PerCpuArray::new();

/// See [`Tables::fib_next_hop`](xdp_prog::world::Tables::fib_next_hop).
#[inline(always)]
pub(super) fn next_hop(
    ctx: &XdpContext,
    first_ingress: Option<u32>,
    backend: &Backend,
) -> Option<&'static NextHop> {
    let family = if backend.flags & BACKEND_V4 != 0 {
        AF_INET
    } else {
        AF_INET6
    };
    fib_lookup(ctx, first_ingress, family, as_words(&backend.address))
}

/// See [`Tables::fib_route`](xdp_prog::world::Tables::fib_route).
#[inline(always)]
pub(super) fn route(
    ctx: &XdpContext,
    first_ingress: Option<u32>,
    address: &AddressKey,
) -> Option<&'static NextHop> {
    let (family, target) = fib_target(address);
    fib_lookup(ctx, first_ingress, family, target)
}

/// See [`Tables::fib_device`](xdp_prog::world::Tables::fib_device).
#[inline(always)]
pub(super) fn device(
    ctx: &XdpContext,
    first_ingress: Option<u32>,
    address: &AddressKey,
) -> Option<u32> {
    let (family, target) = fib_target(address);
    let (found, params) = ask_fib(ctx, first_ingress, family, target)?;
    let is_found = found == i64::from(BPF_FIB_LKUP_RET_SUCCESS)
        || found == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH);
    is_found.then_some(params.ifindex)
}

/// See [`NatFlows::device_word`](xdp_prog::world::NatFlows::device_word).
#[inline(always)]
pub(super) fn device_word(ifindex: u32) -> u32 {
    // SAFETY: as in `fib_lookup`.
    let link = unsafe { VLANS.get(ifindex) }.map_or(TaggedLink::new(ifindex, 0), read_once);
    link.device_word(ifindex)
}

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

#[inline(always)]
fn fib_target(address: &AddressKey) -> (u8, [u32; 4]) {
    let words = as_words(&address.octets());
    if address.is_mapped() {
        let [.., v4] = words;
        (AF_INET, [v4, 0, 0, 0])
    } else {
        (AF_INET6, words)
    }
}

/// Asks the kernel's FIB as if a packet to this address had come in here; returns the helper's result and its answer.
///
/// It succeeds only if forwarding is on at the ingress device. The answer names the device even if the neighbour is
/// not known (Linux 5.10).
#[inline(always)]
fn ask_fib(
    ctx: &XdpContext,
    first_ingress: Option<u32>,
    family: u8,
    target: [u32; 4],
) -> Option<(i64, &'static mut FibParams)> {
    let params = FIB_PARAMETERS.get_ptr_mut(0)?;
    // SAFETY: a per-CPU element that only this run uses.
    let params = unsafe { &mut *params };
    params.family = family;
    // With any length, the kernel reports the route's MTU. One byte always fits.
    params.__bindgen_anon_1.tot_len = 1;
    params.ifindex = match first_ingress {
        Some(first) => first,
        None => super::device(ctx),
    };
    params.__bindgen_anon_2.flowinfo = 0;
    params.__bindgen_anon_4.ipv6_dst = target;
    #[expect(clippy::cast_possible_truncation, reason = "64 bytes")]
    let length = size_of::<FibParams>() as i32;
    // SAFETY: the parameters are a map element, and the length is theirs.
    let found = unsafe {
        bpf_fib_lookup(
            ctx.ctx.cast(),
            core::ptr::from_mut(params).cast(),
            length,
            0,
        )
    };
    Some((found, params))
}

#[inline(always)]
fn fib_lookup(
    ctx: &XdpContext,
    first_ingress: Option<u32>,
    family: u8,
    target: [u32; 4],
) -> Option<&'static NextHop> {
    let (found, params) = ask_fib(ctx, first_ingress, family, target)?;
    if found != i64::from(BPF_FIB_LKUP_RET_SUCCESS) {
        return None;
    }
    // SAFETY: the kernel wrote this member of the union; any bytes are valid.
    let reached = unsafe { params.__bindgen_anon_4.ipv6_dst };
    // SAFETY: as above.
    let mtu = unsafe { params.__bindgen_anon_1.mtu_result };
    let [a, b, c, d, e, f] = params.dmac;
    let [g, h, i, j, k, l] = params.smac;
    let hop = FIB_SCRATCH.get_ptr_mut(0)?;
    // SAFETY: a per-CPU element that only this run uses.
    let hop = unsafe { &mut *hop };
    // SAFETY: the value is one aligned word. An element recycled under the reader yields another VLAN's word at
    // worst.
    let link =
        unsafe { VLANS.get(params.ifindex) }.map_or(TaggedLink::new(params.ifindex, 0), read_once);
    let (ifindex, vlan) = link.parts();
    hop.ifindex = ifindex;
    hop.vlan = vlan.to_be_bytes();
    hop.mtu = u32::from(mtu);
    hop.macs = [a, b, c, d, e, f, g, h, i, j, k, l];
    hop.flags = if same(reached, target) {
        0
    } else {
        HOP_GATEWAY
    };
    Some(hop)
}

/// Compares addresses as words: the BPF target has no `memcmp`.
#[inline(always)]
fn same([a, b, c, d]: [u32; 4], [e, f, g, h]: [u32; 4]) -> bool {
    (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h) == 0
}

#[inline(always)]
fn as_words(address: &[u8; 16]) -> [u32; 4] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *address;
    [
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
        u32::from_ne_bytes([i, j, k, l]),
        u32::from_ne_bytes([m, n, o, p]),
    ]
}
