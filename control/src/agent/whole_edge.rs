//! The threads that take frames all the way where the programs do not load.

use fastpath::whole_edge::WholeEdge;

use super::Agent;
use super::apply::in_words;
use super::problems::Item;
use crate::chain::chain;
use crate::config::Datapath;

impl Agent {
    /// Tells whether threads take the frames, as the configuration of the agent's start says.
    pub(super) fn is_whole_edge(&self) -> bool {
        self.file.started_with.datapath == Datapath::Afxdp
    }

    /// Has each receive queue of the interfaces served by a thread.
    pub(super) fn serve_queues(&mut self) -> (Item, Result<(), String>) {
        let queues = self.queues();
        if self.whole_edge.is_none() {
            match WholeEdge::start(&self.attachments.loaded, &mut self.tables) {
                Ok(edge) => self.whole_edge = Some(edge),
                Err(error) => return (Item::WholeEdge, Err(chain(&error))),
            }
        }
        let outcome = self.whole_edge.as_mut().map(|edge| {
            let before = edge.queues();
            let outcome = edge.follow(&queues);
            if edge.queues() != before {
                tracing::info!(queues = edge.queues(), "threads take the frames");
            }
            outcome
        });
        let outcome = in_words(outcome.unwrap_or(Ok(())));
        // A change that threads could not be shown when it was made.
        let shown = in_words(self.tables.show_unseen());
        (Item::WholeEdge, outcome.and(shown))
    }
}
