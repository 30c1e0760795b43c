//! Addresses that are announced to neighbours, on which links, and by whom else.

use std::{collections::BTreeSet, net::IpAddr};

use aya::maps::MapData;
use xdp_prog::abi::{AddressKey, CONFIG_ANNOUNCE, Config, EdgeMac, is_announcing, map};

use super::{TableError, Tables, syscall_map::SyscallMap, types::address_of};
use crate::{announce::Link, clock::monotonic_ns};

/// Another machine's announcement of an address that this machine announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnnouncedElsewhere {
    pub address: IpAddr,
    /// The MAC that it is said to have.
    pub mac: [u8; 6],
}

impl Tables {
    /// Lists the addresses that are announced.
    pub fn announced(&self) -> BTreeSet<IpAddr> {
        self.announced.held().keys().copied().collect()
    }

    /// Goes on with what programs of another layout version announce, as long as this one's have announced nothing: by
    /// its maps `ANNOUNCED` and `CLAIMS`, of which the second is read along from then on.
    ///
    /// # Errors
    ///
    /// When the maps are not of this layout, or the kernel refuses to read one or to write the other.
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

    /// Makes exactly these the announced addresses.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a write, as it does when the table is full.
    pub fn set_announced(&mut self, wanted: &BTreeSet<IpAddr>) -> Result<(), TableError> {
        let outcome = self.announced.replace_set(wanted);
        // Also where only some fitted.
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

    /// Says that this machine serves: for the next three seconds it answers for the announced addresses.
    pub fn renew_announcements(&mut self) {
        self.announce_stamp.store_u64(0, 0, monotonic_ns());
    }

    /// Tells whether the announced addresses are answered for, as far as their agent matters.
    pub fn answers_for_announced(&self) -> bool {
        is_announcing(self.announce_stamp(), monotonic_ns())
    }

    pub(super) fn announce_stamp(&self) -> u64 {
        self.announce_stamp.load_u64(0, 0).unwrap_or_default()
    }

    /// Makes exactly these the links on which addresses are announced.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a write, as it does when the table is full.
    pub fn set_announce_links(&mut self, links: &[Link]) -> Result<(), TableError> {
        let macs = links.iter().flat_map(|link| {
            let mac = EdgeMac::new(link.mac);
            link.arrivals.iter().map(move |arrival| (*arrival, mac))
        });
        self.announce_links.replace(&macs.collect())
    }

    /// Takes what other machines have announced since the last call.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to read or to forget it.
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
