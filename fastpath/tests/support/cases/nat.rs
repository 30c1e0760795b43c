//! NAT mode: there, back, ports, idle times.
//!
//! ```text
//! client:40000 -> VIP:80      edge:61001 -> machine:8080
//! client:40000 <- VIP:80      edge:61001 <- machine:8080
//! ```

mod checksums;
mod fragments;
mod icmp;
mod pressure;

use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_NAT, ADDRESS_NODE_PORT, BACKEND_NAT, BACKEND_V4, BACKEND_V6,
        Backend, CONFIG_MEND, LocalFlow, MODE_IPIP, NAT_ANSWERED, NAT_FIN_BACKEND, NAT_FIN_CLIENT,
        NAT_OPEN, NAT_RESET, NatForward, NatLink, NatMark, NatReverse, SERVICE_NAT,
        SERVICE_NODE_PORT, SERVICE_SOURCE_RANGES, Tuple,
    },
    decide::nat::{
        GUARD_NS, IDLE_CLOSED_NS, IDLE_HALF_OPEN_NS, IDLE_HALF_OPEN_TCP_NS, SPAN_OF_USE_NS,
    },
    flow_state::{IDLE_TCP_NS, IDLE_UDP_NS},
    process::Action,
    reason::{DropReason, PassReason, ReplyReason, ToClientReason},
};

use super::{
    super::{
        packet::{
            ACK, End, FIN, IPV4, Link, Packet, RST, SERVICE_VLAN, SYN, TCP_SEQUENCE, VLAN, patched,
        },
        tables::{TableSet, address_key, padded},
    },
    BACK, CLIENT_V4, CLIENT_V6, Case, Draft, EDGE_V4, EDGE_V6, IN, INGRESS, TCP, TO_NODE_V4,
    TO_NODE_V6, UDP, VIP_V4, VIP_V6, Way, case, counted,
    policies::client_slot,
    reset_of_syn, time_exceeded, too_big, v4, v6, way,
};

const SCTP: u8 = 132;
const PORT: u16 = 61_001;
/// Sequence number of the SYN+ACK of flows that are seeded.
const SEQUENCE: u32 = u32::MAX - 1;
/// Idle time of a flow that is never idle while a case runs: it was seen in ten minutes.
const NEVER: u64 = (600 * SECOND).wrapping_neg();
const MACHINE_V4: End = (v4(192, 0, 2, 40), 8080);
const MACHINE_V6: End = (v6(0xe, 0x40), 8080);
/// How a service of NAT mode is reached and who serves it.
#[derive(Clone, Copy)]
struct Service {
    way: Way,
    protocol: u8,
    vip: End,
    client: End,
    edge: End,
    machine: End,
    link: Link<'static>,
}

const TCP_V4: Service = Service {
    way: way(20, 20),
    protocol: TCP,
    vip: (VIP_V4, 8090),
    client: (CLIENT_V4, 40_000),
    edge: (EDGE_V4, PORT),
    machine: MACHINE_V4,
    link: TO_NODE_V4,
};
const UDP_V4: Service = Service {
    way: way(21, 20),
    protocol: UDP,
    ..TCP_V4
};
const TCP_V6: Service = Service {
    way: way(22, 21),
    protocol: TCP,
    vip: (VIP_V6, 8090),
    client: (CLIENT_V6, 40_000),
    edge: (EDGE_V6, PORT),
    machine: MACHINE_V6,
    link: TO_NODE_V6,
};
const UDP_V6: Service = Service {
    way: way(23, 21),
    protocol: UDP,
    ..TCP_V6
};
const SCTP_V4: Service = Service {
    way: way(24, 20),
    protocol: SCTP,
    vip: (VIP_V4, 8080),
    edge: (EDGE_V4, 40_000),
    ..TCP_V4
};
const SERVICES: [Service; 5] = [TCP_V4, UDP_V4, TCP_V6, UDP_V6, SCTP_V4];

impl Service {
    fn name(&self) -> String {
        let protocol = match self.protocol {
            TCP => "tcp",
            UDP => "udp",
            _ => "sctp",
        };
        let family = if self.vip.0.is_ipv4() { "v4" } else { "v6" };
        format!("{protocol}_{family}")
    }

    /// Makes a packet of the service's protocol.
    fn packet(&self, from: End, to: End, flags: u8) -> Packet {
        match self.protocol {
            TCP => Packet::segment(from, to, flags, b"text"),
            UDP => Packet::udp(from, to, b"text"),
            _ => Packet::sctp(from, to, b"text"),
        }
    }

    fn request(&self, flags: u8) -> Packet {
        self.packet(self.client, self.vip, flags)
    }

    fn reply(&self, flags: u8) -> Packet {
        self.packet(self.machine, self.edge, flags)
    }

    /// The frame in which the machine sends its reply.
    fn reply_frame(&self, flags: u8) -> Vec<u8> {
        FROM_MACHINE.carry(&self.reply(flags))
    }

    /// The frame in which a request leaves.
    fn sent(&self, flags: u8) -> Vec<u8> {
        let packet = self.packet(self.edge, self.machine, flags);
        self.link.carry(&packet.next_hop())
    }

    /// The frame in which a reply leaves.
    fn returned(&self, flags: u8) -> Vec<u8> {
        let packet = self.packet(self.vip, self.client, flags);
        BACK.carry(&packet.next_hop())
    }

    fn forward_key(&self) -> Tuple {
        tuple(self.client, self.vip, self.protocol)
    }

    fn reply_key(&self, port: u16) -> Tuple {
        tuple(self.machine, (self.edge.0, port), self.protocol)
    }

    /// Adds a flow of this client that was idle for so long.
    fn seed(&self, tables: &mut TableSet, client: End, port: u16, flags: u8, idle: u64) {
        let forward = tuple(client, self.vip, self.protocol);
        let reply = self.reply_key(port);
        let mark = NatMark::new(before(idle), flags);
        tables.nat.forward.insert(
            forward,
            NatForward::new(
                &forward,
                &reply,
                self.way.backend,
                link(&BACK).fingerprint(INGRESS),
                mark,
            ),
        );
        self.seed_reverse(tables, client, port, flags, idle);
    }

    fn seed_reverse(&self, tables: &mut TableSet, client: End, port: u16, flags: u8, idle: u64) {
        let forward = tuple(client, self.vip, self.protocol);
        let reply = self.reply_key(port);
        let mark = NatMark::new(before(idle), flags);
        let mut entry = NatReverse::new(&reply, &forward, INGRESS, link(&BACK), mark);
        if self.protocol == TCP {
            entry.expects = TCP_SEQUENCE;
        }
        tables.nat.reverse.insert(reply, entry);
        // Datagrams have been exchanged for a while.
        self.began(tables, port, idle.wrapping_add(2 * SPAN_OF_USE_NS));
        let half_open = i64::from(!mark.has(NAT_OPEN));
        tables.nat.counts[0].flows -= 1;
        let count = &mut tables.nat.counts[self.way.service as usize];
        count.flows += 1;
        count.half_open += half_open;
    }

    /// Writes what a flow began with: [`SEQUENCE`] for TCP, the time that long ago for others.
    fn began(&self, tables: &mut TableSet, port: u16, ago: u64) {
        let entry = tables.nat.reverse.get_mut(&self.reply_key(port)).unwrap();
        entry.began_with = match self.protocol {
            TCP => SEQUENCE,
            _ => NatReverse::began_at(before(ago)),
        };
    }
}

const FROM_MACHINE: Link<'static> = Link {
    destination: TO_NODE_V4.source,
    source: TO_NODE_V4.destination,
    tags: &[],
};

/// The time that long ago; where the machine has not been up for so long, a time before its clock began.
fn before(idle: u64) -> u64 {
    coarse_ns().wrapping_sub(idle)
}

fn tuple(from: End, to: End, protocol: u8) -> Tuple {
    Tuple::new(
        address_key(from.0),
        address_key(to.0),
        from.1.to_be_bytes(),
        to.1.to_be_bytes(),
        protocol,
    )
}

fn link(to: &Link<'_>) -> NatLink {
    let mut macs = [0; 12];
    macs[..6].copy_from_slice(&to.destination);
    macs[6..].copy_from_slice(&to.source);
    NatLink::new(macs, [0; 2], 1500)
}

/// Begins a case in a world with services of NAT mode and one source port.
fn nat(name: impl AsRef<str>, input: Vec<u8>) -> Draft {
    case(format!("nat_{}", name.as_ref()), input).with(|tables| {
        tables.config.nat_port = PORT;
        tables.config.nat_ports = 1;
        for service in SERVICES {
            let Way {
                service: id,
                backend,
            } = service.way;
            tables.service(id, service.vip, service.protocol, MODE_IPIP, &[backend]);
            tables.service[id as usize].flags = SERVICE_NAT;
        }
        for edge in [EDGE_V4, EDGE_V6] {
            tables.address(edge, ADDRESS_NAT);
        }
        for (id, machine, hop, family) in [
            (20, MACHINE_V4, 1, BACKEND_V4),
            (21, MACHINE_V6, 2, BACKEND_V6),
        ] {
            tables.backends[id] = Backend {
                address: padded(machine.0),
                next_hop: hop,
                flags: family | BACKEND_NAT,
                pod: address_key(machine.0),
                port: machine.1.to_be_bytes(),
                ..Backend::default()
            };
        }
    })
}

impl Draft {
    /// The request leaves for the service's machine.
    fn reaches(self, service: &Service, flags: u8) -> Case {
        let length = service.request(flags).length();
        self.forwards(Action::Transmit, service.way, length, service.sent(flags))
    }

    /// A reply leaves for the client as `output`.
    fn returns(self, output: Vec<u8>) -> Case {
        let counts = counted(ToClientReason::NatReply.index());
        self.ends(Action::Transmit, output, counts)
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(there_and_back());
    cases.extend(clients_at_vips());
    cases.extend(unknown());
    cases.extend(headers());
    cases.extend(links());
    cases.extend(limits());
    cases.extend(ports());
    cases.extend(idle_times());
    cases.extend(connection_states());
    cases.extend(changes());
    cases.extend(policies());
    cases.extend(checksums::cases());
    cases.extend(pressure::cases());
    cases.extend(fragments::cases());
    cases.extend(icmp::cases());
    cases
}

fn there_and_back() -> Vec<Case> {
    let mut cases = Vec::new();
    for service in &SERVICES {
        let name = service.name();
        let request = |flags| IN.carry(&service.request(flags));
        cases.extend([
            nat(format!("{name}_begins"), request(SYN)).reaches(service, SYN),
            nat(format!("{name}_goes_on"), request(ACK))
                .after(request(SYN))
                .reaches(service, ACK),
            nat(format!("{name}_syn_sent_again"), request(SYN))
                .after(request(SYN))
                .reaches(service, SYN),
            nat(format!("{name}_reply"), service.reply_frame(SYN | ACK))
                .after(request(SYN))
                .returns(service.returned(SYN | ACK)),
            nat(format!("{name}_second_reply"), service.reply_frame(ACK))
                .after(request(SYN))
                .after(service.reply_frame(SYN | ACK))
                .after(request(ACK))
                .returns(service.returned(ACK)),
        ]);
    }
    cases
}

/// Nobody is a client from a VIP: two services would talk to each other for good.
fn clients_at_vips() -> Vec<Case> {
    let forged = |service: &Service| {
        let from = (service.vip.0, 40_000);
        let frame = IN.carry(&service.packet(from, service.vip, SYN));
        let name = format!("{}_client_at_a_vip_begins_nothing", service.name());
        nat(name, frame).drops(DropReason::SourceIsVip)
    };
    SERVICES.iter().map(forged).collect()
}

fn unknown() -> Vec<Case> {
    let other = End::from((CLIENT_V4, 40_001));
    let mut cases = vec![
        nat("unknown_ack_is_dropped", IN.carry(&TCP_V4.request(ACK)))
            .drops(DropReason::NatUnknownFlow),
        nat(
            "unknown_syn_ack_is_dropped",
            IN.carry(&TCP_V4.request(SYN | ACK)),
        )
        .drops(DropReason::NatUnknownFlow),
        nat("unknown_rst_is_dropped", IN.carry(&TCP_V4.request(RST)))
            .drops(DropReason::NatUnknownFlow),
        nat("ack_of_another_client_port", {
            IN.carry(&TCP_V4.packet(other, TCP_V4.vip, ACK))
        })
        .after(IN.carry(&TCP_V4.request(SYN)))
        .drops(DropReason::NatUnknownFlow),
    ];
    for (name, reply) in [
        ("reply_without_a_flow", TCP_V4.reply(ACK)),
        (
            "reply_from_another_port",
            TCP_V4.packet((MACHINE_V4.0, 8081), TCP_V4.edge, ACK),
        ),
        (
            "reply_from_another_machine",
            TCP_V4.packet((v4(192, 0, 2, 41), 8080), TCP_V4.edge, ACK),
        ),
        ("reply_of_another_protocol", UDP_V4.reply(0)),
        (
            "reply_to_another_address",
            TCP_V4.packet(MACHINE_V4, (v4(192, 0, 2, 9), PORT), ACK),
        ),
    ] {
        let mut draft = nat(format!("{name}_passes"), FROM_MACHINE.carry(&reply));
        if name != "reply_without_a_flow" {
            draft = draft.after(IN.carry(&TCP_V4.request(SYN)));
        }
        cases.push(draft.passes(PassReason::NatNotOurs));
    }
    for port in [PORT - 1, PORT + 1] {
        let reply = TCP_V4.packet(MACHINE_V4, (EDGE_V4, port), ACK);
        cases.push(
            nat(
                format!("port_{port}_outside_of_the_range_passes"),
                FROM_MACHINE.carry(&reply),
            )
            .passes(PassReason::NoService),
        );
    }
    cases
}

fn headers() -> Vec<Case> {
    let options = [0x94, 4, 0, 0];
    let forwards = |draft: Draft, service: &Service, packet: &Packet, output| {
        draft.forwards(Action::Transmit, service.way, packet.length(), output)
    };
    let with_options = TCP_V4.request(SYN).options(&options);
    let sent_with_options = TCP_V4
        .packet(TCP_V4.edge, TCP_V4.machine, SYN)
        .options(&options);
    let empty: &[(u8, &[u8])] = &[(0, &[0, 1, 4, 0, 0, 0, 0])];
    let extended = TCP_V6.request(SYN).extensions(empty);
    let sent_extended = TCP_V6
        .packet(TCP_V6.edge, TCP_V6.machine, SYN)
        .extensions(empty);
    let class = UDP_V4.request(0).class(0xb9);
    let sent_class = UDP_V4.packet(UDP_V4.edge, UDP_V4.machine, 0).class(0xb9);
    // The UDP checksum lies at 6 in the header.
    let without = |frame: Vec<u8>| patched(frame, 14 + 20 + 6, &[0, 0]);
    let plain = UDP_V4.request(0);
    vec![
        forwards(
            nat("options", IN.carry(&with_options)),
            &TCP_V4,
            &with_options,
            TO_NODE_V4.carry(&sent_with_options.next_hop()),
        ),
        forwards(
            nat("extension_headers", IN.carry(&extended)),
            &TCP_V6,
            &extended,
            TO_NODE_V6.carry(&sent_extended.next_hop()),
        ),
        forwards(
            nat("traffic_class_stays", IN.carry(&class)),
            &UDP_V4,
            &class,
            TO_NODE_V4.carry(&sent_class.next_hop()),
        ),
        forwards(
            nat("udp_checksum_zero_stays_zero", without(IN.carry(&plain))),
            &UDP_V4,
            &plain,
            without(UDP_V4.sent(0)),
        ),
        nat(
            "udp_checksum_zero_stays_zero_in_the_reply",
            without(UDP_V4.reply_frame(0)),
        )
        .after(IN.carry(&UDP_V4.request(0)))
        .returns(without(UDP_V4.returned(0))),
    ]
}

/// Tags and devices: replies leave by the link on which the client's packets come in.
fn links() -> Vec<Case> {
    const TAGGED: Link<'static> = Link {
        tags: &[(VLAN, 0x2007)],
        ..IN
    };
    const BACK_TAGGED: Link<'static> = Link {
        tags: &[(VLAN, 0x2007)],
        ..BACK
    };
    const OTHER_ROUTER: Link<'static> = Link {
        source: [0x02, 0, 0, 0, 0, 0xc2],
        ..IN
    };
    const BACK_TO_OTHER: Link<'static> = Link {
        destination: OTHER_ROUTER.source,
        ..BACK
    };
    const DOUBLE: Link<'static> = Link {
        tags: &[(SERVICE_VLAN, 5), (VLAN, 7)],
        ..IN
    };
    const OF_A_SERVICE: Link<'static> = Link {
        tags: &[(SERVICE_VLAN, 5)],
        ..IN
    };
    let request = TCP_V4.request(SYN);
    let reply = TCP_V4.packet(TCP_V4.vip, TCP_V4.client, SYN | ACK);
    let before = (CLIENT_V4, 40_001);
    vec![
        nat("tag_is_taken_off", TAGGED.carry(&request)).reaches(&TCP_V4, SYN),
        nat("reply_gets_the_clients_tag", TCP_V4.reply_frame(SYN | ACK))
            .after(TAGGED.carry(&request))
            .returns(BACK_TAGGED.carry(&reply.next_hop())),
        nat("tag_of_the_next_hop", IN.carry(&request))
            .with(|tables| tables.next_hops[1].vlan = [0, 9])
            .forwards(
                Action::Transmit,
                TCP_V4.way,
                request.length(),
                Link {
                    tags: &[(VLAN, 9)],
                    ..TO_NODE_V4
                }
                .carry(&TCP_V4.packet(TCP_V4.edge, TCP_V4.machine, SYN).next_hop()),
            ),
        nat("another_device", IN.carry(&request))
            .with(|tables| tables.next_hops[1].ifindex = INGRESS + 1)
            .forwards(
                Action::Redirect(INGRESS + 1),
                TCP_V4.way,
                request.length(),
                TCP_V4.sent(SYN),
            ),
        nat("reply_follows_the_client_to_another_router", {
            TCP_V4.reply_frame(SYN | ACK)
        })
        .after(IN.carry(&request))
        .after(OTHER_ROUTER.carry(&request))
        .returns(BACK_TO_OTHER.carry(&reply.next_hop())),
        nat("client_whose_port_was_given_on_moves_no_others_replies", {
            TCP_V4.reply_frame(ACK)
        })
        .with(|tables| {
            for client in [before, TCP_V4.client] {
                TCP_V4.seed(tables, client, PORT, OPEN, 0);
            }
        })
        .after(OTHER_ROUTER.carry(&TCP_V4.packet(before, TCP_V4.vip, ACK)))
        .returns(TCP_V4.returned(ACK)),
        nat("two_tags_pass", DOUBLE.carry(&request)).passes(PassReason::VlanDepth),
        nat("service_tag_passes", OF_A_SERVICE.carry(&request)).passes(PassReason::VlanDepth),
    ]
}

fn limits() -> Vec<Case> {
    let mut cases = Vec::new();
    for service in [TCP_V4, TCP_V6] {
        let name = service.name();
        let syn = IN.carry(&service.request(SYN));
        let expired = service.request(SYN).hop_limit(1);
        let expired_reply = service.reply(ACK).hop_limit(1);
        // The devices take 1500 bytes.
        let large = Packet::segment(service.client, service.vip, SYN, &[7; 1461]);
        let large_reply = Packet::tcp(service.machine, service.edge, &[7; 1461]);
        cases.extend([
            nat(format!("{name}_hop_limit_1"), IN.carry(&expired)).replies(
                ReplyReason::TimeExceeded,
                BACK.carry(&time_exceeded(&expired)),
            ),
            nat(
                format!("{name}_of_a_known_flow_hop_limit_1"),
                IN.carry(&expired),
            )
            .after(syn.clone())
            .replies(
                ReplyReason::TimeExceeded,
                BACK.carry(&time_exceeded(&expired)),
            ),
            nat(
                format!("{name}_reply_hop_limit_1"),
                FROM_MACHINE.carry(&expired_reply),
            )
            .after(syn.clone())
            .replies(
                ReplyReason::TimeExceeded,
                TO_NODE_V4.carry(&time_exceeded(&expired_reply)),
            ),
            nat(
                format!("{name}_larger_than_the_next_hop_takes"),
                IN.carry(&large),
            )
            .replies(
                ReplyReason::PacketTooBig,
                BACK.carry(&too_big(&large, 1500)),
            ),
            nat(
                format!("{name}_of_a_known_flow_larger_than_the_next_hop_takes"),
                IN.carry(&large),
            )
            .after(syn.clone())
            .replies(
                ReplyReason::PacketTooBig,
                BACK.carry(&too_big(&large, 1500)),
            ),
            nat(
                format!("{name}_larger_than_a_next_hop_below_all_mtus_takes"),
                syn.clone(),
            )
            .with(|tables| {
                let largest = u32::try_from(service.request(SYN).length()).unwrap();
                for hop in &mut tables.next_hops[1..3] {
                    hop.mtu = largest - 1;
                }
            })
            .drops(DropReason::MtuExceeded),
            nat(
                format!("{name}_as_large_as_the_next_hop_takes"),
                syn.clone(),
            )
            .with(|tables| {
                let largest = u32::try_from(service.request(SYN).length()).unwrap();
                for hop in &mut tables.next_hops[1..3] {
                    hop.mtu = largest;
                }
            })
            .reaches(&service, SYN),
            nat(
                format!("{name}_reply_larger_than_the_clients_device_takes"),
                FROM_MACHINE.carry(&large_reply),
            )
            .with(|tables| service.seed(tables, service.client, PORT, 0, 0))
            .replies(
                ReplyReason::PacketTooBig,
                TO_NODE_V4.carry(&too_big(&large_reply, 1500)),
            ),
        ]);
        cases.extend([0, CONFIG_MEND].map(|mends| {
            nat(format!("{name}_no_next_hop_{mends}"), syn.clone())
                .with(|tables| {
                    tables.config.flags |= mends;
                    for hop in &mut tables.next_hops[1..3] {
                        hop.ifindex = 0;
                    }
                })
                .drops(DropReason::NextHopUnresolved)
        }));
    }
    let other = End::from((v4(192, 0, 2, 77), PORT));
    let request = TCP_V4.request(SYN);
    let fragmentable = Packet::tcp(TCP_V4.machine, TCP_V4.edge, &[7; 1461]).fragmentable();
    cases.extend([
        nat("reply_that_may_be_fragmented_is_too_large", {
            FROM_MACHINE.carry(&fragmentable)
        })
        .with(|tables| TCP_V4.seed(tables, TCP_V4.client, PORT, 0, 0))
        .drops(DropReason::FragmentationNeeded),
        nat("configured_source", IN.carry(&request))
            .with(|tables| tables.config.nat_v4 = padded(other.0))
            .forwards(
                Action::Transmit,
                TCP_V4.way,
                request.length(),
                TO_NODE_V4.carry(&TCP_V4.packet(other, TCP_V4.machine, SYN).next_hop()),
            ),
        nat("no_source", IN.carry(&request))
            .with(|tables| tables.next_hops[1].own = [0; 16])
            .drops(DropReason::NoOuterSource),
        nat(
            "outer_source_where_the_next_hop_has_none",
            IN.carry(&request),
        )
        .with(|tables| {
            tables.next_hops[1].own = [0; 16];
            tables.config.source_v4 = padded(other.0);
        })
        .forwards(
            Action::Transmit,
            TCP_V4.way,
            request.length(),
            TO_NODE_V4.carry(&TCP_V4.packet(other, TCP_V4.machine, SYN).next_hop()),
        ),
        nat("backend_of_another_mode", IN.carry(&request))
            .with(|tables| tables.backends[20].flags = BACKEND_V4)
            .drops(DropReason::TableChanged),
        nat("not_ip_after_all", IN.frame(IPV4, &[0x45; 12])).passes(PassReason::TruncatedIp),
    ]);
    cases
}

fn ports() -> Vec<Case> {
    let others = |port: u16| End::from((CLIENT_V4, port));
    let begin = |client| IN.carry(&TCP_V4.packet(client, TCP_V4.vip, SYN));
    let mut cases = vec![
        nat("second_flow_finds_no_port", begin(others(50_001)))
            .with(|tables| TCP_V4.seed(tables, others(50_000), PORT, 0, NEVER))
            .drops(DropReason::NatPortsExhausted),
        nat("without_ports", begin(others(50_000)))
            .with(|tables| tables.config.nat_ports = 0)
            .drops(DropReason::NatPortsExhausted),
        // The same port towards another port, another protocol.
        nat("protocols_have_ports_of_their_own", {
            IN.carry(&UDP_V4.request(0))
        })
        .after(begin(TCP_V4.client))
        .reaches(&UDP_V4, 0),
        nat("sctp_keeps_its_port_or_is_dropped", {
            IN.carry(&SCTP_V4.request(0))
        })
        .with(|tables| SCTP_V4.seed(tables, (v4(198, 51, 100, 8), 40_000), 40_000, OPEN, 0))
        .drops(DropReason::NatPortsExhausted),
        nat("sctp_is_never_sent_to_another_port", {
            IN.carry(&SCTP_V4.request(0))
        })
        .with(|tables| tables.backends[20].port = [0x1f, 0x91])
        .drops(DropReason::NatPortsExhausted),
        nat("table_full", begin(TCP_V4.client))
            .with(|tables| {
                let clients = 1..=super::super::tables::size::NAT;
                for client in clients {
                    let port = u16::try_from(client).unwrap();
                    TCP_V4.seed(tables, (CLIENT_V4, port), port, OPEN, 0);
                }
            })
            .drops(DropReason::NatTableFull),
    ];
    // Of a few ports all but one are taken: it is found, whichever it is.
    for free in 0..8 {
        let service = Service {
            edge: (EDGE_V4, PORT + free),
            ..TCP_V4
        };
        cases.push(
            nat(
                format!("last_port_{free}_of_8_is_found"),
                begin(TCP_V4.client),
            )
            .with(|tables| {
                tables.config.nat_ports = 8;
                for port in (0..8).filter(|port| *port != free) {
                    service.seed(tables, others(50_000 + port), PORT + port, OPEN, 0);
                }
            })
            .reaches(&service, SYN),
        );
    }
    let at_its_port = Service {
        edge: (EDGE_V4, TCP_V4.vip.1),
        ..TCP_V4
    };
    cases.push(
        nat("service_at_a_port_of_the_mode", begin(TCP_V4.client))
            .with(|tables| tables.config.nat_port = TCP_V4.vip.1)
            .reaches(&at_its_port, SYN),
    );
    cases.push(
        nat("all_8_ports_taken", begin(TCP_V4.client))
            .with(|tables| {
                tables.config.nat_ports = 8;
                for port in 0..8 {
                    TCP_V4.seed(tables, others(50_000 + port), PORT + port, OPEN, 0);
                }
            })
            .drops(DropReason::NatPortsExhausted),
    );
    cases
}

const SECOND: u64 = 1_000_000_000;
const OPEN: u8 = NAT_OPEN;

/// Flows that were idle: who may go on, and whose port another one may take.
fn idle_times() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, service, flags, limit) in [
        ("tcp_established", TCP_V4, OPEN, IDLE_TCP_NS),
        ("tcp_unanswered", TCP_V4, 0, IDLE_HALF_OPEN_TCP_NS),
        ("tcp_half_open", TCP_V4, NAT_ANSWERED, IDLE_HALF_OPEN_TCP_NS),
        // Anybody may have sent it.
        ("tcp_reset", TCP_V4, OPEN | NAT_RESET, IDLE_TCP_NS),
        (
            "tcp_closed",
            TCP_V4,
            OPEN | NAT_FIN_CLIENT | NAT_FIN_BACKEND,
            IDLE_CLOSED_NS,
        ),
        (
            "tcp_half_closed",
            TCP_V4,
            OPEN | NAT_FIN_CLIENT,
            IDLE_TCP_NS,
        ),
        ("udp", UDP_V4, OPEN, IDLE_UDP_NS),
        ("udp_unanswered", UDP_V4, 0, IDLE_HALF_OPEN_NS),
        ("udp_once_answered", UDP_V4, NAT_ANSWERED, IDLE_HALF_OPEN_NS),
        ("sctp", SCTP_V4, OPEN, IDLE_UDP_NS),
        ("sctp_unanswered", SCTP_V4, 0, IDLE_HALF_OPEN_NS),
    ] {
        let port = service.edge.1;
        let other = End::from((v4(198, 51, 100, 8), service.client.1));
        let (live, over, free) = (
            limit.checked_sub(120 * SECOND).unwrap_or(NEVER),
            limit + SECOND / 2,
            limit + GUARD_NS + SECOND,
        );
        // Others have it for less, where ports are in demand.
        let held = match service.protocol {
            TCP if flags & NAT_RESET == 0 => live,
            SCTP => live,
            _ => NEVER,
        };
        let seeded = |name: &str, input, client, idle| {
            nat(
                format!(
                    "{name}_{}",
                    if [over, free].contains(&idle) {
                        "over"
                    } else {
                        "live"
                    }
                ),
                input,
            )
            .with(|tables| service.seed(tables, client, port, flags, idle))
        };
        let go_on = IN.carry(&service.request(ACK));
        let begin = IN.carry(&service.request(SYN));
        let reply = service.reply_frame(ACK);
        let own = service.client;
        cases.extend([
            seeded(&format!("{name}_goes_on"), go_on.clone(), own, live).reaches(&service, ACK),
            seeded(&format!("{name}_reply"), reply.clone(), own, live)
                .returns(service.returned(ACK)),
            seeded(&format!("{name}_reply"), reply, own, over).passes(PassReason::NatNotOurs),
            seeded(
                &format!("{name}_keeps_its_port"),
                begin.clone(),
                other,
                held,
            )
            .drops(DropReason::NatPortsExhausted),
            seeded(&format!("{name}_frees_its_port"), begin, other, free).reaches(&service, SYN),
        ]);
        let late = seeded(&format!("{name}_goes_on"), go_on, own, free);
        cases.push(if service.protocol == TCP {
            late.drops(DropReason::NatUnknownFlow)
        } else {
            late.reaches(&service, ACK)
        });
    }
    let syn = IN.carry(&TCP_V4.request(SYN));
    cases.extend([
        nat("own_old_flow_begins_anew", syn.clone())
            .with(|tables| {
                let idle = IDLE_TCP_NS + GUARD_NS + SECOND;
                TCP_V4.seed(tables, TCP_V4.client, PORT, OPEN, idle);
            })
            .reaches(&TCP_V4, SYN),
        nat(
            "orphan_keeps_its_port_for_its_time_and_the_guard",
            syn.clone(),
        )
        .with(|tables| {
            let idle = IDLE_HALF_OPEN_TCP_NS;
            TCP_V4.seed_reverse(tables, (CLIENT_V4, 50_000), PORT, 0, idle);
        })
        .drops(DropReason::NatPortsExhausted),
        nat("orphan_is_removed", syn)
            .with(|tables| {
                let idle = IDLE_HALF_OPEN_TCP_NS + GUARD_NS + SECOND;
                TCP_V4.seed_reverse(tables, (CLIENT_V4, 50_000), PORT, 0, idle);
            })
            .reaches(&TCP_V4, SYN),
        nat("reply_of_an_orphan_passes", TCP_V4.reply_frame(ACK))
            .with(|tables| {
                TCP_V4.seed_reverse(tables, (CLIENT_V4, 50_000), PORT, 0, 5 * SECOND);
            })
            .passes(PassReason::NatNotOurs),
    ]);
    cases
}

/// What packets tell of a connection, seen by how long it may be idle afterwards: a port that was let go
/// would be given to the other client.
fn connection_states() -> Vec<Case> {
    let request = |flags| IN.carry(&TCP_V4.request(flags));
    let old = |tables: &mut TableSet, flags| {
        let idle = IDLE_TCP_NS - 60 * SECOND;
        TCP_V4.seed(tables, TCP_V4.client, PORT, flags, idle);
    };
    vec![
        // Renewed by either direction, the flow is not idle any more.
        nat("request_renews_the_flow", TCP_V4.reply_frame(ACK))
            .with(|tables| old(tables, OPEN))
            .after(request(ACK))
            .returns(TCP_V4.returned(ACK)),
        nat("reply_renews_the_flow", request(ACK))
            .with(|tables| old(tables, OPEN))
            .after(TCP_V4.reply_frame(ACK))
            .reaches(&TCP_V4, ACK),
        nat(
            "closed_connection_begins_anew_with_its_port",
            TCP_V4.reply_frame(SYN | ACK),
        )
        .with(|tables| {
            let closed = OPEN | NAT_FIN_CLIENT | NAT_FIN_BACKEND;
            TCP_V4.seed(tables, TCP_V4.client, PORT, closed, SECOND);
        })
        .after(request(SYN))
        .returns(TCP_V4.returned(SYN | ACK)),
        nat("fins_of_both_are_sent", request(ACK))
            .after(request(SYN))
            .after(TCP_V4.reply_frame(SYN | ACK))
            .after(request(ACK))
            .after(request(FIN | ACK))
            .after(TCP_V4.reply_frame(FIN | ACK))
            .reaches(&TCP_V4, ACK),
        nat("rst_of_the_backend_is_sent", TCP_V4.reply_frame(RST | ACK))
            .after(request(SYN))
            .returns(TCP_V4.returned(RST | ACK)),
    ]
}

/// Tables that change under a flow.
fn changes() -> Vec<Case> {
    let syn = IN.carry(&TCP_V4.request(SYN));
    let ack = IN.carry(&TCP_V4.request(ACK));
    vec![
        // The flow keeps its backend although the slot has another owner.
        nat("flow_stays_with_its_backend", ack.clone())
            .with(|tables| {
                TCP_V4.seed(tables, TCP_V4.client, PORT, OPEN, 0);
                tables.set_owner(TCP_V4.way.service, 3);
            })
            .reaches(&TCP_V4, ACK),
        nat("backend_id_of_another_machine", ack.clone())
            .with(|tables| {
                TCP_V4.seed(tables, TCP_V4.client, PORT, OPEN, 0);
                tables.backends[20].pod = address_key(v4(192, 0, 2, 41));
            })
            .drops(DropReason::NatUnknownFlow),
        nat("backend_id_of_another_mode", ack.clone())
            .with(|tables| {
                TCP_V4.seed(tables, TCP_V4.client, PORT, OPEN, 0);
                tables.backends[20].flags = BACKEND_V4;
            })
            .drops(DropReason::NatUnknownFlow),
        nat("another_nat_address", ack)
            .with(|tables| {
                TCP_V4.seed(tables, TCP_V4.client, PORT, OPEN, 0);
                tables.config.nat_v4 = padded(v4(192, 0, 2, 77));
            })
            .drops(DropReason::NatUnknownFlow),
        nat("forward_entry_of_another_key_is_not_trusted", syn.clone())
            .with(|tables| {
                let other = UDP_V4.forward_key();
                let entry = NatForward::new(
                    &other,
                    &TCP_V4.reply_key(PORT),
                    20,
                    0,
                    NatMark::new(coarse_ns(), OPEN),
                );
                tables.nat.forward.insert(TCP_V4.forward_key(), entry);
            })
            .drops(DropReason::TableChanged),
        nat(
            "reverse_entry_of_another_key_is_not_trusted",
            TCP_V4.reply_frame(ACK),
        )
        .with(|tables| {
            let forward = TCP_V4.forward_key();
            let mark = NatMark::new(coarse_ns(), OPEN);
            let other = UDP_V4.reply_key(PORT);
            let entry = NatReverse::new(&other, &forward, INGRESS, link(&BACK), mark);
            tables.nat.reverse.insert(TCP_V4.reply_key(PORT), entry);
        })
        .passes(PassReason::NatNotOurs),
        nat("no_backend", syn)
            .with(|tables| tables.set_owner(TCP_V4.way.service, 0))
            .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(TCP_V4.vip, 4))),
    ]
}

/// What holds of every service holds of these too.
fn policies() -> Vec<Case> {
    const AFFINITY: u64 = 0x5eed_0f0f_5eed;
    let mut cases = Vec::new();
    for service in SERVICES {
        let name = service.name();
        let id = service.way.service;
        let ranged = |what: &str, flags| {
            let input = IN.carry(&service.request(flags));
            nat(format!("{name}_source_range_{what}"), input)
                .with(|tables| tables.service[id as usize].flags |= SERVICE_SOURCE_RANGES)
        };
        let seed = |tables: &mut TableSet| {
            service.seed(tables, service.client, service.edge.1, OPEN, 0);
        };
        cases.extend([
            ranged("keeps_a_stranger_out", SYN).drops(DropReason::SourceRange),
            ranged("keeps_out_whom_it_let_in_before", ACK)
                .with(seed)
                .drops(DropReason::SourceRange),
            ranged("lets_its_clients_in", SYN)
                .with(|tables| {
                    let (address, _) = service.client;
                    let bits = if address.is_ipv4() { 32 } else { 128 };
                    tables.admit(id, address, bits);
                })
                .reaches(&service, SYN),
        ]);
        // One slot has an owner: every port of the client finds it.
        for port in [40_000, 40_001, 40_002] {
            if service.protocol == SCTP && port != 40_000 {
                continue;
            }
            let (address, _) = service.client;
            let service = Service {
                client: (address, port),
                ..service
            };
            let input = IN.carry(&service.request(SYN));
            let case = nat(format!("{name}_affinity_of_port_{port}"), input).with(|tables| {
                let mut owners = vec![0; 256];
                owners[client_slot(AFFINITY, address, 8)] = service.way.backend;
                tables.service(id, service.vip, service.protocol, MODE_IPIP, &owners);
                tables.service[id as usize].flags = SERVICE_NAT;
                tables.service[id as usize].affinity = AFFINITY;
            });
            cases.push(case.reaches(&service, SYN));
        }
        let at_node = |what: &str, flags| {
            let input = IN.carry(&service.request(flags));
            nat(format!("{name}_node_port_{what}"), input).with(|tables| {
                tables.service[id as usize].flags |= SERVICE_NODE_PORT;
                tables.address(service.vip.0, ADDRESS_LOCAL | ADDRESS_NODE_PORT);
            })
        };
        cases.extend([
            at_node("is_translated", SYN).reaches(&service, SYN),
            at_node("leaves_answers_to_the_kernels_flows_alone", ACK)
                .with(|tables| {
                    let flow = LocalFlow::new(u64::MAX, false);
                    tables.local_flows.insert(service.forward_key(), flow);
                })
                .passes(PassReason::LocalFlow),
        ]);
    }
    cases
}
