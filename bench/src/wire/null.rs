//! The system `null`: an XDP program that looks at nothing, and sends what comes on to one node.

use anyhow::{Context, Result};
use aya::{
    Ebpf, EbpfLoader,
    maps::Array,
    programs::{Xdp, XdpMode},
};
use lab::Machine;
use xdp_prog::bench::{Macs, map, program};

/// The program while it is attached.
#[derive(Debug)]
pub(super) struct Null {
    _object: Ebpf,
}

impl Null {
    /// Attaches the program to a machine. It sends TCP and UDP to the node.
    pub(super) fn attach(machine: &Machine, node: &Machine) -> Result<Self> {
        let mut object = EbpfLoader::new()
            // Of other programs in the object: large ones take long to make.
            .map_max_entries(map::SERVICES_V4, 1)
            .map_max_entries(map::SERVICES_V6, 1)
            .load(fastpath::object::bench_bytes())
            .context("loading the null program")?;
        let macs = [node.mac(), machine.mac()].concat();
        let macs = Macs {
            bytes: *macs.first_chunk().context("two addresses of six bytes")?,
            reserved: [0; 4],
        };
        let map = object
            .map_mut(map::MACS)
            .context("the object has no MACS")?;
        let mut map: Array<_, Macs> = Array::try_from(map)?;
        map.set(0, macs, 0)?;
        let program = object.program_mut(program::NULL);
        let program: &mut Xdp = program
            .context("the object has no null program")?
            .try_into()?;
        program.load()?;
        machine.namespace().run(|| {
            let interface = Machine::INTERFACE;
            program.attach(interface, XdpMode::Driver)
        })?;
        Ok(Self { _object: object })
    }
}
