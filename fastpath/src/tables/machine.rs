//! What holds for the whole machine: settings, addresses, trusted edges.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use aya::maps::MapError;
use ipnet::IpNet;
use xdp_prog::abi::{
    ADDRESS_LOCAL, ADDRESS_NAT, ADDRESS_NODE_PORT, ADDRESS_SHARED, ADDRESS_VIP, AddressKey,
    CONFIG_ANNOUNCE, Config, EdgeMac, TaggedLink, map,
};

use super::{
    Addresses, Settings, Specs, TableError, Tables,
    encode::{config_of, edge_prefix_key, edge_prefix_of},
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
        let settings_alone = config_of(&settings);
        let config = Config {
            epoch: self.current_config.epoch.wrapping_add(1),
            flags: settings_alone.flags | self.current_config.flags & CONFIG_ANNOUNCE,
            ..settings_alone
        };
        self.config
            .set(0, config, 0)
            .map_err(write_failed(map::CONFIG))?;
        if settings.hash_seed != self.settings.hash_seed {
            self.specs = Specs::new();
        }
        self.settings = settings;
        self.current_config = config;
        Ok(())
    }

    /// Ends what programs have noted of the tables, which have been changed.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the write.
    pub(super) fn begin_epoch(&mut self) -> Result<(), TableError> {
        let config = Config {
            epoch: self.current_config.epoch.wrapping_add(1),
            ..self.current_config
        };
        self.config
            .set(0, config, 0)
            .map_err(write_failed(map::CONFIG))?;
        self.current_config = config;
        Ok(())
    }

    /// Lists the addresses.
    pub fn addresses(&self) -> Arc<Addresses> {
        // Nobody else writes the map, and reading it takes two system calls for each entry.
        if let Some(known) = &self.known_addresses {
            return Arc::clone(known);
        }
        let mut addresses = Addresses::default();
        for (key, flags) in self.vips.iter().flatten() {
            for (flag, set) in by_flag(&mut addresses) {
                if flags & flag != 0 {
                    set.insert(address_of(key));
                }
            }
        }
        addresses.into()
    }

    /// Makes exactly these the addresses.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a write, as it does when the table is full.
    pub fn set_addresses(&mut self, addresses: Arc<Addresses>) -> Result<(), TableError> {
        let outcome = self.replace_addresses(&addresses);
        self.known_addresses = outcome.is_ok().then_some(addresses);
        self.begin_epoch()?;
        outcome
    }

    fn replace_addresses(&mut self, addresses: &Addresses) -> Result<(), TableError> {
        let wanted = flags_of(addresses);
        let present = match &self.known_addresses {
            Some(known) => flags_of(known),
            None => {
                let entries: Result<Vec<(AddressKey, u32)>, MapError> = self.vips.iter().collect();
                let entries = entries.map_err(read_failed(map::VIPS))?.into_iter();
                entries
                    .map(|(key, flags)| (address_of(key), flags))
                    .collect()
            }
        };
        for (address, flags) in &wanted {
            if present.get(address) != Some(flags) {
                self.vips
                    .insert(address_key(*address), flags, 0)
                    .map_err(write_failed(map::VIPS))?;
            }
        }
        for address in present.keys().filter(|one| !wanted.contains_key(*one)) {
            self.vips
                .remove(&address_key(*address))
                .map_err(write_failed(map::VIPS))?;
        }
        Ok(())
    }

    /// Lists the prefixes from which IP-in-IP is accepted.
    pub fn trusted_edges(&self) -> BTreeSet<IpNet> {
        if let Some(known) = &self.known_trusted_edges {
            return known.clone();
        }
        self.trusted_edges
            .keys()
            .flatten()
            .filter_map(edge_prefix_of)
            .collect()
    }

    /// Makes exactly these the prefixes from which IP-in-IP is accepted.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a write, as it does when the table is full.
    pub fn set_trusted_edges(&mut self, wanted: &BTreeSet<IpNet>) -> Result<(), TableError> {
        // The table holds no bits beyond a prefix's length.
        let wanted: BTreeSet<IpNet> = wanted.iter().map(IpNet::trunc).collect();
        let outcome = self.replace_trusted_edges(&wanted);
        self.known_trusted_edges = outcome.is_ok().then_some(wanted);
        self.begin_epoch()?;
        outcome
    }

    fn replace_trusted_edges(&mut self, wanted: &BTreeSet<IpNet>) -> Result<(), TableError> {
        let present = self.trusted_edges();
        for net in wanted.difference(&present) {
            self.trusted_edges
                .insert(&edge_prefix_key(*net), 1, 0)
                .map_err(write_failed(map::TRUSTED_EDGES))?;
        }
        for net in present.difference(wanted) {
            self.trusted_edges
                .remove(&edge_prefix_key(*net))
                .map_err(write_failed(map::TRUSTED_EDGES))?;
        }
        Ok(())
    }

    /// Lists the MACs from which edges send L2 DSR frames.
    pub fn edge_macs(&self) -> BTreeSet<[u8; 6]> {
        self.edge_macs.keys().flatten().map(EdgeMac::mac).collect()
    }

    /// Makes exactly these the MACs from which edges send L2 DSR frames.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a write, as it does when the table is full.
    pub fn set_edge_macs(&mut self, wanted: &BTreeSet<[u8; 6]>) -> Result<(), TableError> {
        let present = self.edge_macs();
        for mac in wanted.difference(&present) {
            self.edge_macs
                .insert(EdgeMac::new(*mac), 1, 0)
                .map_err(write_failed(map::EDGE_MACS))?;
        }
        for mac in present.difference(wanted) {
            self.edge_macs
                .remove(&EdgeMac::new(*mac))
                .map_err(write_failed(map::EDGE_MACS))?;
        }
        Ok(())
    }

    /// Makes exactly these the known VLAN devices: with each, the device below and the VLAN id.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a write, as it does when the table is full.
    pub fn set_vlans(&mut self, wanted: &BTreeMap<u32, (u32, u16)>) -> Result<(), TableError> {
        let present: Result<BTreeMap<u32, TaggedLink>, MapError> = self.vlans.iter().collect();
        let present = present.map_err(read_failed(map::VLANS))?;
        for device in present.keys().filter(|device| !wanted.contains_key(device)) {
            self.vlans
                .remove(device)
                .map_err(write_failed(map::VLANS))?;
        }
        for (device, (below, vlan)) in wanted {
            let link = TaggedLink::new(*below, *vlan);
            if present.get(device) != Some(&link) {
                self.vlans
                    .insert(device, link, 0)
                    .map_err(write_failed(map::VLANS))?;
            }
        }
        Ok(())
    }
}

/// Turns the sets into what `VIPS` has for each address.
fn flags_of(addresses: &Addresses) -> BTreeMap<IpAddr, u32> {
    let mut flags: BTreeMap<IpAddr, u32> = BTreeMap::new();
    for (flag, set) in by_flag(&mut addresses.clone()) {
        for address in set.iter() {
            *flags.entry(*address).or_default() |= flag;
        }
    }
    flags
}

/// Pairs each set of addresses with its flag in `VIPS`.
const fn by_flag(addresses: &mut Addresses) -> [(u32, &mut BTreeSet<IpAddr>); 5] {
    [
        (ADDRESS_VIP, &mut addresses.vips),
        (ADDRESS_SHARED, &mut addresses.shared),
        (ADDRESS_LOCAL, &mut addresses.local),
        (ADDRESS_NODE_PORT, &mut addresses.node_ports),
        (ADDRESS_NAT, &mut addresses.nat),
    ]
}
