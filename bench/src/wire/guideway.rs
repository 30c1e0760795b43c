//! Configuration of Guideway's agents, on edges and nodes.

use std::{fmt::Write as _, net::IpAddr};

use anyhow::{Context, Result};
use lab::{Guideway, Machine};

use super::{HASH_SEED, Listing, PORT};
use crate::scenario::System;

/// Slots of the lookup table of three backends.
const SLOTS: u32 = 256;
/// Bytes of a slot.
const SLOT_BYTES: u32 = 4;
const MIB: u32 = 1 << 20;
/// Flows of NAT mode that an edge remembers: the default, for loads of new flows. Others need none.
const NAT_FLOWS: u32 = 1 << 18;
const FEW_NAT_FLOWS: u32 = 1 << 12;

/// Returns the configuration of the edge that balances `listing` over the nodes. Services of `changed` lack the last one.
pub(super) fn edge(
    system: System,
    listing: &Listing,
    nodes: &[Machine],
    changed: &[u32],
) -> Result<String> {
    let mode = match system {
        System::OursL2dsr => "l2dsr",
        System::OursNat => "nat",
        _ => "ipip",
    };
    let services = listing.all();
    let nat_flows = match system {
        System::OursNat => NAT_FLOWS,
        _ => FEW_NAT_FLOWS,
    };
    let mut text = common(u32::try_from(services.len())?, nat_flows) + "roles: [edge]\n";
    let vips: Vec<String> = listing.vips().map(|vip| format!("\"{vip}\"")).collect();
    writeln!(text, "vips: [{}]\nservices:", vips.join(", "))?;
    let changed = listing.ports(changed);
    for (number, (service, protocol)) in (0..).zip(services) {
        let (address, port) = (service.ip(), service.port());
        writeln!(
            text,
            "  - name: bench-{number}\n    address: \"{address}\"\n    port: {port}\n    protocol: {protocol}\n    mode: {mode}\n    backends:",
        )?;
        for node in without_last(nodes, changed.contains(&port)) {
            // Where the edge translates nothing, the backend has the Service's port.
            let port = match system {
                System::OursNat => format!(", port: {PORT}"),
                _ => String::new(),
            };
            let node = node.address_like(address);
            writeln!(text, "      - {{ address: \"{node}\"{port} }}")?;
        }
    }
    Ok(text)
}

/// Returns the configuration of a node that takes packets of these edges.
pub(super) fn node(edges: &[IpAddr]) -> String {
    let edges: Vec<String> = edges.iter().map(|edge| format!("\"{edge}\"")).collect();
    let edges = edges.join(", ");
    common(1, FEW_NAT_FLOWS) + &format!("roles: [node]\ntrusted_edges: [{edges}]\n")
}

/// Returns the configuration of an edge that serves `listing` at NodePorts, and of the nodes that have a pod each: one
/// file for all, which are told apart by their addresses. Services of `changed` lack the last pod.
pub(super) fn node_ports(
    listing: &Listing,
    edge: &Machine,
    nodes: &[Machine],
    changed: &[u32],
) -> Result<String> {
    let services = listing.all();
    // A NodePort is a Service of either family.
    let mut text = common(2 * u32::try_from(services.len())?, FEW_NAT_FLOWS);
    writeln!(
        text,
        "trusted_edges: [\"{}\", \"{}\"]\nnodes:",
        edge.v4(),
        edge.v6()
    )?;
    for address in nodes.iter().flat_map(|node| [node.v4(), node.v6()]) {
        writeln!(text, "  - {{ address: \"{address}\" }}")?;
    }
    text.push_str("vips: []\nservices:\n");
    let changed = listing.ports(changed);
    for (number, (service, protocol)) in (0..).zip(services) {
        let (address, port) = (service.ip(), service.port());
        writeln!(
            text,
            "  - name: bench-{number}\n    node_port: {port}\n    protocol: {protocol}\n    mode: ipip\n    backends:",
        )?;
        for node in without_last(nodes, changed.contains(&port)) {
            let pod = node.pods().first().context("the node has no pod")?;
            let [pod, node] = [pod, node].map(|machine| machine.address_like(address));
            writeln!(
                text,
                "      - {{ address: \"{pod}\", port: {PORT}, node: \"{node}\" }}"
            )?;
        }
    }
    Ok(text)
}

fn without_last(nodes: &[Machine], is_changed: bool) -> &[Machine] {
    &nodes[..nodes.len() - usize::from(is_changed)]
}

/// No checks of nodes: their packets would be measured too.
fn common(services: u32, nat_flows: u32) -> String {
    let (socket, interface) = (Guideway::socket(), Machine::INTERFACE);
    let arena = (services * SLOTS * SLOT_BYTES).div_ceil(MIB) + 1;
    let (services, backends) = (services + 64, services * 3 + 256);
    let pods = backends;
    format!(
        "interfaces: [{{ name: {interface}, mode: native }}]
tables: {{ lut_arena_mib: {arena}, services: {services}, backends: {backends}, pods: {pods}, next_hops: 256, vips: 256, nat_flows: {nat_flows} }}
api: {{ socket: {} }}
node_health: off
hash_seed: {HASH_SEED}
",
        socket.display()
    )
}
