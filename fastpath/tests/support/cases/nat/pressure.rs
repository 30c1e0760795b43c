//! NAT mode's ports in demand: which flow gives its port to another one, and what keeps it.
//!
//! The machine has one port in most of these; the packet of another client that gets it shows that its flow has gone.

use etherparse::TcpHeader;
use xdp_prog::{
    abi::{NAT_ANSWERED, NAT_CONDEMNED, NAT_RESET, NatBegun},
    decide::nat::{IDLE_HALF_OPEN_NS, IDLE_HALF_OPEN_TCP_NS, QUIET_DATAGRAMS_NS, QUIET_RESET_NS},
    reason::DropReason,
};

use super::{
    super::{
        super::packet::{ACK, End, FIN, Packet, RST, SYN, TCP_SEQUENCE},
        Case, Draft, EDGE_V4, IN, v4,
    },
    FROM_MACHINE, NEVER, OPEN, PORT, SCTP_V4, SECOND, SEQUENCE, Service, TCP_V4, TCP_V6, UDP_V4,
    Way, nat,
};

/// Half of the time that a half-open TCP flow has.
const A_WHILE: u64 = IDLE_HALF_OPEN_TCP_NS / 2;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(half_open());
    cases.extend(proofs());
    cases.extend(resets());
    cases.extend(shares());
    cases
}

/// Another client's first packet, and the service as this client has it.
fn other(service: Service) -> (Vec<u8>, Service) {
    let client = End::from((v4(198, 51, 100, 8), 40_000));
    let service = Service { client, ..service };
    (IN.carry(&service.request(SYN)), service)
}

/// A flow of the first client that was idle for so long, and the first packet of another one.
fn rivals(name: impl AsRef<str>, service: Service, flags: u8, idle: u64) -> Draft {
    let (input, _) = other(service);
    nat(format!("rival_{}", name.as_ref()), input)
        .with(|tables| service.seed(tables, service.client, service.edge.1, flags, idle))
}

impl Draft {
    /// The other client gets the port.
    fn takes_over(self, service: Service) -> Case {
        self.reaches(&other(service).1, SYN)
    }

    /// The flow keeps its port.
    fn refused(self) -> Case {
        self.drops(DropReason::NatPortsExhausted)
    }
}

fn half_open() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, service, over) in [
        ("tcp", TCP_V4, IDLE_HALF_OPEN_TCP_NS),
        ("udp", UDP_V4, IDLE_HALF_OPEN_NS),
    ] {
        for (state, flags) in [("unanswered", 0), ("answered", NAT_ANSWERED)] {
            cases.extend([
                rivals(format!("{name}_{state}_gives_way"), service, flags, A_WHILE)
                    .takes_over(service),
                rivals(
                    format!("{name}_{state}_is_over"),
                    service,
                    flags,
                    over + SECOND,
                )
                .takes_over(service),
                rivals(format!("{name}_{state}_is_young"), service, flags, NEVER).refused(),
            ]);
        }
        cases.push(rivals(format!("{name}_open_stays"), service, OPEN, A_WHILE).refused());
    }
    cases.extend([
        rivals(
            "udp_open_and_quiet_gives_way",
            UDP_V4,
            OPEN,
            QUIET_DATAGRAMS_NS + SECOND,
        )
        .takes_over(UDP_V4),
        // Anybody can make a flow open by two datagrams that the backend answers.
        rivals("udp_open_for_a_moment_gives_way", UDP_V4, OPEN, A_WHILE)
            .with(|tables| UDP_V4.began(tables, PORT, A_WHILE))
            .takes_over(UDP_V4),
        // An association has no other port: a single packet would take it.
        rivals(
            "sctp_open_and_quiet_stays",
            SCTP_V4,
            OPEN,
            QUIET_DATAGRAMS_NS + SECOND,
        )
        .refused(),
    ]);
    // What is left of the flow that gave way leads nowhere.
    let (begin, _) = other(TCP_V4);
    cases.push(
        nat(
            "flow_that_gave_way_is_unknown",
            IN.carry(&TCP_V4.request(ACK)),
        )
        .with(|tables| TCP_V4.seed(tables, TCP_V4.client, PORT, NAT_ANSWERED, A_WHILE))
        .after(begin)
        .drops(DropReason::NatUnknownFlow),
    );
    // Of several ports, that of the oldest: the first of 8 is 8 halves of a second old.
    let oldest = Service {
        edge: (EDGE_V4, PORT),
        ..TCP_V4
    };
    let (begin, _) = other(TCP_V4);
    cases.push(
        nat("rival_takes_the_port_of_the_oldest", begin)
            .with(|tables| {
                tables.config.nat_ports = 8;
                for port in 0..8 {
                    let client = (TCP_V4.client.0, 50_000 + port);
                    let idle = SECOND / 2 * u64::from(8 - port);
                    TCP_V4.seed(tables, client, PORT + port, 0, idle);
                }
            })
            .takes_over(oldest),
    );
    cases
}

/// What makes an open flow of a half-open one, and what does not.
fn proofs() -> Vec<Case> {
    let half_open = |name: &str| rivals(name, TCP_V4, NAT_ANSWERED, A_WHILE);
    let right = SEQUENCE.wrapping_add(1);
    let reply = |flags, payload: &[u8]| replied(flags, right, payload);
    let later = IN.carry(&UDP_V4.request(0));
    vec![
        half_open("after_the_acknowledgement")
            .after(acknowledge(ACK, right, b""))
            .refused(),
        half_open("after_an_acknowledgement_with_data")
            .after(acknowledge(ACK, right, b"text"))
            .refused(),
        half_open("after_an_acknowledgement_with_fin")
            .after(acknowledge(ACK | FIN, right, b""))
            .refused(),
        half_open("after_another_acknowledgement")
            .after(acknowledge(ACK, right.wrapping_add(1), b"text"))
            .takes_over(TCP_V4),
        half_open("after_the_number_without_ack")
            .after(acknowledge(0, right, b"text"))
            .takes_over(TCP_V4),
        half_open("after_a_rst_with_the_number")
            .after(acknowledge(RST | ACK, right, b""))
            .takes_over(TCP_V4),
        // Before the backend has said anything, there is nothing to acknowledge.
        rivals("unanswered_after_the_number", TCP_V4, 0, A_WHILE)
            .after(acknowledge(ACK, right, b""))
            .takes_over(TCP_V4),
        half_open("after_the_backends_data")
            .after(reply(ACK, b"text"))
            .refused(),
        half_open("after_the_backends_fin")
            .after(reply(FIN | ACK, b""))
            .refused(),
        half_open("after_the_end_of_the_backends_first_data")
            .after(replied(ACK, right.wrapping_add(0xffff), b"text"))
            .refused(),
        half_open("after_data_of_another_number")
            .after(replied(ACK, right.wrapping_add(0x1_0000), b"text"))
            .takes_over(TCP_V4),
        half_open("after_data_from_before_the_beginning")
            .after(replied(ACK, right.wrapping_sub(2), b"text"))
            .takes_over(TCP_V4),
        half_open("after_a_fin_of_another_number")
            .after(replied(FIN | ACK, right.wrapping_sub(2), b""))
            .takes_over(TCP_V4),
        // Before it has accepted a connection, the backend has nothing to say on it.
        rivals("unanswered_after_the_backends_data", TCP_V4, 0, A_WHILE)
            .after(reply(ACK, b"text"))
            .takes_over(TCP_V4),
        // A backend sends these to whoever forges a segment of a connection that it has half accepted.
        half_open("after_the_backends_ack")
            .after(reply(ACK, b""))
            .takes_over(TCP_V4),
        half_open("after_the_backends_rst")
            .after(reply(RST, b""))
            .takes_over(TCP_V4),
        // Repeated for a minute to a client that never was.
        half_open("after_the_backends_syn_ack")
            .after(reply(SYN | ACK, b""))
            .takes_over(TCP_V4),
        rivals(
            "udp_after_the_client_has_gone_on",
            UDP_V4,
            NAT_ANSWERED,
            A_WHILE,
        )
        .after(later)
        .refused(),
    ]
}

/// The client's segment with this acknowledgement number.
fn acknowledge(flags: u8, number: u32, payload: &[u8]) -> Vec<u8> {
    let (from, to) = (TCP_V4.client, TCP_V4.vip);
    let mut header = TcpHeader::new(from.1, to.1, TCP_SEQUENCE, 0xfaf0);
    header.acknowledgment_number = number;
    header.ack = flags & ACK != 0;
    header.fin = flags & FIN != 0;
    header.rst = flags & RST != 0;
    IN.carry(&Packet::tcp_with(from, to, header, payload))
}

/// The client's segment with this sequence number.
fn numbered(flags: u8, number: u32) -> Vec<u8> {
    let (from, to) = (TCP_V4.client, TCP_V4.vip);
    let mut header = TcpHeader::new(from.1, to.1, number, 0xfaf0);
    header.rst = flags & RST != 0;
    IN.carry(&Packet::tcp_with(from, to, header, b""))
}

/// The backend's segment with this sequence number.
fn replied(flags: u8, number: u32, payload: &[u8]) -> Vec<u8> {
    let (from, to) = (TCP_V4.machine, TCP_V4.edge);
    let mut header = TcpHeader::new(from.1, to.1, number, 0xfaf0);
    header.ack = flags & ACK != 0;
    header.fin = flags & FIN != 0;
    header.syn = flags & SYN != 0;
    header.rst = flags & RST != 0;
    FROM_MACHINE.carry(&Packet::tcp_with(from, to, header, payload))
}

/// A RST that anybody may have sent ends and shortens nothing by itself.
fn resets() -> Vec<Case> {
    let request = |flags| IN.carry(&TCP_V4.request(flags));
    let quiet = QUIET_RESET_NS + SECOND;
    let open = |name: &str, input, idle| {
        nat(name, input).with(|tables| TCP_V4.seed(tables, TCP_V4.client, PORT, OPEN, idle))
    };
    let mut cases = vec![
        open("client_goes_on_after_a_rst", request(ACK), quiet)
            .after(request(RST))
            .reaches(&TCP_V4, ACK),
        open(
            "backend_goes_on_after_a_rst",
            TCP_V4.reply_frame(ACK),
            quiet,
        )
        .after(request(RST))
        .returns(TCP_V4.returned(ACK)),
        rivals("after_a_rst_and_a_minute", TCP_V4, OPEN, quiet)
            .after(request(RST))
            .takes_over(TCP_V4),
        rivals("after_a_rst_alone", TCP_V4, OPEN, 0)
            .after(request(RST))
            .refused(),
        rivals("after_a_rst_and_the_backend", TCP_V4, OPEN, quiet)
            .after(request(RST))
            .after(TCP_V4.reply_frame(ACK))
            .refused(),
        rivals("after_a_minute_without_a_rst", TCP_V4, OPEN, quiet).refused(),
        // A SYN in the client's name ends no more.
        rivals("after_a_rst_and_a_syn", TCP_V4, OPEN, 0)
            .after(request(RST))
            .after(request(SYN))
            .refused(),
        // A backend that accepts another connection has ended the old one.
        nat("old_proof_of_a_reset_flow", request(ACK))
            .with(|tables| {
                let flags = OPEN | NAT_RESET;
                TCP_V4.seed(tables, TCP_V4.client, PORT, flags, A_WHILE);
            })
            .after(TCP_V4.reply_frame(SYN | ACK))
            .reaches(&TCP_V4, ACK),
    ];
    let other = IN.carry(&TCP_V4.request(RST));
    for (who, rst) in [("client", other), ("backend", TCP_V4.reply_frame(RST))] {
        let seeded = |name: String, input| {
            let draft = open(&name, input, quiet).after(rst.clone());
            draft.with(|tables| {
                TCP_V4.seed(tables, TCP_V4.client, PORT, OPEN | NAT_RESET, quiet);
            })
        };
        cases.extend([
            seeded(
                format!("client_long_after_a_rst_of_the_{who}"),
                request(ACK),
            )
            .reaches(&TCP_V4, ACK),
            seeded(
                format!("backend_long_after_a_rst_of_the_{who}"),
                TCP_V4.reply_frame(ACK),
            )
            .returns(TCP_V4.returned(ACK)),
        ]);
    }
    // Where forged SYNs want ports, a flow that a forged RST may have marked is left alone.
    // Who knows nothing of the connection has no number that the backend might wait for.
    let window = 1 << 15;
    for above in [0, window - 1, window, 1 << 31, u32::MAX] {
        let draft = rivals(
            format!("after_a_rst_{above}_above_what_is_expected"),
            TCP_V4,
            OPEN,
            quiet,
        )
        .after(numbered(RST, TCP_SEQUENCE.wrapping_add(above)));
        cases.push(if above < window {
            draft.takes_over(TCP_V4)
        } else {
            draft.refused()
        });
    }
    cases.push(
        rivals("among_forged_syns", TCP_V4, OPEN | NAT_RESET, quiet)
            .with(|tables| {
                tables.config.nat_ports = 2;
                let forged = (TCP_V4.client.0, 50_000);
                TCP_V4.seed(tables, forged, PORT + 1, 0, NEVER);
            })
            .refused(),
    );
    cases
}

/// A service that has its share of the table, with ports to spare.
fn shares() -> Vec<Case> {
    let begin = IN.carry(&TCP_V4.request(SYN));
    let service = TCP_V4.way.service as usize;
    let counted = |name: &str, flows, half_open| {
        nat(name, begin.clone()).with(|tables| {
            tables.config.nat_ports = 2;
            tables.nat.counts[0].flows = 10;
            tables.nat.counts[service].flows = flows;
            tables.nat.counts[service].half_open = half_open;
        })
    };
    let forged = |draft: Draft, idle| {
        draft.with(|tables| {
            let client = (v4(198, 51, 100, 8), 50_000);
            for (port, idle) in [(0, NEVER), (1, idle)] {
                let client = (client.0, client.1 + port);
                TCP_V4.seed(tables, client, PORT + port, 0, idle);
            }
            // One of the ports is free.
            let reply = TCP_V4.reply_key(PORT);
            tables.nat.reverse.remove(&reply).unwrap();
            tables.nat.counts[0].flows = 10;
            tables.nat.counts[service].flows = 40;
        })
    };
    // The ports that are tried have no flow, but another one has, and is in the ring.
    let begun = |name: &str, idle, of: Service| {
        counted(name, 0, 0).with(|tables| {
            const ELSEWHERE: u16 = PORT + 50;
            TCP_V4.seed(tables, (v4(198, 51, 100, 9), 50_000), ELSEWHERE, 0, idle);
            tables.config.nat_ports = 1;
            tables.nat.counts[0].flows = 10;
            tables.nat.counts[service].flows = 40;
            let Way { service, backend } = Way {
                service: of.way.service,
                ..TCP_V4.way
            };
            // In the first place of the ring, of which the third one was written last.
            let hand = TCP_V4.way.service as usize % 16;
            tables.nat.begun[hand] = NatBegun(3);
            tables.nat.begun[hand + 16] = NatBegun::new(backend, service, ELSEWHERE.to_be_bytes());
        })
    };
    let second = Service {
        edge: (EDGE_V4, PORT + 1),
        ..TCP_V4
    };
    let other_service = IN.carry(&UDP_V4.request(0));
    vec![
        counted("service_with_more_than_its_share", 40, 0).drops(DropReason::NatTableFull),
        counted("service_with_its_half_open_ones", 20, 5).drops(DropReason::NatTableFull),
        nat("another_service_has_room", other_service)
            .with(|tables| {
                tables.nat.counts[0].flows = 10;
                tables.nat.counts[service].flows = 40;
            })
            .reaches(&UDP_V4, 0),
        forged(
            counted("service_with_its_share_takes_from_itself", 0, 0),
            A_WHILE,
        )
        .reaches(&second, SYN),
        forged(
            counted("service_with_its_share_takes_no_free_port", 0, 0),
            NEVER,
        )
        .drops(DropReason::NatTableFull),
        begun(
            "service_with_its_share_takes_from_its_oldest",
            A_WHILE,
            TCP_V4,
        )
        .reaches(&TCP_V4, SYN),
        begun(
            "service_with_its_share_takes_from_no_young_one",
            NEVER,
            TCP_V4,
        )
        .drops(DropReason::NatTableFull),
        begun(
            "service_with_its_share_takes_from_no_other",
            A_WHILE,
            TCP_V6,
        )
        .drops(DropReason::NatTableFull),
        begun("service_with_its_share_takes_once", A_WHILE, TCP_V4)
            .after(other(TCP_V4).0)
            .drops(DropReason::NatTableFull),
        // Not refused: the port may be either.
        nat("service_with_less_than_its_share", begin.clone())
            .with(|tables| {
                tables.nat.counts[0].flows = 10;
                tables.nat.counts[service].flows = 39;
                tables.nat.counts[service].half_open = 4;
            })
            .reaches(&TCP_V4, SYN),
        nat(
            "request_of_a_condemned_flow",
            IN.carry(&TCP_V4.request(ACK)),
        )
        .with(|tables| {
            let flags = OPEN | NAT_CONDEMNED;
            TCP_V4.seed(tables, TCP_V4.client, PORT, flags, 0);
        })
        .drops(DropReason::NatUnknownFlow),
    ]
}
