//! ICMP to addresses of ours.

use super::{Verdict, World};
use crate::{frame::Frame, reason::PassReason};

/// Decides what is to be done with a frame of this stage.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(_: &F, _: &'t T) -> Verdict<'t> {
    Verdict::Pass(PassReason::Icmp)
}
