//! The live tables as the datapath's code sees them, read only.

mod nat;

use std::{cell::RefCell, net::SocketAddr};

use aya::maps::lpm_trie::Key;
use xdp_prog::{
    abi::{
        AddressKey, Backend, Client, ClientBackend, Config, Datagram, EdgeMac, EdgePrefix,
        IndexEntry, IndexKey, NextHop, Past, PastOwner, PathReport, Pin, Pod, PodFlow, PodKey,
        Service, ServiceKeyV4, ServiceKeyV6, Slot, SourcePrefix, TaggedLink, Tuple,
    },
    wire::protocol,
    world::{
        self, Announcements, Answers, BetweenStages, Clients, FlowTable, Flows, Fragments,
        InUserSpace, Inserted, Paths, PinTable, Pins, Probes, Shortcuts, Sockets, Translation,
    },
};
use zerocopy::IntoBytes as _;

use self::nat::NatChanges;
use super::{
    super::{Tables, encode::backend_key, types::address_of},
    fib::Fib,
};
use crate::clock::coarse_ns;

/// The tables for one packet, which changes nothing in them.
#[derive(Debug)]
pub(super) struct ReadOnly<'t> {
    tables: &'t Tables,
    fib: Fib,
    counted: RefCell<Vec<Counted>>,
    looked_up: RefCell<Vec<LookUp>>,
    between_stages: BetweenStages,
    nat: NatChanges,
}

/// A counter that the packet would have moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// A reason, by its index.
    Reason(u32),
    /// A forwarded packet.
    Forward {
        service: u32,
        backend: u32,
        bytes: u64,
    },
}

/// A look-up that tells how the packet is treated.
#[derive(Clone, Copy, Debug)]
pub(super) enum LookUp {
    /// A service's address, and the id that was found.
    Service(SocketAddr, Option<u32>),
    /// A flow of the kernel's own was found.
    LocalFlow,
    /// Whether the client is in one of the source ranges.
    SourceRange(bool),
    /// The pod's bits of a tag, and the backend's id that was found.
    Pod(u16, Option<u32>),
    /// A slot, by its index in the arena.
    Slot(u32),
    /// How many past owners the slot has, if any.
    PastOwners(u32),
    /// A past owner, by its id.
    PastOwner(u32),
    /// A pin of the flow.
    Pin(PinTable, Pin),
    /// The backend that the client's last new connection went to, by its id.
    Client(u32),
    /// A backend, by its id.
    Backend(u32),
}

impl<'t> ReadOnly<'t> {
    /// Prepares for a packet that came in by a device.
    pub(super) fn new(tables: &'t Tables, ingress: u32) -> Self {
        Self {
            tables,
            fib: Fib::new(ingress),
            counted: RefCell::default(),
            looked_up: RefCell::default(),
            between_stages: BetweenStages::default(),
            nat: NatChanges::default(),
        }
    }

    pub(super) fn translation(&self) -> Option<&Translation> {
        self.nat.translation.get()
    }

    pub(super) fn fib(&self) -> &Fib {
        &self.fib
    }

    /// Takes the look-ups that were made since the last call.
    pub(super) fn take_look_ups(&self) -> Vec<LookUp> {
        self.looked_up.take()
    }

    fn note(&self, look_up: LookUp) {
        self.looked_up.borrow_mut().push(look_up);
    }

    fn note_service(&self, key: &[u8], entry: Option<IndexEntry>) -> Option<IndexEntry> {
        // The key is an address of either family, the port, the protocol, and zeros.
        let at = match *key {
            [a, b, c, d, e, f, _, _] => {
                SocketAddr::from(([a, b, c, d], u16::from_be_bytes([e, f])))
            }
            [ref address @ .., e, f, _, _, _, _, _, _] => {
                let address: [u8; 16] = address.try_into().unwrap_or_default();
                SocketAddr::from((address, u16::from_be_bytes([e, f])))
            }
            _ => return entry,
        };
        self.note(LookUp::Service(at, entry.map(IndexEntry::id)));
        entry
    }

    pub(super) fn counted(&self) -> Vec<Counted> {
        self.counted.borrow().clone()
    }
}

impl world::World for ReadOnly<'_> {}

impl world::Counters for ReadOnly<'_> {
    fn count_reason(&self, index: u32) {
        self.counted.borrow_mut().push(Counted::Reason(index));
    }

    fn count_forward(&self, service: u32, backend: u32, bytes: u64) {
        self.counted.borrow_mut().push(Counted::Forward {
            service,
            backend,
            bytes,
        });
    }
}

impl world::Clock for ReadOnly<'_> {
    fn now(&self) -> u64 {
        coarse_ns()
    }
}

impl Flows for ReadOnly<'_> {
    fn with_flow<R>(
        &self,
        table: FlowTable,
        key: &Tuple,
        f: impl FnOnce(&mut PodFlow) -> R,
    ) -> Option<R> {
        let map = match table {
            FlowTable::Established if key.protocol() == protocol::TCP => &self.tables.flows,
            FlowTable::Established => &self.tables.flows_datagram,
            FlowTable::Embryonic => &self.tables.flows_embryonic,
        };
        let mut copy = map.get(key)?;
        copy.is_for(key).then(|| f(&mut copy))
    }

    fn insert_flow(&self, _: FlowTable, _: &Tuple, _: &PodFlow) -> Inserted {
        Inserted::Done
    }

    fn remove_flow(&self, _: FlowTable, _: &Tuple) {}
}

/// Has no notes, so that every look-up is made and recorded.
impl Shortcuts for ReadOnly<'_> {
    fn shortcut(&self, _: &Tuple, _: u32) -> Option<u64> {
        None
    }

    fn note_shortcut(&self, _: &Tuple, _: u32, _: u64) {}

    fn note_untrusted(&self, _: &AddressKey) {}
}

impl InUserSpace for ReadOnly<'_> {
    fn between_stages(&self) -> &BetweenStages {
        &self.between_stages
    }
}

/// Has full allowances, because the answer is not sent.
impl Answers for ReadOnly<'_> {
    fn full_at(&self, _: &AddressKey) -> u64 {
        0
    }

    fn set_full_at(&self, _: &AddressKey, _: u64) {}

    fn all_full_at(&self) -> u64 {
        0
    }

    fn set_all_full_at(&self, _: u64) {}
}

/// Pins nothing, and its allowance is full.
impl Pins for ReadOnly<'_> {
    fn pin(&self, table: PinTable, flow: &Tuple) -> Option<Pin> {
        let pin = self.tables.pins[table as usize].get(flow)?;
        self.note(LookUp::Pin(table, pin));
        Some(pin)
    }

    fn set_pin(&self, _: PinTable, _: &Tuple, _: Pin) {}

    fn remove_pin(&self, _: PinTable, _: &Tuple) {}

    fn mark_pinned(&self, _: u32) {}

    fn returns_full_at(&self) -> u64 {
        0
    }

    fn set_returns_full_at(&self, _: u64) {}
}

/// Only programs can ask for the sockets of pods: flows are known here by their tables alone.
impl Sockets for ReadOnly<'_> {}

impl Clients for ReadOnly<'_> {
    fn client(&self, client: &Client) -> ClientBackend {
        let Some(entry) = self.tables.clients.get(client) else {
            return ClientBackend::default();
        };
        self.note(LookUp::Client(entry.backend()));
        entry
    }

    fn set_client(&self, _: &Client, _: ClientBackend) {}
}

impl Fragments for ReadOnly<'_> {
    fn datagram(&self, key: &Tuple) -> Option<Datagram> {
        self.tables.fragments.get(key)
    }

    fn publish(&self, _: &Tuple, _: &Datagram) {}
}

impl Probes for ReadOnly<'_> {
    fn probe_peer(&self, answer: &Tuple) -> Option<AddressKey> {
        self.tables.probe_peers.get(answer)
    }
}

impl Paths for ReadOnly<'_> {
    fn note_path(&self, node: &AddressKey, _report: PathReport) -> bool {
        self.tables.paths.get(node).is_some()
    }
}

impl Announcements for ReadOnly<'_> {
    fn is_announced(&self, address: &AddressKey) -> bool {
        self.tables.announced.get(address).is_some()
    }

    fn announce_stamp(&self) -> u64 {
        self.tables.announce_stamp()
    }

    fn announcing_mac(&self, link: TaggedLink) -> Option<EdgeMac> {
        self.tables.announce_links.get(&link)
    }

    fn note_claim(&self, _: &AddressKey, _: EdgeMac) {}
}

impl world::Tables for ReadOnly<'_> {
    fn config(&self) -> Option<&Config> {
        Some(&self.tables.current_config)
    }

    fn address_flags(&self, address: &AddressKey) -> u32 {
        self.tables.vips.get(address).unwrap_or(0)
    }

    fn is_trusted_edge(&self, source: &AddressKey) -> bool {
        let key = Key::new(EdgePrefix::HOST_BITS, EdgePrefix::new(*source));
        self.tables.trusted_edges.get(&key).is_some()
    }

    fn is_edge_mac(&self, source: &EdgeMac) -> bool {
        self.tables.edge_macs.get(source).is_some()
    }

    fn is_in_source_range(&self, service: u32, client: &AddressKey) -> bool {
        let key = Key::new(SourcePrefix::HOST_BITS, SourcePrefix::new(service, *client));
        let is_in = self.tables.source_ranges.get(&key).is_some();
        self.note(LookUp::SourceRange(is_in));
        is_in
    }

    fn is_local_flow(&self, flow: &Tuple) -> bool {
        let known = self.tables.local_flows.get(flow);
        let is_local = known.is_some_and(|known| known.is_alive(coarse_ns()));
        if is_local {
            self.note(LookUp::LocalFlow);
        }
        is_local
    }

    fn pod(&self, key: &PodKey) -> Option<Pod> {
        let pod = self.tables.pods.get(key);
        let (_, tag) = key.parts();
        let backend = pod.and_then(|pod| pod.backend(*key));
        self.note(LookUp::Pod(tag.pod_bits(), backend));
        pod
    }

    fn service_v4(&self, key: &ServiceKeyV4) -> Option<IndexEntry> {
        let entry = self.tables.index.get(IndexKey::v4(*key));
        self.note_service(key.as_bytes(), entry)
    }

    fn service_v6(&self, key: &ServiceKeyV6) -> Option<IndexEntry> {
        let index_key = IndexKey::v6(key, self.tables.current_config.index_seed);
        self.note_service(key.as_bytes(), self.tables.index.get(index_key))
    }

    fn service(&self, id: u32) -> Option<Service> {
        self.tables.service.read(id)
    }

    fn slot(&self, index: u32) -> Option<Slot> {
        self.note(LookUp::Slot(index));
        self.tables.lut.get(index)
    }

    fn past(&self, index: u32) -> Past {
        let past = self.tables.pasts.word(index);
        if past.count() != 0 {
            self.note(LookUp::PastOwners(past.count()));
        }
        past
    }

    fn past_owner(&self, index: u32) -> PastOwner {
        let owner = self.tables.pasts.owner(index);
        self.note(LookUp::PastOwner(owner.backend()));
        owner
    }

    fn backend(&self, id: u32) -> Option<&Backend> {
        self.note(LookUp::Backend(id));
        self.tables.backends.get(id)
    }

    fn next_hop(&self, id: u32) -> Option<&NextHop> {
        self.tables.next_hops.get(id)
    }

    fn fib_next_hop(&self, backend: &Backend) -> Option<&NextHop> {
        self.fib.next_hop(backend_key(backend).address)
    }

    fn fib_route(&self, address: &AddressKey) -> Option<&NextHop> {
        self.fib.next_hop(address_of(*address))
    }

    fn fib_device(&self, address: &AddressKey) -> Option<u32> {
        self.fib.device(address_of(*address))
    }
}
