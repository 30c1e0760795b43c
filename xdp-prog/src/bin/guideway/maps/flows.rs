//! Flows to pods of this machine, and flows of its own kernel.

use aya_ebpf::{
    bindings::{BPF_ANY, BPF_NOEXIST},
    btf_maps::{Array, LruHashMap, PerCpuArray},
    macros::btf_map,
};
use xdp_prog::{
    abi::{
        DeliveryKey, DeliveryNote, DeliveryNotes, FlowNote, LOCAL_PORT_NS, LocalFlow, PodFlow,
        Tuple, size,
    },
    wire::protocol,
    world::{FlowTable, Flows, Inserted},
};
use zerocopy::transmute;

use super::{Cpu, Maps, exchange, inserted, read_backwards, read_once, write_once};

#[btf_map]
static FLOWS: LruHashMap<Tuple, PodFlow, { size::FLOWS }> = LruHashMap::new();
#[btf_map]
static FLOWS_DATAGRAM: LruHashMap<Tuple, PodFlow, { size::FLOWS }> = LruHashMap::new();
/// Mmapable, because the entries of such an array are aligned to cache lines.
#[btf_map]
static FLOW_NOTES: Array<FlowNote, { size::FLOW_NOTES }, { super::MMAPABLE }> = Array::new();
#[btf_map]
static DELIVERY_NOTES: Array<DeliveryNotes, { size::DELIVERY_NOTES }, { super::MMAPABLE }> =
    Array::new();
#[btf_map]
static FLOWS_EMBRYONIC: LruHashMap<Tuple, PodFlow, { size::FLOWS }> = LruHashMap::new();
/// Scratch: an entry before its insertion; it does not fit on the stack.
#[btf_map]
static FLOW_SCRATCH: PerCpuArray<PodFlow, 1> = PerCpuArray::new();
#[btf_map]
static LOCAL_FLOWS: LruHashMap<Tuple, LocalFlow, { size::FLOWS }> = LruHashMap::new();

/// Each port with flows is written once in days, so the cache lines stay clean.
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

impl<K> Flows for Maps<K> {
    #[inline(always)]
    fn with_flow<R>(
        &self,
        table: FlowTable,
        key: &Tuple,
        f: impl FnOnce(&mut PodFlow) -> R,
    ) -> Option<R> {
        let place = map(table, key).get_ptr_mut(key)?;
        // SAFETY: the element is valid for the run.
        let words: [u64; 5] = unsafe { read_backwards(place.cast()) };
        let known: PodFlow = transmute!(words);
        // The kernel may have recycled the element for another flow since the look-up.
        if !known.is_for(key) {
            return None;
        }
        let mut flow = known;
        let found = f(&mut flow);
        // The element may also have been recycled after its check was read. The state of one flow must not become that
        // of another, because replies are translated by it. The time may: the other flow only stays a while longer.
        // SAFETY: as above.
        let entry = unsafe { &mut *place };
        if flow.seen != known.seen {
            write_once(&mut entry.seen, flow.seen);
        }
        if flow.packed != known.packed {
            // SAFETY: an aligned word of an element that is valid for the run. If another CPU changes the word first,
            // by a packet of the same flow, the news of this packet is lost.
            unsafe { exchange(&raw mut entry.packed, known.packed, flow.packed) };
        }
        Some(found)
    }

    #[inline(always)]
    fn insert_flow(&self, table: FlowTable, key: &Tuple, flow: &PodFlow) -> Inserted {
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
    fn remove_flow(&self, table: FlowTable, key: &Tuple) {
        // The entry may be gone already.
        let _ = map(table, key).remove(key);
    }

    #[inline(always)]
    fn noted_flow(&self, key: &Tuple) -> Option<PodFlow> {
        let now = self.cpu.now();
        for place in FlowNote::places(key) {
            // One copy is read: another CPU may write the note meanwhile, which its check reveals.
            let note = read_once(FLOW_NOTES.get(place)?);
            if let Some(flow) = note.flow(key, now) {
                return Some(flow);
            }
        }
        None
    }

    #[inline(always)]
    fn note_flow(&self, key: &Tuple, flow: &PodFlow) {
        // An older note may be in the second place.
        self.forget_note(key);
        let now = self.cpu.now();
        for place in FlowNote::places(key) {
            if replace_note(place, FlowNote::new(key, flow), |known| known.is_over(now)) {
                return;
            }
        }
    }

    #[inline(always)]
    fn forget_note(&self, key: &Tuple) {
        for place in FlowNote::places(key) {
            replace_note(place, FlowNote::default(), |known| known.is_of(key));
        }
    }

    #[inline(always)]
    fn noted_delivery(&self, key: DeliveryKey, now: u64) -> Option<DeliveryNote> {
        let DeliveryNotes(notes) = DELIVERY_NOTES.get(key.line)?;
        for note in notes {
            // Another CPU may write into the note, which its check finds out.
            let note = read_once(note);
            if note.is_of(key) {
                return (!note.is_over(now)).then_some(note);
            }
        }
        None
    }

    #[inline(always)]
    fn note_delivery(&self, key: DeliveryKey, note: DeliveryNote) {
        let Some(line) = DELIVERY_NOTES.get_ptr_mut(key.line) else {
            return;
        };
        // SAFETY: the element is valid for the run, and any bytes are notes.
        let DeliveryNotes(notes) = unsafe { &mut *line };
        let now = self.cpu.now();
        for is_for_another in [false, true] {
            for place in &mut *notes {
                let known = read_once(place);
                if known.is_of(key) || is_for_another && known.is_over(now) {
                    write_once(place, note);
                    return;
                }
            }
        }
    }

    #[inline(always)]
    fn forget_deliveries(&self, forward: &Tuple) {
        let Some(config) = super::config() else {
            return;
        };
        let line = config.delivery_keys.flow_of(forward).line();
        if let Some(line) = DELIVERY_NOTES.get_ptr_mut(line) {
            // SAFETY: as above.
            write_once(unsafe { &mut *line }, DeliveryNotes::default());
        }
    }
}

#[inline(always)]
fn replace_note(place: u32, note: FlowNote, gives_way: impl Fn(&FlowNote) -> bool) -> bool {
    let Some(place) = FLOW_NOTES.get_ptr_mut(place) else {
        return false;
    };
    // SAFETY: the element is valid for the run, and any bytes are a note. The check reveals a note that another CPU
    // has half written.
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
    // SAFETY: one aligned integer. An element recycled under the reader yields another flow's time, which misjudges
    // one packet.
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
            // If there is no memory for it, the flow's next packet tries again.
            let _ = LOCAL_FLOWS.insert(key, flow, u64::from(BPF_ANY));
        }
        return;
    };
    // SAFETY: the element is valid for the run; one aligned integer.
    let known = unsafe { *flow };
    let renewed = renew(known);
    if renewed != known {
        renew_port(cpu, port);
        // SAFETY: as above. Another CPU may write it too; one renewal is lost at worst.
        unsafe { *flow = renewed };
    }
}

/// Makes packets for a port look up `LOCAL_FLOWS`, for at least as long as a flow lives that is renewed now.
#[inline(always)]
fn renew_port(cpu: Cpu, port: u16) {
    let Some(place) = LOCAL_PORTS.get_ptr_mut(port.into()) else {
        return;
    };
    // SAFETY: the element is valid for the run; one aligned integer.
    let until = unsafe { &mut *place };
    let now = cpu.now();
    if read_once(until) < now + LOCAL_PORT_NS / 2 {
        // Another CPU may write it at the same moment, with almost the same time.
        write_once(until, now + LOCAL_PORT_NS);
    }
}
