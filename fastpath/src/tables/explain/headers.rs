//! The headers of a frame, as the trace shows them.

use xdp_prog::{
    abi::Service,
    flow::{FlowKey, V4, V6},
    frame::HostFrame,
    ip::Ip,
    parse::{self, Packet},
    wire::{ethernet, protocol},
};

use super::{
    super::{Tables, types::address_of},
    TraceStep,
};

/// A flow of either family.
pub(super) enum Flow {
    V4(FlowKey<V4>),
    V6(FlowKey<V6>),
}

impl Flow {
    pub(super) fn source_port(&self) -> u16 {
        u16::from_be_bytes(match self {
            Self::V4(flow) => flow.source_port,
            Self::V6(flow) => flow.source_port,
        })
    }

    /// Returns the hash that chooses a slot of the service's tables.
    pub(super) fn hash(&self, tables: &Tables, service: &Service) -> u32 {
        let seed = tables.settings.hash_seed;
        match (self, service.affinity) {
            (Self::V4(flow), 0) => flow.hash(seed),
            (Self::V6(flow), 0) => flow.hash(seed),
            (Self::V4(flow), seed) => flow.client_hash(seed),
            (Self::V6(flow), seed) => flow.client_hash(seed),
        }
    }
}

/// Returns the flow of a frame's innermost packet, and records the headers on the way to it.
pub(super) fn flow_of(frame: &HostFrame, steps: &mut Vec<TraceStep>) -> Option<Flow> {
    let link = parse::link(frame).ok()?;
    let mut next = match link.ether_type {
        ethernet::IPV4 => (protocol::IPV4, link.l3),
        ethernet::IPV6 => (protocol::IPV6, link.l3),
        _ => return None,
    };
    for name in ["parse", "inner"] {
        match next {
            (protocol::IPV4, l3) => {
                let packet = parse::ipv4(frame, l3).ok()?;
                steps.push(headers(name, &packet));
                if packet.is_fragment || has_ports(packet.protocol) {
                    return flow(frame, &packet, steps).map(Flow::V4);
                }
                next = (packet.protocol, packet.l4);
            }
            (protocol::IPV6, l3) => {
                let packet = parse::ipv6(frame, l3).ok()?;
                steps.push(headers(name, &packet));
                if packet.is_fragment || has_ports(packet.protocol) {
                    return flow(frame, &packet, steps).map(Flow::V6);
                }
                next = (packet.protocol, packet.l4);
            }
            _ => return None,
        }
    }
    None
}

const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
}

fn flow<A: Ip>(
    frame: &HostFrame,
    packet: &Packet<A>,
    steps: &mut Vec<TraceStep>,
) -> Option<FlowKey<A>> {
    let mut tell = |name, text| steps.push(TraceStep { name, text });
    if packet.is_fragment {
        tell("parse", "a fragment".to_owned());
        return None;
    }
    let flow = parse::flow(frame, packet).ok()?;
    let [source, destination] = [flow.source_port, flow.destination_port].map(u16::from_be_bytes);
    let flags = parse::tcp_flags(frame, packet).0;
    tell(
        "ports",
        format!("{source} to {destination}, TCP flags {flags:#04x}"),
    );
    Some(flow)
}

fn headers<A: Ip>(name: &'static str, packet: &Packet<A>) -> TraceStep {
    let protocol = match packet.protocol {
        protocol::IPV4 | protocol::IPV6 => "IP-in-IP".to_owned(),
        protocol::TCP => "TCP".to_owned(),
        protocol::UDP => "UDP".to_owned(),
        protocol::SCTP => "SCTP".to_owned(),
        protocol::ICMP | protocol::ICMPV6 => "ICMP".to_owned(),
        number => format!("protocol {number}"),
    };
    let text = format!(
        "{:?}, {protocol} from {} to {}, {} bytes, TTL {}, class {:#04x}",
        A::FAMILY,
        address_of(packet.source.key()),
        address_of(packet.destination.key()),
        packet.length,
        packet.hop_limit,
        packet.traffic_class
    );
    TraceStep { name, text }
}
