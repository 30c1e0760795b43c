//! How the rest of the process talks to the agent's thread.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use fastpath::nexthop::Waker;
use fastpath::tables::{SlotOwners, TakenOwners};
use tokio::sync::oneshot;

use crate::announce::ElectionResult;
use crate::api::server::error_line;
use crate::api::{TraceRequest, WhichRequest};
use crate::desired::ServiceKey;
use crate::peers::Told;

/// Time limit of an answer. Programming thousands of services takes seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A command to the agent.
#[derive(Debug)]
pub enum Command {
    /// Read the configuration again.
    Reload {
        /// The cause, for the log.
        cause: &'static str,
    },
    /// Take the newest state of the cluster.
    State,
    /// Announce what the election says.
    Announce(ElectionResult),
    /// Look again at which backends should serve.
    Health,
    /// Tell who owns the slots of the first of these services, and who did.
    Owners(Vec<ServiceKey>, oneshot::Sender<Vec<Option<SlotOwners>>>),
    /// Take the owners that a peer told which was asked at this time.
    TakeOwners {
        /// What it told.
        told: Told,
        /// When it was asked.
        asked: Instant,
        /// Where to tell what was taken.
        taken: oneshot::Sender<TakenOwners>,
    },
    /// Announce addresses: the past of slots has been taken from a peer, or no peer has told it.
    PastTaken,
    /// Answer a question with a line of JSON.
    Ask(Question, oneshot::Sender<String>),
    /// Check what runs on the devices: a program was taken off.
    Look,
    /// End, leaving everything attached.
    Stop,
}

/// A question that only the agent's thread can answer: it needs the live tables, or ends the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Which backend does a flow get? The answer is [`Which`](crate::api::Which).
    Which(WhichRequest),
    /// What happens to a packet? The answer is [`Trace`](crate::api::Trace).
    Trace(TraceRequest),
    /// Detach from every interface, remove every pin, and end. The answer is [`Detached`](crate::api::Detached).
    Detach,
}

/// Sends commands to the agent. Clones send to the same one.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: Sender<Command>,
    waker: Waker,
}

impl Handle {
    /// Creates a handle from the sender of the agent's commands and the agent's waker.
    pub fn new(commands: Sender<Command>, waker: Waker) -> Self {
        Self { commands, waker }
    }

    /// Sends a command. Does nothing if the agent has ended.
    pub fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.waker.wake();
        }
    }

    /// Asks a question and returns the answer as a line of JSON.
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
