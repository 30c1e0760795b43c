//! What threads have copied of packets for a capture.

use fastpath::whole_edge::TakenEvents;

use super::Observation;
use crate::api::CapturedEvents;
use crate::chain::chain;
use crate::hex;

/// Most packets of an answer. Each takes up to 8 kB in it.
const MAX_EVENTS: usize = 512;

impl Observation<'_> {
    /// Takes the oldest packets that threads have copied.
    pub(super) fn captured(&self) -> Result<CapturedEvents, String> {
        let captures = self.view.captures.as_ref();
        let captures = captures.ok_or("no thread takes packets here; see `guideway status`")?;
        let taken = captures.take(MAX_EVENTS).map_err(|error| chain(&error))?;
        let TakenEvents { events, lost } = taken;
        Ok(CapturedEvents {
            events: events.iter().map(|event| hex::encode(event)).collect(),
            lost,
        })
    }
}
