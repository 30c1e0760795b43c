//! ICMP errors about flows of NAT mode: from the client's side, and from the backend's.

use std::{collections::BTreeSet, net::IpAddr};

use xdp_prog::{
    abi::{ADDRESS_NAT, ADDRESS_VIP},
    decide::nat::GUARD_NS,
    process::Action,
    reason::{DropReason, PassReason, ToClientReason},
};

use super::{
    super::super::packet::{ACK, End, Link, Packet, SYN, VLAN, patched},
    super::{BACK, Case, Draft, IN, INGRESS, counted, padded, v4, v6},
    FROM_MACHINE, IDLE_HALF_OPEN_TCP_NS, OPEN, PORT, SECOND, SERVICES, Service, TCP_V4, TCP_V6,
    UDP_V4, UDP_V6, nat,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for service in &SERVICES {
        cases.extend(to_backends(service));
        cases.extend(to_clients(service));
        cases.extend(of_no_flow(service));
    }
    cases.extend(quotes());
    cases.extend(obstacles());
    cases
}

/// Routers on both sides of the edge: their addresses are not told on.
fn router(like: IpAddr) -> IpAddr {
    if like.is_ipv4() {
        v4(198, 51, 100, 254)
    } else {
        v6(0xc, 254)
    }
}

/// The types and codes of a family's errors: unreachable, too big, time exceeded, parameter problem.
fn kinds(like: IpAddr) -> &'static [(u8, u8)] {
    if like.is_ipv4() {
        &[(3, 3), (3, 4), (11, 0), (12, 0)]
    } else {
        &[(1, 4), (2, 0), (3, 0), (4, 1)]
    }
}

fn too_big(from: IpAddr, to: IpAddr, quote: &[u8]) -> Packet {
    Packet::icmp(from, to, kinds(to)[1], [0, 0, 5, 0x78], quote)
}

/// Returns the first bytes of a packet: its IP header and so many more.
fn cut(packet: &Packet, transport: usize) -> Vec<u8> {
    let header = if packet.ends().0.is_ipv4() { 20 } else { 40 };
    packet.bytes()[..header + transport].to_vec()
}

/// Returns how much of a packet of the service may be quoted: the least, as far as a TCP checksum, all.
fn lengths(service: &Service) -> BTreeSet<usize> {
    let whole = service.request(SYN).payload().len();
    [8, 16.min(whole), whole].into()
}

/// A packet that has come as far as a router that drops it.
fn quoted(service: &Service, from: End, to: End) -> Packet {
    service.packet(from, to, ACK).hop_limit(3)
}

/// The error about a reply, as it comes and as it leaves.
fn about_reply(service: &Service, transport: usize) -> [Packet; 2] {
    let came = quoted(service, service.vip, service.client);
    let leaves = quoted(service, service.machine, service.edge);
    [
        too_big(router(service.vip.0), service.vip.0, &cut(&came, transport)),
        too_big(service.edge.0, service.machine.0, &cut(&leaves, transport)),
    ]
}

/// The error about a request, as it comes and as it leaves.
fn about_request(service: &Service, transport: usize) -> [Packet; 2] {
    let came = quoted(service, service.edge, service.machine);
    let leaves = quoted(service, service.client, service.vip);
    [
        too_big(
            router(service.vip.0),
            service.edge.0,
            &cut(&came, transport),
        ),
        too_big(service.vip.0, service.client.0, &cut(&leaves, transport)),
    ]
}

impl Draft {
    /// An error of `length` bytes leaves for the service's machine.
    fn warns_backend(self, service: &Service, length: usize, error: &Packet) -> Case {
        let output = service.link.carry(&error.next_hop());
        self.forwards(Action::Transmit, service.way, length, output)
    }

    /// An error leaves for the client by this link.
    fn warns_client(self, link: &Link<'_>, error: &Packet) -> Case {
        let counts = counted(ToClientReason::NatError.index());
        self.ends(Action::Transmit, link.carry(&error.next_hop()), counts)
    }
}

fn to_backends(service: &Service) -> Vec<Case> {
    let name = |what: &str| format!("{}_error_about_a_reply_{what}", service.name());
    let begin = || IN.carry(&service.request(SYN));
    let mut cases = Vec::new();
    for transport in lengths(service) {
        let [came, leaves] = about_reply(service, transport);
        cases.push(
            nat(name(&format!("with_{transport}_bytes")), IN.carry(&came))
                .after(begin())
                .warns_backend(service, came.length(), &leaves),
        );
    }
    for kind in kinds(service.vip.0) {
        let error = |from, to, quote: Packet| Packet::icmp(from, to, *kind, [0; 4], &quote.bytes());
        let came = quoted(service, service.vip, service.client);
        let came = error(router(service.vip.0), service.vip.0, came);
        let leaves = quoted(service, service.machine, service.edge);
        let leaves = error(service.edge.0, service.machine.0, leaves);
        cases.push(
            nat(name(&format!("{}_{}", kind.0, kind.1)), IN.carry(&came))
                .after(begin())
                .warns_backend(service, came.length(), &leaves),
        );
    }
    cases
}

fn to_clients(service: &Service) -> Vec<Case> {
    let name = |what: &str| format!("{}_error_about_a_request_{what}", service.name());
    let begin = || IN.carry(&service.request(SYN));
    let mut cases = Vec::new();
    for transport in lengths(service) {
        let [came, leaves] = about_request(service, transport);
        cases.push(
            nat(
                name(&format!("with_{transport}_bytes")),
                FROM_MACHINE.carry(&came),
            )
            .after(begin())
            .warns_client(&BACK, &leaves),
        );
    }
    for kind in kinds(service.vip.0) {
        // The machine itself says that nobody listens.
        let error = |from, to, quote: Packet| Packet::icmp(from, to, *kind, [0; 4], &quote.bytes());
        let came = quoted(service, service.edge, service.machine);
        let came = error(service.machine.0, service.edge.0, came);
        let leaves = quoted(service, service.client, service.vip);
        let leaves = error(service.vip.0, service.client.0, leaves);
        cases.push(
            nat(
                name(&format!("{}_{}", kind.0, kind.1)),
                FROM_MACHINE.carry(&came),
            )
            .after(begin())
            .warns_client(&BACK, &leaves),
        );
    }
    cases
}

fn of_no_flow(service: &Service) -> Vec<Case> {
    let name = |what: &str| format!("{}_error_{what}", service.name());
    let [about_reply, _] = about_reply(service, 8);
    let [about_request, _] = about_request(service, 8);
    let other_port = quoted(service, (service.edge.0, PORT - 1), service.machine);
    let other_port = too_big(router(service.vip.0), service.edge.0, &other_port.bytes());
    let mut cases = vec![
        nat(name("about_no_reply_is_dropped"), IN.carry(&about_reply))
            .drops(DropReason::NatUnknownFlow),
        nat(
            name("about_no_request_passes"),
            FROM_MACHINE.carry(&about_request),
        )
        .passes(PassReason::Icmp),
        nat(
            name("to_an_address_of_the_kernel_passes"),
            FROM_MACHINE.carry(&about_request),
        )
        .with(|tables| {
            let flags = tables.vips.values_mut();
            flags.for_each(|flags| *flags &= !ADDRESS_NAT);
        })
        .after(IN.carry(&service.request(SYN)))
        .passes(PassReason::Icmp),
        nat(
            name("about_another_port_passes"),
            FROM_MACHINE.carry(&other_port),
        )
        .after(IN.carry(&service.request(SYN)))
        .passes(PassReason::Icmp),
    ];
    if service.protocol == super::TCP {
        let over = IDLE_HALF_OPEN_TCP_NS + GUARD_NS / 2;
        let old =
            |draft: Draft| draft.with(|tables| service.seed(tables, service.client, PORT, 0, over));
        cases.extend([
            old(nat(
                name("about_a_reply_of_an_old_flow_is_dropped"),
                IN.carry(&about_reply),
            ))
            .drops(DropReason::NatUnknownFlow),
            old(nat(
                name("about_a_request_of_an_old_flow_passes"),
                FROM_MACHINE.carry(&about_request),
            ))
            .passes(PassReason::Icmp),
        ]);
    }
    cases
}

/// What a quote may look like.
fn quotes() -> Vec<Case> {
    let begin = |service: &Service| IN.carry(&service.request(SYN));
    let mut cases = Vec::new();
    let mut both = |what: &str, service: &Service, shape: &dyn Fn(Packet) -> Vec<u8>| {
        let name = |which: &str| format!("{}_error_about_a_{which}_{what}", service.name());
        let (vip, edge) = (service.vip, service.edge);
        let came = shape(quoted(service, vip, service.client));
        let came = too_big(router(vip.0), vip.0, &came);
        let leaves = shape(quoted(service, service.machine, edge));
        let leaves = too_big(edge.0, service.machine.0, &leaves);
        cases.push(
            nat(name("reply"), IN.carry(&came))
                .after(begin(service))
                .warns_backend(service, came.length(), &leaves),
        );
        let came = shape(quoted(service, edge, service.machine));
        let came = too_big(router(vip.0), edge.0, &came);
        let leaves = shape(quoted(service, service.client, vip));
        let leaves = too_big(vip.0, service.client.0, &leaves);
        cases.push(
            nat(name("request"), FROM_MACHINE.carry(&came))
                .after(begin(service))
                .warns_client(&BACK, &leaves),
        );
    };
    both("with_options", &TCP_V4, &|packet| {
        packet.options(&[1; 12]).bytes()
    });
    both("that_is_a_first_fragment", &TCP_V4, &|packet| {
        packet.fragment(0, true).bytes()
    });
    both("that_is_a_first_fragment", &UDP_V6, &|packet| {
        packet.extensions(&[(44, &[0, 0, 1, 0, 0, 0, 7])]).bytes()
    });
    both("without_checksum", &UDP_V4, &|packet| {
        patched(packet.bytes(), 20 + 6, &[0, 0])
    });
    both("with_another_class", &TCP_V6, &|packet| {
        packet.class(0xb9).bytes()
    });
    // What was wrong on its way stays as wrong: a checksum of the quote is not ours to mend.
    for service in [TCP_V4, TCP_V6] {
        let [came, leaves] = about_reply(&service, 20);
        let at = |packet: &Packet| packet.bytes().len() - 4;
        let broken = |packet: &Packet| {
            let at = at(packet);
            let before = packet.bytes();
            let check = u16::from_be_bytes([before[at], before[at + 1]]);
            // Off by one, and the message's own checksum with it.
            let body = packet.payload()[8..].to_vec();
            let from_end = before.len() - at;
            let place = body.len() - from_end;
            let body = patched(body, place, &sum(check, 1).to_be_bytes());
            let (from, to) = packet.ends();
            too_big(from, to, &body)
        };
        let (came, leaves) = (broken(&came), broken(&leaves));
        cases.push(
            nat(
                format!("{}_error_about_a_broken_reply", service.name()),
                IN.carry(&came),
            )
            .after(begin(&service))
            .warns_backend(&service, came.length(), &leaves),
        );
    }
    let later = quoted(&TCP_V4, TCP_V4.vip, TCP_V4.client).fragment(5, true);
    let later = too_big(router(TCP_V4.vip.0), TCP_V4.vip.0, &later.bytes());
    cases.push(
        nat("error_about_a_later_fragment", IN.carry(&later))
            .after(begin(&TCP_V4))
            .drops(DropReason::MalformedIcmp),
    );
    cases
}

/// Adds in one's complement.
fn sum(check: u16, more: u16) -> u16 {
    let (sum, carry) = check.overflowing_add(more);
    sum + u16::from(carry)
}

/// Ways, and what is in them.
fn obstacles() -> Vec<Case> {
    const TAGGED: Link<'static> = Link {
        tags: &[(VLAN, 0x2007)],
        ..IN
    };
    const BACK_TAGGED: Link<'static> = Link {
        tags: &[(VLAN, 0x2007)],
        ..BACK
    };
    let mut cases = Vec::new();
    for service in [TCP_V4, TCP_V6] {
        let name = |what: &str| format!("{}_error_{what}", service.name());
        let begin = || IN.carry(&service.request(SYN));
        let [reply, _] = about_reply(&service, 8);
        let [request, leaves] = about_request(&service, 8);
        cases.extend([
            nat(name("gets_the_clients_tag"), FROM_MACHINE.carry(&request))
                .after(TAGGED.carry(&service.request(SYN)))
                .warns_client(&BACK_TAGGED, &leaves),
            nat(
                name("to_the_backend_hop_limit_1"),
                IN.carry(&reply.clone().hop_limit(1)),
            )
            .after(begin())
            .drops(DropReason::TtlExpired),
            nat(
                name("to_the_client_hop_limit_1"),
                FROM_MACHINE.carry(&request.clone().hop_limit(1)),
            )
            .after(begin())
            .drops(DropReason::TtlExpired),
            nat(name("larger_than_the_next_hop_takes"), IN.carry(&reply))
                .with(|tables| {
                    service.seed(tables, service.client, PORT, OPEN, SECOND);
                    for hop in &mut tables.next_hops[1..3] {
                        hop.mtu = u32::try_from(reply.length()).unwrap() - 1;
                    }
                })
                .drops(DropReason::MtuExceeded),
            nat(name("without_a_next_hop"), IN.carry(&reply))
                .with(|tables| {
                    service.seed(tables, service.client, PORT, OPEN, SECOND);
                    for hop in &mut tables.next_hops[1..3] {
                        hop.ifindex = 0;
                    }
                })
                .drops(DropReason::NextHopUnresolved),
        ]);
    }
    let [reply, leaves] = about_reply(&TCP_V4, 8);
    let to_nat_port = quoted(&TCP_V4, (TCP_V4.vip.0, PORT), TCP_V4.client);
    let to_nat_port = too_big(router(TCP_V4.vip.0), TCP_V4.vip.0, &to_nat_port.bytes());
    cases.extend([
        nat("error_by_another_device", IN.carry(&reply))
            .with(|tables| {
                TCP_V4.seed(tables, TCP_V4.client, PORT, OPEN, SECOND);
                tables.next_hops[1].ifindex = INGRESS + 1;
            })
            .forwards(
                Action::Redirect(INGRESS + 1),
                TCP_V4.way,
                reply.length(),
                TCP_V4.link.carry(&leaves.next_hop()),
            ),
        nat("error_under_another_nat_address", IN.carry(&reply))
            .with(|tables| {
                TCP_V4.seed(tables, TCP_V4.client, PORT, OPEN, SECOND);
                tables.config.nat_v4 = padded(v4(192, 0, 2, 77));
            })
            .drops(DropReason::NatUnknownFlow),
        nat("error_about_a_port_of_nat_mode_at_a_vip", {
            IN.carry(&to_nat_port)
        })
        .drops(DropReason::MalformedIcmp),
        nat("error_about_a_port_of_nat_mode_at_a_shared_address", {
            IN.carry(&to_nat_port)
        })
        .with(|tables| tables.address(TCP_V4.vip.0, ADDRESS_VIP | ADDRESS_NAT))
        .passes(PassReason::Icmp),
    ]);
    cases
}
