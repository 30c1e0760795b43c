//! Keeps flows alive when an upgrade changes the layout of the tables.
//!
//! Programs of a new layout have tables of their own, which know no flow. A pod's reply would leave with the pod's
//! own address, and NAT mode would drop every segment. So the flows of the former layout are written into the new
//! tables: first while the old programs still run, and again when none of them does, for flows that began meanwhile.
//! Entries that the new programs have made stay.
//!
//! Layout 3 can be read. It proved no handshakes. Its flows that the pod had not answered with data go on as if it
//! had, but they are written first, so they are the first to be evicted. Half-open flows of NAT mode begin anew.

use std::fmt;

use xdp_prog::{
    abi::{
        AddressKey, FLOW_FIN_CLIENT, FLOW_FIN_POD, FLOW_HAIRPIN, LocalFlow, NAT_ANSWERED,
        NAT_FIN_BACKEND, NAT_FIN_CLIENT, NAT_OPEN, NatForward, NatLink, NatMark, NatReverse,
        PodFlow, Tuple, map,
    },
    wire::protocol,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use super::{TableError, Tables, nat::service_key, syscall_map::SyscallMap, walk::Walk};
use crate::pins::{PinError, Pins};

/// The layout version whose flows can be read.
const LAYOUT: u32 = 3;

/// The flows of a dataplane of the former layout.
pub struct FormerFlows {
    local: Walk<LocalFlow>,
    /// Embryonic, datagram, answered flows, in this order: a full LRU table evicts what was written first.
    to_pods: [Walk<FormerPodFlow>; 3],
    hairpins: SyscallMap<Tuple, AddressKey>,
    nat_reverse: Walk<FormerNatReverse>,
    nat_forward: SyscallMap<Tuple, NatForward>,
}

impl fmt::Debug for FormerFlows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormerFlows").finish_non_exhaustive()
    }
}

/// The numbers of flows that go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InheritedFlows {
    /// Flows of this machine's own kernel.
    pub local: usize,
    /// Flows to pods of this machine.
    pub to_pods: usize,
    /// Flows of NAT mode.
    pub nat: usize,
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

impl FormerFlows {
    /// Opens the flows of the former layout; `None` unless its programs are still attached.
    ///
    /// # Errors
    ///
    /// Fails if one of its maps cannot be opened, or does not have that layout.
    pub fn open(pins: &Pins) -> Result<Option<Self>, FormerFlowsError> {
        const NAMES: [&str; 7] = [
            map::LOCAL_FLOWS,
            map::FLOWS_EMBRYONIC,
            map::FLOWS_DATAGRAM,
            map::FLOWS,
            "HAIRPINS",
            map::NAT_REVERSE,
            map::NAT_FORWARD,
        ];
        let Some(maps) = pins.open_maps_of(LAYOUT, NAMES)? else {
            return Ok(None);
        };
        let [
            local,
            embryonic,
            datagram,
            flows,
            hairpins,
            nat_reverse,
            nat_forward,
        ] = maps;
        Ok(Some(Self {
            local: Walk::over(local, map::LOCAL_FLOWS)?,
            to_pods: [
                Walk::over(embryonic, map::FLOWS_EMBRYONIC)?,
                Walk::over(datagram, map::FLOWS_DATAGRAM)?,
                Walk::over(flows, map::FLOWS)?,
            ],
            hairpins: SyscallMap::of(hairpins, "HAIRPINS")?,
            nat_reverse: Walk::over(nat_reverse, map::NAT_REVERSE)?,
            nat_forward: SyscallMap::of(nat_forward, map::NAT_FORWARD)?,
        }))
    }
}

/// Reasons why the flows of the former layout cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FormerFlowsError {
    /// A pin could not be used.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A map could not be read.
    #[error(transparent)]
    Table(#[from] TableError),
}

impl Tables {
    /// Writes flows of the former layout into the tables, unless they are known already. For flows of NAT mode, their
    /// services must be in the tables.
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be read or written. Flows that were written go on.
    pub fn inherit_flows(
        &mut self,
        former: &mut FormerFlows,
    ) -> Result<InheritedFlows, TableError> {
        let mut inherited = InheritedFlows::default();
        former.local.go(usize::MAX, |key, flow| {
            let is_new = self.local_flows.insert_absent(key, flow)?;
            // Packets look up the flow only if its port is marked.
            let port = u16::from_be_bytes(key.destination_port()).into();
            if self.local_ports.read(&port)? < flow.until() {
                self.local_ports.insert(port, flow.until())?;
            }
            inherited.local += usize::from(is_new);
            Ok(true)
        })?;
        for (walk, answered) in former.to_pods.iter_mut().zip([false, true, true]) {
            walk.go(usize::MAX, |key, flow| {
                let Some(flow) = pod_flow(key, *flow, &former.hairpins) else {
                    return Ok(false);
                };
                let table = match key.protocol() {
                    protocol::TCP => &mut self.flows,
                    _ if answered => &mut self.flows_datagram,
                    _ => &mut self.flows_embryonic,
                };
                inherited.to_pods += usize::from(table.insert_absent(key, &flow)?);
                Ok(true)
            })?;
        }
        let forward = &former.nat_forward;
        former.nat_reverse.go(usize::MAX, |reply, flow| {
            let is_new = self.inherit_nat(reply, *flow, forward)?;
            inherited.nat += usize::from(is_new);
            Ok(true)
        })?;
        Ok(inherited)
    }

    /// Adds a flow of NAT mode if its service has its backend; tells whether it was added.
    fn inherit_nat(
        &mut self,
        reply: &Tuple,
        flow: FormerNatReverse,
        forward: &SyscallMap<Tuple, NatForward>,
    ) -> Result<bool, TableError> {
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
        let mark = match forward.get(&key) {
            Some(entry) if entry.mark.flags() & proof == proof => entry.mark,
            _ => return Ok(false),
        };
        let mark = NatMark::new(
            mark.time(),
            PROVED | mark.flags() & (NAT_FIN_CLIENT | NAT_FIN_BACKEND),
        );
        let reverse = NatReverse::new(reply, &key, fields.ifindex, fields.link, mark);
        let service =
            service_key(&reverse, reply.protocol()).and_then(|key| self.installed.get(&key));
        let backend = service.and_then(|service| {
            let ids = service.backends.iter().copied();
            ids.into_iter().find(|id| {
                self.backends.get(*id).is_some_and(|known| {
                    known.pod == reply.source() && known.port == reply.source_port()
                })
            })
        });
        let Some(backend) = backend else {
            return Ok(false);
        };
        let fingerprint = fields.link.fingerprint(fields.ifindex);
        let entry = NatForward::new(&key, reply, backend, fingerprint, mark);
        // As in the datapath, the flow that has the reply's port has the entries.
        let entries = &mut self.nat.entries;
        if !entries.reverse.insert_absent(reply, &reverse)? {
            return Ok(false);
        }
        let is_new = entries.forward.insert_absent(&key, &entry)?;
        if !is_new {
            entries.reverse.remove(reply)?;
        }
        Ok(is_new)
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

#[cfg(test)]
mod tests;
