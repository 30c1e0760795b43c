//! The service of a flow, and the backend that owns the flow.
//!
//! The stage that finds a packet's service looks both up once; later stages get the result
//! ([`HandOver`]).

use super::address::is_vip;
use crate::{
    abi::{
        Backend, CONFIG_NODE, CONFIG_PROBES, EdgeMac, MODE_L2DSR, PodKey, SERVICE_DROP_WHEN_EMPTY,
        SERVICE_PODS, Service, ServiceWord, Slot, Tag,
    },
    flow::FlowKey,
    frame::Frame,
    ip::Ip,
    maglev,
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::{Owner, Verdict},
    wire::{ethernet::Ethernet, protocol},
    world::{Answer, HandOver, HandOvers, Tables},
};

/// Flags that all backends have: none.
pub const ANY_BACKEND: u32 = 0;

/// The service of a packet.
#[derive(Clone, Copy, Debug)]
pub struct FoundService {
    /// Service id.
    pub id: u32,
    /// The service's entry as it was read.
    pub entry: Service,
}

impl FoundService {
    /// Returns the service that an earlier stage has found; `None` if it has gone since.
    #[inline(always)]
    pub fn handed_over<T: Tables>(tables: &T, id: u32) -> Option<Self> {
        let entry = tables.service(id)?;
        (entry.word.base() != 0).then_some(Self { id, entry })
    }

    /// Tells whether another edge has sent the frame to this machine by L2 DSR.
    #[inline(always)]
    pub fn is_sent_by_edge<F: Frame, T: Tables>(&self, frame: &F, tables: &T) -> bool {
        self.entry.mode == MODE_L2DSR && is_from_edge(frame, tables)
    }

    /// Returns the flags of backends that may get a packet of the service. Of what another edge has sent to this machine by L2
    /// DSR, these are its own pods: sent on, the packet might come back.
    #[inline(always)]
    pub fn reach<F: Frame, T: Tables>(&self, frame: &F, tables: &T) -> u32 {
        if self.is_sent_by_edge(frame, tables) {
            Backend::OWN_POD
        } else {
            ANY_BACKEND
        }
    }
}

/// Finds the service of a flow.
///
/// The word behind the id carries a check of its key, which distinguishes two IPv6 services with one fingerprint.
///
/// # Errors
///
/// Returns the verdict on a packet without a service.
#[inline(always)]
pub fn find_service<'t, A: Ip, T: Tables>(
    tables: &'t T,
    flow: &FlowKey<A>,
) -> Result<FoundService, Verdict<'t>> {
    match A::service(tables, flow) {
        Some((entry, check)) => checked_service(tables, entry.id(), check),
        None => Err(no_service(tables, flow)),
    }
}

/// Returns the service with this id, if it is the one whose key has this check.
///
/// # Errors
///
/// Returns the verdict on a packet whose service has changed at this moment.
#[inline(always)]
pub fn checked_service<'t, T: Tables>(
    tables: &T,
    id: u32,
    check: u32,
) -> Result<FoundService, Verdict<'t>> {
    match tables.service(id) {
        Some(entry) if entry.word.check() == check && entry.word.base() != 0 => {
            Ok(FoundService { id, entry })
        }
        _ => Err(Verdict::Drop(DropReason::TableChanged)),
    }
}

/// Finds the service of an encapsulated packet, if its backends are pods.
///
/// The packet of a NodePort carries the edge's address, which is not this machine's. Such a service is looked up at
/// the unspecified address.
#[inline(always)]
pub fn find_with_pods<A: Ip, T: Tables>(tables: &T, flow: &FlowKey<A>) -> Option<FoundService> {
    let found = match find_service(tables, flow) {
        Ok(found) => found,
        Err(_) => {
            let anywhere = FlowKey {
                destination: A::UNSPECIFIED,
                ..*flow
            };
            find_service(tables, &anywhere).ok()?
        }
    };
    (found.entry.flags & SERVICE_PODS != 0).then_some(found)
}

/// Returns the verdict on a packet without a service. A reply in NAT mode has a port of the mode or, in SCTP, any
/// port.
#[inline(always)]
pub fn no_service<'t, A: Ip, T: Tables>(tables: &T, flow: &FlowKey<A>) -> Verdict<'t> {
    let config = tables.config();
    let is_nat = config.is_some_and(|config| {
        config.is_nat_port(flow.destination_port, config.nat_ports)
            || (flow.protocol == protocol::SCTP && config.nat_ports != 0)
    });
    if is_nat {
        return Verdict::Continue(Stage::NatReply);
    }
    if is_vip(tables, flow.destination) {
        return Verdict::Answer(Answer::REFUSE);
    }
    if config.is_some_and(|config| config.flags & CONFIG_PROBES != 0) {
        return Verdict::Continue(Stage::Probe);
    }
    Verdict::Pass(PassReason::NoService)
}

/// Tells whether another edge sent this frame by L2 DSR, so that this machine is its node.
#[inline(always)]
pub fn is_from_edge<F: Frame, T: Tables>(frame: &F, tables: &T) -> bool {
    let is_node = tables
        .config()
        .is_some_and(|config| config.flags & CONFIG_NODE != 0);
    is_node
        && frame
            .view::<Ethernet>(0)
            .is_some_and(|header| tables.is_edge_mac(&EdgeMac::new(header.source())))
}

/// Finds the backend that owns the flow of a bare packet. If another edge has sent it by L2 DSR, the backend is one
/// of this machine's own pods.
///
/// # Errors
///
/// Returns the verdict on a packet without a backend, and leaves one whose slot has had other owners for
/// [`Stage::Past`].
#[inline(always)]
pub fn owner<'t, A: Ip, T: Tables + HandOvers>(
    tables: &'t T,
    found: &FoundService,
    flow: &FlowKey<A>,
    is_sent_by_edge: bool,
) -> Result<Owner<'t>, Verdict<'t>> {
    if is_sent_by_edge {
        if found.entry.flags & SERVICE_PODS == 0 {
            return Err(Verdict::Pass(PassReason::LocalBackend));
        }
        if found.entry.local.base() == 0 {
            return Err(Verdict::Drop(DropReason::UnknownPod));
        }
        let asks_clients = found.entry.affinity != 0;
        return match current_or_past(tables, found, found.entry.local, flow, asks_clients)? {
            Some(owner) if owner.backend.is_own_pod() => Ok(owner),
            // The pod has left this machine. Passed to the stack, the packet would return to the edge.
            _ => Err(Verdict::Drop(DropReason::UnknownPod)),
        };
    }
    // What has no flags begins no connection: it asks for no client's backend.
    match current_or_past(tables, found, found.entry.word, flow, false)? {
        Some(owner) => Ok(owner),
        None => Err(no_owner(tables, found.id)),
    }
}

/// Finds the current owner of a flow's slot in one of a service's tables; `None` if there is none.
///
/// # Errors
///
/// Leaves the packet for [`Stage::Past`] if the slot has had other owners, or if `asks_clients`: clients keep their backends.
#[inline(always)]
fn current_or_past<'t, A: Ip, T: Tables + HandOvers>(
    tables: &'t T,
    found: &FoundService,
    table: ServiceWord,
    flow: &FlowKey<A>,
    asks_clients: bool,
) -> Result<Option<Owner<'t>>, Verdict<'t>> {
    let hash = flow_hash(tables, found.entry.affinity, flow);
    let index = slot_index(table, hash);
    let slot = tables.slot(index).unwrap_or_default();
    if slot.has_past() || asks_clients {
        return Err(to_past(tables, found.id, index, flow, hash));
    }
    Ok(current_owner(tables, found.id, slot, hash))
}

/// Leaves a packet for [`Stage::Past`], with the index of its slot.
#[inline(always)]
pub fn to_past<'t, A: Ip, T: HandOvers>(
    tables: &T,
    service: u32,
    index: u32,
    flow: &FlowKey<A>,
    hash: u32,
) -> Verdict<'t> {
    tables.hand_over(HandOver {
        service,
        backend: index,
        ports: flow.ports(),
        detail: hash,
    });
    Verdict::Continue(Stage::Past)
}

/// Returns the verdict on a packet of a service whose table is empty.
#[inline(always)]
pub fn no_owner<'t, T: Tables>(tables: &T, service: u32) -> Verdict<'t> {
    match tables.service(service) {
        Some(entry) if entry.flags & SERVICE_DROP_WHEN_EMPTY != 0 => {
            Verdict::Drop(DropReason::NoLocalBackend)
        }
        _ => Verdict::Answer(Answer::REFUSE),
    }
}

/// Finds the pod that an edge's tag names. If it is not here, another pod takes a datagram, unless the packet is to be returned.
#[inline(always)]
pub fn tagged_owner<'t, A: Ip, T: Tables>(
    tables: &'t T,
    found: &FoundService,
    flow: &FlowKey<A>,
    tag: Tag,
    is_returned_if_unknown: bool,
) -> Option<Owner<'t>> {
    match tagged_pod(tables, found, tag) {
        Some(owner) => Some(owner),
        None if is_returned_if_unknown => None,
        None => choose_pod_instead(tables, found, flow),
    }
}

/// Finds the pod that a tag names, if it is here.
#[inline(always)]
pub fn tagged_pod<'t, T: Tables>(
    tables: &'t T,
    found: &FoundService,
    tag: Tag,
) -> Option<Owner<'t>> {
    let key = PodKey::new(found.id, tag);
    let id = tables.pod(&key)?.backend(key)?;
    let backend = tables.backend(id)?;
    backend.is_own_pod().then_some(Owner {
        service: found.id,
        hash: 0,
        id,
        backend,
    })
}

/// Chooses another pod of this machine if the tag's pod is not here. A TCP connection gets none: its next segment would
/// name the same pod, and meet a RST.
#[inline(always)]
pub fn choose_pod_instead<'t, A: Ip, T: Tables>(
    tables: &'t T,
    found: &FoundService,
    flow: &FlowKey<A>,
) -> Option<Owner<'t>> {
    if flow.protocol == protocol::TCP {
        None
    } else {
        choose_own_pod(tables, found, flow)
    }
}

/// Chooses one of this machine's own pods.
#[inline(always)]
fn choose_own_pod<'t, A: Ip, T: Tables>(
    tables: &'t T,
    found: &FoundService,
    flow: &FlowKey<A>,
) -> Option<Owner<'t>> {
    if found.entry.local.base() == 0 {
        return None;
    }
    choose_from(tables, found, found.entry.local, flow)
}

/// Chooses a backend from one of a service's tables; `None` if the table is empty.
#[inline(always)]
pub fn choose_from<'t, A: Ip, T: Tables>(
    tables: &'t T,
    found: &FoundService,
    table: ServiceWord,
    flow: &FlowKey<A>,
) -> Option<Owner<'t>> {
    let hash = flow_hash(tables, found.entry.affinity, flow);
    owner_of_slot(tables, found.id, table, hash)
}

/// Returns the hash of a flow that chooses its backend, by the service's [`Service::affinity`].
#[inline(always)]
pub fn flow_hash<A: Ip, T: Tables>(tables: &T, affinity: u64, flow: &FlowKey<A>) -> u32 {
    match affinity {
        0 => flow.hash(tables.config().map_or(0, |config| config.hash_seed)),
        seed => flow.client_hash(seed),
    }
}

/// Finds the backend that owns a hash's slot; `None` if the table is empty.
#[inline(always)]
pub fn owner_of_slot<'t, T: Tables>(
    tables: &'t T,
    service: u32,
    table: ServiceWord,
    hash: u32,
) -> Option<Owner<'t>> {
    let slot = tables.slot(slot_index(table, hash)).unwrap_or_default();
    current_owner(tables, service, slot, hash)
}

/// Returns the index in the arena of a hash's slot.
#[inline(always)]
pub fn slot_index(table: ServiceWord, hash: u32) -> u32 {
    table.base() + maglev::slot(hash, table.log2_length())
}

/// Returns the backend that owns a slot; `None` if there is none.
#[inline(always)]
pub fn current_owner<'t, T: Tables>(
    tables: &'t T,
    service: u32,
    slot: Slot,
    hash: u32,
) -> Option<Owner<'t>> {
    let id = slot.owner();
    if id == 0 {
        return None;
    }
    Some(Owner {
        service,
        hash,
        id,
        backend: tables.backend(id)?,
    })
}
