//! Flows to pods in the kernel's tables: what proves their clients, and notes, by which what a packet has found is
//! found again without the tables.

use crate::support::{
    cases::{self, Case},
    kernel::Kernel,
    tables::size,
};
use aya::{
    TestRun, TestRunOptions,
    maps::{Array, HashMap, MapData},
    programs::{ProgramError, SchedClassifier},
};
use fastpath::clock::monotonic_ns;
use xdp_prog::abi::{self, AddressKey, FlowNote, PodFlow, Tuple, map};

/// `XDP_PASS`: the packet goes on to the pod.
const PASS: u32 = 2;

/// Ethernet, and IPv4 without options.
const IP: usize = 14;
const TCP: usize = IP + 20;
const FLAGS: usize = TCP + 13;
const ACK: u8 = 0x10;
const RST: u8 = 0x04;
const SYN: u8 = 0x02;
const FIN: u8 = 0x01;

#[test]
fn packet_in_the_second_after_another_asks_no_table_for_its_flow() {
    let mut kernel = Kernel::load().unwrap();
    let [first, second, end] = known_flow(&mut kernel);
    kernel.run(&first).unwrap();
    assert_eq!(take_flows(&mut kernel, map::FLOWS).len(), 1);

    // Nothing is left but the note, and who finds that puts no flow into the tables.
    assert_eq!(kernel.run(&second).unwrap().0, PASS);
    assert_eq!(take_flows(&mut kernel, map::FLOWS_EMBRYONIC), []);
    // The end of a flow is for the tables, and for the note too.
    for frame in [end, second] {
        assert_eq!(kernel.run(&frame).unwrap().0, PASS);
        assert_eq!(take_flows(&mut kernel, map::FLOWS_EMBRYONIC).len(), 1);
    }
}

#[test]
fn flow_whose_place_another_note_has_is_noted_in_its_second() {
    let mut kernel = Kernel::load().unwrap();
    let [first, second, end] = known_flow(&mut kernel);
    let [key] = keys(&mut kernel, map::FLOWS)[..] else {
        panic!("one flow is known");
    };
    // From the future, so that a slow machine does not outlive it.
    let seen = monotonic_ns() + 3_600_000_000_000;
    let key_of_other = Tuple::default();
    let other = PodFlow::new(&key_of_other, AddressKey::default(), [0, 80], 0, 0, seen);
    let [place, _] = FlowNote::places(&key);
    let notes = kernel.ebpf.map_mut(map::FLOW_NOTES).unwrap();
    let mut notes = Array::<_, FlowNote>::try_from(notes).unwrap();
    let other = FlowNote::new(&key_of_other, &other);
    notes.set(place, other, 0).unwrap();

    kernel.run(&first).unwrap();
    take_flows(&mut kernel, map::FLOWS);
    assert_eq!(kernel.run(&second).unwrap().0, PASS);
    assert_eq!(take_flows(&mut kernel, map::FLOWS_EMBRYONIC), []);
    for frame in [end, second] {
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
    load_egress(&mut kernel);
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
    load_egress(&mut kernel);
    let [first, second, _] = known_flow(&mut kernel);
    let (_, delivered) = kernel.run(&first).unwrap();
    // The note that is left is the reply's alone.
    kernel.forget_notes().unwrap();
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

/// Of a client that is silent, to a server that is silent too.
#[test]
fn client_that_acknowledges_what_the_pod_has_sent_is_where_it_says() {
    let mut kernel = Kernel::load().unwrap();
    load_egress(&mut kernel);
    for to in [Vip::First, Vip::Second] {
        let (syn, ack) = handshake(&mut kernel, to);
        let (_, delivered) = kernel.run(&syn).unwrap();
        let accepted = reply_to(&delivered, SYN | ACK);
        let sent = leave(&mut kernel, &accepted).unwrap();
        assert_ne!(sent, accepted);
        // The client gets it at the port that it has.
        assert_eq!(sent[TCP + 2..TCP + 4], syn[INNER..INNER + 2]);

        // Anybody can say so, but for the number.
        let guessed = acknowledging(&ack, SEQUENCE);
        assert_eq!(kernel.run(&guessed).unwrap().0, PASS);
        let entries = to.entries();
        assert_eq!(keys(&mut kernel, map::FLOWS), [], "{to:?}");
        assert_eq!(keys(&mut kernel, map::FLOWS_EMBRYONIC).len(), entries);
        // Nor does what the pod says to forged segments.
        leave(&mut kernel, &reply_to(&delivered, ACK)).unwrap();
        leave(&mut kernel, &reply_to(&delivered, RST)).unwrap();
        assert_eq!(keys(&mut kernel, map::FLOWS), [], "{to:?}");

        let proof = acknowledging(&ack, SEQUENCE + 1);
        let (action, output) = kernel.run(&proof).unwrap();
        assert_eq!(action, PASS);
        assert_eq!(output[TCP..TCP + 4], delivered[TCP..TCP + 4]);
        let moved = if to == Vip::First { 1 } else { 2 };
        assert_eq!(take_flows(&mut kernel, map::FLOWS).len(), moved);
        let left = take_flows(&mut kernel, map::FLOWS_EMBRYONIC).len();
        assert_eq!(left, entries - moved, "{to:?}");
        kernel.forget_notes().unwrap();
    }
}

/// A pod that talks to itself, which sees its VIP in its place.
#[test]
fn established_hairpin_goes_on_however_many_others_begin() {
    let mut kernel = Kernel::load().unwrap();
    load_egress(&mut kernel);
    let Case { tables, input, .. } = cases::all()
        .find(|case| case.name == "v4_tcp_pod_that_talks_to_itself")
        .expect("the table has this case");
    kernel.install(&tables).unwrap();
    let (_, delivered) = kernel.run(&input).unwrap();
    leave(&mut kernel, &reply_to(&delivered, SYN | ACK)).unwrap();
    let mut ack = acknowledging(&input, SEQUENCE + 1);
    ack[INNER + 13] = ACK;
    assert_eq!(kernel.run(&ack).unwrap().0, PASS);
    assert_eq!(keys(&mut kernel, map::FLOWS).len(), 1);

    let mut other = input.clone();
    for port in (1024..).take(2 * size::LRU as usize) {
        other[INNER..INNER + 2].copy_from_slice(&u16::to_be_bytes(port));
        let (_, delivered) = kernel.run(&other).unwrap();
        leave(&mut kernel, &reply_to(&delivered, SYN | ACK)).unwrap();
    }
    let (action, again) = kernel.run(&ack).unwrap();
    assert_eq!(action, PASS);
    assert_eq!(again[IP + 12..TCP + 4], delivered[IP + 12..TCP + 4]);
    let turned = leave(&mut kernel, &reply_to(&again, ACK)).unwrap();
    // From the address that the client talks to, to the client.
    let (client, vip) = (INNER - 8, INNER - 4);
    assert_eq!(turned[IP + 12..IP + 16], input[vip..vip + 4]);
    assert_eq!(turned[IP + 16..TCP], input[client..client + 4]);
    assert_eq!(turned[TCP + 2..TCP + 4], input[INNER..INNER + 2]);
}

/// By which address of the pod a client connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vip {
    First,
    /// Another flow has the client's port at the pod.
    Second,
}

impl Vip {
    /// Entries of all flows there are.
    fn entries(self) -> usize {
        match self {
            Self::First => 1,
            Self::Second => 3,
        }
    }
}

/// Makes a client's SYN, of which nothing is known, and its ACK.
fn handshake(kernel: &mut Kernel, to: Vip) -> (Vec<u8>, Vec<u8>) {
    let find = |name: &str| cases::all().find(|case| case.name == name).expect(name);
    let Case {
        tables, earlier, ..
    } = find("v4_tcp_port_that_met_itself_stays_the_other");
    let [first, second] = earlier.try_into().expect("a SYN by each address");
    kernel.install(&tables).unwrap();
    let syn: Vec<u8> = match to {
        Vip::First => first,
        Vip::Second => {
            kernel.run(&first).unwrap();
            second
        }
    };
    let mut ack = syn.clone();
    ack[INNER + 13] = ACK;
    (syn, ack)
}

/// The sequence number of all segments here.
const SEQUENCE: u32 = 0x0102_0304;
/// Where the TCP header of what an edge sends begins.
const INNER: usize = TCP + 20;

/// Makes a segment acknowledge this; no program looks at its checksum.
fn acknowledging(segment: &[u8], number: u32) -> Vec<u8> {
    let mut segment = segment.to_vec();
    segment[INNER + 8..INNER + 12].copy_from_slice(&number.to_be_bytes());
    segment
}

/// Installs tables that know a flow; returns two segments of it, and its end.
fn known_flow(kernel: &mut Kernel) -> [Vec<u8>; 3] {
    let Case {
        tables, earlier, ..
    } = cases::all()
        .find(|case| case.name == "flow_in_use_keeps_its_port")
        .expect("the table has this case");
    kernel.install(&tables).unwrap();
    earlier
        .try_into()
        .expect("two segments of a known flow, and its FIN")
}

/// Makes the pod's answer to a segment; no program looks at its checksum.
fn reply_to(delivered: &[u8], flags: u8) -> Vec<u8> {
    let mut reply = delivered.to_vec();
    reply[IP + 12..TCP].rotate_left(4);
    reply[TCP..TCP + 4].rotate_left(2);
    reply[FLAGS] = flags;
    reply[TCP + 8..TCP + 12].copy_from_slice(&(SEQUENCE + 1).to_be_bytes());
    reply
}

/// Loads the egress program, and has it look at all ports.
fn load_egress(kernel: &mut Kernel) {
    egress(kernel).load().unwrap();
    let ports = kernel.ebpf.map_mut(map::EGRESS_PORTS).unwrap();
    let mut ports = Array::<_, u64>::try_from(ports).unwrap();
    for word in 0..ports.len() {
        ports.set(word, u64::MAX, 0).unwrap();
    }
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
