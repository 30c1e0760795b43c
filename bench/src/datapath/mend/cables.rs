//! The devices.

use std::collections::BTreeMap;

use anyhow::Result;
use lab::Namespace;

use crate::datapath::pairs::{self, Pair};

/// MTU of the devices, which take a full packet with an outer header.
pub(super) const MTU: u32 = 1600;
/// The bridge that the bare loop sends to. The thread has one of its own: a queue takes one program's socket.
pub(super) const BARE_BRIDGE: &str = "bare";
const BRIDGES: [(&str, Cable); 2] = [
    ("carried", Cable::Bridged),
    (BARE_BRIDGE, Cable::BareBridged),
];

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
    let mut bridges = Vec::new();
    for (name, port) in BRIDGES {
        let bridge = namespace.add_bridge(name)?;
        namespace
            .link(&pairs[&port].far_name)?
            .set_bridge(&bridge)?;
        bridge.wait_until_ready()?;
        bridges.push(bridge.index());
    }
    Ok(Cables {
        bridge: bridges[0],
        pairs,
    })
}

pub(super) struct Cables {
    pub(super) pairs: BTreeMap<Cable, Pair>,
    /// Index of the thread's bridge.
    pub(super) bridge: u32,
}
