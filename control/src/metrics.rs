//! The agent's metrics in the OpenMetrics text format, for Prometheus.
//!
//! Every metric is declared once, in the file of its subject. `deploy/docs/metrics.md` lists them for users, and a
//! test keeps the two equal. The values are read for each scrape. Only the series of others are kept in between.

mod agent;
mod encoder;
mod health;
mod kubernetes;
mod others;
mod peers;
mod process;
mod traffic;

use std::fmt;

use hyper::StatusCode;
use hyper::header::HeaderValue;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::api::{Backend, Counts, Reason, Service, Status};
use crate::http::{self, Answer};

pub(crate) use self::encoder::Metrics;
pub use self::health::{CheckedBackend, HealthValues};
pub use self::kubernetes::KubernetesValues;
pub(crate) use self::others::Others;
use self::process::Process;

/// The values of a scrape, read at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The agent and its tables.
    pub status: Status,
    /// When the agent started, in seconds since 1970.
    pub started_at: u64,
    /// The services. If there are more than get series, those with the most packets come first.
    pub services: Vec<Service>,
    /// The traffic of services without series; `None` if all have always had them.
    pub other_services: Option<Counts>,
    /// The backends, once for each service, in such an order too.
    pub backends: Vec<Backend>,
    /// The traffic of backends without series.
    pub other_backends: Option<Counts>,
    /// The reasons of packets that were not forwarded.
    pub reasons: Vec<Reason>,
    /// The failures of frames that XDP sent.
    pub failures: Vec<Reason>,
    /// The results of checks.
    pub health: HealthValues,
    /// How the Kubernetes API is followed; `None` if it is not.
    pub kubernetes: Option<KubernetesValues>,
}

/// Content type of [`render`]'s text.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Formats a scrape. All metrics get the prefix `guideway`.
///
/// # Errors
///
/// Never for the metrics declared here; the encoder's signature requires it.
pub fn render(values: impl Collector) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    let own = registry.sub_registry_with_prefix("guideway");
    own.register_collector(Box::new(values));
    registry.register_collector(Box::new(Process));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Returns the page with the metrics, or an error if there are no values.
pub(crate) fn page(text: Option<String>) -> Answer {
    match text {
        Some(text) => http::body(StatusCode::OK, HeaderValue::from_static(CONTENT_TYPE), text),
        None => http::text(StatusCode::SERVICE_UNAVAILABLE, "no values\n"),
    }
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metrics = Metrics::new(encoder);
        agent::encode(self, &mut metrics)?;
        traffic::encode(self, &mut metrics)?;
        peers::encode(self.status.peers.as_ref(), &mut metrics)?;
        self.health.encode(&self.services, &mut metrics)?;
        match &self.kubernetes {
            Some(values) => values.encode(&mut metrics),
            None => Ok(()),
        }
    }
}

/// Checks a scrape with `promtool check metrics`, which reads the older text format: there, a counter is declared with
/// the name that its values have.
#[cfg(test)]
pub(crate) fn assert_promtool_takes(text: &str) {
    use std::io::Write;
    use std::process::{Command, Stdio};

    let is_counter = |line: &&str| line.starts_with("# TYPE ") && line.ends_with(" counter");
    let counters = text.lines().filter(is_counter);
    let counters: Vec<&str> = counters.filter_map(|line| line.split(' ').nth(2)).collect();
    let mut older = String::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        if words[0] == "#" && counters.contains(&&*words[2]) {
            words[2] += "_total";
        }
        older += &format!("{}\n", words.join(" "));
    }
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed by deploy/setup.sh test");
    let mut stdin = promtool.stdin.take().unwrap();
    stdin.write_all(older.as_bytes()).unwrap();
    drop(stdin);
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use super::encoder::MOST_SERIES;
    use super::*;
    use crate::api::{
        Announced, ConfigStatus, Egress, Interface, MendStatus, Peer, PeersStatus, Table,
    };
    use crate::durations::Durations;
    use crate::kubernetes::{WatchStatus, WatcherStatus};

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
            let largest = Service {
                name: "largest".to_owned(),
                packets: serves.packets + 1,
                ..serves.clone()
            };
            let fails = Service {
                name: "fails".to_owned(),
                packets: 0,
                left_out: 1,
                all_fail: true,
                ..serves.clone()
            };
            snapshot.services = vec![serves; number - 2];
            snapshot.services.push(largest);
            snapshot.services.push(fails);
            snapshot.backends = vec![snapshot.backends.remove(0); number];
            let mut others = Others::default();
            snapshot.other_services = others.services.follow(&mut snapshot.services);
            snapshot.other_backends = others.backends.follow(&mut snapshot.backends);
            snapshot
        };
        let each = series_of(with(MOST_SERIES));
        assert_eq!(each["guideway_service_packets_total"], MOST_SERIES);
        assert_eq!(each["guideway_backend_packets_total"], MOST_SERIES);
        let text = render(with(MOST_SERIES + 1)).unwrap();
        assert!(text.contains("guideway_services 5001\n"));
        assert!(text.contains("guideway_backends 5001\n"));
        let few = series_of(with(MOST_SERIES + 1));
        for (metric, shared) in [
            ("service_packets_total", 1),
            ("service_bytes_total", 1),
            ("service_backends", 0),
            ("backend_packets_total", 1),
            ("backend_bytes_total", 1),
        ] {
            let series = few[&format!("guideway_{metric}")];
            assert_eq!(series, MOST_SERIES + shared, "{metric}");
        }
        let others =
            "guideway_service_packets_total{service=\"(others)\",namespace=\"\",name=\"(others)\"";
        assert!(text.contains(others));
        let largest = "guideway_service_packets_total{service=\"largest\"";
        assert!(
            text.contains(largest),
            "the one with the most packets keeps its series"
        );
        for metric in ["service_all_backends_fail", "service_left_out_backends"] {
            assert_eq!(few[&format!("guideway_{metric}")], MOST_SERIES);
            assert_eq!(first_of(&text, metric), "fails");
        }
    }

    /// Returns the service of a metric's first series.
    fn first_of<'t>(text: &'t str, metric: &str) -> &'t str {
        let begin = format!("\nguideway_{metric}{{service=\"");
        let (_, first) = text.split_once(&begin).unwrap();
        first.split('"').next().unwrap()
    }

    #[test]
    fn of_more_checked_backends_those_that_fail_come_first_and_all_are_counted() {
        let mut snapshot = snapshot();
        let passes = snapshot.health.backends.remove(0);
        let fails = CheckedBackend {
            name: "fails".to_owned(),
            healthy: false,
            ..passes.clone()
        };
        snapshot.health.backends = vec![passes; MOST_SERIES];
        snapshot.health.backends.push(fails);
        let series = series_of(snapshot.clone());
        assert_eq!(series["guideway_backend_healthy"], MOST_SERIES);
        let text = render(snapshot).unwrap();
        assert_eq!(first_of(&text, "backend_healthy"), "fails");
        for (state, number) in [("healthy", MOST_SERIES), ("unhealthy", 1)] {
            let line = format!("\nguideway_checked_backends{{state=\"{state}\"}} {number}\n");
            assert!(text.contains(&line), "{line}");
        }
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
                announced: Announced {
                    interfaces: vec!["eth0".to_owned()],
                    addresses: vec![[192, 0, 2, 10].into()],
                    drained: false,
                },
                tables: vec![Table {
                    name: "lut_slots".to_owned(),
                    used: 5,
                    capacity: 9,
                    largest_free_run: Some(4),
                }],
                next_hops: [("resolved".to_owned(), 2)].into(),
                mend: Some(MendStatus {
                    queues: 3,
                    open: 2,
                    carried: [("br0".to_owned(), 4)].into(),
                    ..MendStatus::default()
                }),
                peers: Some(PeersStatus {
                    missing_key: Some("there is no Secret".to_owned()),
                    asked: 21,
                    answered: 22,
                    refused: [("timed_out".to_owned(), 2)].into(),
                    slots_taken: 23,
                    owners_left_out: 24,
                    peers: vec![Peer {
                        agrees: true,
                        ..Peer::default()
                    }],
                    ..PeersStatus::default()
                }),
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
                service: "192.0.2.1:443/tcp".to_owned(),
                backend: "10.0.0.1".to_owned(),
                packets: 7,
                bytes: 900,
                ..Backend::default()
            }],
            other_services: None,
            other_backends: None,
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
                watchers: WatcherStatus {
                    objects: [("services", 3)].into(),
                    watches: WatchStatus {
                        events: [("services", 5)].into(),
                        errors: [("services", 1), ("nodes", 0)].into(),
                        broken: [("services", "gone".to_owned())].into(),
                    },
                    failed_requests: [("lease", 3)].into(),
                    last_event: Some(1_700_000_001),
                    pending: 2,
                    ..WatcherStatus::default()
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
            "guideway_announced{address=\"192.0.2.10\",interface=\"eth0\"} 1",
            "guideway_egress_attached{device=\"eth0\",mode=\"none\"} 0",
            "guideway_packets_total{action=\"drop\",reason=\"no_backend\"} 11",
            "guideway_transmit_failures_total{cause=\"too_long\"} 12",
            "guideway_service_packets_total{service=\"we\\\"b\",namespace=\"\",name=\"we\\\"b\",address=\"2001:db8::1\",port=\"80\",protocol=\"tcp\"} 7",
            "guideway_service_backends{service=\"we\\\"b\",namespace=\"\",name=\"we\\\"b\",address=\"2001:db8::1\",port=\"80\",protocol=\"tcp\"} 2",
            "guideway_backend_bytes_total{service=\"web\",namespace=\"\",name=\"web\",port=\"443\",backend=\"10.0.0.1\"} 900",
            "guideway_table_entries{table=\"lut_slots\"} 5",
            "guideway_table_capacity{table=\"lut_slots\"} 9",
            "guideway_table_largest_free_run{table=\"lut_slots\"} 4",
            "guideway_backend_healthy{service=\"web\",namespace=\"\",name=\"web\",address=\"10.99.0.1\",port=\"80\",protocol=\"tcp\",backend=\"10.0.0.1\"} 1",
            "guideway_service_all_backends_fail{service=\"we\\\"b\",namespace=\"\",name=\"we\\\"b\",address=\"2001:db8::1\",port=\"80\",protocol=\"tcp\"} 0",
            "guideway_node_reachable{node=\"10.0.0.1\"} 0",
            "guideway_health_checks_not_made{reason=\"too_many\"} 5",
            "guideway_health_check_duration_seconds_bucket{le=\"0.001\",type=\"tcp\"} 0",
            "guideway_health_check_duration_seconds_bucket{le=\"0.0025\",type=\"tcp\"} 1",
            "guideway_health_check_duration_seconds_bucket{le=\"+Inf\",type=\"tcp\"} 1",
            "guideway_health_check_duration_seconds_count{type=\"tcp\"} 1",
            "guideway_next_hops{state=\"resolved\"} 2",
            "guideway_mend_queues{state=\"wanted\"} 3",
            "guideway_peers_key_missing 1",
            "guideway_mend_carried_next_hops{device=\"br0\"} 4",
            "guideway_peers{state=\"all\"} 1",
            "guideway_peers{state=\"answering\"} 1",
            "guideway_peers{state=\"agreeing\"} 1",
            "guideway_peer_exchanges_total 21",
            "guideway_peer_requests_answered_total 22",
            "guideway_peer_refusals_total{reason=\"timed_out\"} 2",
            "guideway_peer_slots_taken_total 23",
            "guideway_peer_owners_left_out_total 24",
            "guideway_mend_queues{state=\"open\"} 2",
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
    fn promtool_has_nothing_to_object() {
        assert_promtool_takes(&render(snapshot()).unwrap());
    }

    #[test]
    fn page_lists_exactly_the_metrics_there_are() {
        let text = render(snapshot()).unwrap();
        let declared: BTreeSet<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .filter(|line| !line.starts_with("process_"))
            .map(|line| {
                let (name, kind) = line.split_once(' ').unwrap();
                match kind {
                    "counter" => format!("{name}_total"),
                    _ => name.to_owned(),
                }
            })
            .collect();
        let documented: BTreeSet<String> = include_str!("../../deploy/docs/metrics.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `guideway_"))
            .filter(|name| !name.starts_with("controller_"))
            .map(|line| format!("guideway_{}", line.split('`').next().unwrap()))
            .collect();
        assert_eq!(documented, declared);
    }
}
