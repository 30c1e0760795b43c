//! What the controller counts.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::metrics::{count, counter, gauge};

/// The values of the controller's metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    /// Whether this process acts.
    pub leads: bool,
    /// Lists that have not arrived.
    pub missing: Vec<&'static str>,
    /// Services that have what they want.
    pub assigned: u64,
    /// Services that wait for an address.
    pub waiting: u64,
    /// Addresses of Services that machines have come to have.
    pub claimed: u64,
    /// Used and free addresses, by pool.
    pub pools: BTreeMap<String, PoolValues>,
    /// Writes by what was written and whether it went well.
    pub writes: BTreeMap<(&'static str, bool), u64>,
    /// Errors of watches, by what is watched.
    pub watch_errors: BTreeMap<&'static str, u64>,
    /// Other requests that failed, by what they were for.
    pub failed_requests: BTreeMap<&'static str, u64>,
}

/// The values of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolValues {
    /// Addresses that Services have.
    pub used: i64,
    /// IPv4 addresses that nobody has.
    pub free_ipv4: i64,
    /// IPv6 addresses that nobody has.
    pub free_ipv6: i64,
}

impl Values {
    /// Drops what only the controller that acts can tell.
    pub(super) fn forget(&mut self) {
        self.assigned = 0;
        self.waiting = 0;
        self.claimed = 0;
        self.pools.clear();
    }
}

impl Collector for Values {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        gauge(
            &mut encoder,
            "build_info",
            "Always 1; the label tells the version",
        )?
        .encode_family(&[("version", env!("CARGO_PKG_VERSION"))])?
        .encode_gauge(&1_i64)?;
        gauge(
            &mut encoder,
            "controller_leader",
            "1 if this controller acts, 0 if another one does or nobody",
        )?
        .encode_gauge(&i64::from(self.leads))?;
        let mut services = gauge(
            &mut encoder,
            "controller_services",
            "Services that get their addresses from here, by whether they have them",
        )?;
        for (state, number) in [("assigned", self.assigned), ("waiting", self.waiting)] {
            services
                .encode_family(&[("state", state)])?
                .encode_gauge(&number)?;
        }
        gauge(
            &mut encoder,
            "controller_claimed_addresses",
            "Addresses of Services that a machine has come to have too",
        )?
        .encode_gauge(&self.claimed)?;
        let mut used = gauge(
            &mut encoder,
            "controller_pool_used_addresses",
            "Addresses of the pool that Services have",
        )?;
        for (pool, values) in &self.pools {
            used.encode_family(&[("pool", pool.as_str())])?
                .encode_gauge(&values.used)?;
        }
        let mut free = gauge(
            &mut encoder,
            "controller_pool_free_addresses",
            "Addresses of the pool that nobody has",
        )?;
        for (pool, values) in &self.pools {
            for (family, number) in [("ipv4", values.free_ipv4), ("ipv6", values.free_ipv6)] {
                free.encode_family(&[("pool", pool.as_str()), ("family", family)])?
                    .encode_gauge(&number)?;
            }
        }
        let mut writes = counter(
            &mut encoder,
            "controller_writes",
            "Writes to the API server, by object and result",
        )?;
        for ((object, success), number) in &self.writes {
            let result = if *success { "success" } else { "failure" };
            count(
                &mut writes,
                &[("object", *object), ("result", result)],
                *number,
            )?;
        }
        let mut errors = counter(
            &mut encoder,
            "controller_watch_errors",
            "Errors of watches and lists, by object",
        )?;
        for (object, number) in &self.watch_errors {
            count(&mut errors, &[("object", *object)], *number)?;
        }
        let mut failed = counter(
            &mut encoder,
            "controller_request_errors",
            "Other requests that failed, by what they are for",
        )?;
        for (request, number) in &self.failed_requests {
            count(&mut failed, &[("request", *request)], *number)?;
        }
        Ok(())
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
            watch_errors: [("node", 4)].into(),
            failed_requests: [("lease", 5)].into(),
            ..Values::default()
        };
        crate::metrics::encoded(values).unwrap()
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
    fn readme_lists_exactly_the_metrics_there_are() {
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
        let documented: BTreeSet<String> = include_str!("../../README.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `guideway_controller_"))
            .map(|line| line.split('`').next().unwrap().to_owned())
            .collect();
        assert_eq!(documented, declared);
    }
}
