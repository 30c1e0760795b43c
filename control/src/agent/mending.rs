//! Mending: the thread that does it, and the queues that it has.

use std::collections::BTreeSet;

use fastpath::facts::{self, XdpMode};
use fastpath::load::Loaded;
use fastpath::mend::{self, Limits, Mend, MendReader, PreparedPair, Queue};

use super::Agent;
use super::problems::Item;
use crate::chain::chain;

/// The thread that mends packets, if it is asked for.
#[derive(Debug, Default)]
pub(super) struct Mending {
    running: Option<Running>,
    /// Receive queues of the interfaces with these indices; `None` to look again.
    queues: Option<(BTreeSet<u32>, BTreeSet<Queue>)>,
    /// Whether there is no pair of an earlier agent any more.
    is_pair_removed: bool,
    /// The present problems of sockets, which have been logged.
    problems: BTreeSet<String>,
}

#[derive(Debug)]
struct Running {
    mend: Mend,
    limits: Limits,
    queues: BTreeSet<Queue>,
    /// Packets that had been punted before it began.
    punted_before: u64,
}

/// What observers are told of mending.
#[derive(Clone, Debug)]
pub(crate) struct MendView {
    pub(crate) reader: MendReader,
    pub(crate) limits: Limits,
    /// Packets that had been punted before the thread began.
    pub(crate) punted_before: u64,
}

impl Mending {
    /// Starts, ends or adapts the thread. `queues` are those whose packets are mended.
    fn follow(
        &mut self,
        loaded: &mut Loaded,
        wanted: Option<Limits>,
        queues: BTreeSet<Queue>,
        punted: impl Fn() -> u64,
    ) -> Result<(), String> {
        let is_other =
            |running: &mut Running| Some(running.limits) != wanted || !running.mend.is_alive();
        if let Some(former) = self.running.take_if(is_other) {
            drop(former);
            loaded.detach_mended();
            tracing::info!("the thread that mends has ended");
        }
        let Some(limits) = wanted else {
            return self.remove_pair();
        };
        if self.running.is_none() {
            self.is_pair_removed = false;
            // A former thread takes packets until it has ended.
            let punted = punted();
            let mend = PreparedPair::prepare(loaded)
                .and_then(|pair| Mend::start(loaded, &pair, limits))
                .map_err(|error| chain(&error))?;
            tracing::info!(?limits, "packets are mended");
            self.running = Some(Running {
                mend,
                limits,
                queues: BTreeSet::new(),
                punted_before: punted,
            });
        }
        if let Some(running) = &mut self.running
            && running.queues != queues
        {
            running.mend.follow(queues.clone());
            running.queues = queues;
        }
        Ok(())
    }

    /// Tells whether packets are mended.
    fn is_running(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.mend.is_alive())
    }

    /// Logs problems of sockets that are new.
    fn log_problems(&mut self) {
        let running = self.running.as_ref();
        let found = running.map(|running| running.mend.reader().queues().problems);
        let found = found.unwrap_or_default();
        let found: BTreeSet<String> = found.iter().map(|problem| chain(problem)).collect();
        for problem in found.difference(&self.problems) {
            tracing::warn!(
                problem,
                "packets that need this socket are not mended or carried"
            );
        }
        self.problems = found;
    }

    /// Has the next look ask for the queues of the interfaces, which may have changed.
    pub(super) fn forget_queues(&mut self) {
        self.queues = None;
    }

    /// Ends the thread, and removes its pair once.
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.running = None;
        self.is_pair_removed = false;
        self.remove_pair()
    }

    fn remove_pair(&mut self) -> Result<(), String> {
        if !self.is_pair_removed {
            mend::remove_pair().map_err(|error| chain(&error))?;
            self.is_pair_removed = true;
        }
        Ok(())
    }

    pub(super) fn view(&self) -> Option<MendView> {
        self.running.as_ref().map(|running| MendView {
            reader: running.mend.reader(),
            limits: running.limits,
            punted_before: running.punted_before,
        })
    }
}

impl Agent {
    /// Has packets mended, or not, as the configuration says, and those carried whose device takes no frames from XDP.
    pub(super) fn mend(&mut self) -> Vec<(Item, Result<(), String>)> {
        if self.is_whole_edge() {
            return vec![self.serve_queues()];
        }
        let wanted = self.config.desired.mend;
        let queues = match wanted {
            Some(_) => self.queues(),
            None => BTreeSet::new(),
        };
        let tables = &self.tables;
        let outcome = self
            .mending
            .follow(&mut self.attachments.loaded, wanted, queues, || {
                tables.punted()
            });
        self.mending.log_problems();
        let mut outcomes = vec![(Item::Mend, outcome)];
        // In generic mode the stack sends what is redirected, and any device takes that.
        let mut attached = self.attachments.interfaces.values();
        let is_native = attached.any(|one| one.attachment.mode == XdpMode::Native);
        let carries = self.mending.is_running() && is_native;
        if self.next_hops.set_carrying(carries) {
            let outcome = self.next_hops.refresh(&mut self.tables);
            let outcome = outcome.map_err(|error| chain(&error));
            outcomes.push((Item::NextHops, outcome));
        }
        outcomes
    }

    /// Lists the receive queues of the interfaces with the program.
    pub(super) fn queues(&mut self) -> BTreeSet<Queue> {
        let attached = self.attachments.interfaces.values();
        let attached = attached.map(|attached| &attached.attachment);
        let devices = attached.clone().map(|one| one.ifindex).collect();
        if let Some((of, queues)) = &self.mending.queues
            && *of == devices
        {
            return queues.clone();
        }
        let found = attached.filter_map(|one| facts::interface(&one.interface).ok());
        let queues: BTreeSet<Queue> = found
            .flat_map(|interface| {
                (0..interface.rx_queues).map(move |queue| Queue {
                    interface: interface.name.clone(),
                    device: interface.index,
                    queue,
                })
            })
            .collect();
        self.mending.queues = Some((devices, queues.clone()));
        queues
    }
}
