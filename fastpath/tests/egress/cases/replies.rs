//! Replies with ports: TCP, UDP, SCTP; what they tell of their flow.

use xdp_prog::abi::{FLOW_FIN_CLIENT, FLOW_FIN_POD, FLOW_RESET};

use super::{
    BOTH, Case, Draft, Ends, FAR, OUT, SCTP, TCP, UDP, V4, V6, accepted, aged, asked, case, older,
    udp,
};
use crate::{
    packets::{
        ACKNOWLEDGEMENT,
        Flags::{self, Ack, FinAck, PshAck, Rst, Syn, SynAck},
        SEQUENCE, sctp, tcp,
    },
    support::packet::{End, IPV4, Link, Packet, SERVICE_VLAN, VLAN, forged_v4, patched},
};

const DATA: &[u8] = b"HTTP/1.0 200 OK\r\n\r\n";
const SECOND: u64 = 1_000_000_000;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ends in BOTH {
        cases.extend(established(ends));
        cases.extend(beginnings(ends));
        cases.extend(own_segments_of_pods(ends));
        cases.extend(endings(ends));
        cases.extend(strangers(ends));
        cases.extend(ages(ends));
    }
    cases.extend(headers());
    cases.extend(nonsense());
    cases
}

/// The reply from the pod, and as the client must see it.
fn both(make: impl Fn(End) -> Packet, ends: Ends) -> (Vec<u8>, Vec<u8>) {
    (OUT.carry(&make(ends.pod)), OUT.carry(&make(ends.vip)))
}

fn established(ends: Ends) -> Vec<Case> {
    let family = ends.family;
    let mut cases = Vec::new();
    for (what, payload) in [
        ("no data", &b""[..]),
        ("data", DATA),
        ("an odd number of bytes", b"odd"),
    ] {
        let (input, output) = both(|from| tcp(from, ends.client, Ack, &[], payload), ends);
        let draft = case(format!("{family}: TCP reply with {what}"), input);
        cases.push(
            draft
                .answered(ends.key(TCP), ends.flow())
                .translated(output),
        );
    }
    let same = ends.same_port();
    let (input, output) = both(|from| tcp(from, ends.client, Ack, &[], DATA), same);
    let draft = case(
        format!("{family}: TCP reply, target port is the port"),
        input,
    );
    cases.push(
        draft
            .answered(same.key(TCP), same.flow())
            .translated(output),
    );

    let (input, output) = both(|from| udp(from, ends.client), ends);
    let draft = case(format!("{family}: UDP reply"), input);
    cases.push(
        draft
            .answered(ends.key(UDP), ends.flow_of(UDP, 0, 0))
            .translated(output),
    );

    let (input, output) = both(|from| udp(from, ends.client), same);
    let draft = case(
        format!("{family}: UDP reply, target port is the port"),
        input,
    );
    cases.push(
        draft
            .answered(same.key(UDP), same.flow_of(UDP, 0, 0))
            .translated(output),
    );

    let (input, output) = both(|from| sctp(from, ends.client), same);
    let draft = case(format!("{family}: SCTP reply"), input);
    cases.push(
        draft
            .answered(same.key(SCTP), same.flow_of(SCTP, 0, 0))
            .translated(output),
    );

    let payload = zero_sum(ends);
    let (input, output) = both(|from| Packet::udp(from, ends.client, &payload), ends);
    let draft = case(
        format!("{family}: UDP checksum that becomes zero is sent as ones"),
        input,
    );
    cases.push(
        draft
            .answered(ends.key(UDP), ends.flow_of(UDP, 0, 0))
            .translated(output),
    );
    cases
}

/// A payload with which the client's datagram has the checksum 0xffff.
fn zero_sum(ends: Ends) -> Vec<u8> {
    let header = if ends.client.0.is_ipv4() { 20 } else { 40 };
    let found = (0..=u16::MAX).map(u16::to_be_bytes).find(|payload| {
        let bytes = Packet::udp(ends.vip, ends.client, payload).bytes();
        bytes[header + 6..header + 8] == [0xff, 0xff]
    });
    found.unwrap().to_vec()
}

/// Only what a SYN flood does not get out of a pod moves a flow to those answered.
fn beginnings(ends: Ends) -> Vec<Case> {
    let family = ends.family;
    let key = ends.key(TCP);
    let mut cases = Vec::new();
    let accepted_in = move |state| ends.accepted(0, state);
    let (input, output) = both(|from| tcp(from, ends.client, SynAck, &[], b""), ends);
    let draft = case(format!("{family}: SYN+ACK leaves the flow embryonic"), {
        input.clone()
    })
    .embryonic(key, asked(ends.flow(), ACKNOWLEDGEMENT))
    .remembers(move |known| {
        known.embryonic.insert(key, accepted_in(0));
    });
    cases.push(draft.translated(output.clone()));
    let again = asked(accepted(ends.flow(), FAR), ACKNOWLEDGEMENT);
    let draft = case(format!("{family}: the last SYN+ACK counts"), input)
        .embryonic(key, again)
        .remembers(move |known| {
            known.embryonic.insert(key, accepted_in(0));
        });
    cases.push(draft.translated(output));
    for (name, flow) in [
        ("", asked(ends.flow(), ACKNOWLEDGEMENT)),
        (" that it has accepted", accepted_in(0)),
        (" that is older", older(ends.flow(), SEQUENCE)),
    ] {
        let (input, output) = both(|from| tcp(from, ends.client, Rst, &[], b""), ends);
        let name = format!("{family}: RST ends no embryonic flow{name}");
        cases.push(case(name, input).embryonic(key, flow).translated(output));
    }
    // An ACK may answer a forged segment.
    let (input, output) = both(|from| tcp(from, ends.client, Ack, &[], b""), ends);
    let draft = case(
        format!("{family}: bare ACK establishes nothing that was accepted"),
        input,
    );
    cases.push(draft.embryonic(key, accepted_in(0)).translated(output));
    for (what, flags, payload, state) in [
        ("data", PshAck, DATA, 0),
        ("FIN", FinAck, &b""[..], FLOW_FIN_POD),
    ] {
        let (input, output) = both(|from| tcp(from, ends.client, flags, &[], payload), ends);
        let draft = case(
            format!("{family}: {what} of the pod establishes what was accepted"),
            input,
        )
        .embryonic(key, accepted_in(FLOW_FIN_CLIENT))
        .establishes(key, ends.flow_with(0, FLOW_FIN_CLIENT | state));
        cases.push(draft.translated(output));
    }
    for (what, flags, payload, state) in [
        ("ACK", Ack, &b""[..], 0),
        ("data", Ack, DATA, 0),
        ("FIN", FinAck, b"", FLOW_FIN_POD),
    ] {
        let (input, output) = both(|from| tcp(from, ends.client, flags, &[], payload), ends);
        let draft = case(
            format!("{family}: {what} of the pod establishes the flow"),
            input,
        )
        .embryonic(key, older(ends.flow_with(20, FLOW_FIN_CLIENT), SEQUENCE))
        .establishes(key, ends.flow_with(20, FLOW_FIN_CLIENT | state));
        cases.push(draft.translated(output));
    }
    let (input, output) = both(|from| udp(from, ends.client), ends);
    let draft = case(
        format!("{family}: first UDP answer establishes the flow"),
        input,
    )
    .embryonic(ends.key(UDP), ends.flow_of(UDP, 0, 0))
    .establishes(ends.key(UDP), ends.flow_of(UDP, 0, 0));
    cases.push(draft.translated(output));

    let same = ends.same_port();
    let (input, output) = both(|from| sctp(from, ends.client), same);
    let draft = case(
        format!("{family}: first SCTP answer establishes the flow"),
        input,
    )
    .embryonic(same.key(SCTP), same.flow_of(SCTP, 0, 0))
    .establishes(same.key(SCTP), same.flow_of(SCTP, 0, 0));
    cases.push(draft.translated(output));
    cases
}

/// A client that talks to the pod itself, while somebody has sent a segment to the VIP from its port.
fn own_segments_of_pods(ends: Ends) -> Vec<Case> {
    let every = [SynAck, Ack, PshAck, FinAck, Rst];
    let behind_syn = [Ack, PshAck, FinAck];
    let mut cases = Vec::new();
    for (what, flow, unanswered) in [
        ("a SYN", asked(ends.flow(), FAR), &every[..]),
        (
            "the same SYN",
            asked(ends.flow(), ACKNOWLEDGEMENT),
            &behind_syn,
        ),
        (
            "a SYN that was accepted",
            accepted(ends.flow(), FAR),
            &every,
        ),
        (
            "two SYNs of which one was accepted",
            asked(accepted(ends.flow(), FAR), ACKNOWLEDGEMENT),
            &behind_syn,
        ),
        ("an ACK", older(ends.flow(), FAR), &every),
        ("a RST", ends.flow(), &every),
    ] {
        for flags in unanswered {
            let name = format!("{}: {flags:?} of the pod beside {what}", ends.family);
            let input = OUT.carry(&tcp(ends.pod, ends.client, *flags, &[], b""));
            let draft = case(name, input).embryonic(ends.key(TCP), flow);
            cases.push(draft.untouched());
        }
    }
    cases
}

fn endings(ends: Ends) -> Vec<Case> {
    let family = ends.family;
    let key = ends.key(TCP);
    let reply = |flags| both(move |from| tcp(from, ends.client, flags, &[], b""), ends);
    let mut cases = Vec::new();
    for (what, flags, state) in [("FIN", FinAck, FLOW_FIN_POD), ("RST", Rst, FLOW_RESET)] {
        let (input, output) = reply(flags);
        let draft = case(format!("{family}: {what} of the pod is noted"), input)
            .answered(key, ends.flow_with(0, FLOW_FIN_CLIENT))
            .remembers(move |known| {
                let flow = ends.flow_with(0, FLOW_FIN_CLIENT | state);
                known.answered.insert(key, flow);
            });
        cases.push(draft.translated(output));
    }
    let (input, output) = reply(Ack);
    let ended = ends.flow_with(0, FLOW_FIN_CLIENT | FLOW_FIN_POD);
    let draft = case(
        format!("{family}: last ACK of a flow that has ended"),
        input,
    );
    cases.push(draft.answered(key, ended).translated(output));
    cases
}

/// What answers no flow of ours leaves as it is.
fn strangers(ends: Ends) -> Vec<Case> {
    let Ends {
        family,
        client,
        pod,
        ..
    } = ends;
    let frames: [(&str, Packet); 6] = [
        ("TCP", tcp(pod, client, Ack, &[], DATA)),
        ("UDP", udp(pod, client)),
        ("SCTP", sctp(pod, client)),
        (
            "TCP from another port",
            tcp((pod.0, pod.1 + 1), client, Ack, &[], DATA),
        ),
        (
            "TCP to another port",
            tcp(pod, (client.0, client.1 + 1), Ack, &[], DATA),
        ),
        (
            "TCP from another address",
            tcp((ends.node, pod.1), client, Ack, &[], DATA),
        ),
    ];
    let mut cases = Vec::new();
    for (number, (what, packet)) in frames.into_iter().enumerate() {
        let draft = case(format!("{family}: {what} of no flow"), OUT.carry(&packet));
        // The first three know no flow at all, the others one that differs.
        cases.push(if number < 3 {
            draft.untouched()
        } else {
            draft.answered(ends.key(TCP), ends.flow()).untouched()
        });
    }
    let syn = OUT.carry(&tcp(pod, client, Syn, &[], b""));
    let draft = case(format!("{family}: SYN of the pod answers nothing"), syn);
    cases.push(draft.answered(ends.key(TCP), ends.flow()).untouched());
    let other = OUT.carry(&udp(pod, client));
    let draft = case(format!("{family}: UDP from the port of a TCP flow"), other);
    cases.push(draft.answered(ends.key(TCP), ends.flow()).untouched());
    cases
}

/// An entry that has idled too long is another connection's.
fn ages(ends: Ends) -> Vec<Case> {
    let aged = |protocol, state, seconds| aged(ends.flow_of(protocol, 0, state), seconds * SECOND);
    let ended = FLOW_FIN_CLIENT | FLOW_FIN_POD;
    let segment = |from: End| tcp(from, ends.client, Ack, &[], DATA);
    let datagram = |from: End| udp(from, ends.client);
    let mut cases = Vec::new();
    for (what, protocol, state, limit) in [
        ("TCP", TCP, 0, 7440),
        ("half-closed TCP", TCP, FLOW_FIN_POD, 7440),
        ("closed TCP", TCP, ended, 240),
        ("reset TCP", TCP, FLOW_RESET, 240),
        ("UDP", UDP, 0, 300),
    ] {
        let (input, output) = if protocol == TCP {
            both(segment, ends)
        } else {
            both(datagram, ends)
        };
        let name = |age| format!("{}: {what} after {age} s", ends.family);
        let key = ends.key(protocol);
        let young = case(name(limit - 10), input.clone());
        cases.push(
            young
                .answered(key, aged(protocol, state, limit - 10))
                .translated(output),
        );
        let old = case(name(limit + 1), input);
        cases.push(
            old.answered(key, aged(protocol, state, limit + 1))
                .untouched(),
        );
    }
    let (input, output) = both(|from| tcp(from, ends.client, SynAck, &[], b""), ends);
    let name = |age| format!("{}: SYN+ACK after {age} s", ends.family);
    let key = ends.key(TCP);
    let aged = |seconds| super::aged(asked(ends.flow(), ACKNOWLEDGEMENT), seconds * SECOND);
    let young = case(name(230), input.clone()).embryonic(key, aged(230));
    let accepted = move |known: &mut super::Remembered| {
        known.embryonic.insert(key, ends.accepted(0, 0));
    };
    cases.push(young.remembers(accepted).translated(output));
    cases.push(case(name(241), input).embryonic(key, aged(241)).untouched());
    cases
}

/// Tags, options, extension headers, absent checksums.
fn headers() -> Vec<Case> {
    let mut cases = Vec::new();
    for ends in BOTH {
        let (pod, vip) = (
            tcp(ends.pod, ends.client, Ack, &[], DATA),
            tcp(ends.vip, ends.client, Ack, &[], DATA),
        );
        for (what, tags) in [
            ("a VLAN tag", &[(VLAN, 7)][..]),
            ("two VLAN tags", &[(SERVICE_VLAN, 0x2007), (VLAN, 8)]),
        ] {
            let link = Link { tags, ..OUT };
            let draft = case(
                format!("{}: reply with {what}", ends.family),
                link.carry(&pod),
            );
            cases.push(known(draft, ends).translated(link.carry(&vip)));
        }
        let group = Link {
            destination: [0x01, 0, 0x5e, 0, 0, 1],
            ..OUT
        };
        let draft = case(
            format!("{}: to a group address", ends.family),
            group.carry(&pod),
        );
        cases.push(known(draft, ends).untouched());
    }
    for options in [&[1, 1, 1, 0][..], &[7; 40]] {
        let reply = |from| tcp(from, V4.client, Ack, &[], DATA).options(options);
        let (input, output) = both(reply, V4);
        let draft = case(
            format!("v4: reply with {} bytes of options", options.len()),
            input,
        );
        cases.push(known(draft, V4).translated(output));
    }
    let hop_by_hop: (u8, &[u8]) = (0, &[0, 1, 4, 0, 0, 0, 0]);
    let destination: (u8, &[u8]) = (60, &[1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for (what, chain) in [
        ("hop-by-hop options", &[hop_by_hop][..]),
        ("two extension headers", &[hop_by_hop, destination]),
        ("an atomic fragment header", &[(44, &[0, 0, 0, 1, 2, 3, 4])]),
    ] {
        let reply = |from| tcp(from, V6.client, Ack, &[], DATA).extensions(chain);
        let (input, output) = both(reply, V6);
        let draft = case(format!("v6: reply with {what}"), input);
        cases.push(known(draft, V6).translated(output));
    }
    // Five of them are beyond the parser's bound.
    let deep = tcp(V6.pod, V6.client, Ack, &[], DATA).extensions(&[destination; 5]);
    cases.push(
        known(
            case("v6: reply behind five extension headers", OUT.carry(&deep)),
            V6,
        )
        .untouched(),
    );

    let absent = |from| patched(OUT.carry(&udp(from, V4.client)), 14 + 20 + 6, &[0, 0]);
    let draft = case("v4: UDP reply without checksum", absent(V4.pod));
    cases.push(
        draft
            .answered(V4.key(UDP), V4.flow_of(UDP, 0, 0))
            .translated(absent(V4.vip)),
    );
    cases
}

fn known(draft: Draft, ends: Ends) -> Draft {
    draft.answered(ends.key(TCP), ends.flow())
}

/// Frames of a known flow, but for what makes them none.
fn nonsense() -> Vec<Case> {
    let mut cases = Vec::new();
    let reply = |ends: Ends, flags: Flags| tcp(ends.pod, ends.client, flags, &[], DATA).bytes();
    for (what, frame) in [
        ("ARP", OUT.frame(0x0806, &[0; 28])),
        (
            "version 6 in IPv4",
            OUT.frame(IPV4, &forged_v4(reply(V4, Ack), 0, &[0x65])),
        ),
        (
            "header of 16 bytes",
            OUT.frame(IPV4, &patched(reply(V4, Ack), 0, &[0x44])),
        ),
        (
            "header longer than the packet",
            OUT.frame(
                IPV4,
                &forged_v4(reply(V4, Ack)[..40].to_vec(), 0, &[0x4f, 0, 0, 40]),
            ),
        ),
        (
            "packet longer than the frame",
            OUT.frame(IPV4, &forged_v4(reply(V4, Ack), 2, &[0x20, 0])),
        ),
        (
            "packet that ends inside the TCP header",
            OUT.frame(IPV4, &forged_v4(reply(V4, Ack), 2, &[0, 39])),
        ),
        (
            "total length of zero",
            OUT.frame(IPV4, &forged_v4(reply(V4, Ack), 2, &[0, 0])),
        ),
        (
            "three VLAN tags",
            Link {
                tags: &[(VLAN, 1), (VLAN, 2), (VLAN, 3)],
                ..OUT
            }
            .frame(IPV4, &reply(V4, Ack)),
        ),
    ] {
        cases.push(known(case(format!("v4: {what}"), frame), V4).untouched());
    }
    for (what, packet) in [
        ("version 4 in IPv6", patched(reply(V6, Ack), 0, &[0x40])),
        (
            "packet longer than the frame",
            patched(reply(V6, Ack), 4, &[0x20, 0]),
        ),
        (
            "packet that ends inside the TCP header",
            patched(reply(V6, Ack), 4, &[0, 19]),
        ),
        (
            "payload length of zero",
            patched(reply(V6, Ack), 4, &[0, 0]),
        ),
    ] {
        let frame = OUT.frame(0x86dd, &packet);
        cases.push(known(case(format!("v6: {what}"), frame), V6).untouched());
    }
    // The tables spell IPv4 addresses as mapped ones, of which an IPv6 packet must find none.
    let mapped = [&[0; 10][..], &[0xff, 0xff], &[10, 244, 1, 5]].concat();
    let client = [&[0; 10][..], &[0xff, 0xff], &[198, 51, 100, 7]].concat();
    let disguised = patched(patched(reply(V6, Ack), 8, &mapped), 24, &client);
    cases.push(
        known(
            case(
                "v6: IPv4 addresses in disguise",
                OUT.frame(0x86dd, &disguised),
            ),
            V4,
        )
        .untouched(),
    );
    cases
}
