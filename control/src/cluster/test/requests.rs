//! Connections from here to the ports of Services.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::edges::Ports;
use crate::check::finding::{Finding, SubjectReport};
use crate::desired::{Protocol, ServiceKey};

/// How long a connection may take. A client repeats a lost first packet after one second.
const PATIENCE: Duration = Duration::from_secs(3);
/// How many connections are opened at a time.
const AT_ONCE: usize = 16;
/// Most ports that are tried.
const MOST: usize = 200;

/// Opens a connection to each TCP port that has backends.
pub(super) async fn send(ports: &Ports) -> Vec<Finding> {
    let with_backends = ports.iter().filter(|(_, port)| port.has_backends);
    let (tcp, others): (Vec<_>, Vec<_>) =
        with_backends.partition(|(key, _)| key.protocol == Protocol::Tcp);
    let tried = tcp.iter().take(MOST);
    let answers = tried.map(async |(key, port)| (key, port, open(key).await));
    let answers: Vec<_> = stream::iter(answers).buffered(AT_ONCE).collect().await;
    let mut report = SubjectReport::of("from here");
    let mut answering = 0;
    for (key, port, answer) in answers {
        match answer {
            Ok(()) => answering += 1,
            Err(reason) => report.fail(
                "request",
                format!("{} at {key}: {reason}", port.name),
                "if clients reach it, this machine is at the wrong place: --no-requests; else see the page Troubleshoot",
            ),
        }
    }
    if answering > 0 {
        let left_out = tcp.len().saturating_sub(MOST) + others.len();
        report.ok(
            "request",
            format!("{answering} TCP ports answer; {left_out} others were not tried"),
        );
    }
    report.findings
}

async fn open(key: &ServiceKey) -> Result<(), String> {
    let address = SocketAddr::new(key.address, key.port);
    match timeout(PATIENCE, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}
