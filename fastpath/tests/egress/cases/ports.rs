//! The ports that are looked at: those of pods here, and NodePorts.

use xdp_prog::abi::{MODE_IPIP, SERVICE_NODE_PORT};

use super::{BOTH, Case, Ends, OUT, SCTP, TCP, TableSet, UDP, case, tuple, udp};
use crate::{
    packets::{Flags::Ack, sctp, tcp},
    support::packet::{End, Packet},
};

pub(crate) fn cases() -> Vec<Case> {
    BOTH.into_iter().flat_map(family).collect()
}

fn family(ends: Ends) -> Vec<Case> {
    let name = |what: &str| format!("{}: {what}", ends.family);
    let mut cases = Vec::new();
    let segment = |from, to| tcp(from, to, Ack, &[], b"data");
    type Make = fn(End, End) -> Packet;
    let packets = [(TCP, segment as Make), (UDP, udp), (SCTP, sctp)];
    for (protocol, make) in packets {
        let ends = if protocol == SCTP {
            ends.same_port()
        } else {
            ends
        };
        let port = ends.pod.1;
        let input = OUT.carry(&make(ends.pod, ends.client));
        let output = OUT.carry(&make(ends.vip, ends.client));
        let reply = |what: &str| {
            let draft = case(name(&format!("{what}, protocol {protocol}")), input.clone());
            draft.answered(ends.key(protocol), ends.flow_of(protocol, 0, 0))
        };
        let gone = reply("reply from a port that no pod has any more").leaves_no_more_from(port);
        cases.push(gone.untouched());
        let again = reply("reply from a port that a pod has again");
        let again = again.leaves_no_more_from(port).leaves_from(port);
        cases.push(again.translated(output.clone()));
        let mut others = reply("reply from a port beside those of pods").leaves_no_more_from(port);
        for other in [port - 64, port - 1, port + 1, port + 64, port.swap_bytes()] {
            others = others.leaves_from(other);
        }
        cases.push(others.untouched());
        let mut all = reply("reply where pods have all ports");
        for port in 0..=u16::MAX {
            all = all.leaves_from(port);
        }
        cases.push(all.translated(output));
    }

    let (own, outside) = ((ends.node, 30_080), ends.client);
    let datagram = || {
        case(
            name("own datagram from what was a NodePort"),
            OUT.carry(&udp(own, outside)),
        )
    };
    let serve = |set: &mut TableSet| {
        set.service(3, own, UDP, MODE_IPIP, &[1]);
        set.service[3].flags = SERVICE_NODE_PORT;
    };
    cases.push(datagram().with(serve).untouched());
    let mut node_port = datagram().with(serve).leaves_from(own.1);
    node_port.name = name("own datagram from what is a NodePort");
    let node_port = node_port.remembers(move |known| {
        known.local.insert(tuple(outside, own, UDP), (5, false));
    });
    cases.push(node_port.untouched());
    cases
}
