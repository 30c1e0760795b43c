//! Why a packet was passed to the stack or dropped.
//!
//! One list, three uses: the variant is the datapath's error, its integer the
//! index into the `REASONS` counters, its text the metric label. Forwarded
//! packets have no reason; they are counted per service and per backend.
//!
//! The list is part of the table layout: a variant that comes, goes or moves
//! raises [`crate::abi::VERSION`], or pinned counters would go on under other
//! names.

/// Declares the two enums over one contiguous range of counter indices.
macro_rules! reasons {
    (
        pass { $($(#[$pass_doc:meta])* $pass:ident = $pass_label:literal,)* }
        drop { $($(#[$drop_doc:meta])* $drop:ident = $drop_label:literal,)* }
    ) => {
        /// Why a packet goes on to the kernel's own stack.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum PassReason { $($(#[$pass_doc])* $pass,)* }

        impl PassReason {
            /// Every variant, in the order of the counters.
            pub const ALL: &'static [Self] = &[$(Self::$pass,)*];

            /// Returns the index into the `REASONS` counters.
            #[inline(always)]
            pub const fn index(self) -> u32 { self as u32 }

            /// Returns the metric label.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$pass => $pass_label,)* }
            }
        }

        /// Why a packet ends here.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum DropReason { $($(#[$drop_doc])* $drop,)* }

        impl DropReason {
            /// Every variant, in the order of the counters.
            pub const ALL: &'static [Self] = &[$(Self::$drop,)*];

            /// Returns the index into the `REASONS` counters: drops follow passes.
            #[inline(always)]
            #[expect(clippy::cast_possible_truncation, reason = "a few dozen variants")]
            pub const fn index(self) -> u32 { PassReason::ALL.len() as u32 + self as u32 }

            /// Returns the metric label.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$drop => $drop_label,)* }
            }
        }
    };
}

reasons! {
    pass {
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
        /// Decapsulated from a trusted edge.
        Decapsulated = "decapsulated",
    }
    drop {
        /// The service has no backend.
        NoBackend = "no_backend",
        /// A fragment for a VIP: only its first one names the ports.
        Fragment = "fragment",
        /// TTL or hop limit too low for one more hop.
        TtlExpired = "ttl_expired",
        /// Larger than the next hop's MTU once encapsulated.
        MtuExceeded = "mtu_exceeded",
        /// Neither netlink nor the kernel's FIB knows a neighbour for the backend.
        NextHopUnresolved = "next_hop_unresolved",
        /// An L2 DSR backend that lies behind a router.
        NotOnLink = "not_on_link",
        /// No address of the outer family to encapsulate from.
        NoOuterSource = "no_outer_source",
        /// The service's tables kept changing during the look-up.
        TableChanged = "table_changed",
        /// No room in front of the frame for the outer header.
        NoHeadroom = "no_headroom",
        /// A trusted edge sent something that is no IP packet inside.
        MalformedInner = "malformed_inner",
        /// RFC 6040: congestion marked outside, not ECN-capable inside.
        EcnDropped = "ecn_dropped",
    }
}

/// Number of counters in `REASONS`.
pub const REASON_COUNT: usize = PassReason::ALL.len() + DropReason::ALL.len();

/// Whether a reason's packets went on or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReasonKind {
    /// The packets went on to the stack.
    Pass,
    /// The packets ended here.
    Drop,
}

/// Lists every reason as (kind, label) in the order of the counters.
pub fn all() -> impl Iterator<Item = (ReasonKind, &'static str)> {
    let passes = PassReason::ALL
        .iter()
        .map(|reason| (ReasonKind::Pass, reason.label()));
    let drops = DropReason::ALL
        .iter()
        .map(|reason| (ReasonKind::Drop, reason.label()));
    passes.chain(drops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_contiguous_in_listing_order() {
        let indices = PassReason::ALL
            .iter()
            .map(|reason| reason.index())
            .chain(DropReason::ALL.iter().map(|reason| reason.index()));
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
