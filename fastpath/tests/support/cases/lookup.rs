//! Service -> slot -> backend -> next hop, and where that way is interrupted.

use xdp_prog::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_VIP, BACKEND_LOCAL, Backend, HOP_GATEWAY, MODE_IPIP, NextHop,
        ServiceWord, Slot,
    },
    process::Action,
    reason::{DropReason, PassReason, ReplyReason},
};

use super::{
    super::{hash, packet::Packet, tables::size},
    BACK, CLIENT_V4, CLIENT_V6, Case, EDGE_V4, EDGE_V6, HASH_SEED, IN, NODE_V4, NODE_V6,
    OTHER_BACKENDS, TCP, TO_NODE_V4, TO_NODE_V6, UDP, V4_IN_V6, V4_L2, V4_TCP, V4_UDP, V6_IN_V4,
    V6_L2, V6_TCP, VIP_V4, VIP_V6, case, client, other_node, reset_of_syn, sent_in_v4, sent_in_v6,
    tcp, to_other_node, udp, v4, v6, way,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(slots());
    cases.extend(backends());
    cases.extend(service_words());
    cases.extend(next_hops());
    cases.extend(outer_sources());
    cases.extend(spread_sources());
    cases.extend(flags_of_addresses());
    cases
}

/// So many of the source's last bits as the next hop says are the flow's.
fn spread_sources() -> Vec<Case> {
    let ways = [
        ("v4_in_v4", V4_TCP),
        ("v6_in_v6", V6_TCP),
        ("v4_in_v6", V4_IN_V6),
        ("v6_in_v4", V6_IN_V4),
    ];
    let mut cases = Vec::new();
    for (name, (way, to)) in ways {
        for (port, bits) in [
            (40_000, 0xffff),
            (40_001, 0xffff),
            (40_002, 0x00ff),
            (40_003, 1),
        ] {
            let from = (client(to).0, port);
            let packet = Packet::tcp(from, to, b"payload");
            let flow = hash::flow(HASH_SEED, from, to, TCP) & bits;
            let [.., high, low] = flow.to_be_bytes();
            let bits = u16::try_from(bits).unwrap();
            let (source, carried) = if way.backend == 1 {
                let source = v4(10, 77, high, low);
                (
                    v4(10, 77, 0, 0),
                    TO_NODE_V4.carry(&packet.next_hop().within(source, NODE_V4)),
                )
            } else {
                let source = v6(0x77, u16::from_be_bytes([high, low]));
                (
                    v6(0x77, 0),
                    TO_NODE_V6.carry(&packet.next_hop().within(source, NODE_V6)),
                )
            };
            let name = format!("{name}_of_port_{port}_has_bits_{bits:x}_of_its_hash_in_the_source");
            let spread = move |tables: &mut super::TableSet| {
                let hop = &mut tables.next_hops[way.backend as usize];
                (hop.source, hop.spread) = (super::padded(source), bits);
            };
            cases.push(
                case(name, IN.carry(&packet))
                    .with(spread)
                    .transmits(way, &packet, carried),
            );
        }
    }
    cases
}

/// The slot that the flow hashes to belongs to one backend, every other slot to another.
fn slots() -> Vec<Case> {
    const SERVICE: u32 = 9;
    const RIGHT: u32 = 5;
    const WRONG: u32 = 6;
    let mut cases = Vec::new();
    for (log2_length, seed, from, to, protocol) in [
        (1, 0, (CLIENT_V4, 40_000), (VIP_V4, 9000), TCP),
        (3, 0, (CLIENT_V4, 40_001), (VIP_V4, 9000), UDP),
        (8, 1, (CLIENT_V4, 1), (VIP_V4, 9000), TCP),
        (8, u64::MAX, (CLIENT_V4, 65_535), (VIP_V4, 9000), UDP),
        (1, 0, (CLIENT_V6, 40_000), (VIP_V6, 9000), TCP),
        (8, 2, (CLIENT_V6, 40_001), (VIP_V6, 9000), UDP),
        (8, 1 << 63, (v6(0, 0), 0), (VIP_V6, 9000), TCP),
        (8, 0, (v4(0, 0, 0, 0), 0), (VIP_V4, 9000), TCP),
    ] {
        let slot = hash::slot(seed, from, to, protocol, log2_length);
        let mut owners = vec![WRONG; 1 << log2_length];
        owners[slot] = RIGHT;
        let packet = match protocol {
            TCP => Packet::tcp(from, to, b"payload"),
            _ => Packet::udp(from, to, b"payload"),
        };
        let family = if to.0.is_ipv4() { "v4" } else { "v6" };
        let output =
            to_other_node(RIGHT).carry(&packet.next_hop().within(EDGE_V4, other_node(RIGHT)));
        cases.push(
            case(
                format!(
                    "{family}_flow_of_protocol_{protocol}_from_port_{}_finds_its_slot_of_{}_with_seed_{seed:x}",
                    from.1,
                    owners.len()
                ),
                IN.carry(&packet),
            )
            .with(|tables| {
                tables.config.hash_seed = seed;
                tables.service(SERVICE, to, protocol, MODE_IPIP, &owners);
            })
            .transmits(way(SERVICE, RIGHT), &packet, output),
        );
    }

    // Flows that share all but one field do not share a slot of these.
    let spread: Vec<u32> = (0..256)
        .map(|slot| OTHER_BACKENDS.start + slot % 5)
        .collect();
    for port in 40_000..40_004 {
        for protocol in [TCP, UDP] {
            let (from, to) = ((CLIENT_V4, port), (VIP_V4, 9000));
            let owner = spread[hash::slot(7, from, to, protocol, 8)];
            let packet = match protocol {
                TCP => Packet::tcp(from, to, b""),
                _ => Packet::udp(from, to, b""),
            };
            let output =
                to_other_node(owner).carry(&packet.next_hop().within(EDGE_V4, other_node(owner)));
            cases.push(
                case(
                    format!("five_backends_share_protocol_{protocol}_port_{port}"),
                    IN.carry(&packet),
                )
                .with(|tables| {
                    tables.config.hash_seed = 7;
                    tables.service(SERVICE, to, protocol, MODE_IPIP, &spread);
                })
                .transmits(way(SERVICE, owner), &packet, output),
            );
        }
    }
    cases
}

fn backends() -> Vec<Case> {
    let packet = tcp(V4_TCP.1);
    let frame = IN.carry(&packet);
    vec![
        case("slot_without_owner_refuses", frame.clone())
            .with(|tables| tables.set_owner(1, 0))
            .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(V4_TCP.1, 18))),
        case("v6_slot_without_owner_refuses", IN.carry(&tcp(V6_TCP.1)))
            .with(|tables| tables.set_owner(3, 0))
            .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(V6_TCP.1, 18))),
        case("owner_zero_is_no_owner_even_if_written", frame.clone())
            .with(|tables| {
                tables.set_owner(1, 0);
                tables.backends[0] = tables.backends[1];
            })
            .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(V4_TCP.1, 18))),
        case("owner_beyond_the_table_refuses", frame.clone())
            .with(|tables| tables.set_owner(1, size::BACKENDS))
            .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(V4_TCP.1, 18))),
        case("largest_owner_number_refuses", frame.clone())
            .with(|tables| tables.set_owner(1, (1 << 31) - 1))
            .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(V4_TCP.1, 18))),
        case("backend_never_written_has_no_next_hop", frame.clone())
            .with(|tables| tables.set_owner(1, 20))
            .drops(DropReason::NextHopUnresolved),
        case("last_backend_of_the_table_serves", frame.clone())
            .with(|tables| {
                tables.set_owner(1, size::BACKENDS - 1);
                tables.backends[size::BACKENDS as usize - 1] = tables.backends[1];
            })
            .transmits(way(1, size::BACKENDS - 1), &packet, sent_in_v4(&packet)),
        case("local_backend_goes_to_the_stack", frame.clone())
            .with(|tables| tables.backends[1].flags |= BACKEND_LOCAL)
            .passes(PassReason::LocalBackend),
        case(
            "local_v6_backend_goes_to_the_stack",
            IN.carry(&tcp(V6_TCP.1)),
        )
        .with(|tables| tables.backends[2].flags |= BACKEND_LOCAL)
        .passes(PassReason::LocalBackend),
        case(
            "local_backend_takes_the_last_hop",
            IN.carry(&packet.clone().hop_limit(1)),
        )
        .with(|tables| tables.backends[1].flags |= BACKEND_LOCAL)
        .passes(PassReason::LocalBackend),
        case("slot_beyond_the_arena_refuses", frame)
            .with(|tables| {
                let word = tables.service[1].word;
                tables.service[1].word =
                    ServiceWord::new(size::LUT, word.log2_length(), word.check());
            })
            .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(V4_TCP.1, 18))),
    ]
}

fn service_words() -> Vec<Case> {
    let frame = IN.carry(&tcp(V4_TCP.1));
    vec![
        case("v4_key_check_of_another_service_gives_up", frame.clone())
            .with(|tables| tables.service[1].word = tables.service[2].word)
            .drops(DropReason::TableChanged),
        case(
            "v6_key_check_of_another_service_gives_up",
            IN.carry(&tcp(V6_TCP.1)),
        )
        .with(|tables| tables.service[3].word = tables.service[4].word)
        .drops(DropReason::TableChanged),
        case(
            "recycled_element_with_another_service_gives_up",
            frame.clone(),
        )
        .with(|tables| {
            for id in tables.services_v4.values_mut() {
                *id = 2;
            }
            // Only the UDP service is still itself.
        })
        .drops(DropReason::TableChanged),
        case(
            "udp_service_beside_it_still_serves",
            IN.carry(&udp(V4_UDP.1)),
        )
        .with(|tables| {
            for id in tables.services_v4.values_mut() {
                *id = 2;
            }
        })
        .transmits(V4_UDP.0, &udp(V4_UDP.1), sent_in_v4(&udp(V4_UDP.1))),
        case("zero_word_gives_up", frame.clone())
            .with(|tables| tables.service[1].word = ServiceWord::default())
            .drops(DropReason::TableChanged),
        case("zero_base_gives_up", frame.clone())
            .with(|tables| {
                let word = tables.service[1].word;
                tables.service[1].word = ServiceWord::new(0, word.log2_length(), word.check());
                tables.lut[0] = Slot(1);
            })
            .drops(DropReason::TableChanged),
        case("service_id_beyond_the_table_gives_up", frame)
            .with(|tables| {
                for id in tables.services_v4.values_mut() {
                    *id = size::SERVICES;
                }
            })
            .drops(DropReason::TableChanged),
    ]
}

fn next_hops() -> Vec<Case> {
    let packet = tcp(V4_TCP.1);
    let frame = IN.carry(&packet);
    let gateway = |tables: &mut super::TableSet| {
        tables.next_hops[1].flags = HOP_GATEWAY;
        tables.next_hops[2].flags = HOP_GATEWAY;
    };
    vec![
        case("other_device_is_redirected_to", frame.clone())
            .with(|tables| tables.next_hops[1].ifindex = 7)
            .forwards(
                Action::Redirect(7),
                V4_TCP.0,
                packet.length(),
                sent_in_v4(&packet),
            ),
        case("v6_other_device_is_redirected_to", IN.carry(&tcp(V6_TCP.1)))
            .with(|tables| tables.next_hops[2].ifindex = 0x7fff_ffff)
            .forwards(
                Action::Redirect(0x7fff_ffff),
                V6_TCP.0,
                tcp(V6_TCP.1).length(),
                sent_in_v6(&tcp(V6_TCP.1)),
            ),
        case(
            "l2dsr_to_other_device_is_redirected",
            IN.carry(&tcp(V4_L2.1)),
        )
        .with(|tables| tables.next_hops[1].ifindex = 7)
        .forwards(
            Action::Redirect(7),
            V4_L2.0,
            tcp(V4_L2.1).length(),
            TO_NODE_V4.carry(&tcp(V4_L2.1).next_hop()),
        ),
        case("v4_next_hop_zero_asks_the_fib_in_vain", frame.clone())
            .with(|tables| tables.backends[1].next_hop = 0)
            .drops(DropReason::NextHopUnresolved),
        case(
            "v6_next_hop_zero_asks_the_fib_in_vain",
            IN.carry(&tcp(V6_TCP.1)),
        )
        .with(|tables| tables.backends[2].next_hop = 0)
        .drops(DropReason::NextHopUnresolved),
        case("free_next_hop_is_unresolved", frame.clone())
            .with(|tables| tables.next_hops[1] = NextHop::default())
            .drops(DropReason::NextHopUnresolved),
        case("next_hop_beyond_the_table_is_unresolved", frame.clone())
            .with(|tables| tables.backends[1].next_hop = size::NEXT_HOPS)
            .drops(DropReason::NextHopUnresolved),
        case("v4_l2dsr_through_a_router_drops", IN.carry(&tcp(V4_L2.1)))
            .with(gateway)
            .drops(DropReason::NotOnLink),
        case("v6_l2dsr_through_a_router_drops", IN.carry(&tcp(V6_L2.1)))
            .with(gateway)
            .drops(DropReason::NotOnLink),
        case("v4_ipip_through_a_router_goes", frame)
            .with(gateway)
            .transmits(V4_TCP.0, &packet, sent_in_v4(&packet)),
        case("v6_ipip_through_a_router_goes", IN.carry(&tcp(V6_TCP.1)))
            .with(gateway)
            .transmits(V6_TCP.0, &tcp(V6_TCP.1), sent_in_v6(&tcp(V6_TCP.1))),
    ]
}

fn outer_sources() -> Vec<Case> {
    let packet = tcp(V4_TCP.1);
    let (own_v4, own_v6) = (v4(192, 0, 2, 77), v6(0xe, 77));
    let only_config = move |tables: &mut super::TableSet| {
        tables.config.source_v4 = super::padded(own_v4);
        tables.config.source_v6 = super::padded(own_v6);
        for hop in &mut tables.next_hops {
            (hop.source, hop.own) = ([0; 16], [0; 16]);
        }
    };
    let none = |tables: &mut super::TableSet| {
        for hop in &mut tables.next_hops {
            hop.source = [0; 16];
        }
    };
    let in_v4 = |packet: &Packet| TO_NODE_V4.carry(&packet.next_hop().within(own_v4, NODE_V4));
    let in_v6 = |packet: &Packet| TO_NODE_V6.carry(&packet.next_hop().within(own_v6, NODE_V6));
    let (v6_packet, v4_in_v6, v6_in_v4) = (tcp(V6_TCP.1), tcp(V4_IN_V6.1), tcp(V6_IN_V4.1));
    vec![
        case("v4_in_v4_uses_the_machines_source", IN.carry(&packet))
            .with(only_config)
            .transmits(V4_TCP.0, &packet, in_v4(&packet)),
        case("v6_in_v6_uses_the_machines_source", IN.carry(&v6_packet))
            .with(only_config)
            .transmits(V6_TCP.0, &v6_packet, in_v6(&v6_packet)),
        case("v4_in_v6_uses_the_machines_v6_source", IN.carry(&v4_in_v6))
            .with(only_config)
            .transmits(V4_IN_V6.0, &v4_in_v6, in_v6(&v4_in_v6)),
        case("v6_in_v4_uses_the_machines_v4_source", IN.carry(&v6_in_v4))
            .with(only_config)
            .transmits(V6_IN_V4.0, &v6_in_v4, in_v4(&v6_in_v4)),
        case("source_of_the_next_hop_comes_first", IN.carry(&packet))
            .with(|tables| tables.config.source_v4 = super::padded(own_v4))
            .transmits(V4_TCP.0, &packet, sent_in_v4(&packet)),
        case("no_v4_source_drops", IN.carry(&packet))
            .with(none)
            .drops(DropReason::NoOuterSource),
        case("no_v6_source_drops", IN.carry(&v6_packet))
            .with(none)
            .drops(DropReason::NoOuterSource),
        case("v6_source_does_not_serve_v4", IN.carry(&packet))
            .with(none)
            .with(|tables| tables.config.source_v6 = super::padded(EDGE_V6))
            .drops(DropReason::NoOuterSource),
        case("v4_source_does_not_serve_v6", IN.carry(&v6_packet))
            .with(none)
            .with(|tables| tables.config.source_v4 = super::padded(EDGE_V4))
            .drops(DropReason::NoOuterSource),
        case("l2dsr_needs_no_source", IN.carry(&tcp(V4_L2.1)))
            .with(none)
            .transmits(
                V4_L2.0,
                &tcp(V4_L2.1),
                TO_NODE_V4.carry(&tcp(V4_L2.1).next_hop()),
            ),
    ]
}

/// `VIPS` is about fragments and decapsulation; a service stands on its own.
fn flags_of_addresses() -> Vec<Case> {
    let packet = tcp(V4_TCP.1);
    [0, ADDRESS_LOCAL, ADDRESS_LOCAL | ADDRESS_VIP]
        .into_iter()
        .map(|flags| {
            case(
                format!("service_address_with_flags_{flags}_serves"),
                IN.carry(&packet),
            )
            .with(|tables| tables.address(VIP_V4, flags))
            .transmits(V4_TCP.0, &packet, sent_in_v4(&packet))
        })
        .chain([
            case(
                "service_address_that_is_in_no_table_serves",
                IN.carry(&packet),
            )
            .with(|tables| tables.vips.clear())
            .transmits(V4_TCP.0, &packet, sent_in_v4(&packet)),
            case(
                "backend_of_no_family_is_taken_for_v6",
                IN.carry(&tcp(V6_TCP.1)),
            )
            .with(|tables| {
                tables.backends[2] = Backend {
                    flags: 0,
                    ..tables.backends[2]
                }
            })
            .transmits(V6_TCP.0, &tcp(V6_TCP.1), sent_in_v6(&tcp(V6_TCP.1))),
        ])
        .collect()
}
