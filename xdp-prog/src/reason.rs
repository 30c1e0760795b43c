//! Reasons: why a packet was passed to the stack, dropped, answered, or sent on to a client.
//!
//! One list has three uses: the variant is the datapath's error, its integer is the index into the `REASONS`
//! counters, and its text is the metric label. A packet that is forwarded to a backend has no reason; it is counted
//! per service and per backend.
//!
//! The list is part of the table layout. A release that adds, removes or moves a variant must raise
//! [`crate::abi::VERSION`]; otherwise pinned counters would continue under other names.

/// Declares enums that share one contiguous range of counter indices. Each declaration gives the index of its first
/// variant.
macro_rules! reasons {
    ($(
        $(#[$doc:meta])*
        $name:ident from $first:expr => {
            $($(#[$variant_doc:meta])* $variant:ident = $label:literal,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// Every variant, in the order of the counters.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            #[expect(clippy::cast_possible_truncation, reason = "a few dozen variants")]
            const END: u32 = $first + Self::ALL.len() as u32;

            /// Returns the index into the `REASONS` counters.
            #[inline(always)]
            pub const fn index(self) -> u32 { $first + self as u32 }

            /// Returns the metric label.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)* }
            }
        }
    )*};
}

reasons! {
    /// Reasons why a packet passes to the kernel's own stack.
    PassReason from 0 => {
        /// The frame ends inside its Ethernet header or VLAN tags.
        RuntFrame = "runt_frame",
        /// The destination MAC is a group address: broadcast or multicast.
        GroupAddress = "group_address",
        /// The frame has more VLAN tags than the parser follows.
        VlanDepth = "vlan_depth",
        /// The frame holds neither IPv4 nor IPv6, but ARP, LLDP or the like.
        NotIp = "not_ip",
        /// The frame ends inside the IP header or before the length that the header states.
        TruncatedIp = "truncated_ip",
        /// Version or header length contradict the Ethernet type or each other.
        MalformedIp = "malformed_ip",
        /// The packet has more IPv6 extension headers than the parser follows.
        ExtensionDepth = "extension_depth",
        /// An IPv6 routing header with segments left: the destination is not the final one.
        RoutingHeader = "routing_header",
        /// ICMP that the stack answers.
        Icmp = "icmp",
        /// A transport protocol that no service can have.
        Protocol = "protocol",
        /// The IP packet ends inside the TCP or UDP header.
        TruncatedTransport = "truncated_transport",
        /// A fragment for an address that is not a VIP.
        FragmentNotOurs = "fragment_not_ours",
        /// No service at this address, port and protocol.
        NoService = "no_service",
        /// The chosen backend is this machine, without a pod.
        LocalBackend = "local_backend",
        /// IP-in-IP for an address at which this machine does not decapsulate.
        EncapNotOurs = "encap_not_ours",
        /// IP-in-IP to this machine from a source that is not a trusted edge.
        EncapUntrusted = "encap_untrusted",
        /// A trusted edge sent it for a VIP that this machine has itself; the outer header was taken off.
        Decapsulated = "decapsulated",
        /// It was translated and is on its way to a pod of this machine.
        Delivered = "delivered",
        /// A pod's reply with its source translated back, or an ICMP error about a packet to a pod.
        Translated = "translated",
        /// A packet of this machine's own check, sent the way of a client's packets.
        ProbeSent = "probe_sent",
        /// The answer to a check of this machine.
        ProbeAnswer = "probe_answer",
        /// It belongs to a flow of this machine's kernel whose source port is a NodePort.
        LocalFlow = "local_flow",
        /// It is for a source port of NAT mode but belongs to no known flow.
        NatNotOurs = "nat_not_ours",
        /// An ICMP error about an outer packet: the path to a node has a smaller MTU than its next hop.
        PathMtu = "path_mtu",
        /// Another machine announces an address that this machine announces too.
        AnnouncedElsewhere = "announced_elsewhere",
    }
    /// Reasons why a packet is dropped.
    DropReason from PassReason::END => {
        /// The client's address is in none of the service's source ranges.
        SourceRange = "source_range",
        /// An ICMP error about a packet of a service without backends, or a datagram of one that no past owner knows.
        NoBackend = "no_backend",
        /// NAT mode: the TTL or hop limit of a later fragment or an ICMP error is too low for one more hop.
        TtlExpired = "ttl_expired",
        /// The service has backends, but none that this machine may use (`externalTrafficPolicy: Local`).
        NoLocalBackend = "no_local_backend",
        /// A later fragment that arrived before its first one.
        FragmentOutOfOrder = "fragment_out_of_order",
        /// A fragment to a VIP or to an address with NodePorts that hides the ports. It may be a first fragment that
        /// is cut inside the transport header or, to a VIP, whose protocol has no ports. Or it is a later fragment
        /// that overlaps the ports (RFC 1858 section 4).
        FragmentOpaque = "fragment_opaque",
        /// The first fragment of an ICMP message to a VIP, other than an echo request, or with options, which an answer
        /// would have to repeat; or one within IP-in-IP. Nothing here reassembles it.
        FragmentedIcmp = "fragmented_icmp",
        /// ICMP to a VIP with IPv6 extension headers, or with IPv4 options other than those that an answer to a whole
        /// echo request repeats.
        IcmpOptions = "icmp_options",
        /// An answer is due, but the source has used up its allowance of answers.
        AnswerLimited = "answer_limited",
        /// The packet must not be answered: it is a RST or an ICMP error, or its source is no single host.
        Unanswerable = "unanswerable",
        /// An ICMP message whose quote belongs to no flow.
        MalformedIcmp = "malformed_icmp",
        /// A trusted edge sent it for a pod that is not here.
        UnknownPod = "unknown_pod",
        /// As `UnknownPod`, a SYN: the client sends it again, and the service may have another owner by then.
        UnknownPodSyn = "unknown_pod_syn",
        /// A trusted edge sent it for a service that is not known here, and the stack would route it back.
        SentBack = "sent_back",
        /// A trusted edge sent it for an address without services; edges have no other access to the stack.
        InnerNotOurs = "inner_not_ours",
        /// A packet to a VIP whose IP headers cannot be followed: cut short, too many, or a source route.
        VipHeaders = "vip_headers",
        /// A packet to a VIP of a transport protocol that no service can have.
        VipProtocol = "vip_protocol",
        /// A packet to a VIP that ends inside the TCP, UDP or SCTP header.
        VipTransport = "vip_transport",
        /// IP-in-IP to a VIP.
        VipEncap = "vip_encap",
        /// ICMP to a VIP that is neither an echo request nor an error.
        VipIcmp = "vip_icmp",
        /// A packet to an address with NodePorts whose headers hide the ports: too many, or cut short.
        NodePortHeaders = "node_port_headers",
        /// A packet from a VIP that would begin a flow to a pod or in NAT mode, or the first fragment of an echo request.
        /// No client has a VIP, so the source is forged.
        SourceIsVip = "source_is_vip",
        /// The client's port already talks to the same pod by another VIP of the pod, and every other port that was
        /// tried is in use too.
        FlowConflict = "flow_conflict",
        /// A segment of an unknown connection, while the client's port talks to the same pod by another VIP of the
        /// pod.
        UnknownFlow = "unknown_flow",
        /// The kernel has given the table of flows no element.
        FlowTableFull = "flow_table_full",
        /// NAT mode: a segment of an unknown connection.
        NatUnknownFlow = "nat_unknown_flow",
        /// Every source port towards this backend that was tried is in use.
        NatPortsExhausted = "nat_ports_exhausted",
        /// The tables of NAT mode are full.
        NatTableFull = "nat_table_full",
        /// A stage's program is missing: the agent is about to load it.
        StageMissing = "stage_missing",
        /// The packet is larger than the next hop's MTU once encapsulated, and its sender cannot be told.
        MtuExceeded = "mtu_exceeded",
        /// As `MtuExceeded`, for IPv4 without DF: the packet would have to be fragmented, and nobody does.
        FragmentationNeeded = "fragmentation_needed",
        /// Neither netlink nor the kernel's FIB knows a neighbour for the backend, and nobody holds the packet until one
        /// is known.
        NextHopUnresolved = "next_hop_unresolved",
        /// The L2 DSR backend is behind a router.
        NotOnLink = "not_on_link",
        /// This machine has no source address in the family of the outer header.
        NoOuterSource = "no_outer_source",
        /// The look-up found two entries that do not belong together, because a table changed meanwhile.
        TableChanged = "table_changed",
        /// The frame has no room in front for the outer header.
        NoHeadroom = "no_headroom",
        /// The kernel has no memory to make a reply's headers writable.
        NotWritable = "not_writable",
        /// A trusted edge sent an outer header without an IP packet inside.
        MalformedInner = "malformed_inner",
        /// The outer header is marked as congested and the inner packet is not ECN-capable (RFC 6040).
        EcnDropped = "ecn_dropped",
        /// A node has returned it, or would return it, and this CPU already looks for the owners of as many flows as it may.
        ReturnLimited = "return_limited",
        /// It claims to be returned, but not by the node that it was sent to, or not to this edge.
        ReturnRefused = "return_refused",
        /// It claims to be returned, but with more tries than its slot has had owners, or with none.
        ReturnUnexpected = "return_unexpected",
        /// A pod's segment of a connection that may be in the tables of the programs before these, while flows are copied
        /// from there. The pod sends it again.
        FlowNotCopied = "flow_not_copied",
    }
    /// Answers that are sent back in place of a packet.
    ReplyReason from DropReason::END => {
        /// The echo reply of a VIP.
        EchoReply = "echo_reply",
        /// Fragmentation needed, or packet too big, with an MTU that fits.
        PacketTooBig = "packet_too_big",
        /// Time exceeded: TTL or hop limit too low for one more hop.
        TimeExceeded = "time_exceeded",
        /// Port unreachable: no backend serves this UDP or SCTP port.
        PortUnreachable = "port_unreachable",
        /// A TCP RST: no backend serves this port.
        Reset = "reset",
        /// The MAC of an announced address, in answer to ARP or neighbour discovery.
        Neighbour = "neighbour",
        /// The packet itself, to the edge that sent it: its flow is not known here.
        Returned = "returned",
    }
    /// Packets of NAT mode that this machine sends on to a client.
    ToClientReason from ReplyReason::END => {
        /// A packet of NAT mode from a backend.
        NatReply = "nat_reply",
        /// An ICMP error about a packet of NAT mode that went to a backend.
        NatError = "nat_error",
    }
    /// Packets that this edge sends to a node another time.
    ToNodeReason from ToClientReason::END => {
        /// A node has returned it, and another owner of its slot is tried.
        Retried = "retried",
    }
    /// Packets that XDP has handed to the agent.
    PuntReason from ToNodeReason::END => {
        /// A later fragment to a VIP, or within IP-in-IP to a node, that arrived before its first one.
        Fragment = "punted_fragment",
        /// As `Fragment`, to an address of this machine with NodePorts or of NAT mode: it may be for the kernel.
        NodeFragment = "punted_node_fragment",
        /// IPv4 without DF that does not fit where it is to go: it has to be cut into fragments.
        TooBig = "punted_too_big",
        /// Neither netlink nor the kernel's FIB knows a neighbour for the backend yet.
        NextHop = "punted_next_hop",
        /// It is finished, and counted as what it is; but its device takes no frames from XDP.
        Carry = "punted_carry",
    }
}

/// Number of counters in `REASONS`.
pub const REASON_COUNT: usize = PuntReason::END as usize;

/// The fate of a reason's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReasonKind {
    /// The packets went on to the stack.
    Pass,
    /// The packets ended here.
    Drop,
    /// The packets were answered.
    Reply,
    /// The packets went on to clients.
    ToClient,
    /// The packets went on to other nodes.
    ToNode,
    /// The packets went to the agent, which mends or sends them.
    Punt,
}

impl ReasonKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Pass,
        Self::Drop,
        Self::Reply,
        Self::ToClient,
        Self::ToNode,
        Self::Punt,
    ];

    /// Returns the metric label, which filters of captures and their comments have too.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Drop => "drop",
            Self::Reply => "reply",
            Self::ToClient => "to_client",
            Self::ToNode => "to_node",
            Self::Punt => "punt",
        }
    }
}

/// Lists every reason as (kind, label) in the order of the counters.
pub fn all() -> impl Iterator<Item = (ReasonKind, &'static str)> {
    let passes = PassReason::ALL
        .iter()
        .map(|reason| (ReasonKind::Pass, reason.label()));
    let drops = DropReason::ALL
        .iter()
        .map(|reason| (ReasonKind::Drop, reason.label()));
    let replies = ReplyReason::ALL
        .iter()
        .map(|reason| (ReasonKind::Reply, reason.label()));
    let to_clients = ToClientReason::ALL
        .iter()
        .map(|reason| (ReasonKind::ToClient, reason.label()));
    let to_nodes = ToNodeReason::ALL
        .iter()
        .map(|reason| (ReasonKind::ToNode, reason.label()));
    let punts = PuntReason::ALL
        .iter()
        .map(|reason| (ReasonKind::Punt, reason.label()));
    let sent_on = to_clients.chain(to_nodes);
    passes
        .chain(drops)
        .chain(replies)
        .chain(sent_on)
        .chain(punts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_contiguous_in_listing_order() {
        let indices = PassReason::ALL
            .iter()
            .map(|reason| reason.index())
            .chain(DropReason::ALL.iter().map(|reason| reason.index()))
            .chain(ReplyReason::ALL.iter().map(|reason| reason.index()))
            .chain(ToClientReason::ALL.iter().map(|reason| reason.index()))
            .chain(ToNodeReason::ALL.iter().map(|reason| reason.index()))
            .chain(PuntReason::ALL.iter().map(|reason| reason.index()));
        assert!(indices.eq((0..).take(REASON_COUNT)));
        assert_eq!(all().count(), REASON_COUNT);
    }

    #[test]
    fn labels_are_distinct_within_their_kind() {
        for (position, one) in all().enumerate() {
            assert!(
                all().skip(position + 1).all(|other| other != one),
                "{one:?} twice"
            );
        }
    }
}
