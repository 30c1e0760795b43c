//! Which backend a flow gets, and why: the datapath's own code over the live tables.

use std::{
    mem::offset_of,
    net::{IpAddr, SocketAddr},
    sync::atomic::Ordering,
};

use aya::maps::lpm_trie::Key;
use xdp_prog::{
    abi::{
        AddressKey, Backend, Config, EdgeMac, EdgePrefix, NextHop, Pod, PodKey, Service,
        ServiceKeyV4, ServiceKeyV6, ServiceWord, Slot, SourcePrefix, Tag, Tuple,
    },
    decide::{self, Ip, Verdict, balance},
    flow::{FlowKey, V4, V6},
    frame::HostFrame,
    parse::{Packet, Piece},
    reason::PassReason,
};

use super::{BackendKey, ServiceKey, Tables, encode::backend_key};

/// The steps of one decision, as far as it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Where the look-up led, if there is such a service with a backend.
    pub choice: Option<ChosenBackend>,
    /// What becomes of the packet: `forward`, `pass` or `drop`, the latter with a reason.
    pub verdict: Outcome,
}

/// How the backend of a flow was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenBackend {
    /// Service id.
    pub service: u32,
    /// The flow's hash.
    pub hash: u32,
    /// The slot within the service's table.
    pub slot: u32,
    /// The table's length.
    pub slots: u32,
    /// Backend id.
    pub id: u32,
    /// The backend.
    pub backend: BackendKey,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Sent to the backend over this next hop.
    Forward(NextHop),
    /// Handed to the stack, for this reason.
    Pass(&'static str),
    /// Dropped, for this reason.
    Drop(&'static str),
}

impl Tables {
    /// Decides as the datapath would for a small unfragmented packet of a flow.
    ///
    /// A backend whose next hop netlink could not resolve counts as dropped
    /// here; the datapath asks the kernel's FIB as well.
    ///
    /// Returns nothing where service and client are of different families.
    pub fn which(&self, service: &ServiceKey, from: SocketAddr) -> Option<Explanation> {
        match (service.address, from.ip()) {
            (IpAddr::V4(destination), IpAddr::V4(source)) => {
                let addresses = (V4(source.octets()), V4(destination.octets()));
                Some(self.explain(addresses, service, from.port()))
            }
            (IpAddr::V6(destination), IpAddr::V6(source)) => {
                let addresses = (V6(source.octets()), V6(destination.octets()));
                Some(self.explain(addresses, service, from.port()))
            }
            _ => None,
        }
    }

    fn explain<A: Ip>(&self, addresses: (A, A), service: &ServiceKey, port: u16) -> Explanation {
        let (source, destination) = addresses;
        let protocol = service.protocol.number();
        let flow = FlowKey {
            source,
            destination,
            source_port: port.to_be_bytes(),
            destination_port: service.port.to_be_bytes(),
            protocol,
        };
        let choice = balance::find(self, &flow)
            .and_then(|found| balance::choose(self, &found, &flow))
            .ok()
            .map(|choice| ChosenBackend {
                service: choice.service,
                hash: choice.hash,
                slot: choice.slot,
                slots: 1 << choice.entry.word.log2_length(),
                id: choice.id,
                backend: backend_key(choice.backend),
            });
        let packet = Packet {
            l3: 14,
            l4: 14 + 40,
            length: SMALL_PACKET,
            traffic_class: 0,
            hop_limit: 64,
            protocol,
            tag: Tag::default(),
            is_fragment: false,
            piece: Piece::default(),
            source,
            destination,
        };
        let frame = HostFrame::new(&[0; 14 + SMALL_PACKET]);
        let verdict = match balance::balance(&frame, self, &packet, &flow) {
            Verdict::Forward(forward) => Outcome::Forward(*forward.hop),
            Verdict::Pass(reason) => Outcome::Pass(reason.label()),
            Verdict::Drop(reason) => Outcome::Drop(reason.label()),
            Verdict::Deliver(_) => Outcome::Pass(PassReason::Delivered.label()),
            Verdict::Continue(stage) => Outcome::Pass(stage.program()),
            Verdict::Decap(_) | Verdict::Translate(_) => {
                unreachable!("balancing leaves these to stages")
            }
        };
        Explanation { choice, verdict }
    }
}

/// Length of the packet in mind: small enough for every path.
const SMALL_PACKET: usize = 80;

impl decide::Tables for Tables {
    fn config(&self) -> Option<&Config> {
        Some(&self.current_config)
    }

    fn address_flags(&self, address: &AddressKey) -> u32 {
        self.vips.get(address, 0).unwrap_or(0)
    }

    fn is_trusted_edge(&self, source: &AddressKey) -> bool {
        let key = Key::new(EdgePrefix::HOST_BITS, EdgePrefix::new(*source));
        self.trusted_edges.get(&key, 0).is_ok()
    }

    fn is_edge_mac(&self, source: &EdgeMac) -> bool {
        self.edge_macs.get(source, 0).is_ok()
    }

    fn is_in_source_range(&self, service: u32, client: &AddressKey) -> bool {
        let key = Key::new(SourcePrefix::HOST_BITS, SourcePrefix::new(service, *client));
        self.source_ranges.get(&key, 0).is_ok()
    }

    fn is_local_flow(&self, flow: &Tuple) -> bool {
        self.local_flows.get(flow, 0).is_ok()
    }

    fn pod(&self, key: &PodKey) -> Option<Pod> {
        self.pods.get(key, 0).ok()
    }

    fn service_v4(&self, key: &ServiceKeyV4) -> Option<u32> {
        self.services_v4.get(key, 0).ok()
    }

    fn service_v6(&self, key: &ServiceKeyV6) -> Option<u32> {
        self.services_v6.get(key, 0).ok()
    }

    fn service(&self, id: u32) -> Option<Service> {
        let word = |offset| {
            let word = self.service.atomic_u64(id, offset)?;
            Some(ServiceWord(word.load(Ordering::Acquire)))
        };
        Some(Service {
            word: word(offset_of!(Service, word))?,
            local: word(offset_of!(Service, local))?,
            ..self.service.read(id)?
        })
    }

    fn slot(&self, index: u32) -> Option<Slot> {
        Some(Slot(self.lut.atomic_u64(index, 0)?.load(Ordering::Acquire)))
    }

    fn backend(&self, id: u32) -> Option<&Backend> {
        self.backends.get(id)
    }

    fn next_hop(&self, id: u32) -> Option<&NextHop> {
        self.next_hops.get(id)
    }

    fn fib_next_hop(&self, _backend: &Backend) -> Option<&NextHop> {
        None
    }
}
