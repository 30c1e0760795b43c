//! The settings in force, with defaults filled in and under the names of the file, for `guideway config`.
//!
//! Services, backends and nodes are not included, because other commands show them. Secrets are left out.

use serde_json::{Value, json};

use super::validate::written;
use super::{
    Config, DEFAULT_HASH_SEED, HealthCheckNodePorts, InterfaceEntry, InterfaceSelector, Kubernetes,
    Peers, PeersFound, TableSizes,
};
use crate::desired::{Announce, Desired, MendLimits, NodePortAddresses, Role};

/// Size of a slot in the arena of lookup tables, in bytes.
const SLOT_BYTES: u32 = 4;

/// Returns the settings as a document.
pub fn effective(config: &Config) -> Value {
    let desired = &config.desired;
    let interfaces = config.interfaces.iter().map(interface);
    let nat = &desired.nat;
    let last_port = nat.first_port.saturating_add(nat.ports.saturating_sub(1));
    let ports = &config.node_port_range;
    json!({
        "interfaces": interfaces.collect::<Vec<_>>(),
        "roles": roles(desired),
        "datapath": config.datapath.name(),
        "hash_seed": format!("{}, not shown", seed_source(config)),
        "sources": {
            "ipv4": desired.sources.ipv4,
            "ipv6": desired.sources.ipv6,
            "ipv4_prefix": desired.sources.ipv4_prefix.map(|prefix| prefix.to_string()),
            "ipv6_prefix": desired.sources.ipv6_prefix.map(|prefix| prefix.to_string()),
        },
        "nat": {"ipv4": nat.v4, "ipv6": nat.v6, "ports": format!("{}-{last_port}", nat.first_port)},
        "node_port_addresses": node_port_addresses(&desired.node_port_addresses),
        "node_port_range": format!("{}-{}", ports.start(), ports.end()),
        "default_mode": config.default_mode.to_string(),
        "clamp_mss": switch(desired.clamp_mss),
        "health": config.health.document(),
        "node_health": switch(desired.node_health),
        "trusted_edges": texts(&desired.trusted_edges),
        "kubernetes": config.kubernetes.as_ref().map(kubernetes),
        "announce": desired.announce.as_ref().map(announce),
        "peers": config.peers.as_ref().map(peers),
        "mend": switch(desired.mend.is_some()),
        "mend_limits": mend_limits(desired.mend.unwrap_or_default()),
        "tables": tables(&config.tables),
        "api": {"socket": config.socket},
        "metrics": {"listen": config.metrics.map_or_else(|| "off".to_owned(), |at| at.to_string())},
        "pin_dir": config.pin_dir,
        "node_config": config.node_config,
    })
}

/// Returns an entry under `interfaces`, with what it stands for if that has to be found.
fn interface(entry: &InterfaceEntry) -> Value {
    let (mode, found) = (entry.mode.name(), &entry.found);
    match &entry.selector {
        InterfaceSelector::Name(name) => json!({"name": name, "mode": mode}),
        InterfaceSelector::Pattern(pattern) => {
            json!({"pattern": pattern, "mode": mode, "found": found})
        }
        InterfaceSelector::DefaultRoute => {
            json!({"default_route": true, "mode": mode, "found": found})
        }
    }
}

const fn switch(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn texts<T: ToString>(values: impl IntoIterator<Item = T>) -> Vec<String> {
    values.into_iter().map(|value| value.to_string()).collect()
}

fn roles(desired: &Desired) -> Vec<&'static str> {
    let node = match desired.node {
        Role::No => None,
        Role::Yes => Some("node"),
        Role::IfListed => Some("node, if listed under nodes"),
    };
    let edge = desired.edge.then_some("edge");
    edge.into_iter().chain(node).collect()
}

/// Says where the hash seed comes from. The seed itself is secret: whoever knows it can choose flows that all
/// go to one backend.
pub(crate) fn seed_source(config: &Config) -> &'static str {
    match &config.kubernetes {
        Some(kubernetes) if kubernetes.hash_seed.is_none() => "of the cluster's Secret",
        None if config.desired.hash_seed == DEFAULT_HASH_SEED => "the default",
        Some(_) | None => "of the file",
    }
}

fn node_port_addresses(addresses: &NodePortAddresses) -> Vec<String> {
    match addresses {
        NodePortAddresses::Primary => vec!["primary".to_owned()],
        NodePortAddresses::All => vec!["all".to_owned()],
        NodePortAddresses::Within(networks) => texts(networks),
    }
}

fn kubernetes(kubernetes: &Kubernetes) -> Value {
    json!({
        "node_name": kubernetes.node_name,
        "namespace": kubernetes.namespace,
        "lease_namespace": kubernetes.lease_namespace,
        "service": kubernetes.service,
        "load_balancer_class": kubernetes.load_balancer_class,
        "default_class": kubernetes.default_class,
        "external_ips": texts(&kubernetes.external_ips),
        "topology_hints": if kubernetes.honour_hints { "honour" } else { "ignore" },
        "health_check_node_port": match kubernetes.health_check_node_port {
            HealthCheckNodePorts::Auto => "auto",
            HealthCheckNodePorts::On => "on",
            HealthCheckNodePorts::Off => "off",
        },
        "healthz": kubernetes.healthz.map(|at| at.to_string()),
        "table_share": kubernetes.table_share,
        "namespace_table_share": (kubernetes.namespace_table_share)
            .map_or_else(|| "off".to_owned(), |percent| percent.to_string()),
    })
}

fn announce(announce: &Announce) -> Value {
    json!({
        "interfaces": announce.interfaces,
        "addresses": texts(&announce.within),
        "node_selector": announce.node_selector,
    })
}

fn peers(peers: &Peers) -> Value {
    let (addresses, key_file) = match &peers.found {
        PeersFound::InFile {
            addresses,
            key_file,
        } => (Some(texts(addresses)), Some(key_file)),
        PeersFound::InCluster { .. } => (None, None),
    };
    json!({
        "listen": peers.listen.map_or_else(|| "off".to_owned(), |at| at.to_string()),
        "addresses": addresses,
        "key_file": key_file,
    })
}

fn mend_limits(limits: MendLimits) -> Value {
    json!({
        "memory_kib": limits.bytes >> 10,
        "source_kib": limits.bytes_of_source >> 10,
        "wait": written(limits.wait),
        "next_hop_packets": limits.packets_of_next_hop,
        "next_hop_wait": written(limits.next_hop_wait),
    })
}

fn tables(sizes: &TableSizes) -> Value {
    json!({
        "lut_arena_mib": (sizes.lut_slots * SLOT_BYTES) >> 20,
        "services": sizes.services,
        "backends": sizes.backends,
        "next_hops": sizes.next_hops,
        "vips": sizes.vips,
        "trusted_edges": sizes.trusted_edges,
        "pods": sizes.pods,
        "source_ranges": sizes.source_ranges,
        "flows": sizes.flows,
        "nat_flows": sizes.nat_flows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    /// Lists the fields of a file that are not told.
    fn missing(path: &str, file: &Value, told: &Value) -> Vec<String> {
        let Value::Object(fields) = file else {
            return told
                .is_null()
                .then(|| path.to_owned())
                .into_iter()
                .collect();
        };
        let fields = fields.iter();
        fields
            .flat_map(|(name, value)| missing(&format!("{path}.{name}"), value, &told[name]))
            .collect()
    }

    #[test]
    fn every_setting_is_told_and_no_secret() {
        const OF_OTHER_COMMANDS: [&str; 3] = [".nodes", ".vips", ".services"];
        let secret = 0xfeed_f00d_cafe_1234_u64;
        let seed = format!("hash_seed: {secret}");
        for (file, seed_there) in [
            (include_str!("tests/every_field.yaml"), "hash_seed: 0xFF"),
            (include_str!("tests/kubernetes.yaml"), "hash_seed: 9"),
        ] {
            let text = file.replace(seed_there, &seed);
            let config = config::parse(&text).unwrap();
            let told = effective(&config);
            let file: Value = serde_saphyr::from_str(&text).unwrap();
            let mut missing = missing("", &file, &told);
            missing.retain(|field| !OF_OTHER_COMMANDS.contains(&field.as_str()));
            assert!(missing.is_empty(), "{missing:?} of:\n{told:#}");
            assert_eq!(config.desired.hash_seed, secret);
            let page = told.to_string();
            assert!(!page.contains(&secret.to_string()) && !page.contains(&format!("{secret:x}")));
        }
    }

    #[test]
    fn defaults_are_filled_in() {
        let config = config::parse("interfaces: [{name: eth0}]\nkubernetes: {}\n").unwrap();
        let told = effective(&config);
        assert_eq!(told["tables"]["lut_arena_mib"], 64);
        assert_eq!(told["node_port_range"], "30000-32767");
        assert_eq!(told["kubernetes"]["service"], "guideway");
        assert_eq!(told["metrics"]["listen"], "off");
        assert_eq!(told["default_mode"], "ipip");
        assert_eq!(told["kubernetes"]["table_share"], 25);
        assert_eq!(told["kubernetes"]["namespace_table_share"], "off");
        assert_eq!(told["health"]["type"], "tcp");
        assert_eq!(told["health"]["interval"], "5s");
        assert_eq!(told["interfaces"][0]["mode"], "native-or-generic");
    }
}
