//! Random packets through edge and node together: the ledger adds up.
//!
//! ```text
//! random packet --> edge (kernel) --IP-in-IP--> node (kernel) --> a pod's packet
//! ```
//!
//! At least half of the packets are malformed, as another library reads them.
//! Each must be passed on untouched, delivered to a pod once and unaltered but
//! for the translation, answered, or dropped; and what the counters say of it
//! must be what was seen. The checks know nothing of the program: they compare
//! bytes.
//!
//! `GUIDEWAY_SEED` repeats a run, `GUIDEWAY_LEDGER_PACKETS` sets the number of packets.

mod delivery;
mod form;
#[path = "../random_frames/mutate.rs"]
mod mutate;
mod world;

use std::time::Instant;

use crate::support::{kernel::Kernel, report, tables::Counts};
use mutate::Random;
use world::World;
use xdp_prog::reason::{DropReason, PassReason};

const PACKETS: u64 = 200_000;
const DEFAULT_SEED: u64 = 0x6c65_6467_6572;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;

/// What became of the packets at one machine, by what was seen of them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    passed: u64,
    delivered: u64,
    dropped: u64,
    answered: u64,
    forwarded: u64,
}

#[test]
fn all_packets_add_up() {
    let packets = std::env::var("GUIDEWAY_LEDGER_PACKETS");
    let packets = packets.map_or(PACKETS, |number| number.parse().unwrap());
    let seed = std::env::var("GUIDEWAY_SEED").map_or(DEFAULT_SEED, |text| {
        u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
    });
    println!("ledger: GUIDEWAY_SEED={seed:#x}");
    let started = Instant::now();
    let world = World::new();
    let mut edge = Kernel::load().unwrap();
    let mut node = Kernel::load().unwrap();
    edge.install(&world.edge).unwrap();
    node.install(&world.node).unwrap();

    let mut random = Random::new(seed);
    let (mut at_edge, mut at_node) = (Seen::default(), Seen::default());
    let samples = world.samples();
    let inputs: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    let (mut malformed, mut later_fragments) = (0, 0);
    for _ in 0..packets {
        // More than half, so that chance cannot take the half away.
        let input = if random.below(16) < 7 {
            let packet = world.packet(&mut random);
            assert!(form::is_whole(&packet), "{packet:02x?}");
            packet
        } else {
            malformed += 1;
            malformed_frame(&mut random, &world, &inputs)
        };
        let (action, output) = edge.run(&input).unwrap();
        match action {
            XDP_PASS => {
                assert_eq!(input, output, "the edge changed what it passes");
                at_edge.passed += 1;
            }
            XDP_DROP => at_edge.dropped += 1,
            XDP_TX if world.is_to_node(&output) => {
                at_edge.forwarded += 1;
                later_fragments += usize::from(delivery::is_later_fragment(&input));
                at_the_node(&mut node, &world, &input, &output, &mut at_node);
            }
            XDP_TX => {
                delivery::is_answer(&input, &output);
                at_edge.answered += 1;
            }
            other => panic!("action {other} for {input:02x?}"),
        }
    }

    let edge = edge.counts();
    let node = node.counts();
    println!("{malformed} malformed, {later_fragments} later fragments forwarded");
    println!("edge: {at_edge:?}{}", report::counters(&edge));
    println!("node: {at_node:?}{}", report::counters(&node));
    assert_eq!(counted(&edge), at_edge, "the edge's counters");
    assert_eq!(counted(&node), at_node, "the node's counters");
    let total =
        |seen: &Seen| seen.passed + seen.delivered + seen.dropped + seen.answered + seen.forwarded;
    assert_eq!(total(&at_edge), packets, "the edge's ledger");
    assert_eq!(total(&at_node), at_edge.forwarded, "the node's ledger");
    assert!(
        malformed >= packets / 2,
        "only {malformed} of {packets} were malformed"
    );
    assert!(
        later_fragments > 0,
        "no later fragment followed its first one"
    );
    assert!(
        at_node.delivered > packets / 4,
        "too few packets reached a pod to tell anything"
    );
    println!(
        "ledger: {packets} packets in {:.1} s, nothing lost",
        started.elapsed().as_secs_f64()
    );
}

/// Returns a frame that is no whole packet, but one that a test run takes.
fn malformed_frame(random: &mut Random, world: &World, inputs: &[&[u8]]) -> Vec<u8> {
    loop {
        let frame = mutate::frame(random, inputs);
        // A test run takes no frame without a whole Ethernet header.
        if frame.len() >= 14 && !world.is_from_node(&frame) && !form::is_whole(&frame) {
            return frame;
        }
    }
}

fn at_the_node(node: &mut Kernel, world: &World, sent: &[u8], arrived: &[u8], seen: &mut Seen) {
    let (action, output) = node.run(arrived).unwrap();
    match action {
        XDP_PASS if output == arrived => seen.passed += 1,
        XDP_PASS => {
            delivery::is_delivered(world, sent, &output);
            seen.delivered += 1;
        }
        XDP_DROP => seen.dropped += 1,
        XDP_TX => {
            delivery::is_answer(arrived, &output);
            seen.answered += 1;
        }
        other => panic!("action {other} for {arrived:02x?}"),
    }
}

/// Sorts what a machine counted as [`Seen`] does.
fn counted(counts: &Counts) -> Seen {
    let sum = |from: usize, to: usize| counts.reasons[from..to].iter().sum::<u64>();
    let (passes, drops) = (PassReason::ALL.len(), DropReason::ALL.len());
    let on_to_the_pod = [PassReason::Delivered, PassReason::Decapsulated]
        .map(|reason| counts.reasons[reason.index() as usize])
        .iter()
        .sum::<u64>();
    let of_services: u64 = counts.services.iter().map(|traffic| traffic.packets).sum();
    let delivered = counts.reasons[PassReason::Delivered.index() as usize];
    Seen {
        passed: sum(0, passes) - on_to_the_pod,
        delivered: on_to_the_pod,
        dropped: sum(passes, passes + drops),
        answered: sum(passes + drops, counts.reasons.len()),
        forwarded: of_services - delivered,
    }
}
