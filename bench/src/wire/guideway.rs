//! Configuration of Guideway's agents, on edges and nodes.

use std::{fmt::Write as _, net::IpAddr};

use anyhow::Result;
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

/// Returns the configuration of the edge that balances `listing` over the nodes.
pub(super) fn edge(system: System, listing: &Listing, nodes: &[Machine]) -> Result<String> {
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
    let mut text = common("edge", u32::try_from(services.len())?, nat_flows);
    let vips: Vec<String> = listing.vips().map(|vip| format!("\"{vip}\"")).collect();
    writeln!(text, "vips: [{}]\nservices:", vips.join(", "))?;
    for (number, (service, protocol)) in (0..).zip(services) {
        let (address, port) = (service.ip(), service.port());
        writeln!(
            text,
            "  - name: bench-{number}\n    address: \"{address}\"\n    port: {port}\n    protocol: {protocol}\n    mode: {mode}\n    backends:",
        )?;
        for node in nodes {
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
    common("node", 1, FEW_NAT_FLOWS) + &format!("trusted_edges: [{}]\n", edges.join(", "))
}

/// No checks of nodes: their packets would be measured too.
fn common(role: &str, services: u32, nat_flows: u32) -> String {
    let (socket, interface) = (Guideway::socket(), Machine::INTERFACE);
    let arena = (services * SLOTS * SLOT_BYTES).div_ceil(MIB) + 1;
    let (services, backends) = (services + 64, services * 3 + 256);
    format!(
        "interfaces: [{{ name: {interface}, mode: native }}]
tables: {{ lut_arena_mib: {arena}, services: {services}, backends: {backends}, next_hops: 256, vips: 256, nat_flows: {nat_flows} }}
api: {{ socket: {} }}
roles: [{role}]
node_health: off
hash_seed: {HASH_SEED}
",
        socket.display()
    )
}
