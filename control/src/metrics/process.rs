//! Metrics of the process, under the names that Prometheus' own libraries use.

use std::fmt;
use std::fs;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeVal;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::Metrics;

/// The kernel's figures about this process, read at each scrape.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metrics = Metrics::new(encoder);
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            metrics.seconds(
                "process_cpu_seconds",
                "Time that this process has spent on CPUs, in user space and in the kernel",
                seconds(usage.user_time()) + seconds(usage.system_time()),
            )?;
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        for (name, help, field, unit) in [
            (
                "process_resident_memory_bytes",
                "Resident memory",
                "VmRSS:",
                1024,
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory",
                "VmSize:",
                1024,
            ),
            ("process_threads", "Threads", "Threads:", 1),
        ] {
            if let Some(value) = field_of(&status, field) {
                metrics.gauge(name, help, value * unit)?;
            }
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            metrics.gauge("process_open_fds", "Open file descriptors", open.count())?;
        }
        if let Ok((most, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
            metrics.gauge("process_max_fds", "File descriptors that may be open", most)?;
        }
        Ok(())
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the seconds of a process's life have few digits"
)]
fn seconds(time: TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

/// Reads a number from `/proc/self/status`.
fn field_of(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Snapshot, render};

    #[test]
    fn process_is_told_by_the_usual_names() {
        let text = render(Snapshot::default()).unwrap();
        let value = |name: &str| -> f64 {
            let mut lines = text.lines();
            let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name} in\n{text}"))
                .parse()
                .unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_threads") >= 1.0);
        assert!(value("process_cpu_seconds_total") >= 0.0);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = "VmSize:\t  2048 kB\nVmRSS:\t    12 kB\n";
        assert_eq!(field_of(status, "VmRSS:"), Some(12));
        assert_eq!(field_of(status, "Threads:"), None);
    }
}
