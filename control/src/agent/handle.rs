//! How the rest of the process speaks to the agent's thread.

use std::sync::mpsc::Sender;
use std::time::Duration;

use fastpath::nexthop::Waker;
use tokio::sync::oneshot;

use crate::announce::Holdings;
use crate::api::server::error_line;
use crate::api::{TraceRequest, WhichRequest};

/// How long an answer may take; programming thousands of services is seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

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
    /// Answer with a line of JSON.
    Ask(Question, oneshot::Sender<String>),
    /// Look at what runs on the devices: something was taken off.
    Look,
    /// End, and leave everything attached.
    Stop,
}

/// What nobody can answer beside the agent: it goes through the live tables, or ends the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Which backend a flow gets: [`Which`](crate::api::Which).
    Which(WhichRequest),
    /// What becomes of a packet: [`Trace`](crate::api::Trace).
    Trace(TraceRequest),
    /// Detach from every interface, remove every pin, and end: [`Detached`](crate::api::Detached).
    Detach,
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

    /// Asks for the answer to a question, as a line of JSON.
    pub async fn ask(&self, question: Question) -> String {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Ask(question, answer));
        match tokio::time::timeout(TIMEOUT, answered).await {
            Ok(Ok(line)) => line,
            Ok(Err(_)) => error_line("the agent is ending".to_owned()),
            Err(_) => error_line("the agent is busy; try again".to_owned()),
        }
    }
}
