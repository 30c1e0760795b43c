//! The Events about Services and pools.

/// An Event about a Service or a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingEvent {
    /// Whether a human should look.
    pub(super) warning: bool,
    /// The reason, in CamelCase.
    pub(super) reason: &'static str,
    /// The message.
    pub(super) text: String,
}

impl PendingEvent {
    /// Returns an Event of type Warning.
    pub(super) fn warning(reason: &'static str, text: String) -> Self {
        Self {
            warning: true,
            reason,
            text,
        }
    }
}
