//! The node's own traffic from ports that are NodePorts.

use xdp_prog::abi::{MODE_IPIP, SERVICE_NODE_PORT};

use super::{BOTH, Case, Draft, Ends, OUT, TCP, UDP, case, tuple, udp};
use crate::{
    packets::{
        Flags::{Ack, FinAck, Rst, Syn, SynAck},
        tcp,
    },
    support::packet::{End, Packet},
};

const NODE_PORT: u16 = 30_080;
const SERVICE: u32 = 3;
/// In minutes.
const DAYS_5: u64 = 7200;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ends in BOTH {
        cases.extend(family(ends));
    }
    cases
}

fn family(ends: Ends) -> Vec<Case> {
    let name = |what: &str| format!("{}: {what}", ends.family);
    let own: End = (ends.node, NODE_PORT);
    let outside = ends.client;
    let mut cases = Vec::new();
    let segment = |flags| tcp(own, outside, flags, &[], b"");
    for (what, protocol, before, packet, lifetime) in [
        ("SYN", TCP, None, segment(Syn), (4, false)),
        ("segment", TCP, None, segment(Ack), (DAYS_5, false)),
        ("FIN", TCP, None, segment(FinAck), (4, true)),
        ("datagram", UDP, None, udp(own, outside), (5, false)),
        (
            "segment after the SYN",
            TCP,
            Some(Syn),
            segment(Ack),
            (DAYS_5, false),
        ),
        (
            "segment after the FIN",
            TCP,
            Some(FinAck),
            segment(Ack),
            (4, true),
        ),
        (
            "SYN+ACK after the SYN",
            TCP,
            Some(Syn),
            segment(SynAck),
            (DAYS_5, false),
        ),
        ("RST after the SYN", TCP, Some(Syn), segment(Rst), (4, true)),
        (
            "RST after a segment",
            TCP,
            Some(Ack),
            segment(Rst),
            (4, true),
        ),
        (
            "segment after a RST that began nothing",
            TCP,
            Some(Rst),
            segment(Ack),
            (DAYS_5, false),
        ),
        (
            "SYN after the FIN",
            TCP,
            Some(FinAck),
            segment(Syn),
            (4, false),
        ),
    ] {
        let draft = || {
            let draft = case(
                name(&format!("own {what} from a NodePort")),
                OUT.carry(&packet),
            );
            serve(draft, own, protocol, SERVICE_NODE_PORT).remembers(move |known| {
                known.local.insert(tuple(outside, own, protocol), lifetime);
            })
        };
        if let Some(flags) = before {
            cases.push(draft().after(OUT.carry(&segment(flags))).untouched());
        } else {
            cases.push(draft().untouched());
            let mut twice = draft().by_two_devices();
            twice.name += " by two devices";
            cases.push(twice.untouched());
        }
    }
    // The kernel's answers to what somebody has sent to a port that is a service's.
    for (what, flags) in [("RST", Rst), ("SYN+ACK", SynAck)] {
        let name = name(&format!("own {what} from a NodePort begins no flow"));
        let draft = case(name, OUT.carry(&segment(flags)));
        cases.push(serve(draft, own, TCP, SERVICE_NODE_PORT).untouched());
    }
    let frame = |packet: &Packet| OUT.carry(packet);
    let datagram = udp(own, outside);
    let virtual_port = case(
        name("own datagram from a port that is no NodePort"),
        frame(&datagram),
    );
    cases.push(serve(virtual_port, own, UDP, 0).untouched());

    let other_protocol = case(name("own datagram from a TCP NodePort"), frame(&datagram));
    cases.push(serve(other_protocol, own, TCP, SERVICE_NODE_PORT).untouched());

    let other_address = case(
        name("pod's datagram from a NodePort's number"),
        frame(&udp((ends.pod.0, NODE_PORT), outside)),
    );
    cases.push(serve(other_address, own, UDP, SERVICE_NODE_PORT).untouched());

    let recycled = case(
        name("own datagram from a NodePort whose id is another's"),
        frame(&datagram),
    );
    let recycled = serve(recycled, own, UDP, SERVICE_NODE_PORT)
        .with(|set| set.service[SERVICE as usize].word = Default::default());
    cases.push(recycled.untouched());

    // Pods behind the NodePort: their replies are no flows of the kernel, also once they leave from it.
    let pod = ends.pod;
    for (what, pod) in [("a pod", pod), ("a pod of the host's", (ends.node, 8080))] {
        let ends = Ends {
            vip: own,
            pod,
            ..ends
        };
        for (protocol, make) in [
            (UDP, udp as fn(End, End) -> Packet),
            (TCP, |from, to| tcp(from, to, Ack, &[], b"data")),
        ] {
            let draft = || {
                let number = protocol;
                let reply = case(
                    name(&format!("reply of {what} from behind NodePort {number}")),
                    frame(&make(pod, outside)),
                );
                serve(reply, own, protocol, SERVICE_NODE_PORT)
                    .answered(ends.key(protocol), ends.flow_of(protocol, 0, 0))
            };
            let output = frame(&make(own, outside));
            cases.push(draft().translated(output.clone()));
            let mut twice = draft().by_two_devices();
            twice.name += " by two devices";
            cases.push(twice.translated(output));
        }
    }

    // A pod that listens at the NodePort itself serves a VIP: the flow to it comes before the kernel's.
    let ends = Ends { pod: own, ..ends };
    let reply = case(
        name("reply of a pod that listens at a NodePort"),
        frame(&udp(own, outside)),
    );
    cases.push(
        serve(reply, own, UDP, SERVICE_NODE_PORT)
            .answered(ends.key(UDP), ends.flow_of(UDP, 0, 0))
            .translated(frame(&udp(ends.vip, outside))),
    );
    cases
}

fn serve(draft: Draft, to: End, protocol: u8, flags: u32) -> Draft {
    draft.leaves_from(to.1).with(|set| {
        set.service(SERVICE, to, protocol, MODE_IPIP, &[1]);
        set.service[SERVICE as usize].flags = flags;
    })
}
