//! Loads the programs: maps first, created or adopted from their pins, then the verifier.
//!
//! Attaching them is the matter of [`attach`](crate::attach), what the maps mean that of the tables.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{Map, MapData, MapError, MapInfo, MapType, ProgramArray},
    programs::{
        Program, ProgramError, ProgramFd, RawTracePoint, SchedClassifier, Xdp, links::FdLink,
    },
    util::nr_cpus,
};
use xdp_prog::{
    abi::{EGRESS_PROGRAM, XDP_PROGRAM, map},
    capture::Slot,
    stage::Stage,
};

use crate::{
    clsact::OwnedFilter,
    facts::{self, KernelVersion, Softirq},
    object,
    pins::{PinError, Pins, pin, unpin},
    refusal::{Refusal, is_refusal},
};

/// Arrays whose length is part of the build.
const OF_ONE_LENGTH: [&str; 6] = [
    map::CAPTURE,
    map::CONFIG,
    map::FAILURES,
    map::REASONS,
    map::STAGES,
    map::UNTRUSTED,
];

/// Lines of the verifier's log that a message quotes: the end says what is wrong.
const LOG_LINES: usize = 12;

/// Why the program could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(
        "kernel {release} is too old: {} or later is needed \
         (XDP programs for frames of several buffers); upgrade the kernel",
        KernelVersion::MINIMUM
    )]
    KernelTooOld { release: String },
    /// Two runs of a program may share a CPU, and with it what each takes for its own.
    #[error(
        "kernel {release} is PREEMPT_RT {}: threads of two devices would share the scratch memory of a CPU; \
         use a kernel with PREEMPT_RT_NEEDS_BH_LOCK=y, or one without PREEMPT_RT",
        match softirq {
            Softirq::Unknown => "and does not tell (in /boot/config-...) whether it has PREEMPT_RT_NEEDS_BH_LOCK",
            Softirq::InTurn | Softirq::Preempted => "without PREEMPT_RT_NEEDS_BH_LOCK",
        }
    )]
    Realtime { release: String, softirq: Softirq },
    #[error(transparent)]
    Pins(#[from] PinError),
    #[error("the embedded BPF object cannot be parsed; build again")]
    Object(#[source] aya_obj::ParseError),
    #[error("map {map}: the BPF object has none of that name")]
    UnknownMap { map: String },
    /// A pinned array that is no matter of options has another length under the same version.
    #[error(
        "map {map}: the pinned one has {pinned} entries, this build needs {needed}, under the same layout \
         version; it was pinned by a different build: run `guideway detach`, then start again"
    )]
    Length {
        map: String,
        /// What is pinned.
        pinned: u32,
        /// What the object declares.
        needed: u32,
    },
    #[error(
        "map {map}: the pinned one is {pinned}, this build needs {needed}, under the same layout version; \
         it was pinned by a different build: run `guideway detach`, then start again"
    )]
    Layout {
        map: String,
        /// What is pinned.
        pinned: MapLayout,
        /// What the object declares.
        needed: MapLayout,
    },
    #[error("{attempt}: {refusal}")]
    Refused {
        attempt: String,
        refusal: Refusal,
        #[source]
        source: io::Error,
    },
    #[error(
        "map {map}: no memory for {max_entries} entries; \
         ask for fewer, or raise the memory limit of the container or unit"
    )]
    Memory {
        map: String,
        max_entries: u32,
        #[source]
        source: io::Error,
    },
    #[error("map {map}: kernel {release} refuses to create it")]
    Map {
        map: String,
        release: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "the verifier of kernel {release} refused the program; please report it with this text:\n{}",
        tail(.log, LOG_LINES)
    )]
    Verifier {
        release: String,
        log: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot load the BPF object on kernel {release}")]
    Other {
        release: String,
        #[source]
        source: Box<EbpfError>,
    },
}

/// What must be equal for a pinned map to be adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLayout {
    /// The kernel's number of the map type.
    pub kind: u32,
    /// Size of a key in bytes.
    pub key_size: u32,
    /// Size of a value in bytes.
    pub value_size: u32,
    /// Creation flags.
    pub flags: u32,
}

impl MapLayout {
    /// The kernel sets `BPF_F_RDONLY_PROG` on device maps by itself.
    const FLAGS_OF_THE_KERNEL: u32 = 1 << 7;

    fn declared(map: &aya_obj::Map) -> Self {
        Self {
            kind: map.map_type(),
            key_size: map.key_size(),
            value_size: map.value_size(),
            flags: map.map_flags() & !Self::FLAGS_OF_THE_KERNEL,
        }
    }

    fn pinned(info: &MapInfo) -> Result<Self, MapError> {
        Ok(Self {
            kind: info.map_type()? as u32,
            key_size: info.key_size(),
            value_size: info.value_size(),
            flags: info.map_flags() & !Self::FLAGS_OF_THE_KERNEL,
        })
    }
}

impl fmt::Display for MapLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "of type {} with keys of {} and values of {} bytes, flags {:#x}",
            self.kind, self.key_size, self.value_size, self.flags
        )
    }
}

/// A pinned map that was adopted with another size than asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "map {map}: keeps its {pinned} entries, {asked} were asked for; \
     `guideway detach` and a start make a new one"
)]
pub struct KeptSize {
    pub map: String,
    pub pinned: u32,
    pub asked: u32,
}

/// Returns how many entries a table of the kernel's LRU needs on so many possible CPUs.
///
/// Before 6.17, each CPU takes 128 free elements at a time for itself (`LOCAL_FREE_TARGET` of kernel/bpf/bpf_lru_list.c), and
/// evicts what is in use when the table has no more. So at least half of it is to be left. Later kernels see to that.
fn lru_entries(version: Option<KernelVersion>, cpus: usize) -> u32 {
    const LOCAL_FREE_TARGET: usize = 128;
    const FIXED: KernelVersion = KernelVersion {
        major: 6,
        minor: 17,
    };
    if version.is_some_and(|version| version >= FIXED) {
        return 0;
    }
    u32::try_from(2 * LOCAL_FREE_TARGET * cpus).unwrap_or(u32::MAX)
}

/// Options for loading.
#[derive(Clone, Debug, Default)]
pub struct Loader {
    pins: Option<Pins>,
    max_entries: BTreeMap<String, u32>,
}

impl Loader {
    /// Loads with maps and links pinned.
    #[must_use]
    pub const fn pinned(pins: Pins) -> Self {
        Self {
            pins: Some(pins),
            max_entries: BTreeMap::new(),
        }
    }

    /// Loads without pins: everything is gone when [`Loaded`] is dropped. For tests and benchmarks.
    #[must_use]
    pub fn unpinned() -> Self {
        Self::default()
    }

    /// Sets the size of a map, unless a pinned one is adopted.
    #[must_use]
    pub fn max_entries(mut self, map: impl Into<String>, entries: u32) -> Self {
        self.max_entries.insert(map.into(), entries);
        self
    }

    /// Loads maps and program.
    ///
    /// # Errors
    ///
    /// Each names the cause and the remedy. Maps that were pinned before stay as they are, and no others stay.
    pub fn load(&self) -> Result<Loaded, LoadError> {
        let kernel = facts::kernel();
        if kernel.is_too_old() {
            return Err(LoadError::KernelTooOld {
                release: kernel.release,
            });
        }
        if kernel.softirq != Softirq::InTurn {
            return Err(LoadError::Realtime {
                release: kernel.release,
                softirq: kernel.softirq,
            });
        }
        let cpus = nr_cpus().unwrap_or(1);
        let loader = self.with_room_for_cpus(lru_entries(kernel.version, cpus))?;
        loader.load_on(&kernel.release)
    }

    /// Returns the options with tables of the kernel's LRU of so many entries at the least.
    fn with_room_for_cpus(&self, least: u32) -> Result<Self, LoadError> {
        let mut loader = self.clone();
        for (name, map) in self.declared_maps()? {
            if map.map_type() == MapType::LruHash as u32 && map.max_entries() < least {
                loader.max_entries.insert(name, least);
            }
        }
        Ok(loader)
    }

    fn load_on(&self, release: &str) -> Result<Loaded, LoadError> {
        let declared = self.declared_maps()?;
        let kept_sizes = match &self.pins {
            Some(pins) => {
                pins.prepare()?;
                self.check_pinned(pins, &declared)?
            }
            None => Vec::new(),
        };
        let pins = self.pins.iter();
        let pins = pins.flat_map(|pins| declared.keys().map(|map| pins.map(map)));
        let new: Vec<PathBuf> = pins.filter(|pin| !pin.exists()).collect();
        let ebpf = self.load_into_kernel(&declared, release);
        let ebpf = ebpf.inspect_err(|_| {
            for pin in new {
                // Where it was not made, there is nothing to remove.
                _ = fs::remove_file(pin);
            }
        })?;
        Ok(Loaded {
            ebpf,
            pins: self.pins.clone(),
            kept_sizes,
            unpinned_links: Vec::new(),
            unpinned_filters: Vec::new(),
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
        }
        let mut ebpf = loader
            .load(object::bytes())
            .map_err(|error| explain(error, declared, release))?;
        load_programs(&mut ebpf).map_err(|error| explain(error, declared, release))?;
        if let Some(pins) = &self.pins {
            pin_capture(&mut ebpf, pins)?;
        }
        Ok(ebpf)
    }

    /// Reads the maps that the object declares, with the sizes asked for.
    fn declared_maps(&self) -> Result<BTreeMap<String, aya_obj::Map>, LoadError> {
        let object = aya_obj::Object::parse(object::bytes()).map_err(LoadError::Object)?;
        let mut maps: BTreeMap<_, _> = object
            .maps
            .into_iter()
            // The compiler's own (.rodata, .bss) belong to one load and are never shared.
            .filter(|(name, _)| !name.starts_with('.'))
            .collect();
        for (name, entries) in &self.max_entries {
            maps.get_mut(name)
                .ok_or_else(|| LoadError::UnknownMap { map: name.clone() })?
                .set_max_entries(*entries);
        }
        Ok(maps)
    }

    /// Compares the maps that are pinned with those the object declares.
    fn check_pinned(
        &self,
        pins: &Pins,
        declared: &BTreeMap<String, aya_obj::Map>,
    ) -> Result<Vec<KeptSize>, LoadError> {
        let mut kept = Vec::new();
        for (name, map) in declared {
            let path = pins.map(name);
            if !path.exists() {
                continue;
            }
            let (info, pinned) = MapInfo::from_pin(&path)
                .and_then(|info| MapLayout::pinned(&info).map(|layout| (info, layout)))
                .map_err(|error| pinned_map_error(name, error))?;
            let needed = MapLayout::declared(map);
            if pinned != needed {
                return Err(LoadError::Layout {
                    map: name.clone(),
                    pinned,
                    needed,
                });
            }
            let pinned = info.max_entries();
            match self.max_entries.get(name) {
                Some(&asked) if pinned != asked => kept.push(KeptSize {
                    map: name.clone(),
                    pinned,
                    asked,
                }),
                // An index means something of its own there: a reason, a stage.
                None if OF_ONE_LENGTH.contains(&name.as_str()) && pinned != map.max_entries() => {
                    return Err(LoadError::Length {
                        map: name.clone(),
                        pinned,
                        needed: map.max_entries(),
                    });
                }
                _ => {}
            }
        }
        Ok(kept)
    }
}

/// The loaded programs and their maps.
///
/// Without pins, links and filters live as long as this does.
#[derive(Debug)]
pub struct Loaded {
    ebpf: Ebpf,
    pins: Option<Pins>,
    kept_sizes: Vec<KeptSize>,
    unpinned_links: Vec<FdLink>,
    unpinned_filters: Vec<OwnedFilter>,
}

impl Loaded {
    /// Returns a handle of its own to a map, to be read by type or mapped into memory.
    ///
    /// # Errors
    ///
    /// When the object has no such map, or the process no file descriptor left.
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

    /// Lists the maps that kept another size than asked for.
    #[must_use]
    pub fn kept_sizes(&self) -> &[KeptSize] {
        &self.kept_sizes
    }

    /// Returns the XDP program.
    #[must_use]
    pub fn program(&self) -> &Xdp {
        self.get(XDP_PROGRAM)
    }

    pub(crate) fn program_mut(&mut self) -> &mut Xdp {
        self.get_mut(XDP_PROGRAM)
    }

    /// Returns the TC egress program.
    #[must_use]
    pub fn egress_program(&self) -> &SchedClassifier {
        self.get(EGRESS_PROGRAM)
    }

    pub(crate) fn egress_program_mut(&mut self) -> &mut SchedClassifier {
        self.get_mut(EGRESS_PROGRAM)
    }

    /// Returns the program of a tracepoint, which is not loaded with the others.
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

    /// Pins a link, or holds it for as long as the program is loaded. After a failure it detaches: nothing unpinned is
    /// left running.
    pub(crate) fn keep(&mut self, link: FdLink, path: Option<&Path>) -> Result<(), PinError> {
        match path {
            Some(path) => pin(path, |path| link.pin(path)).map(drop),
            None => {
                self.unpinned_links.push(link);
                Ok(())
            }
        }
    }

    /// Removes a filter when the program is not loaded any more.
    pub(crate) fn keep_filter(&mut self, filter: OwnedFilter) {
        self.unpinned_filters.push(filter);
    }
}

/// Returns what is common to maps of the types that the object has.
const fn map_data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LpmTrie(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::ProgramArray(data)
        | Map::RingBuf(data) => Some(data),
        _ => None,
    }
}

/// Loads every program, then makes the stages reachable.
///
/// Nothing is changed for others before the verifier has accepted everything. The map of stages may
/// be an adopted one, through which a program that is attached already goes on: a stage may be newer
/// than the program that calls it, since it begins anew with the frame as it came.
fn load_programs(ebpf: &mut Ebpf) -> Result<(), EbpfError> {
    let mut stages = Vec::with_capacity(Stage::ALL.len());
    for stage in Stage::ALL {
        stages.push((stage.index(), load_xdp(ebpf, stage.program())?));
    }
    load_xdp(ebpf, XDP_PROGRAM)?;
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

fn load_xdp(ebpf: &mut Ebpf, name: &str) -> Result<ProgramFd, EbpfError> {
    let program = xdp(ebpf, name)?;
    program.load()?;
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

/// Pins the program that captures put in place; one under way takes it over.
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

/// Finds the cause of a failure in what the loader returns.
pub(crate) fn explain(
    error: EbpfError,
    declared: &BTreeMap<String, aya_obj::Map>,
    release: &str,
) -> LoadError {
    let release = release.to_owned();
    match error {
        EbpfError::MapError(MapError::CreateError { name, io_error }) => {
            let max_entries = declared.get(&name).map_or(0, aya_obj::Map::max_entries);
            map_error(name, max_entries, release, io_error)
        }
        EbpfError::ProgramError(ProgramError::LoadError {
            io_error,
            verifier_log,
        }) => program_error(
            verifier_log.to_string(),
            release,
            io_error,
            Refusal::of_bpf(),
        ),
        source => LoadError::Other {
            release,
            source: Box::new(source),
        },
    }
}

fn map_error(map: String, max_entries: u32, release: String, source: io::Error) -> LoadError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => LoadError::Refused {
            attempt: format!("creating map {map}"),
            refusal: Refusal::of_bpf(),
            source,
        },
        Some(libc::ENOMEM | libc::E2BIG) => LoadError::Memory {
            map,
            max_entries,
            source,
        },
        _ => LoadError::Map {
            map,
            release,
            source,
        },
    }
}

fn program_error(log: String, release: String, source: io::Error, refusal: Refusal) -> LoadError {
    // The verifier always says something; silence means that it was not asked. Without
    // CAP_PERFMON it refuses the pointer arithmetic that it allows others.
    let not_asked = log.trim().is_empty() || matches!(refusal, Refusal::Missing(_));
    if is_refusal(&source) && not_asked {
        return LoadError::Refused {
            attempt: "loading the programs".to_owned(),
            refusal,
            source,
        };
    }
    LoadError::Verifier {
        release,
        log,
        source,
    }
}

fn pinned_map_error(name: &str, error: MapError) -> LoadError {
    match error {
        MapError::SyscallError(error) if is_refusal(&error.io_error) => LoadError::Refused {
            attempt: format!("opening pinned map {name}"),
            refusal: Refusal::of_bpf(),
            source: error.io_error,
        },
        error => LoadError::Other {
            release: facts::kernel().release,
            source: Box::new(error.into()),
        },
    }
}

fn tail(log: &str, lines: usize) -> String {
    let all: Vec<_> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    #[test]
    fn verifier_refusal_quotes_the_end_of_the_log_and_the_release() {
        let log = (0..40).map(|n| format!("line {n}\n")).collect::<String>();
        let error = program_error(log, "6.1.0".into(), os(libc::EACCES), Refusal::Unknown);
        let text = error.to_string();
        assert!(text.contains("kernel 6.1.0"), "{text}");
        assert!(text.ends_with("line 38\nline 39"), "{text}");
        assert!(!text.contains("line 27\n"), "{text}");
    }

    #[test]
    fn refusal_without_a_log_is_not_blamed_on_the_verifier() {
        let error = program_error(
            "\n".into(),
            "6.1.0".into(),
            os(libc::EPERM),
            Refusal::Unknown,
        );
        assert!(matches!(error, LoadError::Refused { .. }));
    }

    #[test]
    fn refusal_for_want_of_a_capability_names_it_whatever_the_verifier_says() {
        let error = program_error(
            "R1 pointer comparison prohibited".into(),
            "6.1.0".into(),
            os(libc::EACCES),
            Refusal::Missing(vec![facts::Capability::Perfmon]),
        );
        assert!(error.to_string().contains("CAP_PERFMON"), "{error}");
    }

    #[test]
    fn map_beyond_memory_names_its_size() {
        let error = map_error("LUT".into(), 1 << 24, "6.1.0".into(), os(libc::ENOMEM));
        assert!(
            error
                .to_string()
                .starts_with("map LUT: no memory for 16777216 entries")
        );
    }

    #[test]
    fn lru_tables_have_room_for_what_each_cpu_takes() {
        let version = |release| KernelVersion::parse(release);
        assert_eq!(lru_entries(version("6.12.9"), 2), 512);
        assert_eq!(lru_entries(version("6.16.1"), 256), 65_536);
        assert_eq!(lru_entries(None, 256), 65_536);
        assert_eq!(lru_entries(version("6.17.0"), 256), 0);
    }

    #[test]
    fn small_lru_tables_alone_grow_with_the_cpus() {
        let loader = Loader::unpinned()
            .max_entries(map::FLOWS, 20_000)
            .max_entries(map::NAT_FORWARD, 20_000);
        let loader = loader.with_room_for_cpus(65_536).unwrap();
        let sizes: BTreeMap<String, u32> = loader
            .declared_maps()
            .unwrap()
            .into_iter()
            .map(|(name, map)| (name, map.max_entries()))
            .collect();
        for small in [map::FLOWS, map::FRAGMENTS, map::ANSWERS] {
            assert_eq!(sizes[small], 65_536, "{small}");
        }
        assert_eq!(sizes[map::NAT_FORWARD], 20_000, "no LRU");
        assert_eq!(sizes[map::FLOWS_EMBRYONIC], 262_144, "large enough");
    }

    #[test]
    fn realtime_kernel_is_refused_by_name() {
        let error = |softirq| {
            let release = "6.18.5-rt".to_owned();
            LoadError::Realtime { release, softirq }.to_string()
        };
        for softirq in [Softirq::Preempted, Softirq::Unknown] {
            let error = error(softirq);
            assert!(
                error.starts_with("kernel 6.18.5-rt is PREEMPT_RT"),
                "{error}"
            );
            assert!(error.contains("PREEMPT_RT_NEEDS_BH_LOCK=y"), "{error}");
        }
        assert!(error(Softirq::Unknown).contains("does not tell"));
    }

    #[test]
    fn size_for_an_unknown_map_is_refused_before_anything_is_loaded() {
        let error = Loader::unpinned()
            .max_entries("NOPE", 1)
            .load()
            .unwrap_err();
        assert!(matches!(error, LoadError::UnknownMap { map } if map == "NOPE"));
    }
}
