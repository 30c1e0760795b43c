//! Notes of flows: what a packet has found is found again without the tables.

#![expect(
    clippy::unwrap_used,
    reason = "a panic at the place is how a test fails"
)]

#[expect(dead_code, reason = "the packet cases use the rest")]
mod support;

use aya::{
    TestRun, TestRunOptions,
    maps::{Array, HashMap, MapData},
    programs::{ProgramError, SchedClassifier},
};
use fastpath::clock::monotonic_ns;
use support::{
    cases::{self, Case},
    kernel::Kernel,
    tables::forget_notes,
};
use xdp_prog::abi::{self, AddressKey, FlowNote, PodFlow, Tuple, map};

/// `XDP_PASS`: the packet goes on to the pod.
const PASS: u32 = 2;

/// Ethernet, and IPv4 without options.
const IP: usize = 14;
const TCP: usize = IP + 20;
const FLAGS: usize = TCP + 13;
const ACK: u8 = 0x10;
const FIN: u8 = 0x01;

#[test]
fn packet_in_the_second_after_another_asks_no_table_for_its_flow() {
    let mut kernel = Kernel::load().unwrap();
    let [first, second, reset] = known_flow(&mut kernel);
    kernel.run(&first).unwrap();
    assert_eq!(take_flows(&mut kernel, map::FLOWS).len(), 1);

    // Nothing is left but the note, and who finds that puts no flow into the tables.
    assert_eq!(kernel.run(&second).unwrap().0, PASS);
    assert_eq!(take_flows(&mut kernel, map::FLOWS_EMBRYONIC), []);
    // The end of a flow is for the tables, and for the note too.
    for frame in [reset, second] {
        assert_eq!(kernel.run(&frame).unwrap().0, PASS);
        assert_eq!(take_flows(&mut kernel, map::FLOWS_EMBRYONIC).len(), 1);
    }
}

#[test]
fn flow_whose_place_another_note_has_is_noted_in_its_second() {
    let mut kernel = Kernel::load().unwrap();
    let [first, second, reset] = known_flow(&mut kernel);
    let [key] = keys(&mut kernel, map::FLOWS)[..] else {
        panic!("one flow is known");
    };
    // From the future, so that a slow machine does not outlive it.
    let seen = monotonic_ns() + 3_600_000_000_000;
    let other = PodFlow::new(AddressKey::default(), [0, 80], 0, 0, seen);
    let [place, _] = FlowNote::places(&key);
    let notes = kernel.ebpf.map_mut(map::FLOW_NOTES).unwrap();
    let mut notes = Array::<_, FlowNote>::try_from(notes).unwrap();
    let other = FlowNote::new(&Tuple::default(), &other);
    notes.set(place, other, 0).unwrap();

    kernel.run(&first).unwrap();
    take_flows(&mut kernel, map::FLOWS);
    assert_eq!(kernel.run(&second).unwrap().0, PASS);
    assert_eq!(take_flows(&mut kernel, map::FLOWS_EMBRYONIC), []);
    for frame in [reset, second] {
        assert_eq!(kernel.run(&frame).unwrap().0, PASS);
        assert_eq!(take_flows(&mut kernel, map::FLOWS_EMBRYONIC).len(), 1);
    }
    let notes = kernel.ebpf.map(map::FLOW_NOTES).unwrap();
    let notes = Array::<_, FlowNote>::try_from(notes).unwrap();
    assert_eq!(notes.get(&place, 0).unwrap(), other);
}

#[test]
fn reply_in_the_second_after_a_packet_asks_no_table_for_its_flow() {
    let mut kernel = Kernel::load().unwrap();
    egress(&mut kernel).load().unwrap();
    let [first, ..] = known_flow(&mut kernel);
    let (_, delivered) = kernel.run(&first).unwrap();
    assert_eq!(take_flows(&mut kernel, map::FLOWS).len(), 1);

    let reply = reply_to(&delivered, ACK);
    assert_ne!(leave(&mut kernel, &reply).unwrap(), reply);
    // What may end the flow asks the tables, which do not know it any more.
    let last = reply_to(&delivered, ACK | FIN);
    assert_eq!(leave(&mut kernel, &last).unwrap(), last);
}

#[test]
fn packet_in_the_second_after_a_reply_asks_no_table_until_the_pod_ends_the_flow() {
    let mut kernel = Kernel::load().unwrap();
    egress(&mut kernel).load().unwrap();
    let [first, second, _] = known_flow(&mut kernel);
    let (_, delivered) = kernel.run(&first).unwrap();
    // The note that is left is the reply's alone.
    forget_notes(&mut kernel.ebpf).unwrap();
    let reply = reply_to(&delivered, ACK);
    assert_ne!(leave(&mut kernel, &reply).unwrap(), reply);
    assert_eq!(take_flows(&mut kernel, map::FLOWS).len(), 1);
    assert_eq!(kernel.run(&second).unwrap().0, PASS);
    assert_eq!(take_flows(&mut kernel, map::FLOWS_EMBRYONIC), []);

    known_flow(&mut kernel);
    kernel.run(&second).unwrap();
    let last = reply_to(&delivered, ACK | FIN);
    assert_ne!(leave(&mut kernel, &last).unwrap(), last);
    assert_eq!(take_flows(&mut kernel, map::FLOWS).len(), 1);
    assert_eq!(kernel.run(&second).unwrap().0, PASS);
    assert_eq!(take_flows(&mut kernel, map::FLOWS_EMBRYONIC).len(), 1);
}

/// Installs tables that know a flow; returns two segments of it, and a reset.
fn known_flow(kernel: &mut Kernel) -> [Vec<u8>; 3] {
    let Case {
        tables, earlier, ..
    } = cases::all()
        .find(|case| case.name == "reset_by_the_client_ends_a_flow_in_use")
        .expect("the table has this case");
    kernel.install(&tables).unwrap();
    earlier
        .try_into()
        .expect("two segments of a known flow, and the one that ends it")
}

/// Makes the pod's answer to a segment; no program looks at its checksum.
fn reply_to(delivered: &[u8], flags: u8) -> Vec<u8> {
    let mut reply = delivered.to_vec();
    reply[IP + 12..TCP].rotate_left(4);
    reply[TCP..TCP + 4].rotate_left(2);
    reply[FLAGS] = flags;
    reply
}

/// Runs the egress program; returns the packet that leaves.
fn leave(kernel: &mut Kernel, packet: &[u8]) -> Result<Vec<u8>, ProgramError> {
    let mut output = vec![0; packet.len()];
    let mut options = TestRunOptions::new();
    options.data_in = Some(packet);
    options.data_out = Some(&mut output);
    egress(kernel).test_run(options)?;
    Ok(output)
}

fn egress(kernel: &mut Kernel) -> &mut SchedClassifier {
    let program = kernel.ebpf.program_mut(abi::EGRESS_PROGRAM).unwrap();
    program.try_into().unwrap()
}

/// Takes all flows out of a table.
fn take_flows(kernel: &mut Kernel, name: &str) -> Vec<Tuple> {
    let keys = keys(kernel, name);
    for key in &keys {
        flows(kernel, name).remove(key).unwrap();
    }
    keys
}

fn keys(kernel: &mut Kernel, name: &str) -> Vec<Tuple> {
    flows(kernel, name).keys().map(Result::unwrap).collect()
}

fn flows<'a>(kernel: &'a mut Kernel, name: &str) -> HashMap<&'a mut MapData, Tuple, PodFlow> {
    let map = kernel.ebpf.map_mut(name).unwrap();
    HashMap::try_from(map).unwrap()
}
