//! Announced addresses are answered for, and who else announces them is noted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use xdp_prog::{
    abi::{CONFIG_ANNOUNCE, EdgeMac, TaggedLink},
    reason::{DropReason, PassReason, ReplyReason},
};

use super::{
    super::{
        kernel::INGRESS,
        packet::{IPV6, Link, Packet, SERVICE_VLAN, VLAN, patched},
        tables::{TableSet, address_key},
    },
    CLIENT_V4, CLIENT_V6, Case, Draft, IN, VIP_V4, VIP_V6, case, v4, v6,
};

const ARP: u16 = 0x0806;
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const BROADCAST: [u8; 6] = [0xff; 6];
const OURS: [u8; 6] = IN.destination;
const ASKER: [u8; 6] = IN.source;
const NOBODY: [u8; 6] = [0; 6];
const UNSPECIFIED_V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
const ALL_NODES: IpAddr = IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));

/// How questions to everybody come in.
const TO_ALL: Link<'static> = Link {
    destination: BROADCAST,
    ..IN
};
/// How answers to them go back.
const ANSWER: Link<'static> = Link {
    destination: ASKER,
    source: OURS,
    tags: &[],
};
const TO_ALL_NODES: Link<'static> = Link {
    destination: [0x33, 0x33, 0, 0, 0, 1],
    source: OURS,
    tags: &[],
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(arp_answers());
    cases.extend(arp_left_alone());
    cases.extend(arp_announcements());
    cases.extend(solicitations());
    cases.extend(solicitations_left_alone());
    cases.extend(advertisements());
    cases.extend(tags());
    cases
}

/// A stamp that stays young however long the cases take: one of the future counts as such.
const FRESH: u64 = u64::MAX >> 1;
/// One of a machine's start.
const OLD: u64 = 0;

/// A machine that announces both VIPs on the device itself and in its VLAN 100.
fn announcing(tables: &mut TableSet) {
    tables.config.flags |= CONFIG_ANNOUNCE;
    tables.announce_stamp = FRESH;
    for vip in [VIP_V4, VIP_V6] {
        tables.announced.insert(address_key(vip), 1);
    }
    for vlan in [0, 100] {
        let link = TaggedLink::new(INGRESS, vlan);
        tables.announce_links.insert(link, EdgeMac::new(OURS));
    }
}

fn begin(name: impl Into<String>, input: Vec<u8>) -> Draft {
    case(name, input).with(announcing)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn arp(operation: u8, sender: ([u8; 6], IpAddr), target: ([u8; 6], IpAddr)) -> Vec<u8> {
    [
        &[0, 1, 8, 0, 6, 4, 0, operation][..],
        &sender.0,
        &octets(sender.1),
        &target.0,
        &octets(target.1),
    ]
    .concat()
}

fn request(target: IpAddr) -> Vec<u8> {
    arp(REQUEST, (ASKER, CLIENT_V4), (NOBODY, target))
}

fn reply() -> Vec<u8> {
    arp(REPLY, (OURS, VIP_V4), (ASKER, CLIENT_V4))
}

fn arp_answers() -> Vec<Case> {
    let answered = |name: &str, link: Link<'_>| {
        begin(name, link.frame(ARP, &request(VIP_V4)))
            .replies(ReplyReason::Neighbour, ANSWER.frame(ARP, &reply()))
    };
    let free = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let padding = [0; 18];
    vec![
        answered(
            "arp_request_to_all_for_announced_address_is_answered",
            TO_ALL,
        ),
        answered("arp_request_to_this_machine_alone_is_answered", IN),
        begin(
            "arp_probe_of_who_wants_the_address_is_answered",
            TO_ALL.frame(ARP, &arp(REQUEST, (ASKER, free), (NOBODY, VIP_V4))),
        )
        .replies(
            ReplyReason::Neighbour,
            ANSWER.frame(ARP, &arp(REPLY, (OURS, VIP_V4), (ASKER, free))),
        ),
        begin(
            "answer_to_arp_request_is_padded_like_it",
            TO_ALL.frame(ARP, &[&request(VIP_V4)[..], &padding].concat()),
        )
        .replies(
            ReplyReason::Neighbour,
            ANSWER.frame(ARP, &[&reply()[..], &padding].concat()),
        ),
    ]
}

fn arp_left_alone() -> Vec<Case> {
    let to_all = |name: &str, message: &[u8]| {
        begin(name, TO_ALL.frame(ARP, message)).passes(PassReason::GroupAddress)
    };
    let for_vip = request(VIP_V4);
    let mut cases = vec![
        to_all(
            "arp_request_for_another_address_is_the_stacks",
            &request(v4(203, 0, 113, 11)),
        ),
        to_all("arp_request_cut_short_is_the_stacks", &for_vip[..27]),
        begin(
            "arp_request_to_this_machine_for_another_address_is_the_stacks",
            IN.frame(ARP, &request(v4(203, 0, 113, 11))),
        )
        .passes(PassReason::NotIp),
        begin(
            "arp_reply_to_this_machine_is_the_stacks",
            IN.frame(ARP, &arp(REPLY, (ASKER, CLIENT_V4), (OURS, VIP_V4))),
        )
        .passes(PassReason::NotIp),
        begin(
            "arp_request_to_another_machine_is_not_answered_for_it",
            Link {
                destination: [0x02, 0, 0, 0, 0, 0x02],
                ..IN
            }
            .frame(ARP, &for_vip),
        )
        .passes(PassReason::NotIp),
        begin(
            "arp_request_from_a_group_is_not_answered",
            Link {
                source: [0x03, 0, 0, 0, 0, 0xc1],
                ..TO_ALL
            }
            .frame(ARP, &for_vip),
        )
        .passes(PassReason::GroupAddress),
        begin("frame_to_all_that_is_no_arp_is_the_stacks", {
            TO_ALL.frame(0x88cc, &for_vip)
        })
        .passes(PassReason::GroupAddress),
        begin("arp_request_on_another_device_is_the_stacks", {
            TO_ALL.frame(ARP, &for_vip)
        })
        .with(|tables| {
            tables.announce_links.clear();
            let other = TaggedLink::new(INGRESS + 1, 0);
            tables.announce_links.insert(other, EdgeMac::new(OURS));
        })
        .passes(PassReason::GroupAddress),
        begin("arp_request_is_the_stacks_where_nothing_is_announced", {
            TO_ALL.frame(ARP, &for_vip)
        })
        .with(|tables| tables.config.flags &= !CONFIG_ANNOUNCE)
        .passes(PassReason::GroupAddress),
        begin(
            "arp_request_is_the_stacks_where_the_agent_serves_no_more",
            TO_ALL.frame(ARP, &for_vip),
        )
        .with(|tables| tables.announce_stamp = OLD)
        .passes(PassReason::GroupAddress),
    ];
    for (name, offset, byte) in [
        ("hardware", 1, 6),
        ("protocol", 2, 0x86),
        ("hardware_length", 4, 8),
        ("protocol_length", 5, 16),
        ("operation", 7, 3),
    ] {
        cases.push(to_all(
            &format!("arp_request_with_another_{name}_is_the_stacks"),
            &patched(for_vip.clone(), offset, &[byte]),
        ));
    }
    cases
}

fn arp_announcements() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, operation) in [("request", REQUEST), ("reply", REPLY)] {
        let gratuitous = |mac, address| arp(operation, (mac, address), (NOBODY, address));
        cases.extend([
            begin(
                format!("gratuitous_arp_{name}_of_another_machine_is_noted"),
                TO_ALL.frame(ARP, &gratuitous(ASKER, VIP_V4)),
            )
            .passes(PassReason::AnnouncedElsewhere)
            .claims(VIP_V4, ASKER),
            begin(
                format!("gratuitous_arp_{name}_is_noted_where_the_agent_serves_no_more"),
                TO_ALL.frame(ARP, &gratuitous(ASKER, VIP_V4)),
            )
            .with(|tables| tables.announce_stamp = OLD)
            .passes(PassReason::AnnouncedElsewhere)
            .claims(VIP_V4, ASKER),
            begin(
                format!("own_gratuitous_arp_{name}_that_comes_back_is_not_noted"),
                Link {
                    source: OURS,
                    ..TO_ALL
                }
                .frame(ARP, &gratuitous(OURS, VIP_V4)),
            )
            .passes(PassReason::GroupAddress),
            begin(
                format!("gratuitous_arp_{name}_with_our_mac_is_not_noted"),
                TO_ALL.frame(ARP, &gratuitous(OURS, VIP_V4)),
            )
            .passes(PassReason::GroupAddress),
            begin(
                format!("gratuitous_arp_{name}_for_another_address_is_not_noted"),
                TO_ALL.frame(ARP, &gratuitous(ASKER, v4(203, 0, 113, 11))),
            )
            .passes(PassReason::GroupAddress),
        ]);
    }
    cases
}

/// The group in which an address is asked for, and its MAC.
fn solicited_node(address: IpAddr) -> (IpAddr, [u8; 6]) {
    let [.., a, b, c] = octets(address)[..] else {
        unreachable!("an address has more bytes");
    };
    let low = u16::from_be_bytes([b, c]);
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), low);
    (group.into(), [0x33, 0x33, 0xff, a, b, c])
}

fn solicitation(source: IpAddr, destination: IpAddr, target: IpAddr, options: &[u8]) -> Packet {
    let body = [&octets(target), options].concat();
    Packet::icmp(source, destination, (135, 0), [0; 4], &body).hop_limit(255)
}

fn advertisement(source: IpAddr, destination: IpAddr, flags: u8, mac: [u8; 6]) -> Packet {
    let body = [&octets(VIP_V6)[..], &[2, 1], &mac].concat();
    Packet::icmp(source, destination, (136, 0), [flags, 0, 0, 0], &body).hop_limit(255)
}

/// The option with the asker's MAC.
fn source_mac() -> Vec<u8> {
    [&[1, 1][..], &ASKER].concat()
}

/// Both ways to ask for the VIP: everybody, or this machine alone.
fn ways() -> [(&'static str, IpAddr, Link<'static>); 2] {
    let (group, destination) = solicited_node(VIP_V6);
    let to_group = Link { destination, ..IN };
    [
        ("to_the_group", group, to_group),
        ("to_this_machine", VIP_V6, IN),
    ]
}

fn solicitations() -> Vec<Case> {
    // RFC 7527: a probe that tells itself from its echo.
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    let answer = advertisement(VIP_V6, CLIENT_V6, 0x60, OURS).fresh();
    let to_nobody = advertisement(VIP_V6, ALL_NODES, 0x20, OURS).fresh();
    let mut cases = Vec::new();
    for (way, destination, link) in ways() {
        for (name, options) in [
            ("mac", source_mac()),
            ("no_option", Vec::new()),
            ("two_options", [&source_mac()[..], &nonce].concat()),
        ] {
            let question = solicitation(CLIENT_V6, destination, VIP_V6, &options);
            cases.push(
                begin(
                    format!("solicitation_{way}_with_{name}_is_answered"),
                    link.carry(&question),
                )
                .replies(ReplyReason::Neighbour, ANSWER.carry(&answer)),
            );
        }
    }
    let (_, group, link) = ways()[0];
    for (name, options) in [("bare_probe", &[][..]), ("probe_with_a_nonce", &nonce)] {
        let probe = solicitation(UNSPECIFIED_V6, group, VIP_V6, options);
        cases.push(
            begin(
                format!("{name}_of_who_wants_the_address_is_answered_to_all"),
                link.carry(&probe),
            )
            .replies(ReplyReason::Neighbour, TO_ALL_NODES.carry(&to_nobody)),
        );
    }
    let question = solicitation(CLIENT_V6, group, VIP_V6, &[]);
    cases.push(
        begin(
            "padding_behind_a_solicitation_is_not_answered",
            [link.carry(&question), vec![0; 4]].concat(),
        )
        .replies(ReplyReason::Neighbour, ANSWER.carry(&answer)),
    );
    cases.push(
        begin(
            "solicitation_without_headroom_is_dropped_where_the_answer_is_longer",
            link.carry(&question),
        )
        .headroom(4)
        .drops(DropReason::NoHeadroom),
    );
    cases
}

fn solicitations_left_alone() -> Vec<Case> {
    let mut cases = Vec::new();
    for (way, destination, link) in ways() {
        let question = solicitation(CLIENT_V6, destination, VIP_V6, &source_mac());
        let bytes = question.bytes();
        let left = |name: &str, frame: Vec<u8>| {
            let draft = begin(format!("solicitation_{way}_{name}_is_not_answered"), frame);
            // Where it is for the VIP alone, nobody else is asked.
            if destination == VIP_V6 {
                draft.drops(DropReason::VipIcmp)
            } else {
                draft.passes(PassReason::GroupAddress)
            }
        };
        let with_code = Packet::icmp(
            CLIENT_V6,
            destination,
            (135, 1),
            [0; 4],
            &[octets(VIP_V6), source_mac()].concat(),
        );
        let cut = Packet::icmp(
            CLIENT_V6,
            destination,
            (135, 0),
            [0; 4],
            &octets(VIP_V6)[..15],
        );
        cases.extend([
            left(
                "from_behind_a_router",
                link.carry(&question.clone().hop_limit(254)),
            ),
            left("with_a_code", link.carry(&with_code.hop_limit(255))),
            left(
                "with_a_wrong_checksum",
                link.frame(IPV6, &patched(bytes.clone(), 42, &[0, 0])),
            ),
            left("shorter_than_its_target", link.carry(&cut.hop_limit(255))),
            left(
                "for_another_address",
                link.carry(&solicitation(
                    CLIENT_V6,
                    destination,
                    v6(0xf, 11),
                    &source_mac(),
                )),
            ),
            left("where_nothing_is_announced", link.carry(&question)),
        ]);
        if let Some(last) = cases.last_mut() {
            last.tables.config.flags &= !CONFIG_ANNOUNCE;
        }
        let mut silent = left("where_the_agent_serves_no_more", link.carry(&question));
        silent.tables.announce_stamp = OLD;
        cases.push(silent);
        let extended = question.extensions(&[(60, &[0, 1, 4, 0, 0, 0, 0])]);
        let name = "behind_an_extension_header";
        cases.push(if destination == VIP_V6 {
            begin(
                format!("solicitation_{way}_{name}_is_dropped"),
                link.carry(&extended),
            )
            .drops(DropReason::IcmpOptions)
        } else {
            left(name, link.carry(&extended))
        });
    }
    let (_, group, link) = ways()[0];
    let bytes = solicitation(CLIENT_V6, group, VIP_V6, &source_mac()).bytes();
    for (name, frame) in [
        ("cut_short", link.frame(IPV6, &bytes[..70])),
        (
            "of_another_version",
            link.frame(IPV6, &patched(bytes.clone(), 0, &[0x40])),
        ),
        (
            "that_says_to_be_longer_than_it_is",
            link.frame(IPV6, &patched(bytes, 4, &[0xff, 0xff])),
        ),
    ] {
        cases.push(
            begin(format!("solicitation_{name}_is_the_stacks"), frame)
                .passes(PassReason::GroupAddress),
        );
    }
    cases
}

fn advertisements() -> Vec<Case> {
    let to_all = Link {
        destination: TO_ALL_NODES.destination,
        ..IN
    };
    let peer = v6(0xe, 2);
    vec![
        begin(
            "unsolicited_advertisement_of_another_machine_is_noted",
            to_all.carry(&advertisement(VIP_V6, ALL_NODES, 0x20, ASKER)),
        )
        .passes(PassReason::AnnouncedElsewhere)
        .claims(VIP_V6, ASKER),
        begin(
            "own_advertisement_that_comes_back_is_not_noted",
            TO_ALL_NODES.carry(&advertisement(VIP_V6, ALL_NODES, 0x20, OURS)),
        )
        .passes(PassReason::GroupAddress),
        begin(
            "solicited_advertisement_is_not_noted",
            to_all.carry(&advertisement(peer, ALL_NODES, 0x60, ASKER)),
        )
        .passes(PassReason::GroupAddress),
        begin(
            "advertisement_from_behind_a_router_is_not_noted",
            to_all.carry(&advertisement(VIP_V6, ALL_NODES, 0x20, ASKER).hop_limit(64)),
        )
        .passes(PassReason::GroupAddress),
    ]
}

/// Answers keep the tags; where a tag makes another link, that has to be announced on.
fn tags() -> Vec<Case> {
    let arp = request(VIP_V4);
    let (_, group, to_group) = ways()[0];
    let probe = solicitation(UNSPECIFIED_V6, group, VIP_V6, &[]);
    let to_nobody = advertisement(VIP_V6, ALL_NODES, 0x20, OURS).fresh();
    let mut cases = Vec::new();
    let known: [(&str, &[(u16, u16)]); 3] = [
        ("vlan", &[(VLAN, 100)]),
        ("vlan_with_a_priority", &[(VLAN, 0xe064)]),
        ("priority", &[(VLAN, 0xe000)]),
    ];
    for (name, tags) in known {
        cases.extend([
            begin(
                format!("arp_request_with_{name}_tag_is_answered_in_kind"),
                Link { tags, ..TO_ALL }.frame(ARP, &arp),
            )
            .replies(
                ReplyReason::Neighbour,
                Link { tags, ..ANSWER }.frame(ARP, &reply()),
            ),
            begin(
                format!("solicitation_with_{name}_tag_is_answered_in_kind"),
                Link { tags, ..to_group }.carry(&probe),
            )
            .replies(
                ReplyReason::Neighbour,
                Link {
                    tags,
                    ..TO_ALL_NODES
                }
                .carry(&to_nobody),
            ),
        ]);
    }
    let unknown: [(&str, &[(u16, u16)]); 4] = [
        ("another_vlan", &[(VLAN, 101)]),
        ("service", &[(SERVICE_VLAN, 100)]),
        ("two", &[(SERVICE_VLAN, 7), (VLAN, 100)]),
        ("two_customer", &[(VLAN, 100), (VLAN, 100)]),
    ];
    for (name, tags) in unknown {
        for (question, frame) in [
            ("arp_request", Link { tags, ..TO_ALL }.frame(ARP, &arp)),
            ("solicitation", Link { tags, ..to_group }.carry(&probe)),
        ] {
            cases.push(
                begin(format!("{question}_with_{name}_tag_is_the_stacks"), frame)
                    .passes(PassReason::GroupAddress),
            );
        }
    }
    let tags: &[(u16, u16)] = &[(VLAN, 1), (VLAN, 2), (VLAN, 100)];
    let deep = Link { tags, ..TO_ALL }.frame(ARP, &arp);
    cases.push(
        begin("arp_request_with_three_tags_is_the_stacks", deep).passes(PassReason::VlanDepth),
    );
    cases
}
