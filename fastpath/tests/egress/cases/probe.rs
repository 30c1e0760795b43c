//! Checks of this machine's own, on the way of a client's packets.

use std::net::IpAddr;

use xdp_prog::{
    abi::{AddressKey, PROBE_ENCAP, PROBE_MARK, Probe},
    reason::{DropReason, PassReason, REASON_COUNT},
};

use super::{BOTH, Case, Draft, OUT, TCP, case, tuple, v4, v6};
use crate::{
    packets::{
        Flags::{Ack, Syn},
        icmp, tcp,
    },
    support::{
        packet::{End, Packet, patched},
        tables::address_key,
    },
};

const INDEX: u32 = 3;
const TAG: u16 = 0x0105;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ends in BOTH {
        let name = |what: &str| format!("{} check: {what}", ends.family);
        // This machine asks the node, and the VIP is meant.
        let edge: End = (ends.client.0, 40_000);
        let node: End = (ends.node, ends.vip.1);
        let to_vip = Probe {
            peer: address_key(node.0),
            destination: address_key(ends.vip.0),
            node: address_key(node.0),
            tag: TAG,
            flags: PROBE_ENCAP,
            ..Probe::default()
        };
        let syn = tcp(edge, node, Syn, &[2, 4, 5, 0xb4], b"");
        let asked = tcp(edge, ends.vip, Syn, &[2, 4, 5, 0xb4], b"");
        let sent = |name: String, probe: Probe| {
            let draft = probed(case(name, OUT.carry(&syn)), probe);
            draft.remembers(move |known| {
                let answer = tuple(ends.vip, edge, TCP);
                known.peers.insert(answer, address_key(node.0));
            })
        };

        cases.push(
            sent(name("SYN gets the VIP and an outer header"), to_vip)
                .counted(outer(&asked, edge.0, node.0), PassReason::ProbeSent),
        );
        let other_source = if edge.0.is_ipv4() {
            v4(192, 0, 2, 77)
        } else {
            v6(0xe, 77)
        };
        let from_source = Probe {
            source: address_key(other_source),
            ..to_vip
        };
        cases.push(
            sent(name("outer source as configured"), from_source)
                .counted(outer(&asked, other_source, node.0), PassReason::ProbeSent),
        );
        let bare = Probe { flags: 0, ..to_vip };
        cases.push(
            sent(name("L2 DSR changes the destination only"), bare)
                .counted(OUT.carry(&asked), PassReason::ProbeSent),
        );
        let request = tcp(edge, node, Ack, &[], b"GET / HTTP/1.1\r\n\r\n");
        let asked = tcp(edge, ends.vip, Ack, &[], b"GET / HTTP/1.1\r\n\r\n");
        cases.push(
            probed(
                case(name("request takes the same way"), OUT.carry(&request)),
                to_vip,
            )
            .remembers(move |known| {
                let answer = tuple(ends.vip, edge, TCP);
                known.peers.insert(answer, address_key(node.0));
            })
            .counted(outer(&asked, edge.0, node.0), PassReason::ProbeSent),
        );

        // An echo is for the node itself.
        let to_node = Probe {
            destination: to_vip.peer,
            tag: 0,
            ..to_vip
        };
        let kind = if edge.0.is_ipv4() { 8 } else { 128 };
        let echo = icmp(edge.0, node.0, kind, b"are you there");
        let draft = case(name("echo gets an outer header"), OUT.carry(&echo));
        cases.push(probed(draft, to_node).counted(
            OUT.carry(&echo.within(edge.0, node.0)),
            PassReason::ProbeSent,
        ));

        // The other family outside: the socket is connected to the VIP.
        let (source, node_address) = if edge.0.is_ipv4() {
            (v6(0xe, 1), v6(0xe, 11))
        } else {
            (v4(192, 0, 2, 1), v4(192, 0, 2, 11))
        };
        let mixed = Probe {
            peer: to_vip.destination,
            node: address_key(node_address),
            source: address_key(source),
            ..to_vip
        };
        let asked = tcp(edge, ends.vip, Syn, &[], b"");
        let draft = case(name("other family outside"), OUT.carry(&asked));
        cases.push(
            probed(draft, mixed)
                .counted(outer(&asked, source, node_address), PassReason::ProbeSent),
        );
        let no_source = Probe {
            source: AddressKey::default(),
            ..mixed
        };
        let draft = case(
            name("other family outside, without a source"),
            OUT.carry(&asked),
        );
        let mut reasons = vec![0; REASON_COUNT];
        reasons[DropReason::NoOuterSource.index() as usize] = 1;
        let mut dropped = probed(draft, no_source).ends(OUT.carry(&asked), reasons);
        dropped.expected.goes_on = false;
        cases.push(dropped);

        let draft = case(
            name("to another peer: of an earlier check"),
            OUT.carry(&asked),
        );
        cases.push(probed(draft, to_vip).untouched());
        let draft = case(name("unknown index"), OUT.carry(&syn));
        cases.push(
            probed(draft, to_vip)
                .marked(PROBE_MARK | 0xf_ffff)
                .untouched(),
        );
        let draft = case(name("mark of somebody else"), OUT.carry(&syn));
        cases.push(
            probed(draft, to_vip)
                .marked(0x6a80_0000 | INDEX)
                .untouched(),
        );
    }
    cases
}

fn probed(draft: Draft, probe: Probe) -> Draft {
    draft
        .marked(PROBE_MARK | INDEX)
        .probes(&[[Probe::default(); INDEX as usize].as_slice(), &[probe]].concat())
}

/// The packet as it leaves the edge for a pod of the node.
fn outer(packet: &Packet, source: IpAddr, node: IpAddr) -> Vec<u8> {
    let outer = packet.within(source, node);
    if node.is_ipv4() {
        OUT.carry(&outer.identification(TAG))
    } else {
        patched(OUT.carry(&outer), 14 + 2, &TAG.to_be_bytes())
    }
}
