use super::super::link::Vlan;
use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];
const VLAN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn link(ifindex: u32) -> Link {
    Link {
        ifindex,
        running: true,
        no_arp: false,
        mac: Some(MAC),
        mtu: 1500,
        vlan: None,
        is_no_redirect_target: false,
    }
}

fn vlan_link(ifindex: u32, lower: Option<u32>) -> Link {
    Link {
        mac: Some(VLAN_MAC),
        vlan: Some(Vlan {
            id: 42,
            ethertype: ETHERTYPE_VLAN,
            lower,
        }),
        ..link(ifindex)
    }
}

fn neighbour(mac: Option<[u8; 6]>) -> Neighbour {
    Neighbour {
        mac,
        failed: false,
        managed: false,
        ours: false,
        fixed: false,
    }
}

fn key(ifindex: u32, text: &str) -> Key {
    Key {
        ifindex,
        address: address(text),
    }
}

fn view(
    links: impl IntoIterator<Item = Link>,
    neighbours: impl IntoIterator<Item = (Key, Neighbour)>,
) -> View {
    View {
        links: links.into_iter().map(|link| (link.ifindex, link)).collect(),
        neighbours: neighbours.into_iter().collect(),
        redirect_targets: None,
    }
}

fn through(ifindex: u32, gateway: Option<&str>) -> Route {
    Route {
        route_type: libc::RTN_UNICAST,
        ifindex,
        gateway: gateway.map(address),
        source: Some(address("192.0.2.1")),
        ..Route::default()
    }
}

fn resolve(view: &View, route: &Route) -> Resolution {
    view.resolve(address("198.51.100.9"), route).resolution
}

#[test]
fn a_gateway_is_the_neighbour() {
    let view = view(
        [link(3)],
        [(key(3, "192.0.2.254"), neighbour(Some(GATEWAY_MAC)))],
    );
    let answer = view.resolve(address("198.51.100.9"), &through(3, Some("192.0.2.254")));
    let expected = NextHop {
        ifindex: 3,
        source_mac: MAC,
        destination_mac: GATEWAY_MAC,
        is_carried: false,
        via_gateway: true,
        vlan: None,
        mtu: 1500,
        source: Some(address("192.0.2.1")),
    };
    assert_eq!(answer.resolution, Resolution::Resolved(expected));
    assert_eq!(answer.neighbour, Some(key(3, "192.0.2.254")));
}

#[test]
fn without_a_gateway_the_target_is_the_neighbour() {
    let view = view([link(3)], []);
    let answer = view.resolve(address("198.51.100.9"), &through(3, None));
    assert_eq!(answer.neighbour, Some(key(3, "198.51.100.9")));
    assert_eq!(
        answer.resolution,
        Resolution::Unresolved(Reason::NeighbourUnresolved)
    );
}

#[test]
fn the_same_address_on_another_device_is_another_neighbour() {
    let view = view(
        [link(3), link(4)],
        [(key(4, "192.0.2.254"), neighbour(Some(GATEWAY_MAC)))],
    );
    assert_eq!(
        resolve(&view, &through(3, Some("192.0.2.254"))),
        Resolution::Unresolved(Reason::NeighbourUnresolved)
    );
}

#[test]
fn an_ipv4_target_can_have_an_ipv6_gateway() {
    let view = view(
        [link(3)],
        [(key(3, "fe80::1"), neighbour(Some(GATEWAY_MAC)))],
    );
    let Resolution::Resolved(hop) = resolve(&view, &through(3, Some("fe80::1"))) else {
        panic!("not resolved");
    };
    assert_eq!(hop.destination_mac, GATEWAY_MAC);
}

#[test]
fn the_smallest_mtu_counts() {
    let neighbours = [(key(7, "192.0.2.254"), neighbour(Some(GATEWAY_MAC)))];
    for (vlan_mtu, lower_mtu, route_mtu, expected) in [
        (1500, 9000, None, 1500),
        (9000, 1500, None, 1500),
        (1500, 1500, Some(1400), 1400),
        (1500, 1500, Some(9000), 1500),
    ] {
        let view = view(
            [
                Link {
                    mtu: vlan_mtu,
                    ..vlan_link(7, Some(3))
                },
                Link {
                    mtu: lower_mtu,
                    ..link(3)
                },
            ],
            neighbours,
        );
        let route = Route {
            mtu: route_mtu,
            ..through(7, Some("192.0.2.254"))
        };
        let Resolution::Resolved(hop) = resolve(&view, &route) else {
            panic!("not resolved");
        };
        assert_eq!(hop.mtu, expected);
    }
}

#[test]
fn a_vlan_leaves_on_the_device_below_with_its_own_mac() {
    let view = view(
        [vlan_link(7, Some(3)), link(3)],
        [(key(7, "192.0.2.254"), neighbour(Some(GATEWAY_MAC)))],
    );
    let Resolution::Resolved(hop) = resolve(&view, &through(7, Some("192.0.2.254"))) else {
        panic!("not resolved");
    };
    assert_eq!((hop.ifindex, hop.vlan), (3, Some(42)));
    assert_eq!(hop.source_mac, VLAN_MAC);
}

#[test]
fn a_vlan_depends_on_the_device_below() {
    let route = through(7, Some("192.0.2.254"));
    let with_lower = |lower: Link| resolve(&view([vlan_link(7, Some(3)), lower], []), &route);
    let down = Link {
        running: false,
        ..link(3)
    };
    assert_eq!(with_lower(down), Resolution::Unresolved(Reason::LinkDown));
    let stacked = vlan_link(3, Some(2));
    assert_eq!(
        with_lower(stacked),
        Resolution::Unresolved(Reason::VlanUnsupported)
    );
    assert_eq!(
        with_lower(link(5)),
        Resolution::Unresolved(Reason::NoDevice)
    );
    let elsewhere = view([vlan_link(7, None), link(3)], []);
    assert_eq!(
        resolve(&elsewhere, &route),
        Resolution::Unresolved(Reason::VlanUnsupported)
    );
}

#[test]
fn a_service_vlan_is_unsupported() {
    let mut service = vlan_link(7, Some(3));
    service.vlan.as_mut().unwrap().ethertype = 0x88a8;
    assert_eq!(
        resolve(&view([service, link(3)], []), &through(7, None)),
        Resolution::Unresolved(Reason::VlanUnsupported)
    );
}

#[test]
fn a_device_that_is_down_absent_or_not_ethernet_is_named() {
    let down = Link {
        running: false,
        ..link(3)
    };
    let tunnel = Link {
        mac: None,
        ..link(3)
    };
    for (links, reason) in [
        (vec![down], Reason::LinkDown),
        (vec![], Reason::NoDevice),
        (vec![tunnel], Reason::NoMac),
    ] {
        let answer = view(links, []).resolve(address("198.51.100.9"), &through(3, None));
        assert_eq!(answer, Answer::from(reason));
    }
}

#[test]
fn without_arp_frames_go_to_the_own_address() {
    let silent = Link {
        no_arp: true,
        ..link(3)
    };
    let answer = view([silent], []).resolve(address("198.51.100.9"), &through(3, None));
    let Resolution::Resolved(hop) = answer.resolution else {
        panic!("not resolved");
    };
    assert_eq!(hop.destination_mac, MAC);
    assert_eq!(answer.neighbour, None);
}

#[test]
fn route_types_have_their_reasons() {
    let view = view([link(3)], []);
    for (route_type, expected) in [
        (libc::RTN_LOCAL, Resolution::Local),
        (
            libc::RTN_UNREACHABLE,
            Resolution::Unresolved(Reason::Unreachable),
        ),
        (
            libc::RTN_BLACKHOLE,
            Resolution::Unresolved(Reason::Blackhole),
        ),
        (
            libc::RTN_PROHIBIT,
            Resolution::Unresolved(Reason::Prohibited),
        ),
        (
            libc::RTN_MULTICAST,
            Resolution::Unresolved(Reason::NotUnicast),
        ),
        (
            libc::RTN_BROADCAST,
            Resolution::Unresolved(Reason::NotUnicast),
        ),
        (
            libc::RTN_ANYCAST,
            Resolution::Unresolved(Reason::NotUnicast),
        ),
    ] {
        let route = Route {
            route_type,
            ..through(3, None)
        };
        assert_eq!(resolve(&view, &route), expected, "type {route_type}");
    }
}

#[test]
fn a_route_with_encapsulation_is_not_followed() {
    let route = Route {
        encapsulated: true,
        ..through(3, None)
    };
    assert_eq!(
        resolve(&view([link(3)], []), &route),
        Resolution::Unresolved(Reason::Encapsulated)
    );
}

#[test]
fn wanted_neighbours_are_kept_unless_someone_does() {
    let ours = Neighbour {
        managed: true,
        ours: true,
        ..neighbour(Some(GATEWAY_MAC))
    };
    let foreign = Neighbour {
        ours: false,
        ..ours
    };
    let permanent = Neighbour {
        fixed: true,
        ..neighbour(Some(GATEWAY_MAC))
    };
    let view = view(
        [],
        [
            (key(3, "192.0.2.1"), neighbour(None)),
            (key(3, "192.0.2.2"), neighbour(Some(GATEWAY_MAC))),
            (key(3, "192.0.2.3"), ours),
            (key(3, "192.0.2.4"), foreign),
            (key(3, "192.0.2.5"), permanent),
        ],
    );
    let wanted = (1..=6)
        .map(|last| key(3, &format!("192.0.2.{last}")))
        .collect();

    let upkeep = view.upkeep(&wanted);

    assert_eq!(
        upkeep.keep,
        [
            key(3, "192.0.2.1"),
            key(3, "192.0.2.2"),
            key(3, "192.0.2.6")
        ]
    );
    assert_eq!(upkeep.release, []);
}

#[test]
fn of_too_many_neighbours_those_that_answer_are_chosen_and_those_that_failed_come_last() {
    let answers = neighbour(Some(GATEWAY_MAC));
    let ours = Neighbour {
        managed: true,
        ours: true,
        ..answers
    };
    let failed = Neighbour {
        failed: true,
        ..neighbour(None)
    };
    let view = view(
        [],
        [
            (key(3, "192.0.2.1"), failed),
            (key(3, "192.0.2.2"), answers),
            (key(3, "192.0.2.3"), ours),
            (key(3, "2001:db8::1"), failed),
        ],
    );
    let addresses = [
        "192.0.2.1",
        "192.0.2.2",
        "192.0.2.3",
        "192.0.2.4",
        "2001:db8::1",
    ];
    let candidates = BTreeSet::from(addresses.map(|text| key(3, text)));
    let chosen = |most| view.choose(&candidates, most);

    for (most, expected) in [
        (0, &[][..]),
        (1, &["192.0.2.3", "2001:db8::1"]),
        (2, &["192.0.2.2", "192.0.2.3", "2001:db8::1"]),
        (3, &["192.0.2.2", "192.0.2.3", "192.0.2.4", "2001:db8::1"]),
        (4, &addresses),
    ] {
        let expected = expected.iter().map(|text| key(3, text));
        assert_eq!(chosen(most), expected.collect(), "{most} of each family");
    }
}

#[test]
fn only_our_own_neighbours_are_released() {
    let ours = Neighbour {
        managed: true,
        ours: true,
        ..neighbour(None)
    };
    let foreign = Neighbour {
        ours: false,
        ..ours
    };
    let view = view(
        [],
        [
            (key(3, "192.0.2.1"), ours),
            (key(4, "192.0.2.1"), ours),
            (key(3, "192.0.2.2"), foreign),
            (key(3, "192.0.2.3"), neighbour(None)),
        ],
    );

    let upkeep = view.upkeep(&BTreeSet::from([key(4, "192.0.2.1")]));

    assert_eq!(upkeep.keep, []);
    assert_eq!(upkeep.release, [key(3, "192.0.2.1")]);
}

fn carrying(view: View, known: &[(u32, bool)]) -> View {
    View {
        redirect_targets: Some(known.iter().copied().collect()),
        ..view
    }
}

#[test]
fn device_that_takes_no_frames_from_xdp_is_carried_where_the_agent_does_so() {
    let bridge = Link {
        is_no_redirect_target: true,
        ..link(4)
    };
    let links = || [link(3), bridge.clone()];
    let known =
        || [3, 4].map(|ifindex| (key(ifindex, "192.0.2.254"), neighbour(Some(GATEWAY_MAC))));
    let is_carried =
        |view: &View, ifindex| match resolve(view, &through(ifindex, Some("192.0.2.254"))) {
            Resolution::Resolved(hop) => hop.is_carried,
            other => panic!("{other:?}"),
        };
    let without = view(links(), known());
    assert_eq!(
        [3, 4].map(|ifindex| is_carried(&without, ifindex)),
        [false; 2]
    );
    assert!(without.links_below().is_empty());
    // What the kernel tells counts, and only where it tells nothing the kind of the device.
    for (told, expected) in [
        (&[(3, true), (4, false)][..], [false, true]),
        (&[(3, false), (4, true)], [true, false]),
        (&[], [false, true]),
    ] {
        let view = carrying(view(links(), known()), told);
        assert_eq!([3, 4].map(|ifindex| is_carried(&view, ifindex)), expected);
        let below = |ifindex| LinkBelow {
            ifindex,
            vlan: 0,
            is_carried: true,
        };
        let carried = [3, 4]
            .into_iter()
            .zip(expected)
            .filter(|(_, carried)| *carried);
        let expected: BTreeMap<u32, LinkBelow> = carried
            .map(|(ifindex, _)| (ifindex, below(ifindex)))
            .collect();
        assert_eq!(view.links_below(), expected);
    }
}

#[test]
fn tag_above_a_carried_device_is_xdps_and_stacked_tags_are_the_devices() {
    let bridge = Link {
        is_no_redirect_target: true,
        ..link(4)
    };
    let stacked = Link {
        is_no_redirect_target: true,
        ..vlan_link(9, Some(8))
    };
    let links = || [bridge.clone(), vlan_link(8, Some(4)), stacked.clone()];
    let known =
        || [8, 9].map(|ifindex| (key(ifindex, "192.0.2.254"), neighbour(Some(GATEWAY_MAC))));
    let stacked_way = through(9, Some("192.0.2.254"));
    assert_eq!(
        resolve(&view(links(), known()), &stacked_way),
        Resolution::Unresolved(Reason::VlanUnsupported)
    );
    let view = carrying(view(links(), known()), &[]);
    let leaves = |route: &Route| match resolve(&view, route) {
        Resolution::Resolved(hop) => (hop.ifindex, hop.vlan, hop.is_carried),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        leaves(&through(8, Some("192.0.2.254"))),
        (4, Some(42), true)
    );
    assert_eq!(leaves(&stacked_way), (9, None, true));
    let below = view.links_below();
    let told = |ifindex: u32| (below[&ifindex].ifindex, below[&ifindex].vlan);
    assert_eq!([4, 8, 9].map(told), [(4, 0), (4, 42), (9, 0)]);
}
