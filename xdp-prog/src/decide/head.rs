//! The ports of a packet. A later fragment has those of its datagram's first fragment.

use crate::{
    abi::{Datagram, Tuple},
    flow::FlowKey,
    frame::Frame,
    ip::Ip,
    parse::{self, Packet, TcpFlags},
    reason::DropReason,
    wire::protocol,
    world::Fragments,
};

/// The ports and flags of a packet, or of the datagram that a fragment belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Source and destination port, in wire order; a word, because this may lie on the BPF stack.
    pub(crate) ports: u32,
    /// TCP flags; zero for a later fragment.
    pub(crate) flags: TcpFlags,
}

impl Head {
    #[inline(always)]
    const fn new([a, b]: [u8; 2], [c, d]: [u8; 2], flags: TcpFlags) -> Self {
        Self {
            ports: u32::from_ne_bytes([a, b, c, d]),
            flags,
        }
    }

    /// Reads the ports from the packet, or finds those that the first fragment has published.
    ///
    /// # Errors
    ///
    /// Returns the reason why the ports are unknown.
    #[inline(always)]
    pub(crate) fn read<F: Frame, A: Ip, T: Fragments>(
        frame: &F,
        tables: &T,
        packet: &Packet<A>,
    ) -> Result<Self, DropReason> {
        if packet.protocol == A::ICMP {
            return Err(DropReason::FragmentedIcmp);
        }
        if !packet.is_later_fragment() {
            return Self::first(frame, packet);
        }
        if usize::from(packet.piece.offset) * 8 < parse::transport_length(packet.protocol) {
            return Err(DropReason::FragmentOpaque);
        }
        match tables.datagram(&key_of_datagram(packet)) {
            Some(first) if first.is_awaited(tables.now()) => Ok(Self::new(
                first.source_port(),
                first.destination_port(),
                TcpFlags::default(),
            )),
            _ => Err(DropReason::FragmentOutOfOrder),
        }
    }

    #[inline(always)]
    fn first<F: Frame, A: Ip>(frame: &F, packet: &Packet<A>) -> Result<Self, DropReason> {
        let has_ports = matches!(
            packet.protocol,
            protocol::TCP | protocol::UDP | protocol::SCTP
        );
        match parse::flow(frame, packet) {
            Ok(flow) if has_ports => Ok(Self {
                ports: flow.ports(),
                flags: parse::tcp_flags(frame, packet),
            }),
            _ => Err(DropReason::FragmentOpaque),
        }
    }

    /// Returns the flow that the packet belongs to.
    #[inline(always)]
    pub(crate) fn flow<A: Ip>(&self, packet: &Packet<A>) -> FlowKey<A> {
        packet.flow_of(self.ports)
    }

    /// Publishes the ports of a first fragment; does nothing for a later one.
    #[inline(always)]
    pub(crate) fn publish<A: Ip, T: Fragments>(&self, tables: &T, packet: &Packet<A>) {
        if !packet.is_later_fragment() {
            let [a, b, c, d] = self.ports.to_ne_bytes();
            let datagram = Datagram::new([a, b], [c, d], tables.now());
            tables.publish(&key_of_datagram(packet), &datagram);
        }
    }
}

/// Returns the key of a fragment's datagram in `FRAGMENTS`.
#[inline(always)]
pub(crate) fn key_of_datagram<A: Ip>(packet: &Packet<A>) -> Tuple {
    Tuple::fragments(
        packet.source.key(),
        packet.destination.key(),
        packet.piece.identification.to_ne_bytes(),
        packet.protocol,
    )
}
