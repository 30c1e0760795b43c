//! Live frames through the lab: out of the switch into a machine, and counted where they leave it.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use lab::wait_for;

use super::{Lab, addresses};
use crate::{
    load::{
        Asked, Generator,
        live::{Live, Path},
    },
    scenario::{AddressFamily, Load, System},
};

/// How long a system may take until every frame of a proof passes it.
const PROOF_TIMEOUT: Duration = Duration::from_secs(30);
/// Seconds of a proof, and frames a second: what any system takes.
const PROOF: (f64, f64) = (0.05, 2_000.0);

impl Lab {
    /// Opens a load of live frames to a system, and proves that all of a few frames pass it.
    pub fn open_live(&self, system: System, load: &Load) -> Result<Live<'_>> {
        let seed = self.scenario.seed;
        let path = self.path(system, load)?;
        let (seconds, rate) = PROOF;
        let asked = Asked {
            rate: Some(rate),
            seconds,
            seed,
        };
        let mut live = Live::new(path, load, seed)?;
        let awaited = format!("{system} takes all of a few frames of the load {load}");
        wait_for(&awaited, PROOF_TIMEOUT, || {
            let tally = live.run(asked)?.tally;
            if tally.sent == 0 || tally.received < tally.sent {
                bail!("{tally:?}")
            }
            Ok(())
        })?;
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
