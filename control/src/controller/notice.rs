//! What Events tell of Services and pools.

/// An Event about a Service or a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// Whether a human should look.
    pub(super) warning: bool,
    /// What it is, in a word.
    pub(super) reason: &'static str,
    /// What it is, in a sentence.
    pub(super) text: String,
}

impl Notice {
    /// Tells what a human should look at.
    pub(super) fn warning(reason: &'static str, text: String) -> Self {
        Self {
            warning: true,
            reason,
            text,
        }
    }
}
