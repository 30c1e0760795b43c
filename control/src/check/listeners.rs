//! Checks whether the addresses of metrics and health pages can be listened at.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;

use super::finding::SubjectReport;
use crate::config::{Config, Listen};
use crate::http::ListenError;

const CHECK: &str = "listeners";

/// Judges each address at which the agent listens for HTTP.
pub(super) fn listeners(config: &Config) -> SubjectReport {
    let mut report = SubjectReport::of("config");
    let healthz = config.kubernetes.as_ref().and_then(|one| one.healthz);
    for (listen, field) in [
        (config.metrics, "metrics.listen"),
        (healthz, "kubernetes.healthz"),
    ] {
        let Some(listen) = listen else { continue };
        let addresses = std::env::var(Listen::NODE_ADDRESSES).ok();
        match listen.sockets(addresses.as_deref()) {
            Ok(sockets) => {
                // An agent has its addresses itself. It does not start unless it gets all of them.
                let runs = || UnixStream::connect(&config.socket).is_ok();
                for socket in sockets {
                    listener(&mut report, socket, field, runs);
                }
            }
            Err(error) => report.warn(
                CHECK,
                format!("{field}: {error}"),
                format!("set {} as the agent has it", Listen::NODE_ADDRESSES),
            ),
        }
    }
    report
}

/// Judges one address. `agent_runs` tells whether an agent runs already.
fn listener(
    report: &mut SubjectReport,
    socket: SocketAddr,
    field: &'static str,
    agent_runs: impl FnOnce() -> bool,
) {
    match TcpListener::bind(socket) {
        Ok(_) => report.ok(CHECK, format!("{field} {socket}: free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse && agent_runs() => {
            report.ok(CHECK, format!("{field} {socket}: the running agent's"));
        }
        Err(error) => {
            let reason = error.to_string();
            let refused = ListenError::new(socket, field, error);
            report.fail(
                CHECK,
                format!("{}: {reason}", refused.without_remedy()),
                refused.remedy(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    fn judged(socket: SocketAddr, agent_runs: bool) -> (Severity, String, String) {
        let mut report = SubjectReport::of("kernel");
        listener(&mut report, socket, "metrics.listen", || agent_runs);
        let finding = report.findings.remove(0);
        (finding.severity, finding.detail, finding.remedy)
    }

    #[test]
    fn address_that_another_program_has_fails_and_that_of_an_agent_does_not() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = other.local_addr().unwrap();
        let (severity, detail, remedy) = judged(socket, false);
        assert_eq!(severity, Severity::Fail);
        assert!(
            detail.starts_with(&format!("cannot listen on {socket}: ")),
            "{detail}"
        );
        assert!(remedy.contains("metrics.listen"), "{remedy}");
        assert_eq!(judged(socket, true).0, Severity::Ok);
        drop(other);
        assert_eq!(judged(socket, false).0, Severity::Ok);
    }

    #[test]
    fn address_of_another_machine_fails_although_an_agent_runs() {
        let elsewhere = "192.0.2.1:10790".parse().unwrap();
        assert_eq!(judged(elsewhere, true).0, Severity::Fail);
    }
}
