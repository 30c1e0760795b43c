//! How this machine is, in the words of an Event about its Node.

use super::View;
use crate::api::unattached;
use crate::first_few::first_few;
use crate::healthz::MachineState;

impl View {
    /// Returns the worst that is to be said of this machine.
    pub(super) fn machine_state(&self) -> MachineState {
        let warning = |reason, first: &str| MachineState {
            reason,
            is_warning: true,
            // Without the number of the others: each change of it would be told anew.
            text: format!("{first}; `guideway status` there lists all problems"),
        };
        if let Some(first) = unattached(&self.interfaces, &self.egress).first() {
            return warning("NotAttached", first);
        }
        if let Some(first) = self.problems.texts().next() {
            return warning("Degraded", &first);
        }
        let interfaces = self.interfaces.iter().map(|interface| {
            let mode = interface.mode.as_deref().unwrap_or_default();
            format!("{} ({mode})", interface.name)
        });
        MachineState {
            reason: "Attached",
            is_warning: false,
            text: format!("the XDP program is on {}", first_few(interfaces)),
        }
    }
}
