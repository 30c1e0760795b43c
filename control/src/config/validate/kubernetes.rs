//! The rules for the section `kubernetes`, and for what the API says in place of the file.

use std::collections::BTreeSet;

use ipnet::IpNet;
use serde_saphyr::Spanned;

use super::super::{DEFAULT_SERVICE, Kubernetes, Problem, Source, TableSizes, raw};
use super::Rules;
use super::values::{decimal, position};
use crate::desired::ForwardMode;
use crate::healthz::ports;
use crate::index::{Options, Room};

/// Longest DNS subdomain, which object names are.
const MAX_NAME: usize = 253;

impl Rules {
    /// Returns the section's values where the API is the source of the services.
    pub(super) fn kubernetes(
        &mut self,
        file: &raw::File,
        source: Source,
        default_mode: ForwardMode,
        hash_seed: Option<u64>,
        tables: TableSizes,
    ) -> Option<Kubernetes> {
        let section = file.kubernetes.as_ref();
        match (source, section) {
            (Source::File, Some(section)) => {
                self.problems.push(Problem {
                    position: Some(position(section)),
                    field: "kubernetes".to_owned(),
                    value: String::new(),
                    reason: "this section is for services that come from the API".to_owned(),
                    remedy: "start the agent with `guideway run --kubernetes`, or remove it"
                        .to_owned(),
                });
                None
            }
            (Source::File | Source::AsWritten, None) => None,
            (Source::Kubernetes, _) | (Source::AsWritten, Some(_)) => {
                self.refuse_what_the_api_says(file);
                let nothing = raw::Kubernetes::default();
                let section = section.map_or(&nothing, |section| &section.value);
                let service = self.object_name("service", &section.service);
                let class = section.load_balancer_class.as_ref();
                let class = class.and_then(|text| self.class(text));
                let default_class = section.default_class.as_ref();
                let healthz = section.healthz.as_ref();
                Some(Kubernetes {
                    node_name: self.object_name("node_name", &section.node_name),
                    namespace: self.object_name("namespace", &section.namespace),
                    lease_namespace: self.object_name("lease_namespace", &section.lease_namespace),
                    service: service.unwrap_or_else(|| DEFAULT_SERVICE.to_owned()),
                    load_balancer_class: class.unwrap_or_else(|| Options::DEFAULT_CLASS.to_owned()),
                    default_class: self.switch("kubernetes.default_class", default_class, false),
                    external_ips: self.external_ips(section),
                    honour_hints: self.topology_hints(section.topology_hints.as_ref()),
                    health_check_node_port: self
                        .health_check_node_port(section.health_check_node_port.as_ref()),
                    healthz: healthz.and_then(|text| self.listen("kubernetes.healthz", text)),
                    service_room: self
                        .share("table_share", section.table_share.as_ref(), tables)
                        .unwrap_or_else(|| room(tables).share(Options::DEFAULT_SHARE)),
                    namespace_room: section
                        .namespace_table_share
                        .as_ref()
                        .filter(|text| text.value != "off")
                        .and_then(|text| self.share("namespace_table_share", Some(text), tables)),
                    default_mode,
                    hash_seed,
                })
            }
        }
    }

    fn refuse_what_the_api_says(&mut self, file: &raw::File) {
        let nodes = file.nodes.as_ref().map(position);
        let services = file.services.as_ref().map(position);
        let vips = file.vips.as_ref().map(position);
        let trusted = file.trusted_edges.as_ref().map(position);
        for (field, at, remedy) in [
            (
                "services",
                services,
                "remove it; services are those of the API",
            ),
            (
                "vips",
                vips,
                "remove it; addresses are those in the status of Services",
            ),
            (
                "nodes",
                nodes,
                "remove it; nodes are those on which the pods of kubernetes.service run",
            ),
            (
                "trusted_edges",
                trusted,
                "remove it; give edges outside the cluster an EndpointSlice of kubernetes.service",
            ),
        ] {
            if let Some(at) = at {
                self.problems.push(Problem {
                    position: Some(at),
                    field: field.to_owned(),
                    value: String::new(),
                    reason: "the Kubernetes API says this".to_owned(),
                    remedy: remedy.to_owned(),
                });
            }
        }
    }

    /// Takes a name as RFC 1123 has it: lower-case letters, digits, dashes and dots.
    fn object_name(&mut self, field: &str, text: &raw::Text) -> Option<String> {
        let text = text.as_ref()?;
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_name = text.value.len() <= MAX_NAME
            && text.value.split('.').all(|label| {
                let bytes = label.as_bytes();
                bytes.first().is_some_and(|byte| inner(*byte))
                    && bytes.last().is_some_and(|byte| inner(*byte))
                    && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
            });
        if !is_name {
            self.refuse(
                &format!("kubernetes.{field}"),
                text,
                "not the name of an object",
                "use lower-case letters, digits, - and ., as `kubectl get` shows it",
            );
            return None;
        }
        Some(text.value.clone())
    }

    /// Takes a class: a name with or without a prefix.
    fn class(&mut self, text: &Spanned<String>) -> Option<String> {
        let bytes = text.value.bytes();
        let mut parts = text.value.split('/');
        let is_class = text.value.len() <= MAX_NAME
            && bytes
                .into_iter()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
            && parts.all(|part| !part.is_empty())
            && text.value.matches('/').count() <= 1;
        if !is_class {
            self.refuse(
                "kubernetes.load_balancer_class",
                text,
                "not a load balancer class",
                "write it as spec.loadBalancerClass has it, such as guideway.dev/guideway",
            );
            return None;
        }
        Some(text.value.clone())
    }

    fn external_ips(&mut self, section: &raw::Kubernetes) -> BTreeSet<IpNet> {
        let listed = section.external_ips.iter();
        let listed = listed.flat_map(|listed| &listed.value).enumerate();
        listed
            .filter_map(|(index, text)| {
                self.network(&format!("kubernetes.external_ips[{index}]"), text)
            })
            .collect()
    }

    fn health_check_node_port(&mut self, text: Option<&Spanned<String>>) -> ports::Mode {
        match text.map(|text| (text.value.as_str(), text)) {
            None | Some(("auto", _)) => ports::Mode::Auto,
            Some(("on", _)) => ports::Mode::On,
            Some(("off", _)) => ports::Mode::Off,
            Some((_, text)) => {
                self.refuse(
                    "kubernetes.health_check_node_port",
                    text,
                    "not a way to serve health check ports",
                    "use auto, on or off",
                );
                ports::Mode::default()
            }
        }
    }

    /// Takes a share of the arena of lookup tables; returns its slots.
    fn share(
        &mut self,
        field: &str,
        text: Option<&Spanned<String>>,
        tables: TableSizes,
    ) -> Option<Room> {
        let text = text?;
        let percent: Option<u64> = decimal(&text.value).filter(|share| (1..=100).contains(share));
        if percent.is_none() {
            self.refuse(
                &format!("kubernetes.{field}"),
                text,
                "not a share of the tables",
                "use a number of percent, from 1 to 100",
            );
        }
        Some(room(tables).share(percent?))
    }

    fn topology_hints(&mut self, text: Option<&Spanned<String>>) -> bool {
        match text.map(|text| (text.value.as_str(), text)) {
            None | Some(("honour", _)) => true,
            Some(("ignore", _)) => false,
            Some((_, text)) => {
                self.refuse(
                    "kubernetes.topology_hints",
                    text,
                    "not a way to treat hints",
                    "use honour or ignore",
                );
                true
            }
        }
    }
}

/// Returns the room that all Services have together.
fn room(tables: TableSizes) -> Room {
    Room {
        slots: tables.lut_slots.into(),
        services: tables.services.into(),
        backends: tables.backends.into(),
        pods: tables.pods.into(),
        source_ranges: tables.source_ranges.into(),
    }
}
