//! Notes of flows: what a packet has found is found again without the tables.

#![expect(
    clippy::unwrap_used,
    reason = "a panic at the place is how a test fails"
)]

#[expect(dead_code, reason = "the packet cases use the rest")]
mod support;

use aya::maps::HashMap;
use support::{
    cases::{self, Case},
    kernel::Kernel,
};
use xdp_prog::abi::{PodFlow, Tuple, map};

/// `XDP_PASS`: the packet goes on to the pod.
const PASS: u32 = 2;

#[test]
fn packet_in_the_second_after_another_asks_no_table_for_its_flow() {
    let Case {
        tables, earlier, ..
    } = cases::all()
        .find(|case| case.name == "reset_by_the_client_ends_a_flow_in_use")
        .expect("the table has this case");
    let [first, second, reset] = &earlier[..] else {
        panic!("two segments of a known flow, and the one that ends it");
    };
    let mut kernel = Kernel::load().unwrap();
    kernel.install(&tables).unwrap();
    kernel.run(first).unwrap();
    assert_eq!(take_flows(&mut kernel, map::FLOWS).len(), 1);

    // Nothing is left but the note, and who finds that puts no flow into the tables.
    assert_eq!(kernel.run(second).unwrap().0, PASS);
    assert_eq!(take_flows(&mut kernel, map::FLOWS_EMBRYONIC), []);
    // The end of a flow is for the tables, and for the note too.
    for frame in [reset, second] {
        assert_eq!(kernel.run(frame).unwrap().0, PASS);
        assert_eq!(take_flows(&mut kernel, map::FLOWS_EMBRYONIC).len(), 1);
    }
}

/// Takes all flows out of a table.
fn take_flows(kernel: &mut Kernel, name: &str) -> Vec<Tuple> {
    let map = kernel.ebpf.map_mut(name).unwrap();
    let mut flows = HashMap::<_, Tuple, PodFlow>::try_from(map).unwrap();
    let keys: Vec<Tuple> = flows.keys().map(Result::unwrap).collect();
    for key in &keys {
        flows.remove(key).unwrap();
    }
    keys
}
