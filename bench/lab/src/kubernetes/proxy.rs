//! The kube-proxy of a machine: its start, and what it says of its work.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpStream},
    time::Duration,
};

use super::{ControlPlane, program};
use crate::{
    Error, Namespace, Process, Result,
    pod::all_pods,
    wait::{wait_for, wait_while_working},
};

/// How long kube-proxy may be idle before it has programmed the kernel.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a kube-proxy that runs may take for a change.
const SYNC_TIMEOUT: Duration = Duration::from_secs(300);
/// Syncs that may fail: the first ones, before a family's lists are complete.
const MOST_FAILURES: f64 = 5.0;
const METRICS_PORT: u16 = 10249;
const HTTP_TIMEOUT: Duration = Duration::from_secs(5);

/// How kube-proxy programs the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyMode {
    /// With `iptables`, its default.
    Iptables,
    /// With `nft`.
    Nftables,
}

impl ProxyMode {
    /// Returns the mode's name for `--proxy-mode`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }
}

impl ControlPlane {
    /// Starts the kube-proxy of a machine, and waits until it has programmed the kernel. The machine must be
    /// connected, and its Node must have an address.
    ///
    /// # Errors
    ///
    /// As for [`ControlPlane::start_kube_proxy`] and [`wait_until_programmed`].
    pub fn run_kube_proxy(
        &self,
        machine: &Namespace,
        node: &str,
        mode: ProxyMode,
    ) -> Result<Process> {
        let mut proxy = self.start_kube_proxy(machine, node, mode)?;
        wait_until_programmed(machine, &mut proxy)?;
        Ok(proxy)
    }

    /// Starts the kube-proxy of a machine, and does not wait for it.
    ///
    /// # Errors
    ///
    /// [`Error::Start`] when the program has not been built.
    pub fn start_kube_proxy(
        &self,
        machine: &Namespace,
        node: &str,
        mode: ProxyMode,
    ) -> Result<Process> {
        let kubeconfig = self.write_kubeconfig(machine, Self::ADMIN)?;
        let mut command = machine.command(program("kube-proxy")?);
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--proxy-mode", mode.name(), "--hostname-override", node])
            // With the pods' ranges it recognizes the pods, as in a cluster made by kubeadm.
            .args([
                "--cluster-cidr",
                &all_pods().map(|cidr| cidr.to_string()).join(","),
            ])
            // Only the host may change these settings of conntrack.
            .args([
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
            ])
            .arg("--conntrack-tcp-timeout-close-wait=0");
        Process::spawn(&mut command)
    }
}

/// Waits until the kube-proxy of a machine has programmed the kernel: for as long as it works on it, because thousands of
/// Services take it minutes.
///
/// # Errors
///
/// [`Error::Ended`] when it ends, [`Error::Timeout`] when it is idle or fails again and again; both with its log.
pub fn wait_until_programmed(machine: &Namespace, proxy: &mut Process) -> Result<()> {
    let awaited = format!(
        "kube-proxy of {} has programmed both families",
        machine.label()
    );
    let group = proxy.id();
    wait_while_working(
        &awaited,
        IDLE_TIMEOUT,
        || cpu_time(group),
        || {
            if let Err(ended) = proxy.expect_running(&awaited) {
                return Ok(Err(ended));
            }
            // Its health check succeeds even before the first lists are complete.
            match machine.run(Metrics::read) {
                Ok(metrics) if metrics.has_programmed() => Ok(Ok(())),
                Ok(metrics) if metrics.failures() > MOST_FAILURES => Ok(Err(Error::Timeout {
                    awaited: awaited.clone(),
                    timeout: Duration::ZERO,
                    seen: format!(
                        "; it failed {} times; its log:\n{}",
                        metrics.failures(),
                        proxy.stderr()
                    ),
                })),
                Ok(_) => Err(format!("its log:\n{}", proxy.stderr())),
                Err(error) => Err(format!("{error}; its log:\n{}", proxy.stderr())),
            }
        },
    )?
}

/// Waits until the kube-proxy of a machine has programmed so many changes of EndpointSlices since its start. It counts those
/// that have the annotation [`CHANGE_TIME`], with a later time.
///
/// # Errors
///
/// [`Error::Ended`] or [`Error::Timeout`], with its log.
pub fn wait_until_synced(machine: &Namespace, proxy: &mut Process, changes: u64) -> Result<()> {
    let awaited = format!(
        "kube-proxy of {} has programmed {changes} changes",
        machine.label()
    );
    wait_for(&awaited, SYNC_TIMEOUT, || {
        if let Err(ended) = proxy.expect_running(&awaited) {
            return Ok(Err(ended));
        }
        match machine.run(Metrics::read).map(|metrics| metrics.changes()) {
            Ok(programmed) if programmed >= changes as f64 => Ok(Ok(())),
            Ok(programmed) => Err(format!(
                "{programmed} of them; its log:\n{}",
                proxy.stderr()
            )),
            Err(error) => Err(error.to_string()),
        }
    })?
}

/// The annotation that says when the pods of an EndpointSlice changed, in RFC 3339. kube-proxy measures the time from then on.
pub const CHANGE_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Address families, as metrics name them.
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// What a kube-proxy says of itself.
struct Metrics(String);

impl Metrics {
    /// Reads the metrics of the kube-proxy on the machine of the calling thread.
    fn read() -> io::Result<Self> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, METRICS_PORT))?;
        stream.set_read_timeout(Some(HTTP_TIMEOUT))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(Self(answer))
    }

    /// Returns the value of a metric of a family; zero if it has none.
    fn value(&self, name: &str, family: &str) -> f64 {
        let label = format!("{name}{{ip_family=\"{family}\"}} ");
        let mut values = self.0.lines().filter_map(|line| line.strip_prefix(&label));
        let value = values.next().and_then(|value| value.trim().parse().ok());
        value.unwrap_or(0.0)
    }

    fn has_programmed(&self) -> bool {
        let count = "kubeproxy_sync_full_proxy_rules_duration_seconds_count";
        FAMILIES
            .iter()
            .all(|family| self.value(count, family) > 0.0)
    }

    /// Returns how many syncs have failed.
    fn failures(&self) -> f64 {
        let counters = [
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        ];
        let each = counters
            .iter()
            .flat_map(|counter| FAMILIES.map(|family| self.value(counter, family)));
        each.sum()
    }

    /// Returns how many changes of EndpointSlices were programmed.
    fn changes(&self) -> f64 {
        let count = "kubeproxy_network_programming_duration_seconds_count";
        FAMILIES
            .map(|family| self.value(count, family))
            .iter()
            .sum()
    }
}

/// Returns the CPU time of the processes of a group, with that of their children that have ended.
fn cpu_time(group: u32) -> Duration {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let ticks: u64 = stats.filter_map(|stat| ticks_in_group(&stat, group)).sum();
    // USER_HZ, which is 100 on all that Linux runs on today.
    Duration::from_millis(10 * ticks)
}

/// Returns the CPU time of a process and its ended children in ticks, if it is of a group; of a line of `/proc/PID/stat`.
fn ticks_in_group(stat: &str, group: u32) -> Option<u64> {
    // The name before may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let own: u32 = fields.get(2)?.parse().ok()?;
    let times = fields
        .get(11..15)?
        .iter()
        .map(|time| time.parse::<u64>().ok());
    times.sum::<Option<u64>>().filter(|_| own == group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(lines: &[(&str, &str, f64)]) -> Metrics {
        let line = |(name, family, value): &(&str, &str, f64)| {
            format!("kubeproxy_sync_{name}{{ip_family=\"{family}\"}} {value:e}\n")
        };
        Metrics(lines.iter().map(line).collect())
    }

    #[test]
    fn kube_proxy_has_programmed_when_both_families_were_synced() {
        let count = "full_proxy_rules_duration_seconds_count";
        let synced = |v4, v6| metrics(&[(count, "IPv4", v4), (count, "IPv6", v6)]).has_programmed();
        assert!(synced(1.0, 2.0));
        assert!(!synced(1.0, 0.0));
        assert!(!metrics(&[(count, "IPv4", 1.0)]).has_programmed());
    }

    #[test]
    fn changes_of_both_families_are_summed_up() {
        let text = "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"} 3\n\
                    kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv6\"} 2\n";
        assert_eq!(Metrics(text.to_owned()).changes(), 5.0);
        assert_eq!(Metrics(String::new()).changes(), 0.0);
    }

    #[test]
    fn failed_syncs_of_both_modes_and_families_are_summed_up() {
        let failed = metrics(&[
            ("proxy_rules_iptables_restore_failures_total", "IPv4", 2.0),
            ("proxy_rules_nftables_sync_failures_total", "IPv6", 4.0),
        ]);
        assert_eq!(failed.failures(), 6.0);
        assert_eq!(metrics(&[]).failures(), 0.0);
    }

    #[test]
    fn cpu_time_is_of_the_group_and_of_ended_children() {
        let stat = "71 (a) b) S 1 70 70 0 -1 4194560 600 0 0 0 11 22 33 44 20 0 1 0 5 6 7";
        assert_eq!(ticks_in_group(stat, 70), Some(110));
        assert_eq!(ticks_in_group(stat, 71), None);
        assert_eq!(ticks_in_group("71 (a", 70), None);
    }
}
