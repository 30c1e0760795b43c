//! The metrics of the controller.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::api::ControllerStatus;
use crate::kubernetes::WatchStatus;
use crate::metrics::Metrics;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Values {
    pub(super) leads: bool,
    /// Kinds whose lists have not arrived.
    pub(super) missing: Vec<&'static str>,
    /// Number of Services that have all their addresses.
    pub(super) assigned: u64,
    /// Number of Services that wait for an address.
    pub(super) waiting: u64,
    /// Number of assigned addresses that a machine has claimed.
    pub(super) claimed: u64,
    /// Used and free addresses, by pool.
    pub(super) pools: BTreeMap<String, PoolValues>,
    /// Number of writes, by kind of object and success.
    pub(super) writes: BTreeMap<(&'static str, bool), u64>,
    /// Status of the watches, by kind.
    pub(super) watches: WatchStatus,
    /// Number of other failed requests, by purpose.
    pub(super) failed_requests: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PoolValues {
    /// Addresses that Services have.
    pub(super) used: i64,
    /// IPv4 addresses that are free.
    pub(super) free_ipv4: i64,
    /// IPv6 addresses that are free.
    pub(super) free_ipv6: i64,
}

impl Values {
    /// Returns the document of the page `/status`.
    pub(super) fn status(&self) -> ControllerStatus {
        ControllerStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            leads: self.leads,
            missing: self.missing.iter().map(|kind| (*kind).to_owned()).collect(),
            assigned: self.assigned,
            waiting: self.waiting,
        }
    }

    /// Clears the values that only the leader knows.
    pub(super) fn forget(&mut self) {
        self.assigned = 0;
        self.waiting = 0;
        self.claimed = 0;
        self.pools.clear();
    }
}

impl Collector for Values {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metrics = Metrics::new(encoder);
        metrics.gauges(
            "build_info",
            "Always 1; the label tells the version",
            [([("version", env!("CARGO_PKG_VERSION"))], 1)],
        )?;
        metrics.gauge(
            "controller_leader",
            "1 if this controller acts, 0 if another one does or nobody",
            u64::from(self.leads),
        )?;
        let services = [("assigned", self.assigned), ("waiting", self.waiting)];
        metrics.gauges(
            "controller_services",
            "Services that get their addresses from here, by whether they have them",
            services.map(|(state, number)| ([("state", state)], number)),
        )?;
        metrics.gauge(
            "controller_claimed_addresses",
            "Addresses of Services that a machine has come to have too",
            self.claimed,
        )?;
        let pools = self.pools.iter();
        metrics.gauges(
            "controller_pool_used_addresses",
            "Addresses of the pool that Services have",
            pools.map(|(pool, values)| ([("pool", pool.as_str())], values.used)),
        )?;
        let free = self.pools.iter().flat_map(|(pool, values)| {
            let families = [("ipv4", values.free_ipv4), ("ipv6", values.free_ipv6)];
            families.map(|(family, free)| ([("pool", pool.as_str()), ("family", family)], free))
        });
        metrics.gauges(
            "controller_pool_free_addresses",
            "Addresses of the pool that nobody has",
            free,
        )?;
        let writes = self.writes.iter();
        metrics.counters(
            "controller_writes",
            "Writes to the API server, by object and result",
            writes.map(|((object, success), number)| {
                let result = if *success { "success" } else { "failure" };
                ([("object", *object), ("result", result)], *number)
            }),
        )?;
        let errors = self.watches.errors.iter();
        metrics.counters(
            "controller_watch_errors",
            "Errors of watches and lists, by object",
            errors.map(|(object, number)| ([("object", *object)], *number)),
        )?;
        let failed = self.failed_requests.iter();
        metrics.counters(
            "controller_request_errors",
            "Other requests that failed, by what they are for",
            failed.map(|(request, number)| ([("request", *request)], *number)),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn text() -> String {
        let values = Values {
            leads: true,
            assigned: 3,
            waiting: 1,
            claimed: 2,
            pools: [(
                "a".to_owned(),
                PoolValues {
                    used: 3,
                    free_ipv4: 13,
                    free_ipv6: 0,
                },
            )]
            .into(),
            writes: [(("service", false), 2)].into(),
            watches: WatchStatus {
                errors: [("node", 4)].into(),
                ..WatchStatus::default()
            },
            failed_requests: [("lease", 5)].into(),
            ..Values::default()
        };
        crate::metrics::render(values).unwrap()
    }

    #[test]
    fn values_and_labels_are_written() {
        let text = text();
        for line in [
            "guideway_controller_leader 1",
            "guideway_controller_services{state=\"waiting\"} 1",
            "guideway_controller_claimed_addresses 2",
            "guideway_controller_pool_used_addresses{pool=\"a\"} 3",
            "guideway_controller_pool_free_addresses{pool=\"a\",family=\"ipv4\"} 13",
            "guideway_controller_writes_total{object=\"service\",result=\"failure\"} 2",
            "guideway_controller_watch_errors_total{object=\"node\"} 4",
            "guideway_controller_request_errors_total{request=\"lease\"} 5",
        ] {
            assert!(
                text.lines().any(|other| other == line),
                "{line} is not in:\n{text}"
            );
        }
    }

    #[test]
    fn promtool_has_nothing_to_object() {
        crate::metrics::assert_promtool_takes(&text());
    }

    #[test]
    fn page_lists_exactly_the_metrics_there_are() {
        let text = text();
        let declared: BTreeSet<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE guideway_controller_"))
            .map(|line| line.split_once(' ').unwrap())
            .map(|(name, kind)| match kind {
                "counter" => format!("{name}_total"),
                _ => name.to_owned(),
            })
            .collect();
        let documented: BTreeSet<String> = include_str!("../../../deploy/docs/metrics.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `guideway_controller_"))
            .map(|line| line.split('`').next().unwrap().to_owned())
            .collect();
        assert_eq!(documented, declared);
    }
}
