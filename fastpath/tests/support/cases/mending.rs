//! Fragments and long packets where packets are mended: which of them are told from those that come too early, or have
//! to be cut. No socket is here, so all of those end as they do without mending.

use xdp_prog::{
    abi::{ADDRESS_LOCAL, ADDRESS_NAT, ADDRESS_NODE_PORT, CONFIG_MEND, HOP_CARRIED},
    process::Action,
    reason::{DropReason, PassReason, ReplyReason},
};

use super::{
    super::{kernel::INGRESS, packet::Packet, tables::TableSet},
    BACK, CLIENT_V4, CLIENT_V6, Case, Draft, IN, TO_NODE_V4, V4_IN_V6, V4_L2, V4_TCP, V4_UDP,
    V6_TCP, V6_UDP, VIP_V4, VIP_V6, case, client, sent_in_v4, sent_in_v6, tcp, too_big,
};

const ID: u32 = 0x00c0_ffee;
const SIZE: usize = 256;
/// A port of no service.
const OTHER: u16 = 9;

fn mending(name: impl Into<String>, input: Vec<u8>) -> Draft {
    case(name, input).with(|tables| tables.config.flags |= CONFIG_MEND)
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = early();
    cases.extend(long());
    cases.extend(without_next_hop());
    cases.extend(carried());
    cases
}

/// Packets whose next hop's device takes no frames from XDP. Without a socket they are redirected all the same, in vain.
fn carried() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, (way, to), sent) in [
        ("v4", V4_TCP, sent_in_v4 as fn(&Packet) -> Vec<u8>),
        ("v6", V6_TCP, sent_in_v6),
        ("v4_l2dsr", V4_L2, |packet| {
            TO_NODE_V4.carry(&packet.next_hop())
        }),
    ] {
        let packet = tcp(to);
        let behind = |device: u32| {
            move |tables: &mut TableSet| {
                for hop in &mut tables.next_hops[1..3] {
                    hop.ifindex = device | HOP_CARRIED;
                }
            }
        };
        let name = |what: &str| format!("carried_{name}_{what}");
        cases.extend([
            mending(name("is_redirected_without_a_socket"), IN.carry(&packet))
                .with(behind(7))
                .forwards(Action::Redirect(7), way, packet.length(), sent(&packet)),
            // It sends what it received, as any device does.
            mending(name("goes_back_by_its_own_device"), IN.carry(&packet))
                .with(behind(INGRESS))
                .transmits(way, &packet, sent(&packet)),
        ]);
    }
    cases
}

/// Packets that do not fit where they are to go.
fn long() -> Vec<Case> {
    let mut cases = Vec::new();
    let segment = |to, length: usize| Packet::tcp(client(to), to, &vec![7; length - 40]);
    for (name, to, length) in [
        ("v4_in_v4", V4_TCP.1, 1481),
        ("v4_in_v6", V4_IN_V6.1, 1461),
        ("v4_by_l2", V4_L2.1, 1501),
    ] {
        let whole = segment(to, length);
        let fragment = whole.clone().fragment(0, true);
        let options = whole.clone().options(&[1, 1, 1, 0]).fragmentable();
        cases.extend([
            mending(format!("mending_{name}_too_long_drops_without_a_socket"), {
                IN.carry(&whole.clone().fragmentable())
            })
            .drops(DropReason::FragmentationNeeded),
            mending(
                format!("mending_{name}_too_long_fragment_drops_without_a_socket"),
                IN.carry(&fragment),
            )
            .drops(DropReason::FragmentationNeeded),
            mending(
                format!("mending_{name}_too_long_with_options_drops_without_a_socket"),
                IN.carry(&options),
            )
            .drops(DropReason::FragmentationNeeded),
            mending(format!("mending_{name}_with_df_is_told_its_mtu"), {
                IN.carry(&whole)
            })
            .replies(
                ReplyReason::PacketTooBig,
                BACK.carry(&too_big(&whole, u32::try_from(length).unwrap() - 1)),
            ),
        ]);
    }
    // A fragment waits for the first one of its datagram that is being cut, for nodes know no ports either.
    let to = V4_TCP.1;
    let pieces = segment(to, 3000).pieces(1480, ID);
    cases.push(
        mending(
            "mending_fragment_behind_one_that_is_cut_drops_without_a_socket",
            IN.carry(&pieces[2]),
        )
        .after(IN.carry(&pieces[0]))
        .drops(DropReason::FragmentOutOfOrder),
    );
    cases.push(
        case("fragment_behind_one_that_is_too_long_follows", {
            IN.carry(&pieces[2])
        })
        .after(IN.carry(&pieces[0]))
        .transmits(V4_TCP.0, &pieces[2], sent_in_v4(&pieces[2])),
    );
    // Its pieces as the agent cuts it.
    let to = V4_L2.1;
    let pieces = segment(to, 1501).fragmentable().pieces(1480, ID);
    assert_eq!(pieces.len(), 2);
    let sent = |piece: &Packet| TO_NODE_V4.carry(&piece.next_hop());
    cases.extend([
        mending("mending_first_piece_follows", IN.carry(&pieces[0])).transmits(
            V4_L2.0,
            &pieces[0],
            sent(&pieces[0]),
        ),
        mending("mending_second_piece_follows", IN.carry(&pieces[1]))
            .after(IN.carry(&pieces[0]))
            .transmits(V4_L2.0, &pieces[1], sent(&pieces[1])),
    ]);
    // IPv6 is cut by its sender alone, which no later fragment tells.
    let to = V6_UDP.1;
    let pieces = Packet::udp(client(to), to, &[7; 2000]).pieces(1440, ID);
    cases.extend([
        mending("mending_v6_too_long_fragment_is_told_its_mtu", {
            IN.carry(&pieces[0])
        })
        .replies(
            ReplyReason::PacketTooBig,
            BACK.carry(&too_big(&pieces[0], 1460)),
        ),
        mending("mending_v6_too_long_later_fragment_drops", {
            IN.carry(&Packet::udp(client(to), to, &[7; 3000]).pieces(1440, ID)[1])
        })
        .after(IN.carry(&pieces[0]))
        .drops(DropReason::MtuExceeded),
    ]);
    cases
}

/// Packets for backends to which no next hop is known.
fn without_next_hop() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, to) in [
        ("v4", V4_TCP.1),
        ("v6", V6_TCP.1),
        ("v4_in_v6", V4_IN_V6.1),
        ("v4_l2dsr", V4_L2.1),
    ] {
        let payload = [7; 600];
        let pieces = Packet::tcp(client(to), to, &payload).pieces(SIZE, ID);
        let unresolved = |tables: &mut TableSet| {
            for backend in &mut tables.backends[1..3] {
                backend.next_hop = 0;
            }
        };
        let name = |what: &str| format!("mending_{name}_{what}_without_a_next_hop");
        cases.extend([
            mending(name("segment"), IN.carry(&tcp(to)))
                .with(unresolved)
                .drops(DropReason::NextHopUnresolved),
            mending(name("first_fragment"), IN.carry(&pieces[0]))
                .with(unresolved)
                .drops(DropReason::NextHopUnresolved),
            mending(name("later_fragment"), IN.carry(&pieces[1]))
                .with(unresolved)
                .after(IN.carry(&pieces[0]))
                .drops(DropReason::NextHopUnresolved),
        ]);
    }
    cases
}

/// Fragments that come before the first one of their datagram.
fn early() -> Vec<Case> {
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
