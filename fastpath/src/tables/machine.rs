//! What holds for the whole machine: settings, addresses, trusted edges.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use aya::maps::MapError;
use ipnet::IpNet;
use xdp_prog::abi::{ADDRESS_LOCAL, ADDRESS_VIP, AddressKey, Config, map};

use super::{
    Settings, TableError, Tables,
    encode::{prefix_key, prefix_of, wire_address},
    error::{read_failed, write_failed},
    types::{address_key, address_of},
};

impl Tables {
    /// Sets the machine-wide settings.
    ///
    /// Another hash seed moves nearly every flow, and the tables are rebuilt
    /// only as their services are put again.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the write.
    pub fn set_settings(&mut self, settings: Settings) -> Result<(), TableError> {
        let config = Config {
            hash_seed: settings.hash_seed,
            source_v4: settings
                .source_v4
                .map_or([0; 16], |v4| wire_address(v4.into())),
            source_v6: settings.source_v6.map_or([0; 16], |v6| v6.octets()),
            ..Config::default()
        };
        self.config
            .set(0, config, 0)
            .map_err(write_failed(map::CONFIG))?;
        self.settings = settings;
        self.current_config = config;
        Ok(())
    }

    /// Lists the virtual addresses.
    pub fn vips(&self) -> BTreeSet<IpAddr> {
        self.addresses(ADDRESS_VIP)
    }

    /// Lists the addresses of this machine at which IP-in-IP is decapsulated.
    pub fn local_addresses(&self) -> BTreeSet<IpAddr> {
        self.addresses(ADDRESS_LOCAL)
    }

    /// Makes exactly these the virtual and the local addresses.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a write, as it does when the table is full.
    pub fn set_addresses(
        &mut self,
        vips: &BTreeSet<IpAddr>,
        local: &BTreeSet<IpAddr>,
    ) -> Result<(), TableError> {
        let mut wanted: BTreeMap<IpAddr, u32> = BTreeMap::new();
        for (addresses, flag) in [(vips, ADDRESS_VIP), (local, ADDRESS_LOCAL)] {
            for address in addresses {
                *wanted.entry(*address).or_default() |= flag;
            }
        }
        for (address, flags) in &wanted {
            let key = address_key(*address);
            if self.vips.get(&key, 0).ok() != Some(*flags) {
                self.vips
                    .insert(key, flags, 0)
                    .map_err(write_failed(map::VIPS))?;
            }
        }
        let present: Result<Vec<AddressKey>, MapError> = self.vips.keys().collect();
        for key in present.map_err(read_failed(map::VIPS))? {
            if !wanted.contains_key(&address_of(key)) {
                self.vips.remove(&key).map_err(write_failed(map::VIPS))?;
            }
        }
        Ok(())
    }

    /// Lists the prefixes from which IP-in-IP is accepted.
    pub fn trusted_edges(&self) -> BTreeSet<IpNet> {
        self.trusted_edges
            .keys()
            .flatten()
            .filter_map(prefix_of)
            .collect()
    }

    /// Makes exactly these the prefixes from which IP-in-IP is accepted.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a write, as it does when the table is full.
    pub fn set_trusted_edges(&mut self, wanted: &BTreeSet<IpNet>) -> Result<(), TableError> {
        let present = self.trusted_edges();
        // The table holds no bits beyond a prefix's length.
        let wanted: BTreeSet<IpNet> = wanted.iter().map(IpNet::trunc).collect();
        for net in wanted.difference(&present) {
            self.trusted_edges
                .insert(&prefix_key(*net), 1, 0)
                .map_err(write_failed(map::TRUSTED_EDGES))?;
        }
        for net in present.difference(&wanted) {
            self.trusted_edges
                .remove(&prefix_key(*net))
                .map_err(write_failed(map::TRUSTED_EDGES))?;
        }
        Ok(())
    }

    fn addresses(&self, flag: u32) -> BTreeSet<IpAddr> {
        self.vips
            .iter()
            .flatten()
            .filter(|(_, flags)| flags & flag != 0)
            .map(|(key, _)| address_of(key))
            .collect()
    }
}
