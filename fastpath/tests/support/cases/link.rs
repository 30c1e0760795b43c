//! VLAN tags in and out.

use xdp_prog::reason::PassReason;

use super::{
    super::packet::{Link, Packet, SERVICE_VLAN, VLAN},
    Case, EDGE_V4, EDGE_V6, IN, NODE_V4, NODE_V6, PEER_V4, PEER_V6, TO_NODE_V4, TO_NODE_V6,
    V4_IN_V6, V4_L2, V4_TCP, V6_IN_V4, V6_L2, V6_TCP, Way, case, tcp,
};

type Tags = &'static [(u16, u16)];

/// Tags that a frame may come in with and still be balanced.
const TAGS: [(&str, Tags); 7] = [
    ("untagged", &[]),
    ("tagged", &[(VLAN, 100)]),
    ("priority_tagged", &[(VLAN, 0xe000)]),
    ("service_tagged", &[(SERVICE_VLAN, 0x0fff)]),
    ("double_tagged", &[(SERVICE_VLAN, 0x2064), (VLAN, 0x0065)]),
    ("double_customer_tagged", &[(VLAN, 1), (VLAN, 2)]),
    (
        "double_service_tagged",
        &[(SERVICE_VLAN, 1), (SERVICE_VLAN, 2)],
    ),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(in_and_out());
    cases.extend(too_deep());
    cases.extend(decapsulated());
    cases
}

/// The tags of the way in do not matter on the way out; the next hop's do.
fn in_and_out() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, tags) in TAGS {
        for (mode, (service, to), outer) in [
            ("v4_in_v4", V4_TCP, Some((EDGE_V4, NODE_V4))),
            ("v6_in_v6", V6_TCP, Some((EDGE_V6, NODE_V6))),
            ("v4_in_v6", V4_IN_V6, Some((EDGE_V6, NODE_V6))),
            ("v6_in_v4", V6_IN_V4, Some((EDGE_V4, NODE_V4))),
            ("v4_l2dsr", V4_L2, None),
            ("v6_l2dsr", V6_L2, None),
        ] {
            for (leaves, vlan) in [("untagged", 0), ("tagged", 0x6123)] {
                let packet = tcp(to);
                let input = Link { tags, ..IN }.carry(&packet);
                let sent = match outer {
                    Some((source, destination)) => packet.next_hop().within(source, destination),
                    None => packet.next_hop(),
                };
                cases.push(
                    case(format!("{mode}_{name}_leaves_{leaves}"), input)
                        .with(|tables| {
                            for hop in &mut tables.next_hops {
                                hop.vlan = u16::to_be_bytes(vlan);
                            }
                        })
                        .transmits(service, &packet, leaving(service, vlan, &sent)),
                );
            }
        }
    }
    cases
}

fn leaving(service: Way, vlan: u16, packet: &Packet) -> Vec<u8> {
    let link = if service.backend == 1 {
        TO_NODE_V4
    } else {
        TO_NODE_V6
    };
    let tags = [(VLAN, vlan)];
    let tags = if vlan == 0 { &[] } else { &tags[..] };
    Link { tags, ..link }.carry(packet)
}

fn too_deep() -> Vec<Case> {
    let tags: Tags = &[(SERVICE_VLAN, 1), (VLAN, 2), (VLAN, 3), (VLAN, 4)];
    let mut cases = Vec::new();
    for depth in [3, 4] {
        for (family, packet) in [("v4", tcp(V4_TCP.1)), ("v6", tcp(V6_TCP.1))] {
            let tags = &tags[..depth];
            cases.push(
                case(
                    format!("{family}_behind_{depth}_tags_passes"),
                    Link { tags, ..IN }.carry(&packet),
                )
                .passes(PassReason::VlanDepth),
            );
        }
    }
    for (name, tags) in &TAGS[1..] {
        cases.push(
            case(
                format!("{name}_arp_passes"),
                Link { tags, ..IN }.frame(0x0806, &[0; 28]),
            )
            .passes(PassReason::NotIp),
        );
    }
    cases.push(
        case("multicast_mac_is_seen_before_tags", {
            let destination = [0x01, 0x00, 0x5e, 0, 0, 1];
            let tags: Tags = &[(VLAN, 1), (VLAN, 2), (VLAN, 3)];
            Link {
                destination,
                tags,
                ..IN
            }
            .carry(&tcp(V4_TCP.1))
        })
        .passes(PassReason::GroupAddress),
    );
    cases
}

/// The stack takes the VLAN device from the tags, so decapsulation keeps them.
fn decapsulated() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, tags) in TAGS {
        let link = Link { tags, ..IN };
        for (outer, from, to) in [("v4", PEER_V4, EDGE_V4), ("v6", PEER_V6, EDGE_V6)] {
            for (inner, packet) in [("v4", tcp(V4_TCP.1)), ("v6", tcp(V6_TCP.1))] {
                cases.push(
                    case(
                        format!("{name}_{inner}_in_{outer}_keeps_its_tags_on_decap"),
                        link.carry(&packet.within(from, to)),
                    )
                    .decapsulates(link.carry(&packet)),
                );
            }
        }
    }
    cases
}
