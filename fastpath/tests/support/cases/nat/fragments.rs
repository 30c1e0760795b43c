//! Datagrams in pieces, both ways: the first piece begins or finds the flow, the others follow it.

use xdp_prog::{
    abi::{ADDRESS_NAT, CONFIG_MEND},
    decide::nat::GUARD_NS,
    process::Action,
    reason::{DropReason, PassReason},
};

use super::{
    super::super::packet::{End, Packet, SYN},
    super::{Case, Draft, IN, INGRESS, TCP, UDP, padded, v4},
    BACK, FROM_MACHINE, IDLE_UDP_NS, OPEN, PORT, SECOND, Service, TCP_V4, TCP_V6, UDP_V4, UDP_V6,
    nat,
};

/// Bytes of payload in each piece.
const SIZE: usize = 256;
const ID: u32 = 0x00c0_ffee;

/// The pieces of a datagram between these ends: a first, a middle, and a last one.
fn pieces(service: &Service, from: End, to: End) -> Vec<Packet> {
    let payload: Vec<u8> = (0..=255).cycle().take(600).collect();
    let whole = match service.protocol {
        TCP => Packet::segment(from, to, SYN, &payload),
        UDP => Packet::udp(from, to, &payload),
        other => panic!("no fragments of protocol {other}"),
    };
    let pieces = whole.pieces(SIZE, ID);
    assert_eq!(pieces.len(), 3);
    pieces
}

/// The pieces as they come in and as they leave.
struct Datagram {
    come: Vec<Packet>,
    leave: Vec<Packet>,
}

impl Datagram {
    fn request(service: &Service) -> Self {
        Self {
            come: pieces(service, service.client, service.vip),
            leave: pieces(service, service.edge, service.machine),
        }
    }

    fn reply(service: &Service) -> Self {
        Self {
            come: pieces(service, service.machine, service.edge),
            leave: pieces(service, service.vip, service.client),
        }
    }
}

/// A piece of a request leaves for the service's machine.
fn reaches(draft: Draft, service: &Service, datagram: &Datagram, piece: usize) -> Case {
    let output = service.link.carry(&datagram.leave[piece].next_hop());
    let length = datagram.come[piece].length();
    draft.forwards(Action::Transmit, service.way, length, output)
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for service in [TCP_V4, UDP_V4, TCP_V6, UDP_V6] {
        cases.extend(requests(&service));
        cases.extend(replies(&service));
    }
    cases.extend(lost());
    cases.push(cut());
    cases
}

/// What has to be cut.
fn cut() -> Case {
    let service = &UDP_V4;
    let reply = Packet::udp(service.machine, service.edge, &[7; 1473]).fragmentable();
    nat("cut_reply_drops_without_a_socket", {
        FROM_MACHINE.carry(&reply)
    })
    .with(|tables| {
        tables.config.flags |= CONFIG_MEND;
        service.seed(tables, service.client, PORT, OPEN, 0);
    })
    .drops(DropReason::FragmentationNeeded)
}

fn requests(service: &Service) -> Vec<Case> {
    let name = |what: &str| format!("{}_fragment_{what}", service.name());
    let datagram = Datagram::request(service);
    let frame = |piece: usize| IN.carry(&datagram.come[piece]);
    let case = |what: &str, piece: usize| nat(name(what), frame(piece));
    vec![
        reaches(case("begins_the_flow", 0), service, &datagram, 0),
        reaches(
            case("follows_the_first", 1).after(frame(0)),
            service,
            &datagram,
            1,
        ),
        reaches(
            case("last_follows_the_first", 2).after(frame(0)),
            service,
            &datagram,
            2,
        ),
        reaches(
            case("of_a_known_flow", 0).after(IN.carry(&service.request(SYN))),
            service,
            &datagram,
            0,
        ),
        case("before_the_first", 1).drops(DropReason::FragmentOutOfOrder),
        case("of_a_flow_without_a_port", 1)
            .with(|tables| tables.config.nat_ports = 0)
            .after(frame(0))
            .drops(DropReason::NatUnknownFlow),
    ]
}

fn replies(service: &Service) -> Vec<Case> {
    let name = |what: &str| format!("{}_reply_fragment_{what}", service.name());
    let datagram = Datagram::reply(service);
    let frame = |piece: usize| FROM_MACHINE.carry(&datagram.come[piece]);
    let case = |what: &str, piece: usize| nat(name(what), frame(piece));
    let begin = || IN.carry(&service.request(SYN));
    let returned =
        |draft: Draft, piece: usize| draft.returns(BACK.carry(&datagram.leave[piece].next_hop()));
    vec![
        returned(case("is_first", 0).after(begin()), 0),
        returned(
            case("follows_the_first", 1).after(begin()).after(frame(0)),
            1,
        ),
        returned(
            case("last_follows_the_first", 2)
                .after(begin())
                .after(frame(0)),
            2,
        ),
        case("before_the_first_passes", 1)
            .after(begin())
            .passes(PassReason::FragmentNotOurs),
        case("of_no_flow_passes", 0).passes(PassReason::NatNotOurs),
        case("of_no_flow_passes_like_its_first", 1)
            .after(frame(0))
            .passes(PassReason::NatNotOurs),
        case("to_an_address_of_the_kernel_passes", 0)
            .with(|tables| {
                let flags = tables.vips.values_mut();
                flags.for_each(|flags| *flags &= !ADDRESS_NAT);
            })
            .after(begin())
            .passes(PassReason::FragmentNotOurs),
    ]
}

/// What keeps a later fragment from following.
fn lost() -> Vec<Case> {
    let mut cases = Vec::new();
    for service in [UDP_V4, UDP_V6] {
        let (request, reply) = (Datagram::request(&service), Datagram::reply(&service));
        let first = || IN.carry(&request.come[0]);
        let name = |what: &str| format!("{}_{what}", service.name());
        let fits = u32::try_from(request.come[1].length()).unwrap();
        cases.extend([
            nat(name("later_fragment_hop_limit_1"), {
                IN.carry(&request.come[1].clone().hop_limit(1))
            })
            .after(first())
            .drops(DropReason::TtlExpired),
            nat(name("later_fragment_without_a_next_hop"), {
                IN.carry(&request.come[1])
            })
            .with(|tables| {
                service.seed(tables, service.client, PORT, OPEN, 0);
                for hop in &mut tables.next_hops[1..3] {
                    hop.ifindex = 0;
                }
            })
            .after(first())
            .drops(DropReason::NextHopUnresolved),
            // The first one is as long, and is dropped as well, but has shown its ports. Routers may cut IPv4 alone.
            nat(name("later_fragment_larger_than_the_next_hop_takes"), {
                IN.carry(&request.come[1])
            })
            .with(|tables| {
                service.seed(tables, service.client, PORT, OPEN, 0);
                for hop in &mut tables.next_hops[1..3] {
                    hop.mtu = fits - 1;
                }
            })
            .after(first())
            .drops(if service.vip.0.is_ipv4() {
                DropReason::FragmentationNeeded
            } else {
                DropReason::MtuExceeded
            }),
            nat(name("later_reply_fragment_hop_limit_1"), {
                FROM_MACHINE.carry(&reply.come[1].clone().hop_limit(1))
            })
            .after(first())
            .after(FROM_MACHINE.carry(&reply.come[0]))
            .drops(DropReason::TtlExpired),
            nat(name("later_fragment_of_an_old_flow"), {
                IN.carry(&request.come[1])
            })
            .with(|tables| {
                tables.config.nat_ports = 0;
                service.seed(
                    tables,
                    service.client,
                    PORT,
                    OPEN,
                    IDLE_UDP_NS + GUARD_NS / 2,
                );
            })
            .after(first())
            .drops(DropReason::NatUnknownFlow),
        ]);
    }
    let request = Datagram::request(&UDP_V4);
    cases.extend([
        nat("later_fragment_under_another_nat_address", {
            IN.carry(&request.come[1])
        })
        .with(|tables| {
            UDP_V4.seed(tables, UDP_V4.client, PORT, 0, SECOND);
            tables.config.nat_v4 = padded(v4(192, 0, 2, 77));
            tables.config.nat_ports = 0;
        })
        .after(IN.carry(&request.come[0]))
        .drops(DropReason::NatUnknownFlow),
        {
            let output = UDP_V4.link.carry(&request.leave[2].next_hop());
            nat("later_fragment_by_another_device", {
                IN.carry(&request.come[2])
            })
            .with(|tables| tables.next_hops[1].ifindex = INGRESS + 1)
            .after(IN.carry(&request.come[0]))
            .forwards(
                Action::Redirect(INGRESS + 1),
                UDP_V4.way,
                request.come[2].length(),
                output,
            )
        },
    ]);
    cases
}
