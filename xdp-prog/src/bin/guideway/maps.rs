//! The maps, and the library's look-up traits over them.

mod announce;
mod answers;
mod clients;
mod cpu;
mod egress;
mod fib;
mod flows;
mod fragments;
mod nat;
mod paths;
mod pins;
mod policy;
mod probes;
mod shortcuts;
mod sockets;

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    btf_maps::{Array, HashMap, ProgramArray},
    macros::btf_map,
    programs::XdpContext,
};
use xdp_prog::{
    abi::{
        AddressKey, Backend, Bucket, CONFIG_OVERFLOW, Config, EdgeMac, IndexEntry, IndexKey,
        NextHop, Past, PastOwner, PastPair, Pod, PodKey, Service, ServiceKeyV4, ServiceKeyV6,
        ServiceWord, Slot, SlotPair, Tuple, size,
    },
    stage::Stage,
    world::{Inserted, Tables, World},
};

pub(crate) use cpu::Cpu;
pub(crate) use egress::TcMaps;

const MMAPABLE: usize = BPF_F_MMAPABLE as usize;
pub(crate) const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;

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
static PASTS: Array<PastPair, { size::LUT_SLOTS / 2 }, MMAPABLE> = Array::new();
#[btf_map]
static HISTORY: Array<PastOwner, { size::HISTORY }, MMAPABLE> = Array::new();
#[btf_map]
static BACKENDS: Array<Backend, { size::BACKENDS }, MMAPABLE> = Array::new();
#[btf_map]
static NEXTHOPS: Array<NextHop, { size::NEXT_HOPS }, MMAPABLE> = Array::new();
#[btf_map]
static STAGES: ProgramArray<{ Stage::PLACES }> = ProgramArray::new();

/// The maps for one run of a program of either kind, as the traits of [`xdp_prog::world`].
pub(crate) struct Maps<K> {
    of: K,
    cpu: Cpu,
}

/// What only programs of one kind have.
trait Kind {
    fn config(&self) -> Option<&'static Config>;
}

/// What only XDP programs have. They ask for the settings once.
pub(crate) struct Xdp<'a> {
    ctx: &'a XdpContext,
    config: Option<&'static Config>,
    /// The device that the frame came in by at first; `None` where no mended frame comes.
    first_ingress: Option<u32>,
}

impl Kind for Xdp<'_> {
    #[inline(always)]
    fn config(&self) -> Option<&'static Config> {
        self.config
    }
}

pub(crate) type XdpMaps<'a> = Maps<Xdp<'a>>;

impl<'a> XdpMaps<'a> {
    #[inline(always)]
    pub(crate) fn new(ctx: &'a XdpContext) -> Self {
        Self {
            of: Xdp {
                ctx,
                config: config(),
                first_ingress: None,
            },
            cpu: Cpu::current(),
        }
    }

    /// As [`Self::new`], for a frame that may be a mended one.
    #[inline(always)]
    pub(crate) fn of_mended(ctx: &'a XdpContext) -> Self {
        let cpu = Cpu::current();
        Self {
            of: Xdp {
                ctx,
                config: config(),
                first_ingress: Some(cpu.first_ingress(device(ctx))),
            },
            cpu,
        }
    }

    /// Continues in a stage's program; returns only if that program is missing.
    #[inline(always)]
    pub(crate) fn tail_call(&self, stage: Stage) {
        // SAFETY: nothing in this frame of the stack needs dropping.
        unsafe { STAGES.tail_call(self.of.ctx, stage.index()) }
    }

    /// Returns the interface index of the ingress device.
    #[inline(always)]
    pub(crate) fn ingress(&self) -> u32 {
        match self.of.first_ingress {
            Some(first) => first,
            None => device(self.of.ctx),
        }
    }
}

/// Returns the interface index of the device that a program runs at.
#[inline(always)]
pub(crate) fn device(ctx: &XdpContext) -> u32 {
    // SAFETY: the context is valid for the whole run.
    unsafe { (*ctx.ctx).ingress_ifindex }
}

impl Tables for XdpMaps<'_> {
    #[inline(always)]
    fn config(&self) -> Option<&Config> {
        self.of.config
    }

    #[inline(always)]
    fn is_mended(&self) -> bool {
        let device = device(self.of.ctx);
        let first = match self.of.first_ingress {
            Some(first) => first,
            None => self.cpu.first_ingress(device),
        };
        first != device
    }

    #[inline(always)]
    fn address_flags(&self, address: &AddressKey) -> u32 {
        address_flags(address)
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
        service_v4(key, self.of.config?)
    }

    #[inline(always)]
    fn service_v6(&self, key: &ServiceKeyV6) -> Option<IndexEntry> {
        service_v6(key, self.of.config?)
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
    fn past(&self, index: u32) -> Past {
        match PASTS.get(index >> 1) {
            Some(pair) => PastPair(read_once(&pair.0)).of(index),
            None => Past::default(),
        }
    }

    #[inline(always)]
    fn past_owner(&self, index: u32) -> PastOwner {
        match HISTORY.get(index) {
            Some(owner) => PastOwner(read_once(&owner.0)),
            None => PastOwner::default(),
        }
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
        fib::next_hop(self.of.ctx, self.of.first_ingress, backend)
    }

    #[inline(always)]
    fn fib_route(&self, address: &AddressKey) -> Option<&NextHop> {
        fib::route(self.of.ctx, self.of.first_ingress, address)
    }

    #[inline(always)]
    fn fib_device(&self, address: &AddressKey) -> Option<u32> {
        fib::device(self.of.ctx, self.of.first_ingress, address)
    }
}

impl World for XdpMaps<'_> {}

const EEXIST: i32 = 17;

#[inline(always)]
fn inserted(outcome: Result<(), i32>) -> Inserted {
    match outcome {
        Ok(()) => Inserted::Done,
        Err(error) if error == -EEXIST => Inserted::Exists,
        Err(_) => Inserted::Full,
    }
}

/// See [`Tables::address_flags`].
#[inline(always)]
pub(crate) fn address_flags(address: &AddressKey) -> u32 {
    // SAFETY: the value is one aligned integer. An element that is recycled under the reader yields the flags of
    // another address at worst.
    unsafe { VIPS.get(*address) }.copied().unwrap_or(0)
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
