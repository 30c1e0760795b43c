//! Addresses that are announced to neighbours, on which links, and by whom else.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use aya::maps::{HashMap, Map, MapData, MapError};
use xdp_prog::abi::{
    AddressKey, CONFIG_ANNOUNCE, Claim, Config, EdgeMac, TaggedLink, is_announcing, map,
};

use super::{
    TableError, Tables,
    error::{read_failed, write_failed},
    types::{address_key, address_of},
};
use crate::{announce::Link, clock::monotonic_ns};

/// Another machine's announcement of an address that this machine announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnnouncedElsewhere {
    /// The address.
    pub address: IpAddr,
    /// The MAC that it is said to have.
    pub mac: [u8; 6],
}

impl Tables {
    /// Lists the addresses that are announced.
    pub fn announced(&self) -> BTreeSet<IpAddr> {
        self.known_announced.clone()
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
        let announced = HashMap::<_, AddressKey, u32>::try_from(Map::HashMap(announced));
        let announced = announced.map_err(read_failed(map::ANNOUNCED))?;
        let claims = HashMap::try_from(Map::HashMap(claims)).map_err(read_failed(map::CLAIMS))?;
        let addresses: Result<Vec<_>, MapError> = announced.keys().collect();
        let addresses = addresses.map_err(read_failed(map::ANNOUNCED))?;
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
        let outcome = self.replace_announced(wanted);
        // Also where only some fitted.
        self.announce_if(!self.announced().is_empty())?;
        outcome
    }

    fn replace_announced(&mut self, wanted: &BTreeSet<IpAddr>) -> Result<(), TableError> {
        let present = self.announced();
        for address in present.difference(wanted) {
            self.announced
                .remove(&address_key(*address))
                .map_err(write_failed(map::ANNOUNCED))?;
            self.known_announced.remove(address);
        }
        for address in wanted.difference(&present) {
            self.announced
                .insert(address_key(*address), 1, 0)
                .map_err(write_failed(map::ANNOUNCED))?;
            self.known_announced.insert(*address);
        }
        Ok(())
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
        let mut wanted: BTreeMap<(u32, u16), EdgeMac> = BTreeMap::new();
        for link in links {
            let mac = EdgeMac::new(link.mac);
            wanted.extend(link.arrivals.iter().map(|arrival| (*arrival, mac)));
        }
        for ((ifindex, vlan), mac) in &wanted {
            let key = TaggedLink::new(*ifindex, *vlan);
            if self.announce_links.get(&key, 0).ok() != Some(*mac) {
                self.announce_links
                    .insert(key, mac, 0)
                    .map_err(write_failed(map::ANNOUNCE_LINKS))?;
            }
        }
        let present: Result<Vec<TaggedLink>, MapError> = self.announce_links.keys().collect();
        for key in present.map_err(read_failed(map::ANNOUNCE_LINKS))? {
            if !wanted.contains_key(&key.parts()) {
                self.announce_links
                    .remove(&key)
                    .map_err(write_failed(map::ANNOUNCE_LINKS))?;
            }
        }
        Ok(())
    }

    /// Takes what other machines have announced since the last call.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to read or to forget it.
    pub fn take_claims(&mut self) -> Result<Vec<AnnouncedElsewhere>, TableError> {
        let read = |(key, claim): &(AddressKey, Claim)| AnnouncedElsewhere {
            address: address_of(*key),
            mac: claim.mac(),
        };
        let mut taken = Vec::new();
        for table in self.inherited_claims.iter_mut().chain([&mut self.claims]) {
            let claims: Result<Vec<_>, MapError> = table.iter().collect();
            let claims = claims.map_err(read_failed(map::CLAIMS))?;
            for (key, _) in &claims {
                table.remove(key).map_err(write_failed(map::CLAIMS))?;
            }
            taken.extend(claims.iter().map(read));
        }
        Ok(taken)
    }

    /// Has questions for announced addresses looked at, or not.
    fn announce_if(&mut self, announces: bool) -> Result<(), TableError> {
        let flag = if announces { CONFIG_ANNOUNCE } else { 0 };
        let config = Config {
            flags: self.current_config.flags & !CONFIG_ANNOUNCE | flag,
            ..self.current_config
        };
        if config != self.current_config {
            self.config
                .set(0, config)
                .map_err(write_failed(map::CONFIG))?;
            self.current_config = config;
        }
        Ok(())
    }
}
