//! What is loaded: programs and maps, and the links and filters that live as long.

use std::{collections::BTreeMap, os::fd::AsFd as _, path::Path};

use aya::{
    Ebpf,
    maps::{Map, MapData, MapError},
    programs::{Program, RawTracePoint, SchedClassifier, Xdp, links::FdLink},
};
use xdp_prog::{
    abi::{EGRESS_PROGRAM, map},
    punt::MENDED_PROGRAM,
    stage::{Duties, Stage},
    whole_edge::REDIRECT_PROGRAM,
};

use super::{
    error::{LoadError, explain},
    pinned::Resized,
    programs::{load_stages, set_programs},
    takeover::Takeover,
};
use crate::{
    clsact::OwnedFilter,
    facts,
    pins::{PinError, Pins, pin},
};

/// The loaded programs and their maps.
///
/// Without pins, links and filters live as long as this does.
#[derive(Debug)]
pub struct Loaded {
    pub(super) ebpf: Ebpf,
    pub(super) has_af_xdp: bool,
    pub(super) duties: Duties,
    /// Name of the program that is attached to interfaces.
    pub(super) xdp_program: &'static str,
    pub(super) pins: Option<Pins>,
    pub(super) resized: Vec<Resized>,
    pub(super) takeover: Takeover,
    pub(super) unpinned_links: Vec<FdLink>,
    pub(super) unpinned_filters: Vec<OwnedFilter>,
    /// The link of the program for mended frames.
    pub(super) mended: Option<FdLink>,
}

impl Loaded {
    /// Returns a new handle to a map, to be read by type or mapped into memory.
    ///
    /// # Errors
    ///
    /// Fails if the object has no such map, or if the process has no file descriptor left.
    pub fn map(&self, name: &str) -> Result<MapData, LoadError> {
        let failed = |source: MapError| LoadError::Other {
            release: facts::kernel().release,
            source: Box::new(source.into()),
        };
        let map = self.ebpf.map(name).and_then(map_data);
        let map = map.ok_or_else(|| LoadError::UnknownMap {
            map: name.to_owned(),
        })?;
        another_handle(map).map_err(failed)
    }

    /// Loads the stages that frames get to on a machine with more duties, and makes them reachable. To be called before
    /// the tables tell the programs of these duties. Stages that are loaded stay.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a program; then nothing changes.
    pub fn take_on(&mut self, duties: Duties) -> Result<(), LoadError> {
        if self.xdp_program == REDIRECT_PROGRAM {
            return Ok(());
        }
        let all = Duties {
            node: self.duties.node || duties.node,
            nat: self.duties.nat || duties.nat,
        };
        let known = self.duties;
        let new = Stage::ALL
            .into_iter()
            .filter(|stage| stage.is_reached(all) && !stage.is_reached(known));
        load_stages(&mut self.ebpf, self.has_af_xdp, new)
            .and_then(|stages| set_programs(&mut self.ebpf, map::STAGES, &stages))
            .map_err(|error| explain(error, &BTreeMap::new(), &facts::kernel().release))?;
        self.duties = all;
        Ok(())
    }

    /// Lists the maps whose other size is why no pinned map was adopted. The pinned ones are set aside.
    #[must_use]
    pub fn resized(&self) -> &[Resized] {
        &self.resized
    }

    /// Tells what has become of the maps that were pinned.
    #[must_use]
    pub const fn takeover(&self) -> &Takeover {
        &self.takeover
    }

    /// Returns the XDP program.
    #[must_use]
    pub fn program(&self) -> &Xdp {
        self.get(self.xdp_program)
    }

    pub(crate) fn program_mut(&mut self) -> &mut Xdp {
        self.get_mut(self.xdp_program)
    }

    /// Returns the TC egress program.
    #[must_use]
    pub fn egress_program(&self) -> &SchedClassifier {
        self.get(EGRESS_PROGRAM)
    }

    /// Returns the TC egress program, to attach it other than by [`Self::attach_egress`].
    pub fn egress_program_mut(&mut self) -> &mut SchedClassifier {
        self.get_mut(EGRESS_PROGRAM)
    }

    /// Returns the XDP program at the end of the way by which mended frames come back.
    pub(crate) fn mended_program_mut(&mut self) -> &mut Xdp {
        self.get_mut(MENDED_PROGRAM)
    }

    /// Returns the program of a tracepoint; it is not loaded with the others.
    pub(crate) fn trace_program_mut(&mut self, name: &str) -> &mut RawTracePoint {
        self.get_mut(name)
    }

    fn get<'l, P>(&'l self, name: &str) -> &'l P
    where
        &'l P: TryFrom<&'l Program>,
    {
        let program = self.ebpf.program(name);
        let program = program.and_then(|program| program.try_into().ok());
        program.expect("the object has this program, of this type")
    }

    fn get_mut<'l, P>(&'l mut self, name: &str) -> &'l mut P
    where
        &'l mut P: TryFrom<&'l mut Program>,
    {
        let program = self.ebpf.program_mut(name);
        let program = program.and_then(|program| program.try_into().ok());
        program.expect("the object has this program, of this type")
    }

    pub(crate) const fn pins(&self) -> Option<&Pins> {
        self.pins.as_ref()
    }

    /// Pins a link; without a path, holds it for as long as the program is loaded. If the pin fails, the link
    /// detaches, so that nothing unpinned stays attached.
    pub(crate) fn keep(&mut self, link: FdLink, path: Option<&Path>) -> Result<(), PinError> {
        match path {
            Some(path) => pin(path, |path| link.pin(path)).map(drop),
            None => {
                self.unpinned_links.push(link);
                Ok(())
            }
        }
    }

    /// Holds the link of the program for mended frames.
    pub(crate) fn keep_mended(&mut self, link: FdLink) {
        self.mended = Some(link);
    }

    /// Detaches the program for mended frames.
    pub fn detach_mended(&mut self) {
        self.mended = None;
    }

    /// Holds a filter, which is removed when the program is unloaded.
    pub(crate) fn keep_filter(&mut self, filter: OwnedFilter) {
        self.unpinned_filters.push(filter);
    }
}

/// Returns a new handle to a map.
///
/// # Errors
///
/// Fails if the process has no file descriptor left.
pub(crate) fn another_handle(map: &MapData) -> Result<MapData, MapError> {
    MapData::from_fd(map.fd().as_fd().try_clone_to_owned()?)
}

/// Returns the common data of the map types that the object has.
const fn map_data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LpmTrie(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::ProgramArray(data)
        | Map::RingBuf(data)
        | Map::XskMap(data) => Some(data),
        _ => None,
    }
}
