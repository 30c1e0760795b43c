//! Announced addresses, the links of the announcement, and other machines' announcements.

use std::{collections::BTreeSet, net::IpAddr};

use aya::maps::MapData;
use xdp_prog::abi::{AddressKey, CONFIG_ANNOUNCE, Config, EdgeMac, is_announcing, map};

use super::{TableError, Tables, syscall_map::SyscallMap, types::address_of};
use crate::{announce::Link, clock::monotonic_ns};

/// Another machine's announcement of an address that this machine announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnnouncedElsewhere {
    pub address: IpAddr,
    /// The MAC that the other machine announces.
    pub mac: [u8; 6],
}

impl Tables {
    /// Lists the addresses that are announced.
    pub fn announced(&self) -> BTreeSet<IpAddr> {
        self.announced.held().keys().copied().collect()
    }

    /// Continues the announcements of another layout version, as long as this one's programs have announced nothing.
    /// It reads that version's maps `ANNOUNCED` and `CLAIMS`, and keeps reading the second.
    ///
    /// # Errors
    ///
    /// Fails if the maps are not of this layout, or if the kernel refuses to read one or to write the other.
    pub fn inherit_announced(
        &mut self,
        announced: MapData,
        claims: MapData,
    ) -> Result<(), TableError> {
        if self.announce_stamp() != 0 {
            return Ok(());
        }
        let announced = SyscallMap::<AddressKey, u32>::of(announced, map::ANNOUNCED)?;
        let claims = SyscallMap::of(claims, map::CLAIMS)?;
        let addresses = announced.keys()?;
        self.inherited_claims.push(claims);
        let addresses = addresses.into_iter().map(address_of);
        let all = addresses.chain(self.announced()).collect();
        self.set_announced(&all)
    }

    /// Replaces the set of announced addresses.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a write, for one because the table is full.
    pub fn set_announced(&mut self, wanted: &BTreeSet<IpAddr>) -> Result<(), TableError> {
        let outcome = self.announced.replace_set(wanted);
        // The flag is set even if only some addresses fitted.
        let flag = match self.announced.held().is_empty() {
            true => 0,
            false => CONFIG_ANNOUNCE,
        };
        let flags = self.current_config.flags & !CONFIG_ANNOUNCE | flag;
        if flags != self.current_config.flags {
            self.set_config(Config {
                flags,
                ..self.current_config
            })?;
        }
        outcome
    }

    /// Records that this machine serves: it answers for the announced addresses for the next three seconds.
    pub fn renew_announcements(&mut self) {
        self.announce_stamp.store_u64(0, 0, monotonic_ns());
    }

    /// Tells whether the agent has said recently enough that it serves, so that announced addresses are answered for.
    pub fn answers_for_announced(&self) -> bool {
        is_announcing(self.announce_stamp(), monotonic_ns())
    }

    pub(super) fn announce_stamp(&self) -> u64 {
        self.announce_stamp.load_u64(0, 0).unwrap_or_default()
    }

    /// Replaces the links on which addresses are announced.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a write, for one because the table is full.
    pub fn set_announce_links(&mut self, links: &[Link]) -> Result<(), TableError> {
        let macs = links.iter().flat_map(|link| {
            let mac = EdgeMac::new(link.mac);
            link.arrivals.iter().map(move |arrival| (*arrival, mac))
        });
        self.announce_links.replace(&macs.collect())
    }

    /// Takes the announcements that other machines have made since the last call.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses to read or to remove them.
    pub fn take_claims(&mut self) -> Result<Vec<AnnouncedElsewhere>, TableError> {
        let mut taken = Vec::new();
        for table in self.inherited_claims.iter_mut().chain([&mut self.claims]) {
            for (key, claim) in table.entries()? {
                table.remove(&key)?;
                taken.push(AnnouncedElsewhere {
                    address: address_of(key),
                    mac: claim.mac(),
                });
            }
        }
        Ok(taken)
    }
}
