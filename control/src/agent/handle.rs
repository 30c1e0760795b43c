//! How the rest of the process speaks to the agent's thread.

use std::sync::mpsc::Sender;
use std::time::Duration;

use fastpath::nexthop::Waker;
use tokio::sync::oneshot;

use crate::announce::Holdings;
use crate::api::Request;
use crate::api::server::error_line;
use crate::metrics::Snapshot;

/// How long an answer may take; programming thousands of services is seconds.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a scrape waits, to answer before Prometheus gives up (10 s by default).
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(8);

/// What the agent can be told.
#[derive(Debug)]
pub enum Command {
    /// Read the configuration again.
    Reload {
        /// Why, for the log.
        cause: &'static str,
    },
    /// Take the newest state of the cluster.
    State,
    /// Announce what the election says.
    Announce(Holdings),
    /// Look again at which backends should serve.
    Health,
    /// Answer a request with a line of JSON.
    Ask(Request, oneshot::Sender<String>),
    /// Read all values for the metrics.
    Snapshot(oneshot::Sender<Snapshot>),
    /// End, and leave everything attached.
    Stop,
}

/// Sends commands to the agent.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: Sender<Command>,
    waker: Waker,
}

impl Handle {
    /// Makes a handle from the sending end of the agent's commands and what wakes it.
    pub fn new(commands: Sender<Command>, waker: Waker) -> Self {
        Self { commands, waker }
    }

    /// Sends a command; an agent that has ended ignores it.
    pub fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.waker.wake();
        }
    }

    /// Asks for the answer to a request, as a line of JSON.
    pub async fn ask(&self, request: Request) -> String {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Ask(request, answer));
        match tokio::time::timeout(TIMEOUT, answered).await {
            Ok(Ok(line)) => line,
            Ok(Err(_)) => error_line("the agent is ending".to_owned()),
            Err(_) => error_line("the agent is busy; try again".to_owned()),
        }
    }

    /// Asks for all values; nothing if the agent does not answer in time.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Snapshot(answer));
        tokio::time::timeout(SNAPSHOT_TIMEOUT, answered)
            .await
            .ok()?
            .ok()
    }
}
