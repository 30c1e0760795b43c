//! The maps, and the library's look-up traits over them.

mod announce;
mod answers;
mod cpu;
mod egress;
mod flows;
mod fragments;
mod nat;
mod paths;
mod policy;
mod probes;

use aya_ebpf::{
    bindings::{
        BPF_F_MMAPABLE, BPF_F_NO_PREALLOC, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS,
        bpf_fib_lookup as FibParams,
    },
    btf_maps::{Array, HashMap, PerCpuArray, ProgramArray},
    helpers::bpf_fib_lookup,
    macros::btf_map,
    programs::XdpContext,
};
use xdp_prog::{
    abi::{
        AddressKey, BACKEND_V4, Backend, Bucket, CONFIG_OVERFLOW, Config, Datagram, DeliveryKey,
        DeliveryNote, EdgeMac, HOP_GATEWAY, IndexEntry, IndexKey, NatBegun, NatCount, NatForward,
        NatMark, NatReverse, NextHop, PathReport, Pod, PodFlow, PodKey, Service, ServiceKeyV4,
        ServiceKeyV6, ServiceWord, Shortcut, Slot, SlotPair, TaggedLink, Tuple, Untrusted, size,
    },
    stage::Stage,
    world::{
        Announcements, Answers, Clock, Counters, FlowTable, Flows, Fragments, HandOver, HandOvers,
        Inserted, NatFlows, NatState, Origin, Paths, Probes, Relay, Shortcuts, Tables, Taken,
        Translation, World,
    },
};

pub(crate) use cpu::Cpu;
pub(crate) use egress::EgressTables;

const MMAPABLE: usize = BPF_F_MMAPABLE as usize;
const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;

/// Mmapable because the elements of such an array begin on cache lines.
#[btf_map]
static CONFIG: Array<Config, 1, MMAPABLE> = Array::new();
#[btf_map]
static VIPS: HashMap<AddressKey, u32, { size::VIPS }, NO_PREALLOC> = HashMap::new();
#[btf_map]
static SERVICE_INDEX: Array<Bucket, { size::SERVICE_BUCKETS }, MMAPABLE> = Array::new();
#[btf_map]
static SERVICE_OVERFLOW: HashMap<u64, IndexEntry, { size::SERVICE_OVERFLOW }, NO_PREALLOC> =
    HashMap::new();
#[btf_map]
static SERVICE: Array<Service, { size::SERVICES }, MMAPABLE> = Array::new();
#[btf_map]
static LUT: Array<SlotPair, { size::LUT_SLOTS / 2 }, MMAPABLE> = Array::new();
#[btf_map]
static BACKENDS: Array<Backend, { size::BACKENDS }, MMAPABLE> = Array::new();
#[btf_map]
static NEXTHOPS: Array<NextHop, { size::NEXT_HOPS }, MMAPABLE> = Array::new();
#[btf_map]
static VLANS: HashMap<u32, TaggedLink, { size::VLANS }, NO_PREALLOC> = HashMap::new();
#[btf_map]
static STAGES: ProgramArray<{ Stage::ALL.len() }> = ProgramArray::new();
#[btf_map]
static UNTRUSTED: PerCpuArray<Untrusted, 1> = PerCpuArray::new();
/// Scratch: the memory of [`Shortcuts`].
#[btf_map]
static SHORTCUTS: PerCpuArray<Shortcut, { size::SHORTCUTS }> = PerCpuArray::new();
/// Scratch: the arguments of a FIB look-up. Fields that are never set stay zero from the map's creation.
#[btf_map]
static FIB_PARAMETERS: PerCpuArray<FibParams, 1> = PerCpuArray::new();
/// Scratch: the result of a FIB look-up.
#[btf_map]
static FIB_SCRATCH: PerCpuArray<NextHop, 1> = PerCpuArray::new();

/// The maps for one run of a program, as [`Tables`] and the other traits of [`World`].
pub(crate) struct KernelTables<'a> {
    ctx: &'a XdpContext,
    config: Option<&'static Config>,
    cpu: Cpu,
}

impl<'a> KernelTables<'a> {
    #[inline(always)]
    pub(crate) fn new(ctx: &'a XdpContext) -> Self {
        Self {
            ctx,
            config: config(),
            cpu: Cpu::current(),
        }
    }

    /// Continues in a stage's program; returns only if that program is missing.
    #[inline(always)]
    pub(crate) fn tail_call(&self, stage: Stage) {
        // SAFETY: nothing in this frame of the stack needs dropping.
        unsafe { STAGES.tail_call(self.ctx, stage.index()) }
    }

    /// Returns the interface index of the ingress device.
    #[inline(always)]
    pub(crate) fn ingress(&self) -> u32 {
        // SAFETY: the context is valid for the whole run.
        unsafe { (*self.ctx.ctx).ingress_ifindex }
    }
}

impl Tables for KernelTables<'_> {
    #[inline(always)]
    fn config(&self) -> Option<&Config> {
        self.config
    }

    #[inline(always)]
    fn address_flags(&self, address: &AddressKey) -> u32 {
        // SAFETY: the value is one aligned integer. An element that is recycled under the reader yields the flags of
        // another address at worst.
        unsafe { VIPS.get(*address) }.copied().unwrap_or(0)
    }

    #[inline(always)]
    fn is_trusted_edge(&self, source: &AddressKey) -> bool {
        policy::is_trusted_edge(source)
    }

    #[inline(always)]
    fn is_edge_mac(&self, source: &EdgeMac) -> bool {
        policy::is_edge_mac(source)
    }

    #[inline(always)]
    fn is_in_source_range(&self, service: u32, client: &AddressKey) -> bool {
        policy::is_in_source_range(service, client)
    }

    #[inline(always)]
    fn is_local_flow(&self, flow: &Tuple) -> bool {
        flows::is_local(self.cpu, flow)
    }

    #[inline(always)]
    fn pod(&self, key: &PodKey) -> Option<Pod> {
        policy::pod(key)
    }

    #[inline(always)]
    fn service_v4(&self, key: &ServiceKeyV4) -> Option<IndexEntry> {
        service_v4(key, self.config?)
    }

    #[inline(always)]
    fn service_v6(&self, key: &ServiceKeyV6) -> Option<IndexEntry> {
        service_v6(key, self.config?)
    }

    #[inline(always)]
    fn service(&self, id: u32) -> Option<Service> {
        service(id)
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> Option<Slot> {
        let SlotPair(pair) = LUT.get(index >> 1)?;
        let slot = pair.get(index as usize & 1)?;
        Some(Slot(read_once(&slot.0)))
    }

    #[inline(always)]
    fn backend(&self, id: u32) -> Option<&Backend> {
        BACKENDS.get(id)
    }

    #[inline(always)]
    fn next_hop(&self, id: u32) -> Option<&NextHop> {
        NEXTHOPS.get(id)
    }

    #[inline(always)]
    fn fib_next_hop(&self, backend: &Backend) -> Option<&NextHop> {
        let family = if backend.flags & BACKEND_V4 != 0 {
            AF_INET
        } else {
            AF_INET6
        };
        fib_lookup(self.ctx, family, as_words(&backend.address))
    }

    #[inline(always)]
    fn fib_route(&self, address: &AddressKey) -> Option<&NextHop> {
        let (family, target) = fib_target(address);
        fib_lookup(self.ctx, family, target)
    }

    #[inline(always)]
    fn fib_device(&self, address: &AddressKey) -> Option<u32> {
        let (family, target) = fib_target(address);
        let (found, params) = ask_fib(self.ctx, family, target)?;
        let is_found = found == i64::from(BPF_FIB_LKUP_RET_SUCCESS)
            || found == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH);
        is_found.then_some(params.ifindex)
    }
}

impl World for KernelTables<'_> {}

impl Probes for KernelTables<'_> {
    #[inline(always)]
    fn probe_peer(&self, answer: &Tuple) -> Option<AddressKey> {
        probes::peer(answer)
    }
}

impl Clock for KernelTables<'_> {
    #[inline(always)]
    fn now(&self) -> u64 {
        self.cpu.now()
    }
}

impl Flows for KernelTables<'_> {
    #[inline(always)]
    fn with_flow<R>(
        &self,
        table: FlowTable,
        key: &Tuple,
        f: impl FnOnce(&mut PodFlow) -> R,
    ) -> Option<R> {
        flows::with(table, key, f)
    }

    #[inline(always)]
    fn insert_flow(&self, table: FlowTable, key: &Tuple, flow: &PodFlow) -> Inserted {
        flows::insert(table, key, flow)
    }

    #[inline(always)]
    fn remove_flow(&self, table: FlowTable, key: &Tuple) {
        flows::remove(table, key);
    }

    #[inline(always)]
    fn noted_flow(&self, key: &Tuple) -> Option<PodFlow> {
        flows::noted(self.cpu, key)
    }

    #[inline(always)]
    fn note_flow(&self, key: &Tuple, flow: &PodFlow) {
        flows::note(self.cpu, key, flow);
    }

    #[inline(always)]
    fn forget_note(&self, key: &Tuple) {
        flows::forget_note(key);
    }

    #[inline(always)]
    fn noted_delivery(&self, key: DeliveryKey) -> Option<DeliveryNote> {
        flows::noted_delivery(self.cpu, key)
    }

    #[inline(always)]
    fn note_delivery(&self, key: DeliveryKey, note: DeliveryNote) {
        flows::note_delivery(self.cpu, key, note);
    }

    #[inline(always)]
    fn forget_deliveries(&self, forward: &Tuple) {
        flows::forget_deliveries(forward);
    }
}

impl NatFlows for KernelTables<'_> {
    #[inline(always)]
    fn see_nat_forward(
        &self,
        key: &Tuple,
        renew: impl FnOnce(&NatForward) -> Option<NatMark>,
    ) -> Option<NatForward> {
        nat::see_forward(key, renew)
    }

    #[inline(always)]
    fn replace_nat_mark(&self, key: &Tuple, expected: NatMark, mark: NatMark) -> bool {
        nat::replace_mark(key, expected, mark)
    }

    #[inline(always)]
    fn see_nat_reverse(&self, key: &Tuple) -> Option<NatReverse> {
        nat::see_reverse(key)
    }

    #[inline(always)]
    fn nat_state(&self, key: &Tuple) -> Option<NatState> {
        nat::state(key)
    }

    #[inline(always)]
    fn note_nat_reverse(&self, key: &Tuple, state: NatState) {
        nat::note_reverse(key, state);
    }

    #[inline(always)]
    fn insert_nat_forward(&self, key: &Tuple, entry: &NatForward) -> Inserted {
        nat::insert_forward(key, entry)
    }

    #[inline(always)]
    fn insert_nat_reverse(
        &self,
        key: &Tuple,
        forward: &Tuple,
        client: &Origin,
        mark: NatMark,
    ) -> Inserted {
        nat::insert_reverse(key, forward, client, mark)
    }

    #[inline(always)]
    fn remove_nat_forward(&self, key: &Tuple) {
        nat::remove_forward(key);
    }

    #[inline(always)]
    fn remove_nat_reverse(&self, key: &Tuple) {
        nat::remove_reverse(key);
    }

    #[inline(always)]
    fn move_nat_client(&self, forward: &Tuple, reverse: &Tuple, client: &Origin) {
        nat::move_client(forward, reverse, client);
    }

    #[inline(always)]
    fn claim_nat(&self, forward: &Tuple) -> bool {
        nat::claim(forward)
    }

    #[inline(always)]
    fn release_nat(&self, forward: &Tuple) {
        nat::release(forward);
    }

    #[inline(always)]
    fn nat_count(&self, service: u32) -> NatCount {
        nat::count(service)
    }

    #[inline(always)]
    fn count_nat(&self, service: u32, flows: i64, half_open: i64) {
        nat::add(service, flows, half_open);
    }

    #[inline(always)]
    fn nat_begun(&self, index: u32) -> NatBegun {
        nat::begun(index)
    }

    #[inline(always)]
    fn note_nat_begun(&self, index: u32, flow: NatBegun) {
        nat::note_begun(index, flow);
    }

    #[inline(always)]
    fn taken(&self) -> Option<&Taken> {
        nat::taken()
    }

    #[inline(always)]
    fn device_mtu(&self, ifindex: u32) -> Option<u16> {
        nat::device_mtu(self.ctx, ifindex)
    }

    #[inline(always)]
    fn keep(&self, translation: Translation) -> Option<&Translation> {
        self.cpu.keep(translation)
    }
}

impl Relay for KernelTables<'_> {
    #[inline(always)]
    fn relay(&self, words: [u64; 4]) -> Option<[u64; 4]> {
        self.cpu.relay(words)
    }

    #[inline(always)]
    fn relayed(&self) -> Option<[u64; 4]> {
        self.cpu.relayed()
    }
}

const EEXIST: i32 = 17;

#[inline(always)]
fn inserted(outcome: Result<(), i32>) -> Inserted {
    match outcome {
        Ok(()) => Inserted::Done,
        Err(error) if error == -EEXIST => Inserted::Exists,
        Err(_) => Inserted::Full,
    }
}

impl Shortcuts for KernelTables<'_> {
    #[inline(always)]
    fn shortcut(&self, key: &Tuple, epoch: u32) -> Option<u64> {
        SHORTCUTS.get(Shortcut::place(key))?.value(key, epoch)
    }

    #[inline(always)]
    fn note_shortcut(&self, key: &Tuple, epoch: u32, value: u64) {
        if let Some(place) = SHORTCUTS.get_ptr_mut(Shortcut::place(key)) {
            // SAFETY: a per-CPU element; XDP runs do not nest on a CPU.
            unsafe { *place = Shortcut::new(*key, epoch, value) };
        }
    }

    #[inline(always)]
    fn note_untrusted(&self, source: &AddressKey) {
        if let Some(place) = UNTRUSTED.get_ptr_mut(0) {
            let noted = Untrusted {
                source: *source,
                at: self.cpu.now(),
            };
            // SAFETY: a per-CPU element; XDP runs do not nest on a CPU.
            unsafe { *place = noted };
        }
    }
}

impl Fragments for KernelTables<'_> {
    #[inline(always)]
    fn datagram(&self, key: &Tuple) -> Option<Datagram> {
        fragments::datagram(key)
    }

    #[inline(always)]
    fn publish(&self, key: &Tuple, datagram: &Datagram) {
        fragments::publish(key, datagram);
    }
}

impl HandOvers for KernelTables<'_> {
    #[inline(always)]
    fn hand_over(&self, known: HandOver) {
        self.cpu.hand_over(known);
    }

    #[inline(always)]
    fn handed_over(&self) -> HandOver {
        self.cpu.handed_over()
    }
}

impl Answers for KernelTables<'_> {
    #[inline(always)]
    fn full_at(&self, source: &AddressKey) -> u64 {
        answers::full_at(source)
    }

    #[inline(always)]
    fn set_full_at(&self, source: &AddressKey, time: u64) {
        answers::set_full_at(source, time);
    }

    #[inline(always)]
    fn all_full_at(&self) -> u64 {
        answers::all_full_at()
    }

    #[inline(always)]
    fn set_all_full_at(&self, time: u64) {
        answers::set_all_full_at(time);
    }
}

impl Announcements for KernelTables<'_> {
    #[inline(always)]
    fn is_announced(&self, address: &AddressKey) -> bool {
        announce::is_announced(address)
    }

    #[inline(always)]
    fn announce_stamp(&self) -> u64 {
        announce::stamp()
    }

    #[inline(always)]
    fn announcing_mac(&self, link: TaggedLink) -> Option<EdgeMac> {
        announce::mac(link)
    }

    #[inline(always)]
    fn note_claim(&self, address: &AddressKey, mac: EdgeMac) {
        announce::note_claim(self.cpu, address, mac);
    }
}

impl Paths for KernelTables<'_> {
    #[inline(always)]
    fn note_path(&self, node: &AddressKey, report: PathReport) -> bool {
        paths::note(node, report)
    }
}

impl Counters for KernelTables<'_> {
    #[inline(always)]
    fn count_reason(&self, index: u32) {
        self.cpu.count_reason(index);
    }

    #[inline(always)]
    fn count_forward(&self, service: u32, backend: u32, bytes: u64) {
        if let Some(config) = self.config {
            self.cpu.count_forward(config, service, backend, bytes);
        }
    }
}

#[inline(always)]
fn config() -> Option<&'static Config> {
    CONFIG.get(0)
}

#[inline(always)]
fn service_v4(key: &ServiceKeyV4, config: &Config) -> Option<IndexEntry> {
    index_entry(IndexKey::v4(*key), config)
}

#[inline(always)]
fn service_v6(key: &ServiceKeyV6, config: &Config) -> Option<IndexEntry> {
    index_entry(IndexKey::v6(key, config.index_seed), config)
}

/// Looks a service up in the index.
#[inline(always)]
fn index_entry(key: IndexKey, config: &Config) -> Option<IndexEntry> {
    for index in key.buckets(config.index_seed, config.index_mask) {
        let bucket = SERVICE_INDEX.get(index)?;
        for (known, entry) in bucket.keys.iter().zip(&bucket.entries) {
            if read_once(known) == key.0 {
                return Some(read_once(entry));
            }
        }
    }
    if config.flags & CONFIG_OVERFLOW == 0 {
        return None;
    }
    // SAFETY: the value is one aligned word. It says the id alone, and the key check of the service word reveals an
    // element that is recycled under the reader.
    unsafe { SERVICE_OVERFLOW.get(key.0) }.map(read_once)
}

#[inline(always)]
fn service(id: u32) -> Option<Service> {
    let service = SERVICE.get(id)?;
    Some(Service {
        word: ServiceWord(read_once(&service.word.0)),
        local: ServiceWord(read_once(&service.local.0)),
        ..*service
    })
}

/// Reads a value that another CPU may replace meanwhile, each word with one load. The caller must find out whether
/// several words belong together.
#[inline(always)]
fn read_once<T: Copy>(word: &T) -> T {
    // SAFETY: a reference is valid and aligned.
    unsafe { core::ptr::read_volatile(word) }
}

/// Reads a value word by word from its end, so that its check comes last.
///
/// # Safety
///
/// The words must be valid for reads.
#[inline(always)]
unsafe fn read_backwards<const N: usize>(place: *const u64) -> [u64; N] {
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate().rev() {
        // SAFETY: the caller guarantees that the words are valid.
        let at = unsafe { place.add(index) };
        // SAFETY: as above.
        *word = unsafe { at.read_volatile() };
    }
    words
}

#[inline(always)]
fn write_once<T: Copy>(place: &mut T, value: T) {
    // SAFETY: a reference is valid and aligned.
    unsafe { core::ptr::write_volatile(place, value) }
}

/// Replaces a word if it is the expected one; returns the word that was found.
///
/// The target's `AtomicU64` has no such operation, although the machine has had it since Linux 5.12.
///
/// # Safety
///
/// The word must be aligned, and valid for reads and writes.
#[inline(always)]
unsafe fn exchange(place: *mut u64, expected: u64, new: u64) -> u64 {
    let found;
    // SAFETY: one instruction that accesses nothing but the word.
    unsafe {
        core::arch::asm!(
            "r0 = cmpxchg_64({place} + 0, r0, {new})",
            place = in(reg) place,
            new = in(reg) new,
            inout("r0") expected => found,
            options(nostack),
        );
    }
    found
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
    family: u8,
    target: [u32; 4],
) -> Option<(i64, &'static mut FibParams)> {
    let params = FIB_PARAMETERS.get_ptr_mut(0)?;
    // SAFETY: a per-CPU element that only this run uses.
    let params = unsafe { &mut *params };
    params.family = family;
    // With any length, the kernel reports the route's MTU. One byte always fits.
    params.__bindgen_anon_1.tot_len = 1;
    // SAFETY: the context is valid for the whole run.
    params.ifindex = unsafe { (*ctx.ctx).ingress_ifindex };
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
fn fib_lookup(ctx: &XdpContext, family: u8, target: [u32; 4]) -> Option<&'static NextHop> {
    let (found, params) = ask_fib(ctx, family, target)?;
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
