//! The flows of layout 3.
//!
//! It proved no handshakes. Its flows that the pod had not answered with data go on as if it had, but they are written
//! first, so they are the first to be evicted. Half-open flows of NAT mode begin anew.

use xdp_prog::{
    abi::{
        AddressKey, FLOW_FIN_CLIENT, FLOW_FIN_POD, FLOW_HAIRPIN, NAT_ANSWERED, NAT_FIN_BACKEND,
        NAT_FIN_CLIENT, NAT_OPEN, NatForward, NatLink, NatMark, NatReverse, PodFlow, Tuple, map,
    },
    wire::protocol,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use super::{
    ANSWERED, ANSWERED_DATAGRAMS, EMBRYONIC, FormerNatFlows, FormerPodFlows, FormerTables,
    FormerTablesError, NAT_FLOWS, POD_FLOWS, TakeNat, TakeToPod,
};
use crate::{
    pins::FormerVersion,
    tables::{TableError, syscall_map::SyscallMap, walk::Walk},
};

/// The layout version.
pub(super) const VERSION: u32 = 3;

struct PodFlows {
    /// Embryonic, datagram, answered flows, in this order: a full LRU table evicts what was written first.
    to_pods: [Walk<FormerPodFlow>; 3],
    hairpins: SyscallMap<Tuple, AddressKey>,
}

struct NatFlows {
    reverse: Walk<FormerNatReverse>,
    forward: SyscallMap<Tuple, NatForward>,
}

/// [`PodFlow`] of layout 3, as words.
type FormerPodFlow = [u64; 4];
/// [`NatReverse`] of layout 3, as words.
type FormerNatReverse = [u64; 9];

/// The fields of a [`FormerPodFlow`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PodFlowFields {
    /// The address that the client talks to.
    address: AddressKey,
    seen: u64,
    port: [u8; 2],
    /// Length of the outer header in bytes.
    outer: u8,
    state: u8,
    reserved: [u8; 4],
}

/// The fields of a [`FormerNatReverse`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct NatReverseFields {
    check: u32,
    ifindex: u32,
    mark: NatMark,
    client: AddressKey,
    address: AddressKey,
    link: NatLink,
    client_port: [u8; 2],
    port: [u8; 2],
    reserved: [u8; 4],
}

/// Opens the tables of this layout.
pub(super) fn open(version: &FormerVersion) -> Result<FormerTables, FormerTablesError> {
    let [local, hairpins] = version.open_maps([map::LOCAL_FLOWS, "HAIRPINS"])?;
    let [embryonic, datagram, flows] = version.open_maps(POD_FLOWS)?;
    let [reverse, forward] = version.open_maps(NAT_FLOWS)?;
    let to_pods = PodFlows {
        to_pods: [
            Walk::over(embryonic, map::FLOWS_EMBRYONIC)?,
            Walk::over(datagram, map::FLOWS_DATAGRAM)?,
            Walk::over(flows, map::FLOWS)?,
        ],
        hairpins: SyscallMap::of(hairpins, "HAIRPINS")?,
    };
    let nat = NatFlows {
        reverse: Walk::over(reverse, map::NAT_REVERSE)?,
        forward: SyscallMap::of(forward, map::NAT_FORWARD)?,
    };
    Ok(FormerTables {
        local: Some(Walk::over(local, map::LOCAL_FLOWS)?),
        to_pods: Some(Box::new(to_pods)),
        nat: Some(Box::new(nat)),
        counters: None,
    })
}

impl FormerPodFlows for PodFlows {
    fn copy(&mut self, _: usize, take: TakeToPod<'_>) -> Result<usize, TableError> {
        for (walk, answered) in self.to_pods.iter_mut().zip([false, true, true]) {
            walk.go(usize::MAX, |key, flow| {
                let Some(flow) = pod_flow(key, *flow, &self.hairpins) else {
                    return Ok(false);
                };
                let table = match key.protocol() {
                    protocol::TCP => ANSWERED,
                    _ if answered => ANSWERED_DATAGRAMS,
                    _ => EMBRYONIC,
                };
                take(table, key, &flow)?;
                Ok(true)
            })?;
        }
        Ok(0)
    }
}

impl FormerNatFlows for NatFlows {
    fn copy(&mut self, _: usize, take: TakeNat<'_>) -> Result<usize, TableError> {
        let forward = &self.forward;
        self.reverse.go(usize::MAX, |reply, flow| {
            let Some((reverse, mark)) = nat_flow(reply, *flow, forward) else {
                return Ok(false);
            };
            take(reply, &reverse, mark)?;
            Ok(true)
        })?;
        Ok(0)
    }
}

/// Reads a flow to a pod; `None` for a hairpin flow whose client is not known any more.
fn pod_flow(
    key: &Tuple,
    flow: FormerPodFlow,
    hairpins: &SyscallMap<Tuple, AddressKey>,
) -> Option<PodFlow> {
    let fields: PodFlowFields = transmute!(flow);
    let third_address = if fields.state & FLOW_HAIRPIN == 0 {
        fields.address
    } else {
        hairpins.get(key)?
    };
    let state = fields.state & (FLOW_FIN_CLIENT | FLOW_FIN_POD | FLOW_HAIRPIN);
    Some(PodFlow::new(
        key,
        third_address,
        fields.port,
        fields.outer,
        state,
        fields.seen,
    ))
}

/// Reads a flow of NAT mode; `None` for one that was half open.
fn nat_flow(
    reply: &Tuple,
    flow: FormerNatReverse,
    forward: &SyscallMap<Tuple, NatForward>,
) -> Option<(NatReverse, NatMark)> {
    const PROVED: u8 = NAT_OPEN | NAT_ANSWERED;
    let fields: NatReverseFields = transmute!(flow);
    let key = Tuple::new(
        fields.client,
        fields.address,
        fields.client_port,
        fields.port,
        reply.protocol(),
    );
    // Layout 3 noted only for TCP that the client went on.
    let proof = match reply.protocol() {
        protocol::TCP => PROVED,
        _ => NAT_ANSWERED,
    };
    let mark = forward.get(&key)?.mark;
    if mark.flags() & proof != proof {
        return None;
    }
    let mark = NatMark::new(
        mark.time(),
        PROVED | mark.flags() & (NAT_FIN_CLIENT | NAT_FIN_BACKEND),
    );
    let reverse = NatReverse::new(reply, &key, fields.ifindex, fields.link, mark);
    Some((reverse, mark))
}
