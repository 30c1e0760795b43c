//! Mending: the thread that does it, and the queues that it has.

use std::collections::BTreeSet;

use fastpath::facts;
use fastpath::load::Loaded;
use fastpath::mend::{self, Limits, Mend, MendReader, Queue};

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
            let mend = Mend::start(loaded, limits).map_err(|error| chain(&error))?;
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
    /// Has packets mended, or not, as the configuration says.
    pub(super) fn mend(&mut self) -> (Item, Result<(), String>) {
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
        (Item::Mend, outcome)
    }

    /// Lists the receive queues of the interfaces with the program.
    fn queues(&mut self) -> BTreeSet<Queue> {
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
