//! The node's own traffic from ports that are NodePorts.

use xdp_prog::abi::{MODE_IPIP, SERVICE_NODE_PORT};

use super::{BOTH, Case, Draft, Ends, OUT, TCP, UDP, case, tuple, udp};
use crate::{
    packets::{
        Flags::{Ack, Syn},
        tcp,
    },
    support::packet::{End, Packet},
};

const NODE_PORT: u16 = 30_080;
const SERVICE: u32 = 3;

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
    for (what, protocol, packet) in [
        ("SYN", TCP, tcp(own, outside, Syn, &[], b"")),
        ("segment", TCP, tcp(own, outside, Ack, &[], b"data")),
        ("datagram", UDP, udp(own, outside)),
    ] {
        let draft = case(
            name(&format!("own {what} from a NodePort")),
            OUT.carry(&packet),
        );
        let draft = serve(draft, own, protocol, SERVICE_NODE_PORT).remembers(move |known| {
            known.local.insert(tuple(outside, own, protocol));
        });
        cases.push(draft.untouched());
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

    // A pod behind the NodePort: its replies are no flow of the kernel.
    let ends = Ends { vip: own, ..ends };
    let reply = case(
        name("reply from behind a NodePort"),
        frame(&udp(ends.pod, outside)),
    );
    cases.push(
        serve(reply, own, UDP, SERVICE_NODE_PORT)
            .answered(ends.key(UDP), ends.flow())
            .translated(frame(&udp(own, outside))),
    );
    cases
}

fn serve(draft: Draft, to: End, protocol: u8, flags: u32) -> Draft {
    draft.with(|set| {
        set.service(SERVICE, to, protocol, MODE_IPIP, &[1]);
        set.service[SERVICE as usize].flags = flags;
    })
}
