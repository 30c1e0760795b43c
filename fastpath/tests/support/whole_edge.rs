//! The third engine: the datapath's code over the maps of the second one, as a thread of a whole edge runs it.

use fastpath::tables::{EdgeTables, EdgeWorld};
use xdp_prog::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_NODE_PORT, Backend, CONFIG_ANNOUNCE, CONFIG_MEND, CONFIG_NODE,
        SERVICE_NAT,
    },
    frame::HostFrame,
    process::Action,
    whole_edge::ROOM,
    world::{Answers as _, Pins as _},
};

use super::{
    kernel::{INGRESS, Kernel},
    tables::TableSet,
};

/// A thread's view of the kernel's maps.
pub(crate) struct WholeEdge {
    tables: EdgeTables,
    pub(crate) world: EdgeWorld,
}

impl WholeEdge {
    /// Opens the maps of the second engine.
    pub(crate) fn over(kernel: &Kernel) -> anyhow::Result<Self> {
        let tables = EdgeTables::open(|name| kernel.open(name))?;
        let world = tables.world(0)?;
        Ok(Self { tables, world })
    }

    /// Follows a change of the maps' contents to these.
    pub(crate) fn follow(&mut self, tables: &TableSet) -> anyhow::Result<()> {
        self.tables.refresh()?;
        self.world.set_all_full_at(tables.answers_of_all);
        self.world.set_returns_full_at(tables.returns_full_at);
        Ok(())
    }

    /// Takes one frame all the way; returns the action and the frame's bytes.
    pub(crate) fn run(&mut self, input: &[u8]) -> (Action, Vec<u8>) {
        let mut buffer = [&[0; ROOM], input].concat();
        let mut frame = HostFrame::behind(ROOM, buffer.as_mut_slice());
        self.world.begin();
        let action = self.world.process(&mut frame, INGRESS);
        self.world.end();
        (action, frame.bytes().to_vec())
    }
}

/// Takes the node role from a machine, for a whole edge has none.
///
/// # Errors
///
/// Names what else the machine does that a whole edge does not.
pub(crate) fn without_node_role(tables: &TableSet) -> Result<TableSet, &'static str> {
    let config = &tables.config;
    let has_nat =
        config.nat_ports != 0 || tables.service.iter().any(|s| s.flags & SERVICE_NAT != 0);
    let has_node_ports = tables
        .vips
        .values()
        .any(|flags| flags & ADDRESS_NODE_PORT != 0);
    let refusals = [
        ("NAT", has_nat),
        ("pods", tables.backends.iter().any(Backend::is_own_pod)),
        ("announcing", config.flags & CONFIG_ANNOUNCE != 0),
        ("NodePorts", has_node_ports),
        ("mending", config.flags & CONFIG_MEND != 0),
        ("checks by the edge's way", !tables.probe_peers.is_empty()),
    ];
    if let Some((what, _)) = refusals.into_iter().find(|(_, is_refused)| *is_refused) {
        return Err(what);
    }
    let mut left = tables.clone();
    left.config.flags &= !CONFIG_NODE;
    left.vips.retain(|_, flags| {
        *flags &= !ADDRESS_LOCAL;
        *flags != 0
    });
    Ok(left)
}
