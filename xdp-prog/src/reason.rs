//! Why a packet was passed to the stack, dropped, answered, or sent on to a client.
//!
//! One list, three uses: the variant is the datapath's error, its integer the index into the `REASONS` counters, its text
//! the metric label. What is forwarded to a backend has no reason; it is counted per service and per backend.
//!
//! The list is part of the table layout: a variant that comes, goes or moves from one release to the next raises
//! [`crate::abi::VERSION`], or pinned counters would go on under other names.

/// Declares enums that share one contiguous range of counter indices: each names the index that its first variant has.
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
    /// Why a packet goes on to the kernel's own stack.
    PassReason from 0 => {
        /// The frame ends inside its Ethernet header or VLAN tags.
        RuntFrame = "runt_frame",
        /// The destination MAC is a group address: broadcast or multicast.
        GroupAddress = "group_address",
        /// More VLAN tags than the parser follows.
        VlanDepth = "vlan_depth",
        /// Neither IPv4 nor IPv6: ARP, LLDP and the like.
        NotIp = "not_ip",
        /// The frame ends inside the IP header or before the length that the header states.
        TruncatedIp = "truncated_ip",
        /// Version or header length contradict the Ethernet type or each other.
        MalformedIp = "malformed_ip",
        /// A longer chain of IPv6 extension headers than the parser follows.
        ExtensionDepth = "extension_depth",
        /// An IPv6 routing header with segments left: the destination is not the final one.
        RoutingHeader = "routing_header",
        /// ICMP: answered by the stack.
        Icmp = "icmp",
        /// A transport protocol that no service can have.
        Protocol = "protocol",
        /// The IP packet ends inside the TCP or UDP header.
        TruncatedTransport = "truncated_transport",
        /// A fragment for an address that is no VIP.
        FragmentNotOurs = "fragment_not_ours",
        /// No service at this address, port and protocol.
        NoService = "no_service",
        /// The chosen backend is this machine.
        LocalBackend = "local_backend",
        /// IP-in-IP for an address at which this machine does not decapsulate.
        EncapNotOurs = "encap_not_ours",
        /// IP-in-IP to this machine from a source that is no trusted edge.
        EncapUntrusted = "encap_untrusted",
        /// Decapsulated from a trusted edge, for a VIP that this machine has itself.
        Decapsulated = "decapsulated",
        /// On its way to a pod of this machine, its destination translated.
        Delivered = "delivered",
        /// A pod's reply on its way out, its source translated back; or an ICMP error about a packet to a pod.
        Translated = "translated",
        /// A packet of this machine's own check, put on the way of a client's packet.
        ProbeSent = "probe_sent",
        /// The answer to one.
        ProbeAnswer = "probe_answer",
        /// Belongs to a flow of this machine's kernel that uses a NodePort as its source port.
        LocalFlow = "local_flow",
        /// To a source port of NAT mode, but of no flow that is known.
        NatNotOurs = "nat_not_ours",
        /// An ICMP error about an outer packet: the path to a node takes less than its next hop does.
        PathMtu = "path_mtu",
        /// Another machine announces an address that this machine announces too.
        AnnouncedElsewhere = "announced_elsewhere",
    }
    /// Why a packet ends here.
    DropReason from PassReason::END => {
        /// The client's address is in none of the service's source ranges.
        SourceRange = "source_range",
        /// The service has no backend.
        NoBackend = "no_backend",
        /// TTL or hop limit too low for one more hop.
        TtlExpired = "ttl_expired",
        /// The service has backends, but none that this machine may use (`externalTrafficPolicy: Local`).
        NoLocalBackend = "no_local_backend",
        /// A later fragment whose first one has not come.
        FragmentOutOfOrder = "fragment_out_of_order",
        /// A fragment to a VIP or an address with NodePorts that hides the ports: its datagram's first, but cut inside
        /// the transport header or, to a VIP, of a protocol without ports; or a later one that overlaps them (RFC 1858
        /// section 4).
        FragmentOpaque = "fragment_opaque",
        /// A fragment of an ICMP message to a VIP: nothing is put together here.
        FragmentedIcmp = "fragmented_icmp",
        /// ICMP to a VIP with IP options or extension headers, which an answer would have to take along.
        IcmpOptions = "icmp_options",
        /// An answer was due, but the source has used up its allowance of answers.
        AnswerLimited = "answer_limited",
        /// No answer may be given: to a RST, an ICMP error, a source that is no host.
        Unanswerable = "unanswerable",
        /// An ICMP message that quotes nothing that can be followed.
        MalformedIcmp = "malformed_icmp",
        /// A trusted edge names a pod that is not here.
        UnknownPod = "unknown_pod",
        /// A trusted edge sent it for a service that is not known here, and the stack would route it back.
        SentBack = "sent_back",
        /// A trusted edge sent it for an address that no service has: the stack is not open to that.
        InnerNotOurs = "inner_not_ours",
        /// To a VIP, and its IP headers cannot be followed: cut short, too many, or with a route to be taken.
        VipHeaders = "vip_headers",
        /// To a VIP, of a transport protocol that no service can have.
        VipProtocol = "vip_protocol",
        /// To a VIP, and ends inside the TCP, UDP or SCTP header.
        VipTransport = "vip_transport",
        /// IP-in-IP to a VIP.
        VipEncap = "vip_encap",
        /// ICMP to a VIP that is neither an echo request nor an error.
        VipIcmp = "vip_icmp",
        /// To an address with NodePorts, with headers that hide the ports: too many, or cut short.
        NodePortHeaders = "node_port_headers",
        /// Would begin a flow to a pod, or one of NAT mode, from a VIP, where nobody is a client: the source is forged.
        SourceIsVip = "source_is_vip",
        /// The client's port already talks to the same pod by another address of it, and every other port that was tried
        /// is in use too.
        FlowConflict = "flow_conflict",
        /// Goes on with a connection that is not known here, while the client's port talks to the same pod by another
        /// address of it.
        UnknownFlow = "unknown_flow",
        /// The table of flows takes no more.
        FlowTableFull = "flow_table_full",
        /// NAT mode: goes on with a connection that is not known here.
        NatUnknownFlow = "nat_unknown_flow",
        /// Every source port towards this backend that was tried is in use.
        NatPortsExhausted = "nat_ports_exhausted",
        /// The tables of NAT mode take no more flows.
        NatTableFull = "nat_table_full",
        /// A later part of the program is not there: the agent is about to put it in place.
        StageMissing = "stage_missing",
        /// Larger than the next hop's MTU once encapsulated, and its sender cannot be asked for less.
        MtuExceeded = "mtu_exceeded",
        /// The same of IPv4 without DF: it would have to be cut into fragments.
        FragmentationNeeded = "fragmentation_needed",
        /// Neither netlink nor the kernel's FIB knows a neighbour for the backend.
        NextHopUnresolved = "next_hop_unresolved",
        /// An L2 DSR backend that lies behind a router.
        NotOnLink = "not_on_link",
        /// No address of the outer family to encapsulate from.
        NoOuterSource = "no_outer_source",
        /// The look-up found two entries that do not belong together: a table changed meanwhile.
        TableChanged = "table_changed",
        /// No room in front of the frame for the outer header.
        NoHeadroom = "no_headroom",
        /// No memory for the kernel to make a reply's headers writable.
        NotWritable = "not_writable",
        /// A trusted edge sent something that is no IP packet inside.
        MalformedInner = "malformed_inner",
        /// RFC 6040: congestion marked outside, not ECN-capable inside.
        EcnDropped = "ecn_dropped",
    }
    /// What is sent back to where a packet came from, in its place.
    ReplyReason from DropReason::END => {
        /// The echo reply of a VIP.
        EchoReply = "echo_reply",
        /// Fragmentation needed, or packet too big, with the MTU that fits.
        PacketTooBig = "packet_too_big",
        /// Time exceeded: TTL or hop limit too low for one more hop.
        TimeExceeded = "time_exceeded",
        /// Port unreachable: nothing serves this UDP or SCTP port.
        PortUnreachable = "port_unreachable",
        /// A TCP RST: nothing serves this port.
        Reset = "reset",
        /// The MAC of an announced address, asked for by ARP or neighbour discovery.
        Neighbour = "neighbour",
    }
    /// What goes on to a client by way of this machine.
    ToClientReason from ReplyReason::END => {
        /// A packet of NAT mode from a backend.
        NatReply = "nat_reply",
        /// An ICMP error about a packet of NAT mode that went to a backend.
        NatError = "nat_error",
    }
}

/// Number of counters in `REASONS`.
pub const REASON_COUNT: usize = ToClientReason::END as usize;

/// Whether a reason's packets went on or ended.
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
    passes.chain(drops).chain(replies).chain(to_clients)
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
            .chain(ToClientReason::ALL.iter().map(|reason| reason.index()));
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
