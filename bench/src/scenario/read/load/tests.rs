//! What loads may be, and how broken ones are refused.

use super::*;
use crate::scenario::Scenario;

/// Reads a scenario with this load, and returns what is wrong with it.
fn read(load: &str) -> Result<Load, String> {
    let text = format!("name: one\nsystems: [direct]\nloads:\n  - {{ {load} }}\n");
    let scenario = Scenario::parse(&text).map_err(|refused| refused.to_string())?;
    Ok(scenario.loads[0].clone())
}

fn of_sizes(load: &str) -> Vec<(u32, u32)> {
    let sizes = read(load).unwrap().frame_bytes.into_iter();
    sizes.map(|size| (size.bytes, size.weight)).collect()
}

#[test]
fn loads_are_read_with_the_defaults_of_their_generator() {
    let sockets = read("rate: 1000").unwrap();
    let text = "sockets, ipv4, udp, constant, 1000/s, 16 flows in-turn, frames of 64 bytes";
    assert_eq!(sockets.to_string(), text);
    let live = "generator: live, family: ipv6, protocol: tcp, schedule: max, flows: 1000, \
                flow_order: zipf, new_flow_share: 0.5, frame_bytes: imix";
    let text = "live, ipv6, tcp, max, 1000 flows zipf and 50 % of new ones, \
                frames of 84:7 594:4 1518:1 bytes";
    assert_eq!(read(live).unwrap().to_string(), text);
    let steps = read("rate: 900, schedule: step, steps: 3").unwrap();
    assert_eq!(steps.mean_rate(), Some(600.0));
    let search = read("rate: 5e6, generator: live, search: pdr").unwrap();
    let text =
        "live, ipv4, udp, constant, 5000000/s, search pdr, 16 flows in-turn, frames of 64 bytes";
    assert_eq!(search.to_string(), text);
    let loss = read("rate: 5e6, generator: live, search: rfc2544-loss").unwrap();
    let text = "live, ipv4, udp, constant, 5000000/s and down, frame loss of RFC 2544, 16 flows in-turn, frames of 64 bytes";
    assert_eq!(loss.to_string(), text);
    let beside = read("rate: 900, protocol: tcp, exchange: connect, background: 50% of pdr");
    let text = "sockets, ipv4, tcp connect, constant, 900/s, 16 flows in-turn, frames of 88 bytes, \
                beside live frames at 50 % of its pdr";
    assert_eq!(beside.unwrap().to_string(), text);
    let beside = read("rate: 900, background: 7 % of direct").unwrap();
    let text = "sockets, ipv4, udp, constant, 900/s, 16 flows in-turn, frames of 64 bytes, \
                beside live frames at 7 % of the rate of direct";
    assert_eq!(beside.to_string(), text);
    let flood =
        "generator: live, protocol: tcp, segment: syn, schedule: max, new_flow_share: 1, vlan: 7";
    let text = "live, ipv4, tcp syn, max, 16 flows in-turn and 100 % of new ones, \
                frames of 68 bytes in VLAN 7";
    assert_eq!(read(flood).unwrap().to_string(), text);
    let pktgen = read("rate: 900, generator: pktgen, threads: 2, family: ipv6").unwrap();
    let text =
        "pktgen, ipv6, udp, constant, 900/s, 2 threads, 16 flows in-turn, frames of 82 bytes";
    assert_eq!(pktgen.to_string(), text);
    let live = read("generator: live, schedule: max, threads: 2").unwrap();
    let text = "live, ipv4, udp, max, 2 threads, 16 flows in-turn, frames of 64 bytes";
    assert_eq!(live.to_string(), text);
    let ramp = read("rate: 900, schedule: ramp").unwrap();
    assert_eq!(ramp.mean_rate(), Some(450.0));
}

#[test]
fn several_shares_of_a_rate_are_as_many_loads_and_the_rate_is_found_once_for_each_system() {
    let text = "name: one\nsystems: [direct, routing]\nloads:\n\
                - { rate: 900, background: 10% 50 % 90% of pdr }\n\
                - { rate: 500, background: 12.5% of pdr }\n\
                - { rate: 500, background: 50% of ndr }\n\
                - { rate: 500, background: 20% 40% of routing }\n";
    let scenario = Scenario::parse(text).unwrap();
    let loads = scenario.loads.iter();
    let shares = loads.filter_map(|load| load.background.share_in_words());
    let expected = [
        "10 % of its pdr",
        "50 % of its pdr",
        "90 % of its pdr",
        "12.5 % of its pdr",
        "50 % of its ndr",
        "20 % of the rate of routing",
        "40 % of the rate of routing",
    ];
    assert!(shares.eq(expected), "{:?}", scenario.loads);
    let frames = "(live, ipv4, udp, max, 16 flows in-turn, frames of 64 bytes)";
    let rates = scenario.reference_rates().into_iter();
    let rates = rates.map(|rate| rate.to_string().replace(&format!(" {frames}"), ""));
    let expected = [
        "the pdr of direct",
        "the pdr of routing",
        "the ndr of direct",
        "the ndr of routing",
        "the rate of routing",
    ];
    assert!(rates.eq(expected), "{:?}", scenario.reference_rates());
}

#[test]
fn sizes_are_one_a_named_mix_or_a_mix_of_ones_own() {
    assert_eq!(
        of_sizes("rate: 9, flows: 1, frame_bytes: 1280"),
        [(1280, 1)]
    );
    let own = of_sizes("rate: 9, flows: 1, frame_bytes: 128:3 1500:2");
    assert_eq!(own, [(128, 3), (1500, 2)]);
    let csit = of_sizes("rate: 9, flows: 1, family: ipv6, frame_bytes: imix-csit");
    assert_eq!(csit, [(82, 28), (570, 16), (1518, 4)]);
}

#[test]
fn each_broken_rule_of_a_load_has_its_place_and_a_remedy() {
    for (load, expected) in [
        (
            "rate: 0",
            "line 4, column 13: rate is \"0\"; write a number from 1 to 1000000",
        ),
        (
            "rate: 5kpps",
            "line 4, column 13: rate is \"5kpps\"; write a number",
        ),
        (
            "flows: 3",
            "line 4, column 5: rate is missing; write a number from 1",
        ),
        (
            "rate: 1, flows: 11",
            "column 23: some of 11 flows send every 11 s only; write fewer",
        ),
        (
            "rate: 10, flows: 40, flow_order: zipf",
            "some of 40 flows send every 17 s only; write fewer flows, or a rate 1.7 times",
        ),
        (
            "rate: 9, frame_bytes: 63",
            "column 29: frame_bytes has the size 63; write sizes from 64",
        ),
        (
            "rate: 9, frame_bytes: 64 594",
            "the size 64 of a mix has no weight; write a size, imix",
        ),
        ("rate: 9, frame_bytes: 64:0", "the size 64 has weight 0"),
        (
            "rate: 9, frame_bytes: 64:60 128:5",
            "a mix of 65 frames is too long; write weights",
        ),
        (
            "rate: 9, frame_bytes: jumbo",
            "frame_bytes has \"jumbo\"; write a size, imix",
        ),
        (
            "rate: 9, family: ipv6, frame_bytes: 64",
            "write sizes from 82 to 1518",
        ),
        (
            "rate: 9, pace: 2",
            "unknown field \"pace\"; the fields here are generator, family",
        ),
        (
            "rate: 9, exchange: crr",
            "column 26: crr needs connections, which UDP has none of; write protocol: tcp",
        ),
        (
            "rate: 9, generator: live, exchange: crr",
            "only requests through sockets are answered; leave exchange out",
        ),
        (
            "rate: 9, background: 50%",
            "column 28: background is \"50%\"; write live frames a second from 1",
        ),
        (
            "rate: 9, background: 120% of pdr",
            "or rising shares from 1 to 100 of pdr, ndr, rfc2544 or of the rate of one of the systems",
        ),
        (
            "rate: 9, background: 50% 50% of pdr",
            "column 28: background is \"50% 50% of pdr\"; write live frames",
        ),
        (
            "rate: 9, background: 10 50 90% of pdr",
            "background is \"10 50 90% of pdr\"; write live frames",
        ),
        (
            "rate: 9, background: 10% 50% of",
            "background is \"10% 50% of\"; write live frames",
        ),
        (
            "rate: 9, background: 50% of kube-proxy-nftables",
            "column 28: background is \"50% of kube-proxy-nftables\"; write live frames",
        ),
        (
            "rate: 9, background: 50% of none",
            "background is \"50% of none\"; write live frames",
        ),
        (
            "rate: 9, generator: live, background: 5",
            "live frames pass beside requests that are timed; leave it out",
        ),
        ("schedule: max", "the schedule max is not for sockets"),
        (
            "rate: 9, new_flow_share: 0.5",
            "open before a trial; write generator: live",
        ),
        ("rate: 9, new_flow_share: 1.5", "write a number from 0 to 1"),
        (
            "rate: 9, schedule: burst",
            "burst is missing; write a number from 2 to 256",
        ),
        (
            "rate: 9, steps: 3",
            "column 23: steps belongs to another schedule; leave it out",
        ),
        (
            "rate: 9, generator: live, schedule: max",
            "the schedule max has no rate; leave the",
        ),
        (
            "rate: 9, schedule: ramp, search: ndr",
            "column 40: a search tries constant rates; write",
        ),
        (
            "rate: 9, search: rfc2544-loss",
            "column 24: a frame loss is one of frames; write generator: live",
        ),
        (
            "rate: 9, protocol: tcp, segment: syn",
            "SYN segments are frames of TCP; write generator: live",
        ),
        (
            "rate: 9, generator: live, segment: syn",
            "column 42: SYN segments are frames of TCP; write generator: live and protocol: tcp",
        ),
        (
            "rate: 9, vlan: 7",
            "column 22: the machines of sockets have no VLAN; write generator: live",
        ),
        (
            "rate: 9, generator: live, vlan: 4095",
            "vlan is \"4095\"; write a number from 1 to 4094",
        ),
        (
            "rate: 9, threads: 2",
            "column 25: sockets sends from one thread; leave threads out, or write generator: live or pktgen",
        ),
        (
            "rate: 9, generator: afxdp, threads: 2",
            "column 43: afxdp sends from one thread; leave threads out",
        ),
        (
            "rate: 9, generator: live, threads: 0",
            "threads is \"0\"; write a number from 1 to 64",
        ),
        (
            "rate: 9, generator: live, threads: 2, flows: 1",
            "column 52: 2 threads send 1 flows; write at least one flow for each thread",
        ),
        (
            "rate: 9, generator: pktgen, threads: 65",
            "threads is \"65\"; write a number from 1 to 64",
        ),
        (
            "rate: 9, generator: pktgen, threads: 4, flows: 3",
            "4 threads send 3 flows; write at least one flow for each thread",
        ),
        (
            "rate: 9, generator: pktgen, flow_order: zipf",
            "pktgen has flows in turn, or drawn evenly; write generator: live",
        ),
        (
            "rate: 9, generator: pktgen, new_flow_share: 0.1",
            "pktgen has no new flows; write generator: live",
        ),
        (
            "rate: 9, generator: pktgen, protocol: tcp",
            "pktgen sends UDP alone; write generator: live",
        ),
        (
            "rate: 9, generator: live, schedule: ramp",
            "live has no schedule ramp; write constant or max, or generator: sockets",
        ),
    ] {
        let found = read(load).unwrap_err();
        assert!(found.contains(expected), "{load}: {found}");
    }
}

#[test]
fn systems_of_which_the_stack_would_have_to_take_a_tag_are_named() {
    let text = "name: one\nsystems: [direct, null-program, ours-nat, routing]\nloads:\n  - { rate: 9, generator: live, vlan: 7 }\n";
    let refused = Scenario::parse(text).unwrap_err().to_string();
    assert!(
        refused.contains("the machine of routing has no VLAN; leave"),
        "{refused}"
    );
    Scenario::parse(&text.replace(", routing", "")).unwrap();
}
