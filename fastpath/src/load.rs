//! Loads the programs: creates the maps or adopts them from their pins, then has the verifier check the programs.
//!
//! [`attach`](crate::attach) attaches the programs; [`tables`](crate::tables) gives the maps their meaning.

mod error;
mod pinned;
mod takeover;

use std::{collections::BTreeMap, io, os::fd::AsFd as _, path::Path};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{Map, MapData, MapError, MapType, ProgramArray},
    programs::{
        Program, ProgramError, ProgramFd, RawTracePoint, SchedClassifier, Xdp, links::FdLink,
    },
};
use xdp_prog::{
    abi::{EGRESS_PROGRAM, XDP_PROGRAM, map},
    capture::Slot,
    punt::{MENDED_PROGRAM, UNPUNTED_PROGRAM},
    stage::{Duties, Stage},
    whole_edge::REDIRECT_PROGRAM,
};

pub(crate) use self::error::explain;
use self::error::pinned_map_error;
use self::pinned::Prepared;
pub use self::{
    error::LoadError,
    pinned::{MapLayout, Resized},
    takeover::{Fate, Takeover},
};
use crate::{
    clsact::OwnedFilter,
    cpus,
    facts::{self, Kernel, KernelVersion, Softirq},
    memory, object,
    pins::{PinError, Pins, pin, unpin},
};

/// Returns how many entries an LRU table of the kernel needs with this many possible CPUs; 0 for no demand.
///
/// Before 6.17, each CPU reserves 128 free elements at a time (`LOCAL_FREE_TARGET` of kernel/bpf/bpf_lru_list.c). If
/// the table has no more, the CPU evicts elements in use. So at least half of the table must be left for the rest.
/// Later kernels ensure that themselves.
fn lru_entries(version: Option<KernelVersion>, cpus: u32) -> u32 {
    const LOCAL_FREE_TARGET: u32 = 128;
    const FIXED: KernelVersion = KernelVersion {
        major: 6,
        minor: 17,
    };
    if version.is_some_and(|version| version >= FIXED) {
        return 0;
    }
    (2 * LOCAL_FREE_TARGET).saturating_mul(cpus)
}

/// Arrays with a region for each CPU.
const OF_EACH_CPU: [&str; 4] = [
    map::CPU_SCRATCH,
    map::REASONS,
    map::SERVICE_TRAFFIC,
    map::BACKEND_TRAFFIC,
];

/// Options for loading.
#[derive(Clone, Debug)]
pub struct Loader {
    object: &'static [u8],
    pins: Option<Pins>,
    max_entries: BTreeMap<String, u32>,
    /// Whether the kernel has AF_XDP sockets.
    has_af_xdp: bool,
    duties: Duties,
    is_whole_edge: bool,
}

impl Loader {
    /// Loads the programs with pinned maps and links.
    #[must_use]
    pub fn pinned(pins: Pins) -> Self {
        Self {
            pins: Some(pins),
            ..Self::unpinned()
        }
    }

    /// Loads the programs without pins. Everything is gone when [`Loaded`] is dropped. For tests and benchmarks.
    #[must_use]
    pub fn unpinned() -> Self {
        Self {
            object: object::bytes(),
            pins: None,
            max_entries: BTreeMap::new(),
            has_af_xdp: facts::has_af_xdp(),
            duties: Duties::ALL,
            is_whole_edge: false,
        }
    }

    /// Loads the program alone that redirects frames to the threads of a whole edge.
    #[must_use]
    pub const fn whole_edge(mut self) -> Self {
        self.is_whole_edge = true;
        self
    }

    /// Loads as for a kernel without AF_XDP sockets. For tests.
    #[must_use]
    pub const fn without_af_xdp(mut self) -> Self {
        self.has_af_xdp = false;
        self
    }

    /// Loads this object instead of the embedded one. It must have the same maps, and programs of the same names. For
    /// tests of the code around the programs.
    #[must_use]
    pub const fn object(mut self, bytes: &'static [u8]) -> Self {
        self.object = bytes;
        self
    }

    /// Loads no stage that frames do not get to on a machine with these duties. [`Loaded::take_on`] loads it later.
    #[must_use]
    pub const fn duties(mut self, duties: Duties) -> Self {
        self.duties = duties;
        self
    }

    /// Sets the number of entries of a map. If a pinned map has another, all maps are made anew. For an array with a
    /// region for each CPU, it is the number of a region.
    #[must_use]
    pub fn max_entries(mut self, map: impl Into<String>, entries: u32) -> Self {
        self.max_entries.insert(map.into(), entries);
        self
    }

    /// Loads maps and programs.
    ///
    /// # Errors
    ///
    /// Each error names the cause and the remedy. Maps that were pinned before stay as they were; new pins are removed.
    pub fn load(&self) -> Result<Loaded, LoadError> {
        let kernel = facts::kernel();
        self.judge(&kernel)?;
        self.for_kernel(&kernel)?.load_on(&kernel.release)
    }

    /// Returns these options with the sizes that a kernel and the number of CPUs ask for.
    fn for_kernel(&self, kernel: &Kernel) -> Result<Self, LoadError> {
        let cpus = cpus::possible().map_err(LoadError::Cpus)?;
        self.with_room_for_cpus(lru_entries(kernel.version, cpus))
    }

    /// Judges whether the programs can run on a kernel.
    fn judge(&self, kernel: &Kernel) -> Result<(), LoadError> {
        let release = || kernel.release.clone();
        if self.is_whole_edge {
            if !self.has_af_xdp {
                return Err(LoadError::NoAfXdp { release: release() });
            }
            if kernel.is_older(KernelVersion::WHOLE_EDGE) {
                return Err(LoadError::TooOldForWholeEdge { release: release() });
            }
            return Ok(());
        }
        if kernel.is_older(KernelVersion::MINIMUM) {
            return Err(LoadError::KernelTooOld { release: release() });
        }
        if kernel.softirq != Softirq::InTurn {
            return Err(LoadError::Realtime {
                release: release(),
                softirq: kernel.softirq,
            });
        }
        Ok(())
    }

    /// Returns these options with at least `least` entries in every LRU table of the kernel, and with a region for
    /// each CPU in the arrays of counters, whose sizes are given for one CPU.
    fn with_room_for_cpus(&self, least: u32) -> Result<Self, LoadError> {
        let mut loader = self.clone();
        for (name, map) in self.declared_maps()? {
            let entries = map.max_entries();
            let entries = if OF_EACH_CPU.contains(&name.as_str()) {
                cpus::entries_of_all(entries, map.value_size()).map_err(LoadError::Cpus)?
            } else if map.map_type() == MapType::LruHash as u32 {
                entries.max(least)
            } else {
                continue;
            };
            loader.max_entries.insert(name, entries);
        }
        // A place for each slot.
        let slots = loader.max_entries.get(map::LUT).copied();
        let slots = slots.map(|slots| (map::PASTS.to_owned(), slots));
        loader.max_entries.extend(slots);
        Ok(loader)
    }

    fn load_on(&self, release: &str) -> Result<Loaded, LoadError> {
        let declared = self.declared_maps()?;
        let pins = self.pins.as_ref();
        let prepared = pins.map(|pins| self.prepare(pins, &declared)).transpose()?;
        let ebpf = self.load_into_kernel(&declared, release);
        let ebpf = ebpf.inspect_err(|_| prepared.iter().for_each(Prepared::undo))?;
        let (resized, takeover) = prepared.map_or_else(Default::default, |prepared| {
            (prepared.resized, prepared.takeover)
        });
        Ok(Loaded {
            ebpf,
            has_af_xdp: self.has_af_xdp,
            duties: self.duties,
            xdp_program: if self.is_whole_edge {
                REDIRECT_PROGRAM
            } else {
                XDP_PROGRAM
            },
            pins: self.pins.clone(),
            resized,
            takeover,
            unpinned_links: Vec::new(),
            unpinned_filters: Vec::new(),
            mended: None,
        })
    }

    fn load_into_kernel(
        &self,
        declared: &BTreeMap<String, aya_obj::Map>,
        release: &str,
    ) -> Result<Ebpf, LoadError> {
        let mut loader = EbpfLoader::new();
        for (map, entries) in &self.max_entries {
            loader.map_max_entries(map, *entries);
        }
        if let Some(pins) = &self.pins {
            for map in declared.keys() {
                loader.map_pin_path(map, pins.map(map));
            }
            if !self.has_af_xdp {
                pin_stand_in(&declared[map::XSKS], &pins.map(map::XSKS))?;
            }
        }
        if self.is_whole_edge {
            memory::unlock();
        }
        let mut ebpf = loader
            .load(self.object)
            .map_err(|error| explain(error, declared, release))?;
        if self.is_whole_edge {
            load_xdp(&mut ebpf, REDIRECT_PROGRAM)
                .map_err(|error| explain(error, declared, release))?;
            return Ok(ebpf);
        }
        load_programs(&mut ebpf, self.has_af_xdp, self.duties)
            .map_err(|error| explain(error, declared, release))?;
        if let Some(pins) = &self.pins {
            pin_capture(&mut ebpf, pins)?;
        }
        Ok(ebpf)
    }

    /// Returns the maps that the object declares, with the sizes from the options.
    fn declared_maps(&self) -> Result<BTreeMap<String, aya_obj::Map>, LoadError> {
        let object = aya_obj::Object::parse(self.object).map_err(LoadError::Object)?;
        let mut maps: BTreeMap<_, _> = object
            .maps
            .into_iter()
            // The compiler's own maps (.rodata, .bss) belong to one load and are never shared.
            .filter(|(name, _)| !name.starts_with('.'))
            .collect();
        for (name, entries) in &self.max_entries {
            maps.get_mut(name)
                .ok_or_else(|| LoadError::UnknownMap { map: name.clone() })?
                .set_max_entries(*entries);
        }
        Ok(maps)
    }
}

/// The loaded programs and their maps.
///
/// Without pins, links and filters live as long as this does.
#[derive(Debug)]
pub struct Loaded {
    ebpf: Ebpf,
    has_af_xdp: bool,
    duties: Duties,
    /// Name of the program that is attached to interfaces.
    xdp_program: &'static str,
    pins: Option<Pins>,
    resized: Vec<Resized>,
    takeover: Takeover,
    unpinned_links: Vec<FdLink>,
    unpinned_filters: Vec<OwnedFilter>,
    /// The link of the program for mended frames.
    mended: Option<FdLink>,
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
        let fd = map.fd().as_fd().try_clone_to_owned();
        MapData::from_fd(fd.map_err(|error| failed(error.into()))?).map_err(failed)
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

/// Loads every program, then makes the stages reachable.
///
/// Nothing changes for running programs before the verifier has accepted all of the new ones. The map of stages may
/// be adopted, and programs that are attached already may use it. A stage may be newer than the program that calls
/// it, because it parses the unchanged frame again.
fn load_programs(ebpf: &mut Ebpf, has_af_xdp: bool, duties: Duties) -> Result<(), EbpfError> {
    let reached = Stage::ALL
        .into_iter()
        .filter(|stage| stage.is_reached(duties));
    let stages = load_stages(ebpf, has_af_xdp, reached)?;
    load_xdp(ebpf, XDP_PROGRAM)?;
    load_xdp(ebpf, MENDED_PROGRAM)?;
    load_xdp(ebpf, Slot::Around.program())?;
    let edge = (Slot::Edge.index(), load_xdp(ebpf, Slot::Edge.program())?);
    let egress: &mut SchedClassifier = ebpf
        .program_mut(EGRESS_PROGRAM)
        .ok_or(ProgramError::UnexpectedProgramType)?
        .try_into()?;
    egress.load()?;
    set_programs(ebpf, map::STAGES, &stages)?;
    set_programs(ebpf, map::CAPTURE, &[edge])
}

/// Loads stages; returns the index of each, and its program.
fn load_stages(
    ebpf: &mut Ebpf,
    has_af_xdp: bool,
    stages: impl Iterator<Item = Stage>,
) -> Result<Vec<(u32, ProgramFd)>, EbpfError> {
    stages
        .map(|stage| {
            let program = match stage {
                Stage::Punt if !has_af_xdp => UNPUNTED_PROGRAM,
                stage => stage.program(),
            };
            Ok((stage.index(), load_xdp(ebpf, program)?))
        })
        .collect()
}

/// Pins an array in place of the map of sockets, which only kernels with AF_XDP make. The loader adopts it, and no
/// program that is loaded there uses it.
fn pin_stand_in(declared: &aya_obj::Map, path: &Path) -> Result<(), LoadError> {
    if path.exists() {
        return Ok(());
    }
    let array = aya_obj::Map::new_from_params(
        MapType::Array as u32,
        declared.key_size(),
        declared.value_size(),
        declared.max_entries(),
        0,
    );
    let array = MapData::create(array, map::XSKS, None);
    let array = array.map_err(|error| pinned_map_error(map::XSKS, error))?;
    pin(path, |path| array.pin(path))?;
    Ok(())
}

fn load_xdp(ebpf: &mut Ebpf, name: &str) -> Result<ProgramFd, EbpfError> {
    let program = xdp(ebpf, name)?;
    // An attempt that failed has loaded some.
    if program.fd().is_err() {
        program.load()?;
    }
    Ok(program.fd()?.try_clone().map_err(MapError::from)?)
}

fn set_programs(
    ebpf: &mut Ebpf,
    name: &str,
    programs: &[(u32, ProgramFd)],
) -> Result<(), EbpfError> {
    let map = ebpf.map_mut(name).ok_or_else(|| MapError::InvalidName {
        name: name.to_owned(),
    })?;
    let mut array = ProgramArray::try_from(map)?;
    for (index, program) in programs {
        array.set(*index, program, 0)?;
    }
    Ok(())
}

/// Pins the program that captures put in place; a running capture moves on to it.
fn pin_capture(ebpf: &mut Ebpf, pins: &Pins) -> Result<(), LoadError> {
    let path = pins.capture_program();
    unpin(&path)?;
    let program = xdp(ebpf, Slot::Around.program());
    let program =
        program.map_err(|error| PinError::io("make it", &path, io::Error::other(error)))?;
    pin(&path, |path| program.pin(path))?;
    Ok(())
}

fn xdp<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut Xdp, ProgramError> {
    ebpf.program_mut(name)
        .ok_or(ProgramError::UnexpectedProgramType)?
        .try_into()
}

#[cfg(test)]
mod tests;
