//! Fragments where packets are mended: which of them are told from those that come too early. No socket is here, so
//! all of those end as they do without mending.

use xdp_prog::{
    abi::{ADDRESS_LOCAL, ADDRESS_NAT, ADDRESS_NODE_PORT, CONFIG_MEND},
    reason::{DropReason, PassReason},
};

use super::{
    super::{packet::Packet, tables::TableSet},
    CLIENT_V4, CLIENT_V6, Case, Draft, IN, V4_UDP, V6_UDP, VIP_V4, VIP_V6, case, client,
    sent_in_v4, sent_in_v6,
};

const ID: u32 = 0x00c0_ffee;
const SIZE: usize = 256;
/// A port of no service.
const OTHER: u16 = 9;

fn mending(name: impl Into<String>, input: Vec<u8>) -> Draft {
    case(name, input).with(|tables| tables.config.flags |= CONFIG_MEND)
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, (way, to), vip, echo, sent) in [
        (
            "v4",
            V4_UDP,
            VIP_V4,
            Packet::echo(CLIENT_V4, VIP_V4),
            sent_in_v4 as fn(&Packet) -> Vec<u8>,
        ),
        (
            "v6",
            V6_UDP,
            VIP_V6,
            Packet::echo(CLIENT_V6, VIP_V6),
            sent_in_v6,
        ),
    ] {
        let name = |what: &str| format!("{family}_mending_{what}");
        let payload = [0x5a; 600];
        let pieces = Packet::udp(client(to), to, &payload).pieces(SIZE, ID);
        let elsewhere = Packet::udp(client(to), (vip, OTHER), &payload).pieces(SIZE, ID);
        let echoes = echo.with_payload(payload.to_vec()).pieces(SIZE, ID);
        let (first, later) = (&pieces[0], &pieces[1]);
        cases.extend([
            mending(
                name("early_fragment_drops_without_a_socket"),
                IN.carry(later),
            )
            .drops(DropReason::FragmentOutOfOrder),
            mending(name("later_fragment_follows"), IN.carry(later))
                .after(IN.carry(first))
                .transmits(way, later, sent(later)),
        ]);
        for (kind, flag) in [("node_port", ADDRESS_NODE_PORT), ("nat", ADDRESS_NAT)] {
            let at_node = |tables: &mut TableSet| tables.address(vip, flag | ADDRESS_LOCAL);
            let name = |what: &str| name(&format!("{kind}_{what}"));
            cases.extend([
                mending(
                    name("early_fragment_passes_without_a_socket"),
                    IN.carry(later),
                )
                .with(at_node)
                .passes(PassReason::FragmentNotOurs),
                mending(name("later_fragment_follows"), IN.carry(later))
                    .with(at_node)
                    .after(IN.carry(first))
                    .transmits(way, later, sent(later)),
                // The first one has shown that no service has them.
                mending(name("later_fragment_of_the_kernels_passes"), {
                    IN.carry(&elsewhere[1])
                })
                .with(at_node)
                .after(IN.carry(&elsewhere[0]))
                .passes(PassReason::NoService),
                mending(
                    name("later_fragment_of_a_ping_passes"),
                    IN.carry(&echoes[1]),
                )
                .with(at_node)
                .passes(PassReason::FragmentNotOurs),
            ]);
        }
    }
    cases
}
