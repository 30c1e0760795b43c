//! The configuration file as written: its shape only.
//!
//! Every leaf is a text with its position, and every field is optional. So `validate` sees the whole file and
//! can report all broken rules at once. serde rejects only a wrong shape: unknown or repeated fields, a list in
//! place of a value.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_saphyr::Spanned;

pub(super) type Text = Option<Spanned<String>>;
pub(super) type List<T> = Option<Spanned<Vec<T>>>;

/// Declares sections of the file. Every field may be left out, and unknown fields are errors.
macro_rules! sections {
    ($($name:ident { $($(#[$attribute:meta])? $field:ident: $type:ty,)* })*) => {$(
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $name {
            $($(#[$attribute])? pub(super) $field: $type,)*
        }

        impl Overlay for $name {
            fn over(self, base: Self) -> Self {
                Self { $($field: self.$field.over(base.$field),)* }
            }
        }
    )*};
}

/// A part of the file that another one is laid over: sections are merged; single values and lists are replaced.
pub(super) trait Overlay {
    /// Lays this over `base`.
    fn over(self, base: Self) -> Self;
}

impl Overlay for String {
    fn over(self, _: Self) -> Self {
        self
    }
}

impl<T> Overlay for Vec<T> {
    fn over(self, _: Self) -> Self {
        self
    }
}

impl Overlay for BTreeMap<String, String> {
    fn over(self, mut base: Self) -> Self {
        base.extend(self);
        base
    }
}

impl<T: Overlay> Overlay for Spanned<T> {
    fn over(self, base: Self) -> Self {
        Self {
            value: self.value.over(base.value),
            ..self
        }
    }
}

impl<T: Overlay> Overlay for Option<T> {
    fn over(self, base: Self) -> Self {
        match (self, base) {
            (Some(this), Some(base)) => Some(this.over(base)),
            (this, base) => this.or(base),
        }
    }
}

sections! {
    File {
        interfaces: List<Spanned<Interface>>,
        roles: List<Spanned<String>>,
        datapath: Text,
        nodes: List<Spanned<Node>>,
        hash_seed: Text,
        sources: Option<Sources>,
        nat: Option<Nat>,
        default_mode: Text,
        vips: List<Spanned<String>>,
        node_port_addresses: List<Spanned<String>>,
        node_port_range: Text,
        clamp_mss: Text,
        services: List<Spanned<Service>>,
        health: Option<Spanned<Health>>,
        node_health: Text,
        trusted_edges: List<Spanned<String>>,
        kubernetes: Option<Spanned<Kubernetes>>,
        announce: Option<Spanned<Announce>>,
        peers: Option<Spanned<Peers>>,
        mend: Text,
        mend_limits: Option<MendLimits>,
        tables: Option<Tables>,
        api: Option<Api>,
        metrics: Option<Metrics>,
        pin_dir: Text,
        node_config: List<Spanned<NodeConfig>>,
    }
    NodeConfig {
        nodes: List<Spanned<String>>,
        config: Option<Spanned<File>>,
    }
    Interface {
        name: Text,
        pattern: Text,
        default_route: Text,
        mode: Text,
    }
    Node {
        address: Text,
        guideway: Text,
    }
    Sources {
        ipv4: Text,
        ipv6: Text,
        ipv4_prefix: Text,
        ipv6_prefix: Text,
    }
    Nat {
        ipv4: Text,
        ipv6: Text,
        ports: Text,
    }
    Service {
        name: Text,
        address: Text,
        port: Text,
        node_port: Text,
        protocol: Text,
        mode: Text,
        table_size: Text,
        traffic_policy: Text,
        source_ranges: List<Spanned<String>>,
        session_affinity: Text,
        session_affinity_seconds: Text,
        health: Option<Spanned<Health>>,
        backends: List<Spanned<Backend>>,
    }
    Health {
        #[serde(rename = "type")]
        kind: Text,
        port: Text,
        path: Text,
        host: Text,
        status: List<Spanned<String>>,
        body: Text,
        interval: Text,
        timeout: Text,
        rise: Text,
        fall: Text,
    }
    Backend {
        address: Text,
        port: Text,
        node: Text,
        weight: Text,
        drain: Text,
    }
    Kubernetes {
        node_name: Text,
        namespace: Text,
        lease_namespace: Text,
        service: Text,
        load_balancer_class: Text,
        default_class: Text,
        external_ips: List<Spanned<String>>,
        topology_hints: Text,
        health_check_node_port: Text,
        healthz: Text,
        table_share: Text,
        namespace_table_share: Text,
    }
    Announce {
        interfaces: List<Spanned<String>>,
        addresses: List<Spanned<String>>,
        node_selector: Option<Spanned<BTreeMap<String, String>>>,
    }
    Peers {
        listen: Text,
        addresses: List<Spanned<String>>,
        key_file: Text,
    }
    MendLimits {
        memory_kib: Text,
        source_kib: Text,
        wait: Text,
        next_hop_packets: Text,
        next_hop_wait: Text,
    }
    Tables {
        lut_arena_mib: Text,
        services: Text,
        backends: Text,
        next_hops: Text,
        vips: Text,
        trusted_edges: Text,
        pods: Text,
        source_ranges: Text,
        flows: Text,
        nat_flows: Text,
    }
    Api {
        socket: Text,
    }
    Metrics {
        listen: Text,
    }
}
