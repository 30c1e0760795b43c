//! Loads the programs: creates the maps or adopts them from their pins, then has the verifier check the programs.
//!
//! [`attach`](crate::attach) attaches the programs; [`tables`](crate::tables) gives the maps their meaning.

mod error;
mod loaded;
mod pinned;
mod programs;
mod takeover;

use std::collections::BTreeMap;

use aya::{Ebpf, EbpfLoader, maps::MapType};
use xdp_prog::{
    abi::{XDP_PROGRAM, map},
    stage::Duties,
    whole_edge::REDIRECT_PROGRAM,
};

pub use self::{
    error::LoadError,
    loaded::Loaded,
    pinned::{MapLayout, Resized},
    takeover::{Fate, Takeover},
};
pub(crate) use self::{error::explain, loaded::another_handle};
use self::{
    pinned::Prepared,
    programs::{load_programs, load_xdp, pin_capture, pin_stand_in},
};
use crate::{
    cpus,
    facts::{self, Kernel, KernelVersion, Softirq},
    memory, object,
    pins::{Pins, unpin},
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
            if let Some(pins) = &self.pins {
                // One of an agent with all programs. Captures would wait for its copies.
                unpin(&pins.capture_program())?;
            }
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

#[cfg(test)]
mod tests;
