//! Room in the tables: what a Service takes of each, and what one may have at most.

use std::fmt;

use xdp_prog::abi::size;

/// Places in the tables of the dataplane that Services share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Slots of lookup tables, which are all in one arena.
    pub slots: u64,
    /// Addresses with port and protocol.
    pub services: u64,
    /// Backends, once for each port of a Service.
    pub backends: u64,
    /// Pods of this machine, once for each address with port and protocol.
    pub pods: u64,
    /// Source ranges, likewise.
    pub source_ranges: u64,
}

impl Room {
    /// The room of tables that have the default sizes.
    pub const DEFAULT: Self = Self {
        slots: size::LUT_SLOTS as u64,
        services: size::SERVICES as u64,
        backends: size::BACKENDS as u64,
        pods: size::PODS as u64,
        source_ranges: size::SOURCE_RANGES as u64,
    };

    /// Returns so many percent of each.
    #[must_use]
    pub fn share(self, percent: u64) -> Self {
        let part = |places: u64| places * percent / 100;
        Self {
            slots: part(self.slots),
            services: part(self.services),
            backends: part(self.backends),
            pods: part(self.pods),
            source_ranges: part(self.source_ranges),
        }
    }

    /// Returns both together.
    #[must_use]
    pub(super) fn and(self, other: Self) -> Self {
        self.zip(other, u64::checked_add)
            .expect("no machine has memory for 2^64 places")
    }

    /// Returns what is left once the other has its part; nothing if it has not the room.
    pub(super) fn without(self, other: Self) -> Option<Self> {
        self.zip(other, u64::checked_sub)
    }

    /// Says what would be too much if there were `most`, and how many of it.
    pub(super) fn beyond(self, most: Self) -> Option<String> {
        self.parts()
            .into_iter()
            .zip(most.parts())
            .find(|((_, places), (_, most))| places > most)
            .map(|((what, places), (_, most))| {
                format!("{places} {what}, of which {most} are the most")
            })
    }

    fn zip(self, other: Self, combine: fn(u64, u64) -> Option<u64>) -> Option<Self> {
        Some(Self {
            slots: combine(self.slots, other.slots)?,
            services: combine(self.services, other.services)?,
            backends: combine(self.backends, other.backends)?,
            pods: combine(self.pods, other.pods)?,
            source_ranges: combine(self.source_ranges, other.source_ranges)?,
        })
    }

    fn parts(self) -> [(&'static str, u64); 5] {
        [
            ("slots of lookup tables", self.slots),
            ("addresses with ports", self.services),
            ("backends", self.backends),
            ("pods of this machine", self.pods),
            ("source ranges", self.source_ranges),
        ]
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (what, places)) in self.parts().into_iter().enumerate() {
            let before = if index == 0 { "" } else { ", " };
            write!(f, "{before}{places} {what}")?;
        }
        Ok(())
    }
}
