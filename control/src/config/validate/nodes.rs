//! The rules for machines that run Guideway, and for the NodePorts that they serve.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde_saphyr::Spanned;

use super::super::{Origins, raw};
use super::Rules;
use super::values::{decimal, position};
use crate::desired::NodePortAddresses;

/// Kubernetes' own default for `--service-node-port-range`.
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

impl Rules {
    /// Returns the addresses of the machines that run Guideway; all listed ones stand in `origins`.
    pub(super) fn nodes(&mut self, file: &raw::File, origins: &mut Origins) -> BTreeSet<IpAddr> {
        let mut nodes = BTreeSet::new();
        let listed = file.nodes.iter().flat_map(|listed| &listed.value);
        for (index, node) in listed.enumerate() {
            let field = format!("nodes[{index}]");
            let guideway = node.value.guideway.as_ref();
            let guideway = match guideway.map(|text| (text.value.as_str(), text)) {
                None | Some(("true", _)) => true,
                Some(("false", _)) => false,
                Some((_, text)) => {
                    let field = format!("{field}.guideway");
                    self.refuse(&field, text, "not a truth value", "use true or false");
                    continue;
                }
            };
            let field = format!("{field}.address");
            let Some(text) = &node.value.address else {
                let remedy = "give the address by which edges reach the node";
                self.missing(&field, Some(position(node)), remedy);
                continue;
            };
            let Some(address) = self.address(&field, text) else {
                continue;
            };
            if let Some(vip) = origins.vips.get(&address) {
                let reason = format!("this address is the VIP at {vip}");
                let remedy = "give the node's own address, which no other machine has";
                self.refuse(&field, text, reason, remedy);
            }
            match origins.nodes.entry(address) {
                Entry::Vacant(vacant) => {
                    vacant.insert(position(text));
                    if guideway {
                        nodes.insert(address);
                    }
                }
                Entry::Occupied(first) => {
                    let reason = format!("this node is already listed at {}", first.get());
                    self.refuse(&field, text, reason, "list each node once");
                }
            }
        }
        nodes
    }

    pub(super) fn node_port_addresses(&mut self, file: &raw::File) -> NodePortAddresses {
        let Some(listed) = &file.node_port_addresses else {
            return NodePortAddresses::Primary;
        };
        let mut within: BTreeMap<IpNet, _> = BTreeMap::new();
        let mut keyword = None;
        for (index, text) in listed.value.iter().enumerate() {
            let field = format!("node_port_addresses[{index}]");
            match text.value.as_str() {
                "primary" => keyword = Some(NodePortAddresses::Primary),
                "all" => keyword = Some(NodePortAddresses::All),
                "localhost" => self.refuse(
                    &field,
                    text,
                    "no packet enters the machine by its loopback addresses",
                    "use primary, all, or networks of the machine's addresses",
                ),
                _ => {
                    if let Some(network) = self.network(&field, text)
                        && let Some(first) = within.insert(network, position(text))
                    {
                        let reason = format!("this network is already listed at {first}");
                        self.refuse(&field, text, reason, "list each network once");
                    }
                }
            }
        }
        if listed.value.is_empty() {
            self.missing(
                "node_port_addresses",
                Some(position(listed)),
                "use primary, all, or networks of the machine's addresses",
            );
        }
        match keyword {
            Some(_) if listed.value.len() > 1 => {
                self.refuse(
                    "node_port_addresses",
                    &listed.value[0],
                    "a keyword stands for all addresses that it means and takes none beside it",
                    "use primary or all alone, or networks only",
                );
                NodePortAddresses::Primary
            }
            Some(keyword) => keyword,
            None => NodePortAddresses::Within(within.into_keys().collect()),
        }
    }

    pub(super) fn node_port_range(&mut self, file: &raw::File) -> RangeInclusive<u16> {
        let text = file.node_port_range.as_ref();
        let range = text
            .and_then(|text| self.port_range("node_port_range", text, "write it like 30000-32767"));
        range.unwrap_or(NODE_PORTS)
    }

    /// Takes a range of ports.
    pub(super) fn port_range(
        &mut self,
        field: &str,
        text: &Spanned<String>,
        remedy: &str,
    ) -> Option<RangeInclusive<u16>> {
        let ends = text.value.split_once('-');
        let ends = ends.and_then(|(first, last)| Some((decimal(first)?, decimal(last)?)));
        let range = ends.filter(|&(first, last)| first > 0 && first <= last);
        if range.is_none() {
            self.refuse(field, text, "not a range of ports", remedy);
        }
        range.map(|(first, last)| first..=last)
    }

    pub(super) fn node_port(
        &mut self,
        field: &str,
        text: &Spanned<String>,
        range: &RangeInclusive<u16>,
    ) -> Option<u16> {
        let remedy = format!("use a port from {} to {}", range.start(), range.end());
        match decimal::<u16>(&text.value) {
            Some(port) if range.contains(&port) => return Some(port),
            Some(_) => self.refuse(
                field,
                text,
                "outside the range of NodePorts",
                format!("{remedy}, or widen node_port_range"),
            ),
            None => self.refuse(field, text, "not a port", remedy),
        }
        None
    }
}
