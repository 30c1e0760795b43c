extern crate alloc;

use alloc::vec::Vec;

use zerocopy::IntoBytes;

use super::*;
use crate::{
    frame::HostFrame,
    wire::{
        ethernet::{Ethernet, VlanTag},
        transport::Udp,
    },
};

const CLIENT: [u8; 4] = [198, 51, 100, 7];
const VIP: [u8; 4] = [192, 0, 2, 1];
const EDGE: [u8; 4] = [10, 0, 0, 1];
const NODE: [u8; 4] = [10, 0, 0, 2];

fn frame(ether_type: [u8; 2], packet: &[u8]) -> Vec<u8> {
    let header = Ethernet {
        macs: [2; 12],
        ether_type,
    };
    [header.as_bytes(), packet].concat()
}

fn v4(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header = Ipv4 {
        version_ihl: 0x45,
        protocol,
        source,
        destination,
        ..Ipv4::default()
    };
    [header.as_bytes(), payload].concat()
}

fn udp() -> Vec<u8> {
    let header = Udp {
        ports: Ports {
            source: 40000_u16.to_be_bytes(),
            destination: 53_u16.to_be_bytes(),
        },
        ..Udp::default()
    };
    header.as_bytes().to_vec()
}

fn question() -> Vec<u8> {
    v4(CLIENT, VIP, protocol::UDP, &udp())
}

fn error_about(packet: &[u8], kind: u8) -> Vec<u8> {
    let header = Icmp {
        kind,
        ..Icmp::default()
    };
    let payload = [header.as_bytes(), packet].concat();
    v4(NODE, EDGE, protocol::ICMP, &payload)
}

fn host(address: [u8; 4]) -> Network {
    Network::new(AddressKey::v4(address), 128)
}

fn dns_at_vip() -> Filter {
    Filter {
        networks: [host(VIP), Network::default()],
        ports: [53_u16.to_be_bytes(), [0; 2]],
        protocols: [protocol::UDP; 2],
        is_set: [1, 0],
    }
}

fn matches(filter: &Filter, frame: &[u8]) -> bool {
    filter.matches(&HostFrame::new(frame), |word| word)
}

#[test]
fn service_is_found_bare_encapsulated_and_quoted() {
    let filter = dns_at_vip();
    let tunnelled = v4(EDGE, NODE, protocol::IPV4, &question());
    let quoted = error_about(&question(), 3);
    let quoted_tunnel = error_about(&tunnelled, 3);
    for packet in [&question(), &tunnelled, &quoted, &quoted_tunnel] {
        assert!(matches(
            &filter,
            &frame(ethernet::IPV4.to_be_bytes(), packet)
        ));
    }
    let echo = error_about(&question(), 8);
    assert!(
        !matches(&filter, &frame(ethernet::IPV4.to_be_bytes(), &echo)),
        "no error"
    );
}

#[test]
fn all_that_is_set_must_hold_of_one_packet() {
    let mut filter = dns_at_vip();
    let bare = frame(ethernet::IPV4.to_be_bytes(), &question());
    filter.networks[1] = host(CLIENT);
    filter.ports[1] = 40000_u16.to_be_bytes();
    assert!(matches(&filter, &bare));
    filter.networks[1] = host(EDGE);
    assert!(!matches(&filter, &bare));
    let tunnelled = v4(EDGE, NODE, protocol::IPV4, &question());
    assert!(
        !matches(&filter, &frame(ethernet::IPV4.to_be_bytes(), &tunnelled)),
        "the edge's address is another packet's"
    );
    filter.networks[1] = Network::new(AddressKey::v4([198, 51, 0, 0]), 96 + 16);
    assert!(matches(&filter, &bare));
    filter.protocols = [protocol::TCP; 2];
    assert!(!matches(&filter, &bare));
}

#[test]
fn vlan_tags_are_followed_and_what_is_cut_is_not_wanted() {
    let tag = VlanTag {
        control: [0, 7],
        ether_type: ethernet::IPV4.to_be_bytes(),
    };
    let tagged = [tag.as_bytes(), &question()].concat();
    let tagged = frame(ethernet::VLAN.to_be_bytes(), &tagged);
    assert!(matches(&dns_at_vip(), &tagged));
    for length in 0..tagged.len() - Udp::LENGTH + size_of::<Ports>() {
        assert!(!matches(&dns_at_vip(), &tagged[..length]), "{length}");
    }
}

#[test]
fn nothing_set_wants_what_is_no_ip() {
    assert!(matches(&Filter::default(), &frame([8, 6], &[])));
    assert!(!matches(&dns_at_vip(), &frame([8, 6], &question())));
}

#[test]
fn later_fragments_have_no_ports() {
    let mut packet = question();
    packet[7] = 1;
    let later = frame(ethernet::IPV4.to_be_bytes(), &packet);
    assert!(!matches(&dns_at_vip(), &later));
    let any_port = Filter {
        ports: [[0; 2]; 2],
        ..dns_at_vip()
    };
    assert!(matches(&any_port, &later));
}

#[test]
fn frames_without_a_reason_are_forwarded_ones() {
    let mut counted = Reasons::default();
    let wanted = Outcomes {
        forwarded: 1,
        ..Outcomes::NONE
    };
    assert!(wanted.holds(counted) && Outcomes::ALL.holds(counted));
    assert!(!Outcomes::NONE.holds(counted));
    counted.insert(70);
    assert!(!wanted.holds(counted) && Outcomes::ALL.holds(counted));
    assert!(counted.holds(70) && !counted.holds(6));
    let wanted = Outcomes {
        reasons: counted,
        forwarded: 0,
    };
    assert!(wanted.holds(counted));
    assert!(!wanted.holds(Reasons::default()));
}
