//! How many cache lines of tables a packet touches, counted by a machine that runs the compiled programs.
//!
//! `cargo test -p bench --lib lines_of_tables -- --nocapture` prints them by table, behind the number of BPF instructions.

mod machine;

use std::collections::BTreeMap;

use fastpath::tables::Tables;
use xdp_prog::{
    abi,
    bench::{PATTERN_LENGTH, Pattern, client},
    stage::Stage,
};

use self::machine::Machine;
use super::{Case, Family, Protocol, Stream, System, frames, paths, tables};

/// Flows whose packets are counted; each has had one before.
const FLOWS: u32 = 16;
/// The device that all packets come in on.
const DEVICE: u32 = 7;
/// Lines that a packet may touch at most, on the average over the flows.
const MOST: [(System, f64); 6] = [
    (System::Guideway, 8.0),
    (System::Slots, 8.0),
    (System::Services, 8.0),
    (System::Node, 9.0),
    (System::Reply, 4.0),
    // As the plain path, and one of its past.
    (System::Past, 9.0),
];

/// Returns a flow's frame, as the generator writes it.
fn frame(system: System, family: Family, protocol: Protocol, flow: u32) -> Vec<u8> {
    let Some(pattern) = paths::pattern(system, family, protocol) else {
        let service = tables::service(system, family, protocol).unwrap();
        return frames::frame_of(family, protocol, service.port, flow);
    };
    let (bits, port) = client(flow);
    let Pattern { mut bytes, .. } = pattern;
    let mut put = |at: u32, field: &[u8]| {
        let at = at as usize;
        bytes[at..at + field.len()].copy_from_slice(field);
    };
    let service = pattern.service + flow % pattern.services;
    put(pattern.service_at, &service.to_be_bytes());
    put(pattern.address_at, &(pattern.address + bits).to_be_bytes());
    put(pattern.port_at, &port.to_be_bytes());
    debug_assert_eq!(bytes.len(), PATTERN_LENGTH);
    bytes.to_vec()
}

#[test]
fn lines_of_tables_that_a_packet_touches_are_few() {
    let product = tables::load().unwrap();
    let mut known = Tables::open(&product).unwrap();
    tables::fill(&mut known, DEVICE).unwrap();
    let stages = Stage::ALL.map(|stage| stage.program().to_owned());
    let mut exceeded = Vec::new();
    for family in Family::ALL {
        for protocol in Protocol::ALL {
            let stream = Stream::in_turn(1);
            let case = Case {
                family,
                protocol,
                stream,
            };
            tables::fill_flows(&product, &known, case, DEVICE).unwrap();
            for system in System::ALL {
                if !system.has(protocol) || system.is_of_first_packets() {
                    continue;
                }
                let (is_egress, expected) = match system {
                    System::Floor | System::Static | System::Hit => continue,
                    System::Pass | System::PassSkb => continue,
                    // TC_ACT_UNSPEC; programs return an int.
                    System::Reply | System::OtherEgress => (true, u64::from(u32::MAX)),
                    System::Miss | System::Node | System::NodeTries => (false, 2),
                    _ => (false, 3),
                };
                let mut machine = Machine::new(&product, stages.to_vec());
                let mut run = |flow| {
                    let frame = frame(system, family, protocol, flow);
                    match is_egress {
                        true => machine.run_tc(abi::EGRESS_PROGRAM, &frame, DEVICE),
                        false => machine.run_xdp(abi::XDP_PROGRAM, &frame, DEVICE),
                    }
                };
                let mut lines: BTreeMap<String, usize> = BTreeMap::new();
                for flow in 0..FLOWS {
                    run(flow);
                }
                let mut instructions = 0;
                for flow in 0..FLOWS {
                    let run = run(flow);
                    instructions += run.instructions;
                    assert_eq!(run.action & 0xffff_ffff, expected, "{system:?}");
                    for (table, count) in run.lines {
                        *lines.entry(table).or_default() += count;
                    }
                }
                let mean = |count: usize| count as f64 / f64::from(FLOWS);
                let all = mean(lines.values().sum());
                let tables = lines
                    .iter()
                    .map(|(name, lines)| format!("{name} {}", mean(*lines)));
                let tables: Vec<_> = tables.collect();
                println!(
                    "{:<15}{family:?} {protocol:?} {all:>6.2} {:>5.0}  {}",
                    system.name(),
                    mean(instructions),
                    tables.join(", ")
                );
                let most = MOST.iter().find(|(bound, _)| *bound == system);
                if most.is_some_and(|(_, most)| all > *most) {
                    exceeded.push(format!("{system:?} {family:?} {protocol:?}: {all}"));
                }
            }
        }
    }
    assert!(exceeded.is_empty(), "{exceeded:?}");
}
