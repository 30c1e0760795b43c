//! ICMP errors about outer packets: noted if the packet may have been sent from here, and the stack's in any case.

use std::net::IpAddr;

use xdp_prog::{
    abi::{ADDRESS_LOCAL, ADDRESS_NAT, ADDRESS_NODE_PORT, ADDRESS_VIP, PathReport, Tag},
    reason::{DropReason, PassReason},
};

use super::{
    super::{
        packet::{Link, Packet, SERVICE_VLAN, VLAN, patched},
        tables::{TableSet, address_key},
    },
    CLIENT_V4, Case, EDGE_V4, EDGE_V6, IN, NODE_V4, NODE_V6, V4_TCP, V6_TCP, VIP_V4, case, tcp, v4,
    v6,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ends in [V4, V6] {
        cases.extend(noted(ends));
        cases.extend(not_noted(ends));
    }
    cases.push(at_a_vip());
    cases
}

/// Who says it of which path, in which family.
#[derive(Clone, Copy)]
struct Ends {
    family: &'static str,
    router: IpAddr,
    own: IpAddr,
    node: IpAddr,
    /// Type and code of the error.
    kind: (u8, u8),
    /// Length of an IP header.
    header: usize,
}

const V4: Ends = Ends {
    family: "v4",
    router: v4(192, 0, 2, 254),
    own: EDGE_V4,
    node: NODE_V4,
    kind: (3, 4),
    header: 20,
};
const V6: Ends = Ends {
    family: "v6",
    router: v6(0xe, 254),
    own: EDGE_V6,
    node: NODE_V6,
    kind: (2, 0),
    header: 40,
};
const TAG: u16 = 0x2a5;

impl Ends {
    /// The outer packet that was too large.
    fn outer(&self, inner: &Packet) -> Packet {
        inner.within(self.own, self.node).tag(TAG).hop_limit(63)
    }

    /// What a router says of it that quotes so many bytes.
    fn error(&self, mtu: u32, quote: &[u8]) -> Packet {
        Packet::icmp(self.router, self.own, self.kind, mtu.to_be_bytes(), quote)
    }

    fn know(&self, tables: &mut TableSet) {
        let nothing = PathReport::default();
        tables.paths.insert(address_key(self.node), nothing);
    }
}

fn large(to: (IpAddr, u16)) -> Packet {
    Packet::udp(super::client(to), to, &[0x55; 1400])
}

fn noted(ends: Ends) -> Vec<Case> {
    let mut cases = Vec::new();
    for (inner_name, inner) in [("v4", large(V4_TCP.1)), ("v6", large(V6_TCP.1))] {
        let outer = ends.outer(&inner);
        let length = u16::try_from(outer.length()).unwrap();
        let bytes = outer.bytes();
        for quoted in [ends.header, ends.header + 8, 500] {
            let error = ends.error(1300, &bytes[..quoted]);
            for (at, flags) in [
                ("an_edge", 0),
                ("a_node", ADDRESS_LOCAL),
                ("a_node_port_address", ADDRESS_NODE_PORT),
                ("an_address_of_nat_mode", ADDRESS_NAT),
            ] {
                // An edge's stage of ICMP wants eight bytes more than the header.
                let expected = PathReport::new(1300, length, Tag(TAG));
                if quoted == ends.header && flags & (ADDRESS_NODE_PORT | ADDRESS_NAT) != 0 {
                    continue;
                }
                let name = format!(
                    "too_big_of_{inner_name}_in_{}_quoted_by_{quoted}_bytes_to_{at}",
                    ends.family
                );
                cases.push(
                    case(name, IN.carry(&error))
                        .with(|tables| {
                            ends.know(tables);
                            tables.address(ends.own, flags);
                        })
                        .passes(PassReason::PathMtu)
                        .says(ends.node, expected),
                );
            }
        }
    }
    let outer = ends.outer(&large(V4_TCP.1));
    let length = u16::try_from(outer.length()).unwrap();
    for mtu in [0, 68, u32::from(length) - 1] {
        let error = ends.error(mtu, &outer.bytes()[..ends.header + 8]);
        let expected = PathReport::new(u16::try_from(mtu).unwrap(), length, Tag(TAG));
        let tags = &[(SERVICE_VLAN, 5), (VLAN, 6)];
        cases.push(
            case(
                format!("{}_too_big_for_{mtu}", ends.family),
                Link { tags, ..IN }.carry(&error),
            )
            .with(|tables| ends.know(tables))
            .passes(PassReason::PathMtu)
            .says(ends.node, expected),
        );
    }
    cases
}

fn not_noted(ends: Ends) -> Vec<Case> {
    let outer = ends.outer(&large(V4_TCP.1));
    let length = u32::try_from(outer.length()).unwrap();
    let bytes = outer.bytes();
    let of = |packet: &Packet| ends.error(1300, &packet.bytes()[..ends.header + 8]);
    let other_kind = if ends.own.is_ipv4() { (3, 1) } else { (3, 0) };
    let (from_elsewhere, to_elsewhere, bare) = if ends.own.is_ipv4() {
        let inner = large(V4_TCP.1);
        let from = inner.within(v4(192, 0, 2, 9), ends.node);
        (
            from,
            inner.within(ends.own, v4(192, 0, 2, 77)),
            tcp(V4_TCP.1),
        )
    } else {
        let inner = large(V6_TCP.1);
        let from = inner.within(v6(0xe, 9), ends.node);
        (from, inner.within(ends.own, v6(0xe, 77)), tcp(V6_TCP.1))
    };
    let mut version = bytes.clone();
    version[0] ^= 0x20;
    let mut errors = vec![
        ("of_as_much_as_was_sent", ends.error(length, &bytes[..60])),
        ("of_more_than_was_sent", ends.error(9000, &bytes[..60])),
        (
            "that_quotes_too_little",
            ends.error(1300, &bytes[..ends.header - 1]),
        ),
        ("that_quotes_nothing", ends.error(1300, &[])),
        ("about_another_machines_packet", of(&from_elsewhere)),
        ("about_a_packet_to_no_node", of(&to_elsewhere)),
        ("about_a_packet_without_outer_header", of(&bare)),
        ("about_another_version", ends.error(1300, &version[..60])),
        ("of_another_kind", {
            Packet::icmp(
                ends.router,
                ends.own,
                other_kind,
                [0, 0, 5, 0x14],
                &bytes[..60],
            )
        }),
    ];
    if ends.own.is_ipv4() {
        let options = outer.clone().options(&[1; 8]).bytes();
        let fragment = outer.clone().fragment(5, true).bytes();
        errors.extend([
            (
                "about_a_header_with_options",
                ends.error(1300, &options[..60]),
            ),
            ("about_a_later_fragment", ends.error(1300, &fragment[..60])),
            (
                "with_options",
                ends.error(1300, &bytes[..60]).options(&[1; 4]),
            ),
        ]);
    }
    let mut cases: Vec<Case> = errors
        .into_iter()
        .map(|(what, error)| {
            case(format!("{}_too_big_{what}", ends.family), IN.carry(&error))
                .with(|tables| ends.know(tables))
                .passes(PassReason::Icmp)
        })
        .collect();
    let error = of(&outer);
    cases.push(
        case(
            format!("{}_too_big_where_no_path_is_watched", ends.family),
            IN.carry(&error),
        )
        .passes(PassReason::Icmp),
    );
    cases
}

/// Outer packets do not leave from a VIP.
fn at_a_vip() -> Case {
    let inner = large(V4_TCP.1);
    let outer = inner.within(VIP_V4, NODE_V4).bytes();
    let mtu = 1300_u32.to_be_bytes();
    let error = Packet::icmp(CLIENT_V4, VIP_V4, (3, 4), mtu, &outer[..60]);
    let frame = patched(IN.carry(&error), 0, &IN.destination);
    case("too_big_about_an_outer_packet_from_a_vip_drops", frame)
        .with(|tables| {
            V4.know(tables);
            tables.address(VIP_V4, ADDRESS_VIP);
        })
        .drops(DropReason::MalformedIcmp)
}
