//! The rules for the section `kubernetes`, and for fields that must be absent because the API provides them.

use super::super::problem::Position;
use super::super::{DEFAULT_SERVICE, HealthCheckNodePorts, Kubernetes, Source, TableSizes, raw};
use super::values::{self, Refusal, number, refusal, word};
use super::{Rules, entries, position};
use crate::desired::ForwardMode;
use crate::index::{Options, TableEntries};

/// Longest object name (a DNS subdomain), in bytes.
const MAX_NAME: usize = 253;

impl Rules {
    /// Returns the settings of the section if services come from the API.
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
                let reason = "this section is for services that come from the API";
                let remedy = "start the agent with `guideway run --kubernetes`, or remove it";
                let at = Some(position(section));
                self.report(at, "kubernetes", "", refusal(reason, remedy));
                return None;
            }
            (Source::File | Source::AsWritten, None) => return None,
            (Source::Kubernetes, _) | (Source::AsWritten, Some(_)) => {}
        }
        self.refuse_what_the_api_says(file);
        let nothing = raw::Kubernetes::default();
        let section = section.map_or(&nothing, |section| &section.value);
        let at = |name: &str| format!("kubernetes.{name}");
        let service = self.read(&at("service"), &section.service, object_name);
        let class = self.read(
            &at("load_balancer_class"),
            &section.load_balancer_class,
            class,
        );
        let is_default = self.read(&at("default_class"), &section.default_class, values::switch);
        let listed = entries("kubernetes.external_ips", &section.external_ips);
        let external_ips =
            listed.filter_map(|(field, text)| self.read(&field, text, values::network));
        let external_ips = external_ips.collect();
        let hints = self.read(&at("topology_hints"), &section.topology_hints, |text| {
            let words = [("honour", true), ("ignore", false)];
            word(text, &words, "not a way to treat hints")
        });
        let ports = &section.health_check_node_port;
        let ports = self.read(&at("health_check_node_port"), ports, ports_mode);
        let room = TableEntries {
            slots: tables.lut_slots.into(),
            services: tables.services.into(),
            backends: tables.backends.into(),
            pods: tables.pods.into(),
            source_ranges: tables.source_ranges.into(),
        };
        let share = self.read(&at("table_share"), &section.table_share, percent);
        let of_namespace = section.namespace_table_share.as_ref();
        let of_namespace = of_namespace.filter(|text| text.value != "off");
        let of_namespace = self.read(&at("namespace_table_share"), of_namespace, percent);
        let healthz = self.read(&at("healthz"), &section.healthz, values::listen);
        Some(Kubernetes {
            node_name: self.read(&at("node_name"), &section.node_name, object_name),
            namespace: self.read(&at("namespace"), &section.namespace, object_name),
            lease_namespace: self.read(
                &at("lease_namespace"),
                &section.lease_namespace,
                object_name,
            ),
            service: service.unwrap_or_else(|| DEFAULT_SERVICE.to_owned()),
            load_balancer_class: class.unwrap_or_else(|| Options::DEFAULT_CLASS.to_owned()),
            default_class: is_default.unwrap_or(false),
            external_ips,
            honour_hints: hints.unwrap_or(true),
            health_check_node_port: ports.unwrap_or_default(),
            healthz: healthz.flatten(),
            room,
            table_share: share.unwrap_or(Options::DEFAULT_SHARE),
            namespace_table_share: of_namespace,
            default_mode,
            hash_seed,
        })
    }

    fn refuse_what_the_api_says(&mut self, file: &raw::File) {
        let services = file.services.as_ref().map(position);
        let vips = file.vips.as_ref().map(position);
        let nodes = file.nodes.as_ref().map(position);
        let trusted = file.trusted_edges.as_ref().map(position);
        for (field, at, instead) in [
            ("services", services, "services are those of the API"),
            (
                "vips",
                vips,
                "addresses are those in the status of Services",
            ),
            (
                "nodes",
                nodes,
                "nodes are those on which the pods of kubernetes.service run",
            ),
            (
                "trusted_edges",
                trusted,
                "give edges outside the cluster an EndpointSlice of kubernetes.service",
            ),
        ] {
            if at.is_some() {
                self.says_the_api(field, at, instead);
            }
        }
    }

    /// Refuses a field of the file, because the API has what it says.
    pub(super) fn says_the_api(&mut self, field: &str, at: Option<Position>, instead: &str) {
        let remedy = format!("remove it; {instead}");
        let refusal = refusal("the Kubernetes API says this", remedy);
        self.report(at, field, "", refusal);
    }
}

/// Reads an object's name by RFC 1123: lower-case letters, digits, dashes and dots.
fn object_name(text: &str) -> Result<String, Refusal> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(|byte| inner(*byte))
            && bytes.last().is_some_and(|byte| inner(*byte))
            && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
    };
    if text.len() <= MAX_NAME && text.split('.').all(is_label) {
        return Ok(text.to_owned());
    }
    let remedy = "use lower-case letters, digits, - and ., as `kubectl get` shows it";
    Err(refusal("not the name of an object", remedy))
}

/// Reads a `loadBalancerClass`: a name, with or without a prefix.
fn class(text: &str) -> Result<String, Refusal> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    let is_class = text.len() <= MAX_NAME
        && text.bytes().all(is_allowed)
        && text.split('/').all(|part| !part.is_empty())
        && text.matches('/').count() <= 1;
    if is_class {
        return Ok(text.to_owned());
    }
    let remedy = "write it as spec.loadBalancerClass has it, such as guideway.dev/guideway";
    Err(refusal("not a load balancer class", remedy))
}

fn ports_mode(text: &str) -> Result<HealthCheckNodePorts, Refusal> {
    let modes = [
        ("auto", HealthCheckNodePorts::Auto),
        ("on", HealthCheckNodePorts::On),
        ("off", HealthCheckNodePorts::Off),
    ];
    word(text, &modes, "not a way to serve health check ports")
}

/// Reads a share of the tables, in percent.
fn percent(text: &str) -> Result<u64, Refusal> {
    let remedy = "use a number of percent, from 1 to 100";
    number(text, &(1..=100), "not a share of the tables", remedy)
}
