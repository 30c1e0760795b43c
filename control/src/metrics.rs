//! What the agent counts, in the OpenMetrics text that Prometheus scrapes.
//!
//! Every metric is declared here, once; `control/README.md` has the same list for
//! people, and a test keeps the two equal. The values are read when they are asked
//! for: nothing is kept between two scrapes.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::api::{Backend, Reason, Service, Status};
use crate::desired::ServiceKey;
use crate::durations::Durations;
use crate::kubernetes::Watching;

/// Everything that a scrape shows, read at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The agent and its tables.
    pub status: Status,
    /// When the agent started, in seconds since 1970.
    pub started_at: u64,
    /// The services.
    pub services: Vec<Service>,
    /// The backends, each node address once.
    pub backends: Vec<Backend>,
    /// The pass and drop reasons.
    pub reasons: Vec<Reason>,
    /// The causes of frames that XDP failed to send.
    pub failures: Vec<Reason>,
    /// What the checks come to.
    pub health: HealthValues,
    /// How the Kubernetes API is followed, where it is.
    pub kubernetes: Option<KubernetesValues>,
}

/// How the Kubernetes API is followed.
#[derive(Clone, Debug, PartialEq)]
pub struct KubernetesValues {
    /// What the watchers say.
    pub watching: Watching,
    /// Whether the first state is in the tables.
    pub synced: bool,
    /// Number of problems of objects.
    pub problems: usize,
    /// From a change's arrival to the tables.
    pub sync: Durations,
    /// From a change in the cluster to the tables.
    pub programming: Durations,
}

/// What the checks of backends and nodes come to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HealthValues {
    /// Backends that are checked.
    pub backends: Vec<CheckedBackend>,
    /// Nodes of which a check has come to a result, each with whether it answers.
    pub nodes: Vec<(String, bool)>,
    /// Checks that are not made, by reason.
    pub not_made: [(&'static str, usize); 2],
    /// How long checks took, by type.
    pub durations: BTreeMap<&'static str, Durations>,
}

/// A backend that is checked.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedBackend {
    /// Name of the service.
    pub name: String,
    /// The service.
    pub service: ServiceKey,
    /// The backend.
    pub backend: String,
    /// Whether it should serve.
    pub healthy: bool,
}

/// Services, or backends, that have series of their own; of more, only what is wrong with some. A quarter of a
/// million series from each of a hundred machines is more than a Prometheus server takes. A sum is no way out:
/// it falls with each service that goes, as a counter never does.
const MOST_SERIES: usize = 5000;

/// Content type of [`render`]'s text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writes a scrape.
///
/// # Errors
///
/// Never with the metrics declared here; the encoder has the error in its type.
pub fn render(snapshot: Snapshot) -> Result<String, fmt::Error> {
    encoded(snapshot)
}

/// Writes what a collector has, under the prefix of all our metrics.
pub(crate) fn encoded(collector: impl Collector) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("guideway");
    registry.register_collector(Box::new(collector));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.agent(&mut encoder)?;
        self.interfaces(&mut encoder)?;
        self.traffic(&mut encoder)?;
        self.health(&mut encoder)?;
        self.tables(&mut encoder)?;
        match &self.kubernetes {
            Some(values) => values.encode(&mut encoder),
            None => Ok(()),
        }
    }
}

impl Snapshot {
    fn agent(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let config = &self.status.config;
        let mut build = gauge(
            encoder,
            "build_info",
            "Always 1; the label tells the agent's version",
        )?;
        build
            .encode_family(&[("version", self.status.version.as_str())])?
            .encode_gauge(&1_i64)?;
        gauge(
            encoder,
            "start_time_seconds",
            "When the agent started, since 1970",
        )?
        .encode_gauge(&self.started_at)?;
        let mut reloads = counter(
            encoder,
            "config_reloads",
            "Times the configuration was read, by result",
        )?;
        for (result, times) in [("success", config.reloads), ("failure", config.failures)] {
            count(&mut reloads, &[("result", result)], times)?;
        }
        gauge(
            encoder,
            "config_last_reload_successful",
            "1 if the file as it is is in force, 0 if it was refused",
        )?
        .encode_gauge(&i64::from(config.error.is_none()))?;
        gauge(
            encoder,
            "config_last_reload_success_timestamp_seconds",
            "When the configuration in force was loaded, since 1970",
        )?
        .encode_gauge(&config.loaded_at)?;
        gauge(
            encoder,
            "unapplied_changes",
            "Services, interfaces and next hops that could not be brought to their desired state",
        )?
        .encode_gauge(&size(self.status.unapplied))
    }

    fn interfaces(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut attached = gauge(
            encoder,
            "interface_attached",
            "1 if the program is attached to the interface, by mode; 0 with mode none",
        )?;
        for interface in &self.status.interfaces {
            let mode = interface.mode.as_deref().unwrap_or("none");
            attached
                .encode_family(&[("interface", interface.name.as_str()), ("mode", mode)])?
                .encode_gauge(&i64::from(interface.mode.is_some()))?;
        }
        let mut attached = gauge(
            encoder,
            "egress_attached",
            "1 if the egress program is on the device, by mode; 0 with mode none",
        )?;
        for egress in &self.status.egress {
            let mode = egress.mode.as_deref().unwrap_or("none");
            attached
                .encode_family(&[("device", egress.device.as_str()), ("mode", mode)])?
                .encode_gauge(&i64::from(egress.mode.is_some()))?;
        }
        Ok(())
    }

    fn traffic(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut ended = counter(
            encoder,
            "packets",
            "Packets dropped, passed to the kernel's stack, answered, or sent on to a client, by reason",
        )?;
        for reason in &self.reasons {
            let labels = [
                ("action", reason.action.as_str()),
                ("reason", reason.reason.as_str()),
            ];
            count(&mut ended, &labels, reason.packets)?;
        }
        let mut failed = counter(
            encoder,
            "transmit_failures",
            "Frames that XDP sent and the kernel or the driver could not, of all XDP programs of the machine, by cause",
        )?;
        for failure in &self.failures {
            let cause = [("cause", failure.reason.as_str())];
            count(&mut failed, &cause, failure.packets)?;
        }
        gauge(
            encoder,
            "services",
            "Services by address, port and protocol; of more than 5000 none has series of its own unless it fails",
        )?
        .encode_gauge(&size(self.services.len()))?;
        gauge(
            encoder,
            "backends",
            "Backends, each once for every service that has it; of more than 5000 none has series of its own unless it fails",
        )?
        .encode_gauge(&size(self.backends.len()))?;
        let mut packets = counter(
            encoder,
            "service_packets",
            "Packets forwarded to backends of the service",
        )?;
        for service in series(&self.services, |_| false) {
            count(&mut packets, &service_labels(service), service.packets)?;
        }
        let mut bytes = counter(
            encoder,
            "service_bytes",
            "Bytes of these packets as they came in, from the IP header on",
        )?;
        for service in series(&self.services, |_| false) {
            count(&mut bytes, &service_labels(service), service.bytes)?;
        }
        let mut backends = gauge(encoder, "service_backends", "Backends of the service")?;
        for service in series(&self.services, |_| false) {
            backends
                .encode_family(&service_labels(service))?
                .encode_gauge(&size(service.backends))?;
        }
        let mut left_out = gauge(
            encoder,
            "service_left_out_backends",
            "Pods without traffic because they share their node and tag with another one",
        )?;
        for service in series(&self.services, |service| service.left_out > 0) {
            left_out
                .encode_family(&service_labels(service))?
                .encode_gauge(&size(service.left_out))?;
        }
        let mut packets = counter(
            encoder,
            "backend_packets",
            "Packets forwarded to the backend for the service, at whichever of its addresses",
        )?;
        for backend in series(&self.backends, |_| false) {
            count(&mut packets, &backend_labels(backend), backend.packets)?;
        }
        let mut bytes = counter(
            encoder,
            "backend_bytes",
            "Bytes of these packets as they came in, from the IP header on",
        )?;
        for backend in series(&self.backends, |_| false) {
            count(&mut bytes, &backend_labels(backend), backend.bytes)?;
        }
        Ok(())
    }

    fn health(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut healthy = gauge(
            encoder,
            "backend_healthy",
            "1 if the backend passes its service's checks, 0 if it fails them",
        )?;
        for checked in series(&self.health.backends, |checked| !checked.healthy) {
            let [name, address, port, protocol] = key_labels(&checked.name, Some(checked.service));
            let backend = ("backend", checked.backend.clone());
            healthy
                .encode_family(&[name, address, port, protocol, backend])?
                .encode_gauge(&i64::from(checked.healthy))?;
        }
        let mut all_fail = gauge(
            encoder,
            "service_all_backends_fail",
            "1 if no backend of the service should serve, so that all do",
        )?;
        for service in series(&self.services, |service| service.all_fail) {
            all_fail
                .encode_family(&service_labels(service))?
                .encode_gauge(&i64::from(service.all_fail))?;
        }
        let mut reachable = gauge(
            encoder,
            "node_reachable",
            "1 if the node answers echoes, 0 if it missed three in a row",
        )?;
        for (node, answers) in &self.health.nodes {
            reachable
                .encode_family(&[("node", node.as_str())])?
                .encode_gauge(&i64::from(*answers))?;
        }
        let mut not_made = gauge(
            encoder,
            "health_checks_not_made",
            "Checks of backends and nodes that are asked for and not made, by reason",
        )?;
        for (reason, checks) in self.health.not_made {
            not_made
                .encode_family(&[("reason", reason)])?
                .encode_gauge(&size(checks))?;
        }
        let mut durations = encoder.encode_descriptor(
            "health_check_duration_seconds",
            "How long checks took, failed ones included, by type",
            None,
            MetricType::Histogram,
        )?;
        for (kind, taken) in &self.health.durations {
            durations
                .encode_family(&[("type", *kind)])?
                .encode_histogram::<NoLabelSet>(
                    taken.sum(),
                    taken.count(),
                    &taken.buckets(),
                    None,
                )?;
        }
        Ok(())
    }

    fn tables(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let tables = &self.status.tables;
        let mut used = gauge(
            encoder,
            "table_entries",
            "Entries in use, those about to be freed included",
        )?;
        for table in tables {
            used.encode_family(&[("table", table.name.as_str())])?
                .encode_gauge(&table.used)?;
        }
        let mut capacity = gauge(encoder, "table_capacity", "Entries possible")?;
        for table in tables {
            capacity
                .encode_family(&[("table", table.name.as_str())])?
                .encode_gauge(&table.capacity)?;
        }
        let mut free = gauge(
            encoder,
            "table_largest_free_run",
            "Longest run of free entries, where one is needed: the largest lookup table that still fits",
        )?;
        for table in tables {
            if let Some(run) = table.largest_free_run {
                free.encode_family(&[("table", table.name.as_str())])?
                    .encode_gauge(&run)?;
            }
        }
        let mut hops = gauge(
            encoder,
            "next_hops",
            "Node addresses by state of their next hop",
        )?;
        for (state, number) in &self.status.next_hops {
            hops.encode_family(&[("state", state.as_str())])?
                .encode_gauge(number)?;
        }
        Ok(())
    }
}

impl KubernetesValues {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let watching = &self.watching;
        gauge(
            encoder,
            "kubernetes_synced",
            "1 once all objects were listed and their state was taken over, 0 before",
        )?
        .encode_gauge(&i64::from(self.synced))?;
        let mut objects = gauge(
            encoder,
            "kubernetes_objects",
            "Objects that are known, by kind; machines that run Guideway under presence",
        )?;
        for (kind, number) in &watching.objects {
            objects
                .encode_family(&[("kind", *kind)])?
                .encode_gauge(&size(*number))?;
        }
        let mut events = counter(
            encoder,
            "kubernetes_events",
            "Events from the API server, those of lists included, by kind",
        )?;
        for (kind, number) in &watching.events {
            count(&mut events, &[("kind", *kind)], *number)?;
        }
        let mut errors = counter(
            encoder,
            "kubernetes_watch_errors",
            "Lists and watches that failed, by kind",
        )?;
        for (kind, number) in &watching.errors {
            count(&mut errors, &[("kind", *kind)], *number)?;
        }
        let mut failed = counter(
            encoder,
            "kubernetes_request_errors",
            "Other requests that failed, by what they are for",
        )?;
        for (request, number) in &watching.failed_requests {
            count(&mut failed, &[("request", *request)], *number)?;
        }
        let mut broken = gauge(
            encoder,
            "kubernetes_watch_broken",
            "1 while the last list or watch of the kind failed",
        )?;
        for kind in watching.errors.keys() {
            broken
                .encode_family(&[("kind", *kind)])?
                .encode_gauge(&i64::from(watching.broken.contains_key(kind)))?;
        }
        gauge(
            encoder,
            "kubernetes_last_event_timestamp_seconds",
            "When the last event arrived, since 1970; 0 before the first one",
        )?
        .encode_gauge(&watching.last_event.unwrap_or(0))?;
        gauge(
            encoder,
            "kubernetes_pending_changes",
            "Services that an event touched and that are not computed anew yet",
        )?
        .encode_gauge(&size(watching.pending))?;
        gauge(
            encoder,
            "kubernetes_problems",
            "Rules that objects break; `guideway status` names them",
        )?
        .encode_gauge(&size(self.problems))?;
        histogram(
            encoder,
            "kubernetes_sync_duration_seconds",
            "From the arrival of the first change of a batch until the tables have it",
            &self.sync,
        )?;
        histogram(
            encoder,
            "network_programming_duration_seconds",
            "From a change of a Service's pods until the tables have it; kube-proxy has the same buckets",
            &self.programming,
        )
    }
}

/// Lists what has series of its own: all where they are few, else those of note.
fn series<T>(all: &[T], of_note: impl Fn(&T) -> bool) -> impl Iterator<Item = &T> {
    let few = all.len() <= MOST_SERIES;
    let some = all.iter().filter(move |one| few || of_note(one));
    some.take(MOST_SERIES)
}

fn histogram(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    taken: &Durations,
) -> fmt::Result {
    encoder
        .encode_descriptor(name, help, None, MetricType::Histogram)?
        .encode_histogram::<NoLabelSet>(taken.sum(), taken.count(), &taken.buckets(), None)
}

pub(crate) fn counter<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Counter)
}

pub(crate) fn gauge<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)
}

pub(crate) fn count(
    metric: &mut MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    value: u64,
) -> fmt::Result {
    metric
        .encode_family(labels)?
        .encode_counter::<NoLabelSet, u64, u64>(&value, None)
}

fn service_labels(service: &Service) -> [(&'static str, String); 4] {
    key_labels(&service.name, service.service.parse().ok())
}

fn backend_labels(backend: &Backend) -> [(&'static str, &str); 2] {
    [("service", &backend.name), ("backend", &backend.backend)]
}

fn key_labels(name: &str, key: Option<ServiceKey>) -> [(&'static str, String); 4] {
    let part = |part: fn(ServiceKey) -> String| key.map(part).unwrap_or_default();
    [
        ("service", name.to_owned()),
        ("address", part(|key| key.address.to_string())),
        ("port", part(|key| key.port.to_string())),
        ("protocol", part(|key| key.protocol.to_string())),
    ]
}

fn size(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::api::{ConfigStatus, Egress, Interface, Table};

    /// Counts the series of each metric of a scrape.
    fn series_of(snapshot: Snapshot) -> BTreeMap<String, usize> {
        let text = render(snapshot).unwrap();
        let mut series = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            *series.entry(name.to_owned()).or_default() += 1;
        }
        series
    }

    #[test]
    fn of_more_services_than_a_server_takes_those_that_fail_are_named() {
        let with = |number: usize| {
            let mut snapshot = snapshot();
            let serves = snapshot.services.remove(0);
            let fails = Service {
                name: "fails".to_owned(),
                left_out: 1,
                all_fail: true,
                ..serves.clone()
            };
            snapshot.services = vec![serves; number - 1];
            snapshot.services.push(fails);
            snapshot.backends = vec![snapshot.backends.remove(0); number];
            snapshot
        };
        let each = series_of(with(MOST_SERIES));
        assert_eq!(each["guideway_service_packets_total"], MOST_SERIES);
        assert_eq!(each["guideway_backend_packets_total"], MOST_SERIES);
        let text = render(with(MOST_SERIES + 1)).unwrap();
        assert!(text.contains("guideway_services 5001\n"));
        assert!(text.contains("guideway_backends 5001\n"));
        let few = series_of(with(MOST_SERIES + 1));
        for metric in [
            "service_packets_total",
            "service_bytes_total",
            "service_backends",
        ] {
            assert_eq!(few.get(&format!("guideway_{metric}")), None);
        }
        assert_eq!(few.get("guideway_backend_packets_total"), None);
        assert_eq!(few.get("guideway_backend_bytes_total"), None);
        for metric in ["service_all_backends_fail", "service_left_out_backends"] {
            assert_eq!(few[&format!("guideway_{metric}")], 1);
            assert!(text.contains(&format!("guideway_{metric}{{service=\"fails\"")));
        }
    }

    #[test]
    fn of_more_checked_backends_only_those_that_fail_are_told() {
        let mut snapshot = snapshot();
        let passes = snapshot.health.backends.remove(0);
        let fails = CheckedBackend {
            name: "fails".to_owned(),
            healthy: false,
            ..passes.clone()
        };
        snapshot.health.backends = vec![passes; MOST_SERIES];
        snapshot.health.backends.push(fails);
        assert_eq!(series_of(snapshot.clone())["guideway_backend_healthy"], 1);
        let text = render(snapshot).unwrap();
        assert!(text.contains("guideway_backend_healthy{service=\"fails\""));
    }

    fn snapshot() -> Snapshot {
        Snapshot {
            status: Status {
                version: "0.1.0".to_owned(),
                config: ConfigStatus {
                    loaded_at: 1_700_000_000,
                    reloads: 3,
                    failures: 1,
                    error: Some("x".to_owned()),
                    ..ConfigStatus::default()
                },
                interfaces: vec![Interface {
                    name: "eth0".to_owned(),
                    mode: Some("native".to_owned()),
                    ..Interface::default()
                }],
                egress: vec![Egress {
                    device: "eth0".to_owned(),
                    ..Egress::default()
                }],
                tables: vec![Table {
                    name: "lut_slots".to_owned(),
                    used: 5,
                    capacity: 9,
                    largest_free_run: Some(4),
                }],
                next_hops: [("resolved".to_owned(), 2)].into(),
                problems: vec!["p".to_owned(), "of an object".to_owned()],
                unapplied: 1,
                ..Status::default()
            },
            started_at: 1_600_000_000,
            services: vec![Service {
                name: "we\"b".to_owned(),
                service: "[2001:db8::1]:80/tcp".to_owned(),
                backends: 2,
                packets: 7,
                bytes: 900,
                ..Service::default()
            }],
            backends: vec![Backend {
                name: "web".to_owned(),
                backend: "10.0.0.1".to_owned(),
                packets: 7,
                bytes: 900,
                ..Backend::default()
            }],
            reasons: vec![Reason {
                action: "drop".to_owned(),
                reason: "no_backend".to_owned(),
                packets: 11,
                ..Reason::default()
            }],
            failures: vec![Reason {
                action: "fail".to_owned(),
                reason: "too_long".to_owned(),
                packets: 12,
                ..Reason::default()
            }],
            health: HealthValues {
                backends: vec![CheckedBackend {
                    name: "web".to_owned(),
                    service: "10.99.0.1:80/tcp".parse().unwrap(),
                    backend: "10.0.0.1".to_owned(),
                    healthy: true,
                }],
                nodes: vec![("10.0.0.1".to_owned(), false)],
                not_made: [("no_way", 0), ("too_many", 5)],
                durations: [("tcp", {
                    let mut taken = Durations::new(&[0.001, 0.002_5]);
                    taken.add(Duration::from_millis(2));
                    taken
                })]
                .into(),
            },
            kubernetes: Some(KubernetesValues {
                watching: Watching {
                    objects: [("services", 3)].into(),
                    events: [("services", 5)].into(),
                    errors: [("services", 1), ("nodes", 0)].into(),
                    failed_requests: [("lease", 3)].into(),
                    broken: [("services", "gone".to_owned())].into(),
                    last_event: Some(1_700_000_001),
                    pending: 2,
                    ..Watching::default()
                },
                synced: true,
                problems: 4,
                sync: Durations::new(&[0.01]),
                programming: {
                    let mut taken = Durations::new(&[0.25, 0.5]);
                    taken.add(Duration::from_millis(400));
                    taken
                },
            }),
        }
    }

    #[test]
    fn values_and_labels_are_written() {
        let text = render(snapshot()).unwrap();
        for line in [
            "guideway_build_info{version=\"0.1.0\"} 1",
            "guideway_start_time_seconds 1600000000",
            "guideway_config_reloads_total{result=\"success\"} 3",
            "guideway_config_reloads_total{result=\"failure\"} 1",
            "guideway_config_last_reload_successful 0",
            "guideway_config_last_reload_success_timestamp_seconds 1700000000",
            "guideway_unapplied_changes 1",
            "guideway_interface_attached{interface=\"eth0\",mode=\"native\"} 1",
            "guideway_egress_attached{device=\"eth0\",mode=\"none\"} 0",
            "guideway_packets_total{action=\"drop\",reason=\"no_backend\"} 11",
            "guideway_transmit_failures_total{cause=\"too_long\"} 12",
            "guideway_service_packets_total{service=\"we\\\"b\",address=\"2001:db8::1\",port=\"80\",protocol=\"tcp\"} 7",
            "guideway_service_backends{service=\"we\\\"b\",address=\"2001:db8::1\",port=\"80\",protocol=\"tcp\"} 2",
            "guideway_backend_bytes_total{service=\"web\",backend=\"10.0.0.1\"} 900",
            "guideway_table_entries{table=\"lut_slots\"} 5",
            "guideway_table_capacity{table=\"lut_slots\"} 9",
            "guideway_table_largest_free_run{table=\"lut_slots\"} 4",
            "guideway_backend_healthy{service=\"web\",address=\"10.99.0.1\",port=\"80\",protocol=\"tcp\",backend=\"10.0.0.1\"} 1",
            "guideway_service_all_backends_fail{service=\"we\\\"b\",address=\"2001:db8::1\",port=\"80\",protocol=\"tcp\"} 0",
            "guideway_node_reachable{node=\"10.0.0.1\"} 0",
            "guideway_health_checks_not_made{reason=\"too_many\"} 5",
            "guideway_health_check_duration_seconds_bucket{le=\"0.001\",type=\"tcp\"} 0",
            "guideway_health_check_duration_seconds_bucket{le=\"0.0025\",type=\"tcp\"} 1",
            "guideway_health_check_duration_seconds_bucket{le=\"+Inf\",type=\"tcp\"} 1",
            "guideway_health_check_duration_seconds_count{type=\"tcp\"} 1",
            "guideway_next_hops{state=\"resolved\"} 2",
            "guideway_kubernetes_synced 1",
            "guideway_kubernetes_objects{kind=\"services\"} 3",
            "guideway_kubernetes_events_total{kind=\"services\"} 5",
            "guideway_kubernetes_watch_errors_total{kind=\"services\"} 1",
            "guideway_kubernetes_request_errors_total{request=\"lease\"} 3",
            "guideway_kubernetes_watch_broken{kind=\"services\"} 1",
            "guideway_kubernetes_watch_broken{kind=\"nodes\"} 0",
            "guideway_kubernetes_last_event_timestamp_seconds 1700000001",
            "guideway_kubernetes_pending_changes 2",
            "guideway_kubernetes_problems 4",
            "guideway_kubernetes_sync_duration_seconds_count 0",
            "guideway_network_programming_duration_seconds_bucket{le=\"0.25\"} 0",
            "guideway_network_programming_duration_seconds_bucket{le=\"0.5\"} 1",
        ] {
            assert!(
                text.lines().any(|other| other == line),
                "{line} is not in:\n{text}"
            );
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn readme_lists_exactly_the_metrics_there_are() {
        let text = render(snapshot()).unwrap();
        let declared: BTreeSet<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .map(|line| {
                let (name, kind) = line.split_once(' ').unwrap();
                match kind {
                    "counter" => format!("{name}_total"),
                    _ => name.to_owned(),
                }
            })
            .collect();
        let documented: BTreeSet<String> = include_str!("../README.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `guideway_"))
            .filter(|name| !name.starts_with("controller_"))
            .map(|line| format!("guideway_{}", line.split('`').next().unwrap()))
            .collect();
        assert_eq!(documented, declared);
    }
}
