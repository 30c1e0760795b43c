//! How many entries of each table a Service takes or may take.

use std::fmt;

use xdp_prog::abi::size;

/// Number of entries in each table that Services share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableEntries {
    /// Slots of all lookup tables, which share one arena.
    pub slots: u64,
    /// Services: address, port and protocol.
    pub services: u64,
    /// Backends, counted once for each port of a Service.
    pub backends: u64,
    /// Pods of this machine, counted once for each address, port and protocol.
    pub pods: u64,
    /// Source ranges, counted once for each address, port and protocol.
    pub source_ranges: u64,
}

impl TableEntries {
    /// The size of the tables unless configured.
    pub const DEFAULT: Self = Self {
        slots: size::LUT_SLOTS as u64,
        services: size::SERVICES as u64,
        backends: size::BACKENDS as u64,
        pods: size::PODS as u64,
        source_ranges: size::SOURCE_RANGES as u64,
    };

    /// Returns `percent` hundredths of each number.
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

    /// Returns the sum.
    #[must_use]
    pub(super) fn and(self, other: Self) -> Self {
        self.zip(other, u64::checked_add)
            .expect("no machine has memory for 2^64 places")
    }

    /// Returns the difference; `None` if any number would be negative.
    pub(super) fn without(self, other: Self) -> Option<Self> {
        self.zip(other, u64::checked_sub)
    }

    /// Returns a text about the first table in which `self` exceeds `most`; `None` if all fit.
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

impl fmt::Display for TableEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (what, places)) in self.parts().into_iter().enumerate() {
            let before = if index == 0 { "" } else { ", " };
            write!(f, "{before}{places} {what}")?;
        }
        Ok(())
    }
}
