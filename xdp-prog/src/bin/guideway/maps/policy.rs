//! Permissions: trusted edges and source ranges; and the pods of this machine.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    btf_maps::{HashMap, LpmTrie, lpm_trie::Key},
    macros::btf_map,
};
use xdp_prog::abi::{AddressKey, EdgeMac, EdgePrefix, Pod, PodKey, SourcePrefix, size};

use super::read_once;

const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;

#[btf_map]
static TRUSTED_EDGES: LpmTrie<EdgePrefix, u32, { size::TRUSTED_EDGES }> = LpmTrie::new();
#[btf_map]
static EDGE_MACS: HashMap<EdgeMac, u32, { size::EDGE_MACS }, NO_PREALLOC> = HashMap::new();
#[btf_map]
static SOURCE_RANGES: LpmTrie<SourcePrefix, u32, { size::SOURCE_RANGES }> = LpmTrie::new();
#[btf_map]
static PODS: HashMap<PodKey, Pod, { size::PODS }> = HashMap::new();

#[inline(always)]
pub(crate) fn is_trusted_edge(source: &AddressKey) -> bool {
    let key =
        Aligned::<EdgePrefix>::new(EdgePrefix::HOST_BITS, EdgePrefix::family(*source), source);
    TRUSTED_EDGES.get(&key.0).is_some()
}

#[inline(always)]
pub(crate) fn is_edge_mac(source: &EdgeMac) -> bool {
    EDGE_MACS.get_ptr(source).is_some()
}

#[inline(always)]
pub(crate) fn is_in_source_range(service: u32, client: &AddressKey) -> bool {
    let key = Aligned::<SourcePrefix>::new(SourcePrefix::HOST_BITS, service.to_ne_bytes(), client);
    SOURCE_RANGES.get(&key.0).is_some()
}

#[inline(always)]
pub(crate) fn pod(key: &PodKey) -> Option<Pod> {
    let pod = PODS.get_ptr(key)?;
    // SAFETY: the element is valid for the run. The check in the word reveals an element recycled under the reader.
    Some(Pod(read_once(unsafe { &(*pod).0 })))
}

/// Aya's packed trie key, aligned so that the verifier allows eight-byte stores.
#[repr(C, align(8))]
struct Aligned<P>(Key<P>);

impl<P> Aligned<P> {
    /// Makes the trie key of a single address, word by word. With separate fields, LLVM would merge stores across
    /// word boundaries, which the verifier refuses.
    #[inline(always)]
    fn new(bits: u32, [e, f, g, h]: [u8; 4], address: &AddressKey) -> Self {
        const { assert!(size_of::<Self>() == 24, "bits, four bytes and an address") };
        let [a, b, c, d] = bits.to_ne_bytes();
        let [high, low] = address.words();
        let words = [u64::from_ne_bytes([a, b, c, d, e, f, g, h]), high, low];
        // SAFETY: both keys are 24 bytes of prefix length, first word and address in this order, and any bytes are
        // valid.
        unsafe { core::mem::transmute_copy::<[u64; 3], Self>(&words) }
    }
}
