//! Flows to pods of this machine, and those of its own kernel.

use aya_ebpf::{
    bindings::{BPF_ANY, BPF_NOEXIST},
    btf_maps::{Array, LruHashMap, PerCpuArray},
    macros::btf_map,
};
use xdp_prog::{
    abi::{FlowNote, LOCAL_PORT_NS, LocalFlow, PodFlow, Tuple, size},
    wire::protocol,
    world::{FlowTable, Inserted},
};
use zerocopy::transmute;

use super::{Cpu, exchange, inserted, read_backwards, read_once, write_once};

#[btf_map]
static FLOWS: LruHashMap<Tuple, PodFlow, { size::FLOWS }> = LruHashMap::new();
#[btf_map]
static FLOWS_DATAGRAM: LruHashMap<Tuple, PodFlow, { size::FLOWS }> = LruHashMap::new();
/// Mmapable because the elements of such an array begin on cache lines.
#[btf_map]
static FLOW_NOTES: Array<FlowNote, { size::FLOW_NOTES }, { super::MMAPABLE }> = Array::new();
#[btf_map]
static FLOWS_EMBRYONIC: LruHashMap<Tuple, PodFlow, { size::FLOWS }> = LruHashMap::new();
/// Scratch: an entry that is about to be inserted, for which the stack has no room.
#[btf_map]
static FLOW_SCRATCH: PerCpuArray<PodFlow, 1> = PerCpuArray::new();
#[btf_map]
static LOCAL_FLOWS: LruHashMap<Tuple, LocalFlow, { size::FLOWS }> = LruHashMap::new();

/// Written once in days for each port that has flows, and so the cache lines stay clean.
#[btf_map]
static LOCAL_PORTS: Array<u64, { size::PORTS }> = Array::new();

#[inline(always)]
fn map(table: FlowTable, key: &Tuple) -> &'static LruHashMap<Tuple, PodFlow, { size::FLOWS }> {
    match table {
        FlowTable::Established if key.protocol() == protocol::TCP => &FLOWS,
        FlowTable::Established => &FLOWS_DATAGRAM,
        FlowTable::Embryonic => &FLOWS_EMBRYONIC,
    }
}

#[inline(always)]
pub(crate) fn with<R>(
    table: FlowTable,
    key: &Tuple,
    f: impl FnOnce(&mut PodFlow) -> R,
) -> Option<R> {
    let place = map(table, key).get_ptr_mut(key)?;
    // SAFETY: the element is valid for the run.
    let words: [u64; 5] = unsafe { read_backwards(place.cast()) };
    let known: PodFlow = transmute!(words);
    // The table may have given the element to another flow since the look-up.
    if !known.is_for(key) {
        return None;
    }
    let mut flow = known;
    let found = f(&mut flow);
    // The element may have got another flow since its check was read, too. What that one has told must not become what
    // this one has, by which replies are translated; its time may, and it stays a while longer.
    // SAFETY: as above.
    let entry = unsafe { &mut *place };
    if flow.seen != known.seen {
        write_once(&mut entry.seen, flow.seen);
    }
    if flow.packed != known.packed {
        // SAFETY: an aligned word of an element that is valid for the run. Where another CPU has a packet of the same
        // flow and is first, what this packet tells is lost.
        unsafe { exchange(&raw mut entry.packed, known.packed, flow.packed) };
    }
    Some(found)
}

#[inline(always)]
pub(crate) fn insert(table: FlowTable, key: &Tuple, flow: &PodFlow) -> Inserted {
    let Some(entry) = FLOW_SCRATCH.get_ptr_mut(0) else {
        return Inserted::Full;
    };
    // SAFETY: a per-CPU element that only this run uses.
    let entry = unsafe { &mut *entry };
    *entry = *flow;
    let entry: &PodFlow = entry;
    inserted(map(table, key).insert(key, entry, u64::from(BPF_NOEXIST)))
}

#[inline(always)]
pub(crate) fn remove(table: FlowTable, key: &Tuple) {
    // It may be gone already, which is as good.
    let _ = map(table, key).remove(key);
}

#[inline(always)]
pub(crate) fn noted(cpu: Cpu, key: &Tuple) -> Option<PodFlow> {
    let now = cpu.now();
    for place in FlowNote::places(key) {
        // Read once: another CPU may write into it, which its check finds out.
        let note = read_once(FLOW_NOTES.get(place)?);
        if let Some(flow) = note.flow(key, now) {
            return Some(flow);
        }
    }
    None
}

#[inline(always)]
pub(crate) fn note(cpu: Cpu, key: &Tuple, flow: &PodFlow) {
    // An older one may stand in the second place.
    forget_note(key);
    let now = cpu.now();
    for place in FlowNote::places(key) {
        if replace_note(place, FlowNote::new(key, flow), |known| known.is_over(now)) {
            return;
        }
    }
}

#[inline(always)]
pub(crate) fn forget_note(key: &Tuple) {
    for place in FlowNote::places(key) {
        replace_note(place, FlowNote::default(), |known| known.is_of(key));
    }
}

#[inline(always)]
fn replace_note(place: u32, note: FlowNote, gives_way: impl Fn(&FlowNote) -> bool) -> bool {
    let Some(place) = FLOW_NOTES.get_ptr_mut(place) else {
        return false;
    };
    // SAFETY: the element is valid for the run, and any bytes are a note: one that another CPU has
    // half written is found out by its check.
    let gives_way = gives_way(unsafe { &*place });
    if gives_way {
        // SAFETY: as above.
        unsafe { *place = note };
    }
    gives_way
}

#[inline(always)]
pub(crate) fn is_local(cpu: Cpu, key: &Tuple) -> bool {
    let port = u16::from_be_bytes(key.destination_port());
    let until = LOCAL_PORTS.get(port.into()).map_or(0, read_once);
    if until == 0 || until <= cpu.now() {
        return false;
    }
    // SAFETY: one aligned integer; an element recycled under the reader yields
    // another flow's time, which errs for one packet.
    match unsafe { LOCAL_FLOWS.get(*key) } {
        Some(flow) => flow.is_alive(cpu.now()),
        None => false,
    }
}

#[inline(always)]
pub(crate) fn renew_local(cpu: Cpu, key: &Tuple, renew: impl Fn(LocalFlow) -> LocalFlow) {
    let unknown = LocalFlow::default();
    let port = u16::from_be_bytes(key.destination_port());
    let Some(flow) = LOCAL_FLOWS.get_ptr_mut(key) else {
        let flow = renew(unknown);
        if flow != unknown {
            renew_port(cpu, port);
            // Without memory for it, the flow's next packet tries again.
            let _ = LOCAL_FLOWS.insert(key, flow, u64::from(BPF_ANY));
        }
        return;
    };
    // SAFETY: the element is valid for the run; one aligned integer.
    let known = unsafe { *flow };
    let renewed = renew(known);
    if renewed != known {
        renew_port(cpu, port);
        // SAFETY: as above. Another CPU may write it too: a tick is lost at worst.
        unsafe { *flow = renewed };
    }
}

/// Has packets for a port ask `LOCAL_FLOWS`, for at least as long as a flow lives that is renewed now.
#[inline(always)]
fn renew_port(cpu: Cpu, port: u16) {
    let Some(place) = LOCAL_PORTS.get_ptr_mut(port.into()) else {
        return;
    };
    // SAFETY: the element is valid for the run; one aligned integer.
    let until = unsafe { &mut *place };
    let now = cpu.now();
    if read_once(until) < now + LOCAL_PORT_NS / 2 {
        // Another CPU may write it at this moment too, and means as long a time.
        write_once(until, now + LOCAL_PORT_NS);
    }
}
