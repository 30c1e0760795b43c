//! Why a connection broke.

use serde::{Deserialize, Serialize};
use xdp_prog::abi::PAST_OWNER_SECONDS;

use super::{owners::Known, policy::Fate};

/// Reasons why a connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Its slot has had more owners since than a list has room for.
    Overflow,
    /// Its backend ceased to own the slot more than a day ago.
    Old,
    /// Another backend has a half-open socket for the same tuple, of an earlier connection.
    HalfOpen,
    /// The edge has not known its backend as an owner of the slot: it began without a past, or did not learn of that set.
    NoPast,
    /// None of these: Guideway says that it keeps such connections.
    WithinClaim,
}

/// The connections that broke, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reasons {
    /// The slot has had more owners since than a list has room for.
    pub overflow: u32,
    /// The backend ceased to own the slot more than a day ago.
    pub old: u32,
    /// A half-open socket of the same tuple took the segment.
    pub half_open: u32,
    /// The edge has not known the backend as an owner.
    pub no_past: u32,
    /// None of these, which must not be.
    pub within_claim: u32,
}

impl Reasons {
    pub(super) const fn add(&mut self, why: Why) {
        let count = match why {
            Why::Overflow => &mut self.overflow,
            Why::Old => &mut self.old,
            Why::HalfOpen => &mut self.half_open,
            Why::NoPast => &mut self.no_past,
            Why::WithinClaim => &mut self.within_claim,
        };
        *count += 1;
    }
}

/// What is known of a connection that broke.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken {
    /// What became of its segment.
    pub(super) fate: Fate,
    /// Whether the backend that got it has a half-open socket.
    pub(super) is_half_open: bool,
    /// What the edge knew of its backend.
    pub(super) known: Known,
    /// The most owners in a list.
    pub(super) longest: usize,
    /// The second in which it broke.
    pub(super) second: u32,
}

/// Finds the reason.
pub(super) fn why(broken: &Broken) -> Why {
    if broken.fate == Fate::Lost {
        return Why::WithinClaim;
    }
    match broken.known {
        _ if broken.is_half_open => Why::HalfOpen,
        Known::Never => Why::NoPast,
        Known::Owns => Why::WithinClaim,
        Known::Past { second, .. } if broken.second.saturating_sub(second) > PAST_OWNER_SECONDS => {
            Why::Old
        }
        Known::Past { newer, .. } if newer >= broken.longest => Why::Overflow,
        Known::Past { .. } => Why::WithinClaim,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_limit_explains_is_within_the_claim() {
        let past = |second, newer| Broken {
            fate: Fate::Delivered(1),
            is_half_open: false,
            known: Known::Past { second, newer },
            longest: 4,
            second: 100_000,
        };
        let day = 100_000 - PAST_OWNER_SECONDS;
        let known = |known| Broken {
            known,
            ..past(0, 0)
        };
        for (broken, expected) in [
            (past(day, 3), Why::WithinClaim),
            (past(day, 4), Why::Overflow),
            (past(day - 1, 0), Why::Old),
            (known(Known::Never), Why::NoPast),
            (known(Known::Owns), Why::WithinClaim),
            (
                Broken {
                    is_half_open: true,
                    ..known(Known::Never)
                },
                Why::HalfOpen,
            ),
            (
                Broken {
                    fate: Fate::Lost,
                    ..known(Known::Never)
                },
                Why::WithinClaim,
            ),
        ] {
            assert_eq!(why(&broken), expected, "{broken:?}");
        }
    }
}
