//! The kernel's tables of TCP connections, in the network namespaces of pods.

use aya_ebpf::{
    bindings::bpf_sock_tuple,
    helpers::{bpf_sk_release, bpf_skc_lookup_tcp},
};
use xdp_prog::{
    abi::{NAMESPACE_OWN, NAMESPACE_UNKNOWN, Tuple, id_of_namespace},
    world::{SocketState, Sockets},
};

use super::{XdpMaps, read_once};

/// Lengths of the two members of the kernel's `struct bpf_sock_tuple`, by which it tells the families apart.
const LENGTH_V4: u32 = 12;
const LENGTH_V6: u32 = 36;

/// `BPF_F_CURRENT_NETNS`.
const CURRENT: u64 = u64::MAX;

impl Sockets for XdpMaps<'_> {
    #[inline(always)]
    fn socket_state(&self, connection: &Tuple, namespace: u32) -> SocketState {
        let namespace = match namespace {
            NAMESPACE_UNKNOWN => return SocketState::UNKNOWN,
            NAMESPACE_OWN => CURRENT,
            known => u64::from(id_of_namespace(known)),
        };
        let (mut tuple, length) = wire_tuple(connection);
        // SAFETY: the context is valid for the run, and the tuple is as long as the longer of the two lengths.
        let socket = unsafe {
            bpf_skc_lookup_tcp(
                self.of.ctx.ctx.cast(),
                tuple.as_mut_ptr().cast::<bpf_sock_tuple>(),
                length,
                namespace,
                0,
            )
        };
        if socket.is_null() {
            return SocketState::NONE;
        }
        // SAFETY: the kernel has found it, and keeps it until it is released.
        let found = unsafe { &*socket };
        // The kernel allows a load of the whole field only.
        let state = read_once(&found.state);
        // SAFETY: it is not used from here on.
        unsafe { bpf_sk_release(socket.cast()) };
        SocketState::of_number(state)
    }
}

/// Returns source, destination and both ports as the kernel wants them, with the length that counts.
#[inline(always)]
fn wire_tuple(connection: &Tuple) -> ([u32; 9], u32) {
    let [a, b, c, source] = words(connection.source().octets());
    let [d, e, f, destination] = words(connection.destination().octets());
    let ports = connection.ports();
    if connection.source().is_mapped() {
        ([source, destination, ports, 0, 0, 0, 0, 0, 0], LENGTH_V4)
    } else {
        ([a, b, c, source, d, e, f, destination, ports], LENGTH_V6)
    }
}

#[inline(always)]
fn words(octets: [u8; 16]) -> [u32; 4] {
    zerocopy::transmute!(octets)
}
