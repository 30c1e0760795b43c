//! Programs of a cluster that use the API server: kube-proxy and controllers.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpStream},
    time::Duration,
};

use super::{ControlPlane, READY_TIMEOUT, program};
use crate::{Namespace, Process, Result, pod::all_pods, wait_for};

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
    /// [`crate::Error::Ended`] or [`crate::Error::Timeout`], with its log.
    pub fn run_kube_proxy(
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
        let mut proxy = Process::spawn(&mut command)?;
        let awaited = format!(
            "kube-proxy of {} has programmed both families",
            machine.label()
        );
        wait_for(&awaited, READY_TIMEOUT, || {
            if let Err(ended) = proxy.expect_running(&awaited) {
                return Ok(Err(ended));
            }
            // Its health check succeeds even before the first lists are complete.
            match machine.run(proxy_metrics) {
                Ok(metrics) if has_programmed(&metrics) => Ok(Ok(())),
                Ok(_) => Err(format!("its log:\n{}", proxy.stderr())),
                Err(error) => Err(format!("{error}; its log:\n{}", proxy.stderr())),
            }
        })??;
        Ok(proxy)
    }

    /// Starts a kube-controller-manager with only these controllers, such as `endpointslice-controller`, and
    /// waits until they work.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Ended`] or [`crate::Error::Timeout`], with its log.
    pub fn run_controllers(&self, controllers: &[&str]) -> Result<Process> {
        let mut command = self.machine.command(program("kube-controller-manager")?);
        command
            .arg("--kubeconfig")
            .arg(self.write_kubeconfig(&self.machine, Self::ADMIN)?)
            .arg(format!("--controllers={}", controllers.join(",")))
            .args(["--leader-elect=false", "--secure-port=0"]);
        let mut manager = Process::spawn(&mut command)?;
        manager.wait_for_line("Caches are synced", READY_TIMEOUT)?;
        Ok(manager)
    }
}

const PROXY_METRICS_PORT: u16 = 10249;
const HTTP_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the metrics of the kube-proxy on the machine of the calling thread.
fn proxy_metrics() -> io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, PROXY_METRICS_PORT))?;
    stream.set_read_timeout(Some(HTTP_TIMEOUT))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn has_programmed(metrics: &str) -> bool {
    ["IPv4", "IPv6"].iter().all(|family| {
        let counter = format!(
            "kubeproxy_sync_full_proxy_rules_duration_seconds_count{{ip_family=\"{family}\"}} "
        );
        let mut counts = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(&counter));
        counts.any(|count| count != "0")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kube_proxy_has_programmed_when_both_families_were_synced() {
        let line = |family: &str, count: u8| {
            format!(
                "kubeproxy_sync_full_proxy_rules_duration_seconds_count{{ip_family=\"{family}\"}} {count}\n"
            )
        };
        assert!(has_programmed(&(line("IPv4", 1) + &line("IPv6", 2))));
        assert!(!has_programmed(&(line("IPv4", 1) + &line("IPv6", 0))));
        assert!(!has_programmed(&line("IPv4", 1)));
    }
}
