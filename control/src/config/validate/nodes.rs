//! The rules for machines that run Guideway, and for their NodePorts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::values::{self, Refusal, decimal, refusal, word};
use super::{Rules, entries, position, raw};
use crate::desired::NodePortAddresses;

/// Kubernetes' default of `--service-node-port-range`.
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

impl Rules {
    /// Returns the addresses of the machines that run Guideway. `origins` gets the addresses of all listed machines.
    pub(super) fn nodes(&mut self, file: &raw::File) -> BTreeSet<IpAddr> {
        let (mut nodes, mut seen) = (BTreeSet::new(), BTreeMap::new());
        for (field, node) in entries("nodes", &file.nodes) {
            let guideway = node.value.guideway.as_ref();
            let truth = |text: &str| {
                word(
                    text,
                    &[("true", true), ("false", false)],
                    "not a truth value",
                )
            };
            let runs_guideway = self.read(&format!("{field}.guideway"), guideway, truth);
            if guideway.is_some() && runs_guideway.is_none() {
                continue;
            }
            let text = &node.value.address;
            let field = format!("{field}.address");
            let remedy = "give the address by which edges reach the node";
            let address = self.required(&field, node, text, remedy, values::address);
            let (Some(address), Some(text)) = (address, text) else {
                continue;
            };
            if let Some(vip) = self.origins.vips.get(&address) {
                let reason = format!("this address is the VIP at {vip}");
                let remedy = "give the node's own address, which no other machine has";
                self.refuse(&field, text, refusal(reason, remedy));
            }
            if self.is_first(&mut seen, address, &field, text, "node")
                && runs_guideway.unwrap_or(true)
            {
                nodes.insert(address);
            }
        }
        self.origins.nodes = seen;
        nodes
    }

    pub(super) fn node_port_addresses(&mut self, file: &raw::File) -> NodePortAddresses {
        const REMEDY: &str = "use primary, all, or networks of the machine's addresses";
        const FIELD: &str = "node_port_addresses";
        let Some(listed) = &file.node_port_addresses else {
            return NodePortAddresses::Primary;
        };
        let mut within = BTreeMap::new();
        let mut keyword = None;
        for (field, text) in entries(FIELD, &file.node_port_addresses) {
            match text.value.as_str() {
                "primary" => keyword = Some(NodePortAddresses::Primary),
                "all" => keyword = Some(NodePortAddresses::All),
                "localhost" => {
                    let reason = "no packet enters the machine by its loopback addresses";
                    self.refuse(&field, text, refusal(reason, REMEDY));
                }
                _ => {
                    if let Some(network) = self.read(&field, text, values::network) {
                        self.is_first(&mut within, network, &field, text, "network");
                    }
                }
            }
        }
        if listed.value.is_empty() {
            self.missing(FIELD, Some(position(listed)), REMEDY);
        }
        match keyword {
            Some(_) if listed.value.len() > 1 => {
                let reason =
                    "a keyword stands for all addresses that it means and takes none beside it";
                let remedy = "use primary or all alone, or networks only";
                self.refuse(FIELD, &listed.value[0], refusal(reason, remedy));
                NodePortAddresses::Primary
            }
            Some(keyword) => keyword,
            None => NodePortAddresses::Within(within.into_keys().collect()),
        }
    }

    pub(super) fn node_port_range(&mut self, file: &raw::File) -> RangeInclusive<u16> {
        let range = |text: &str| values::port_range(text, "30000-32767");
        let range = self.read("node_port_range", &file.node_port_range, range);
        range.unwrap_or(NODE_PORTS)
    }
}

pub(super) fn node_port(text: &str, range: &RangeInclusive<u16>) -> Result<u16, Refusal> {
    let remedy = format!("use a port from {} to {}", range.start(), range.end());
    match decimal(text) {
        Some(port) if range.contains(&port) => Ok(port),
        Some(_) => {
            let remedy = format!("{remedy}, or widen node_port_range");
            Err(refusal("outside the range of NodePorts", remedy))
        }
        None => Err(refusal("not a port", remedy)),
    }
}
