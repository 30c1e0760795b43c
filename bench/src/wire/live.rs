//! Live frames through the lab: out of the switch into a machine, and counted where they leave it.

use anyhow::{Context, Result};

use super::{Lab, addresses};
use crate::{
    load::live::{Live, Path},
    scenario::{AddressFamily, Load, System},
};

impl Lab {
    /// Opens a load of live frames to a system, and proves that the system answers requests, and that all of a few frames
    /// pass it.
    ///
    /// # Errors
    ///
    /// When it does not, or the kernel refuses the programs.
    pub fn open_live(&self, system: System, load: &Load) -> Result<Live<'_>> {
        self.prove_round_trips(system, load)?;
        let seed = self.scenario.seed;
        let mut live = Live::new(self.path(system, load)?, load, seed)?;
        live.prove(system, seed)?;
        Ok(live)
    }

    /// Returns the way of live frames through a system: out of the switch's port of the machine, and where the machine
    /// sends them on, in at the same port. Without a machine in between, they end at a node.
    fn path(&self, system: System, load: &Load) -> Result<Path<'_>> {
        let is_direct = system == System::Direct;
        let machine = match system {
            System::Direct => &self.nodes(system)[0],
            _ => self.edge(system)?,
        };
        let (own, port) = (machine.link()?, self.net.far_end(machine)?);
        let router = self.net.router().link("fabric")?;
        let outer = match (system, load.family) {
            (System::OursIpip | System::OursNodeport, AddressFamily::Ipv4) => 20,
            (System::OursIpip | System::OursNodeport, AddressFamily::Ipv6) => 40,
            _ => 0,
        };
        let macs = [machine.mac(), router.mac()].concat();
        Ok(Path {
            out: port.clone(),
            entry: (!is_direct && !system.is_xdp()).then(|| own.clone()),
            sink: if is_direct { own } else { port },
            replaces_pass: !is_direct,
            from_stack: !is_direct && !system.is_xdp(),
            macs: *macs.first_chunk().context("two addresses of six bytes")?,
            services: addresses::targets(&self.scenario, system, load)?,
            outer,
            // Its edges write the tag of the next hop, and there is none.
            untags: system.is_ours(),
        })
    }
}
