//! Flows in steady use while something else happens.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use lab::wait_until;

use super::{Flow, TIMEOUT};

/// A thread that asks on every flow in turn.
#[derive(Debug)]
pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<Vec<Watched>>,
}

/// A flow, and what became of it.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) flow: Flow,
    /// The first question that had no answer, or one from another node.
    pub(crate) broken: Option<String>,
}

impl Traffic {
    /// Starts to ask, without a pause.
    pub(crate) fn over(flows: Vec<Flow>) -> Self {
        Self::with_pauses(flows, Duration::ZERO)
    }

    /// Starts to ask. After each round, all flows are idle for so long.
    pub(crate) fn with_pauses(flows: Vec<Flow>, idle: Duration) -> Self {
        let (stop, rounds) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let mut flows: Vec<Watched> = flows
            .into_iter()
            .map(|flow| Watched { flow, broken: None })
            .collect();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                flows.iter_mut().for_each(Watched::ask);
                counted.fetch_add(1, Ordering::Relaxed);
                if !idle.is_zero() {
                    thread::sleep(idle);
                }
            }
            flows
        });
        Self {
            stop,
            rounds,
            thread,
        }
    }

    /// Waits until every flow has been asked this many times more.
    pub(crate) fn wait_for_rounds(&self, more: u64) {
        // One round may be under way.
        let until = self.rounds.load(Ordering::Relaxed) + more + 1;
        wait_until("every flow is asked again", TIMEOUT, || {
            self.rounds.load(Ordering::Relaxed) >= until
        })
        .unwrap();
    }

    /// Ends the traffic and returns the flows.
    pub(crate) fn stop(self) -> Vec<Watched> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }

    /// Ends the traffic; no flow may have missed an answer or changed its node. Returns the flows.
    pub(crate) fn stop_unharmed(self) -> Vec<Flow> {
        let watched = self.stop();
        let broken = watched.iter().filter_map(|watched| {
            let Flow {
                service,
                client,
                node,
                ..
            } = &watched.flow;
            let broken = watched.broken.as_ref()?;
            Some(format!("{client} to {service} on {node}: {broken}"))
        });
        let broken: Vec<String> = broken.collect();
        assert!(broken.is_empty(), "{broken:#?}");
        let flows = watched.into_iter();
        flows.map(|watched| watched.flow).collect()
    }
}

impl Watched {
    fn ask(&mut self) {
        if self.broken.is_some() {
            return;
        }
        self.broken = match self.flow.ask() {
            Ok(node) if node == self.flow.node => None,
            Ok(node) => Some(format!("{node} answered")),
            Err(error) => Some(error.to_string()),
        };
    }
}
