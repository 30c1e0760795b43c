//! Agents after the control plane's data is what it was earlier.

use std::mem;

use lab::{Machine, Topology};

use crate::outages::wait_for_tables;
use crate::world::{World, vips};

/// How the page about operation has etcd restored.
const RESTORE: &str = "etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted";

#[test]
fn agents_follow_a_restored_etcd_without_a_restart() {
    let net = Topology::builder().nodes(2).pods(1).build().unwrap();
    let mut world = World::start(&net);
    let agents = mem::take(&mut world.agents);
    let pods: Vec<&Machine> = net.pods().collect();
    let all: Vec<(&Machine, bool)> = pods.iter().map(|pod| (*pod, true)).collect();
    world.balance(&vips(1));
    world.endpoints(&all[..1]);
    wait_for_tables(&agents, &pods[..1]);
    world.control.back_up_etcd().unwrap();
    world.endpoints(&all[1..]);
    wait_for_tables(&agents, &pods[1..]);

    world.control.restore_etcd(RESTORE).unwrap();
    wait_for_tables(&agents, &pods[..1]);
    world.endpoints(&all);
    wait_for_tables(&agents, &pods);
    world.agents = agents;
}
