//! Pinned maps of an earlier run: which of them are adopted, and with which size.

use std::{collections::BTreeMap, fmt};

use aya::maps::{MapError, MapInfo};
use xdp_prog::abi::map;

use super::{LoadError, Loader, error::pinned_map_error};
use crate::pins::Pins;

/// Arrays whose length is fixed by the build.
const OF_ONE_LENGTH: [&str; 7] = [
    map::CAPTURE,
    map::CONFIG,
    map::CPU_SCRATCH,
    map::FAILURES,
    map::REASONS,
    map::STAGES,
    map::UNTRUSTED,
];

/// The properties of a pinned map that must be equal for it to be adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLayout {
    /// The kernel's number of the map's type.
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

/// An adopted map that has another size than the options ask for.
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

impl Loader {
    /// Compares the pinned maps with those that the object declares; returns the sizes that differ.
    pub(super) fn check_pinned(
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
            let (pinned, asked) = (info.max_entries(), map.max_entries());
            // The indices of these arrays have a meaning: a reason, a stage.
            if OF_ONE_LENGTH.contains(&name.as_str()) && pinned != asked {
                return Err(LoadError::Length {
                    map: name.clone(),
                    pinned,
                    needed: asked,
                });
            }
            if self.max_entries.contains_key(name) && pinned != asked {
                kept.push(KeptSize {
                    map: name.clone(),
                    pinned,
                    asked,
                });
            }
        }
        Ok(kept)
    }
}
