//! Guideway counted against itself, with and without extra work.

use std::path::Path;

use anyhow::{Context, Result};

use super::{Balancer, Case, ESTABLISHED, Edge, FRAMES, Flows, Ours, Wire, count_direct, proof};
use crate::{
    datapath::frames::{Family, Protocol},
    host,
    judgement::{Bar, Compared, Outcome, check},
    stats::median,
};

/// Compares Guideway, by IPIP, with itself by the instructions of a packet beyond the direct wire. Each comparison is passed
/// to `found`.
///
/// # Errors
///
/// As for [`super::count`].
pub fn check_counted(bar: &Bar, found: &dyn Fn(&Compared)) -> Result<Outcome> {
    host::preflight()?;
    let case = Case {
        family: Family::V4,
        protocol: Protocol::Udp,
        services: 1,
    };
    let direct = count_direct(case.protocol).context("the direct wire")?;
    let is_known =
        |one: &&super::Counted| one.family == case.family && one.flows == Flows::Established;
    let direct = direct.iter().find(is_known).context("it was counted")?;
    let direct = median(&direct.trials);
    let edge = Edge {
        balancer: Balancer::OursIpip,
        services: case.services,
        protocol: case.protocol,
        rules: Path::new(""),
    };
    let (mut ours, mut wire) = (Ours::load()?, Wire::lay()?);
    edge.bring_up(&mut wire, &mut ours)?;
    let way = edge.balancer.way();
    proof::prove(&wire, case, way)?;
    wire.attach_sink(edge.balancer.sink())?;
    wire.set_frames(case, way)?;
    wire.settle()?;
    let mut measure = |_, work| {
        wire.set_work(work);
        Ok(wire.send(0, ESTABLISHED, FRAMES)? - direct)
    };
    check(bar, &mut measure, found)
}
