//! Health checks: find out which backends and nodes can serve, and leave out those that cannot.
//!
//! ```text
//! desired state -> targets (who, how) + probe_indices -> monitor: probe, echo(es) -> schedule (counts results)
//! desired state <- selection (who serves) <----------------------------------------- what fails
//! ```
//!
//! `schedule`, `selection`, `targets` and `probe_indices` are pure. `monitor` makes the checks beside the
//! agent's thread. The agent reads their results and plans with the backends that the selection leaves.

mod echo;
mod echoes;
pub mod monitor;
pub mod probe;
pub mod probe_indices;
pub mod schedule;
pub mod selection;
pub mod targets;

use std::time::Duration;

use self::schedule::CheckThresholds;
use crate::desired::Check;

impl Check {
    /// Returns the thresholds by which results count.
    pub fn thresholds(&self) -> CheckThresholds {
        CheckThresholds {
            interval: self.interval,
            rise: self.rise,
            fall: self.fall,
            first_decides: true,
            starting: Duration::ZERO,
        }
    }
}
