//! The devices.

use std::collections::BTreeMap;

use anyhow::Result;
use lab::Namespace;

use crate::datapath::pairs::{self, Pair};

/// MTU of the devices, which take a full packet with an outer header.
pub(super) const MTU: u32 = 1600;
/// The bridge that the bare loop sends to. The thread has one of its own: a queue takes one program's socket.
pub(super) const BARE_BRIDGE: &str = "bare";
const CARRIED_BRIDGE: &str = "carried";

/// What a veth pair is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cable {
    /// It leads to the bare loop.
    Bare,
    /// It leads to the bare loop that sends to a bridge.
    BareToBridge,
    /// It leads to the edge without the thread.
    Alone,
    /// It leads to the edge with the thread.
    Mending,
    /// Pieces leave by it.
    Pieces,
    /// It is a port of the thread's bridge.
    Bridged,
    /// It is a port of the bare loop's bridge.
    BareBridged,
}

/// Creates the devices. Must be called outside the namespace.
pub(super) fn cable(namespace: &Namespace) -> Result<Cables> {
    let pairs = pairs::create(
        namespace,
        [
            Cable::Bare,
            Cable::BareToBridge,
            Cable::Alone,
            Cable::Mending,
            Cable::Pieces,
            Cable::Bridged,
            Cable::BareBridged,
        ],
        MTU,
    )?;
    let add_bridge = |name, port| {
        let bridge = namespace.add_bridge(name)?;
        let Pair { far_name, .. } = &pairs[&port];
        namespace.link(far_name)?.set_bridge(&bridge)?;
        bridge.wait_until_ready()?;
        anyhow::Ok(bridge.index())
    };
    add_bridge(BARE_BRIDGE, Cable::BareBridged)?;
    Ok(Cables {
        bridge: add_bridge(CARRIED_BRIDGE, Cable::Bridged)?,
        pairs,
    })
}

pub(super) struct Cables {
    pub(super) pairs: BTreeMap<Cable, Pair>,
    /// Index of the thread's bridge.
    pub(super) bridge: u32,
}
