//! Machine-wide tables: settings, addresses, trusted edges, devices whose frames leave by another one.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use xdp_prog::abi::{
    ADDRESS_INNER, ADDRESS_LOCAL, ADDRESS_NAT, ADDRESS_NODE_PORT, ADDRESS_SHARED, ADDRESS_VIP,
    CONFIG_ANNOUNCE, CONFIG_OVERFLOW, Config, TaggedLink,
};

use super::{
    Addresses, ServiceKey, Settings, Specs, TableError, Tables,
    encode::{config_of, device_word},
    whole_edge::Hash,
};
use crate::nexthop::LinkBelow;

impl Tables {
    /// Sets the machine-wide settings.
    ///
    /// Another hash seed moves nearly every flow, and each table is rebuilt only when its service is put again.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the write, or if the table of next hops has no room for new outer sources.
    pub fn set_settings(&mut self, settings: Settings) -> Result<(), TableError> {
        let settings_alone = config_of(&settings);
        let config = Config {
            notes_generation: self.current_config.notes_generation.wrapping_add(1),
            flags: settings_alone.flags
                | self.current_config.flags & (CONFIG_ANNOUNCE | CONFIG_OVERFLOW),
            delivery_keys: self.current_config.delivery_keys,
            index_seed: self.current_config.index_seed,
            index_mask: self.current_config.index_mask,
            services_of_cpu: self.current_config.services_of_cpu,
            backends_of_cpu: self.current_config.backends_of_cpu,
            flows_copied_by: self.current_config.flows_copied_by,
            nat_only_ports: self.nat_only_ports(&settings_alone),
            ..settings_alone
        };
        self.set_config(config)?;
        if settings.hash_seed != self.settings.hash_seed {
            self.contents.specs = Specs::new();
        }
        self.settings = settings;
        self.rewrite_next_hops()
    }

    /// Invalidates the programs' notes after a change of the tables. With it goes whether the index's overflow has
    /// entries, and is to be asked.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the write.
    pub(super) fn invalidate_notes(&mut self) -> Result<(), TableError> {
        let others = self.current_config.flags & !CONFIG_OVERFLOW;
        let has_overflow = self.index.overflow().used > 0;
        self.set_config(Config {
            notes_generation: self.current_config.notes_generation.wrapping_add(1),
            flags: others | if has_overflow { CONFIG_OVERFLOW } else { 0 },
            ..self.current_config
        })
    }

    /// Makes programs look in the index's overflow, before it gets its first entry.
    pub(super) fn ask_overflow(&mut self) -> Result<(), TableError> {
        self.set_config(Config {
            flags: self.current_config.flags | CONFIG_OVERFLOW,
            ..self.current_config
        })
    }

    /// Returns [`Config::nat_only_ports`] with these settings.
    fn nat_only_ports(&self, config: &Config) -> u16 {
        let ports = config.nat_ports;
        let is_taken = |key: &ServiceKey| config.is_nat_port(key.port.to_be_bytes(), ports);
        if self.installed.keys().any(is_taken) {
            0
        } else {
            ports
        }
    }

    /// Makes programs look for the services of packets to ports of NAT mode, before a service gets this port.
    pub(super) fn ask_about_nat_port(&mut self, port: u16) -> Result<(), TableError> {
        let config = self.current_config;
        if !config.is_nat_port(port.to_be_bytes(), config.nat_only_ports) {
            return Ok(());
        }
        self.set_config(Config {
            nat_only_ports: 0,
            ..config
        })
    }

    pub(super) fn set_config(&mut self, config: Config) -> Result<(), TableError> {
        self.config.insert(0, config)?;
        self.show_config(config);
        self.current_config = config;
        Ok(())
    }

    /// Returns the addresses with a meaning for the datapath.
    pub fn addresses(&self) -> Arc<Addresses> {
        Arc::clone(&self.known_addresses)
    }

    /// Replaces the addresses with a meaning for the datapath.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a write, for one because the table is full.
    pub fn set_addresses(&mut self, addresses: Arc<Addresses>) -> Result<(), TableError> {
        let outcome = self.vips.replace(&flags_of(&addresses));
        self.known_addresses = match &outcome {
            Ok(()) => addresses,
            Err(_) => addresses_of(self.vips.held()).into(),
        };
        self.show_hash(Hash::Vips);
        self.invalidate_notes()?;
        outcome
    }

    /// Lists the prefixes of edges from which IP-in-IP is accepted.
    pub fn trusted_edges(&self) -> BTreeSet<IpNet> {
        self.trusted_edges.held().keys().copied().collect()
    }

    /// Replaces the prefixes of edges from which IP-in-IP is accepted.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a write, for one because the table is full.
    pub fn set_trusted_edges(&mut self, wanted: &BTreeSet<IpNet>) -> Result<(), TableError> {
        // The keys have no bits beyond the prefix length.
        let wanted: BTreeSet<IpNet> = wanted.iter().map(IpNet::trunc).collect();
        let outcome = self.trusted_edges.replace_set(&wanted);
        self.show_hash(Hash::TrustedEdges);
        self.invalidate_notes()?;
        outcome
    }

    /// Lists the MACs from which edges send L2 DSR frames.
    pub fn edge_macs(&self) -> BTreeSet<[u8; 6]> {
        self.edge_macs.held().keys().copied().collect()
    }

    /// Replaces the MACs from which edges send L2 DSR frames.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a write, for one because the table is full.
    pub fn set_edge_macs(&mut self, wanted: &BTreeSet<[u8; 6]>) -> Result<(), TableError> {
        let outcome = self.edge_macs.replace_set(wanted);
        self.show_hash(Hash::EdgeMacs);
        outcome
    }

    /// Replaces the known VLAN devices, and those whose frames the agent sends.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a write, for one because the table is full.
    pub fn set_links_below(&mut self, wanted: &BTreeMap<u32, LinkBelow>) -> Result<(), TableError> {
        let link = |(device, below): (&u32, &LinkBelow)| {
            let ifindex = device_word(below.ifindex, below.is_carried);
            (*device, TaggedLink::new(ifindex, below.vlan))
        };
        self.vlans.replace(&wanted.iter().map(link).collect())
    }
}

/// Converts the sets to the flags that `VIPS` has for each address.
fn flags_of(addresses: &Addresses) -> BTreeMap<IpAddr, u32> {
    let mut flags: BTreeMap<IpAddr, u32> = BTreeMap::new();
    for (flag, set) in by_flag(&mut addresses.clone()) {
        for address in set.iter() {
            *flags.entry(*address).or_default() |= flag;
        }
    }
    flags
}

/// Converts the flags back to the sets.
pub(super) fn addresses_of(flags: &BTreeMap<IpAddr, u32>) -> Addresses {
    let mut addresses = Addresses::default();
    for (flag, set) in by_flag(&mut addresses) {
        let with_flag = flags.iter().filter(|(_, flags)| *flags & flag != 0);
        set.extend(with_flag.map(|(address, _)| *address));
    }
    addresses
}

/// Pairs each set of addresses with its flag in `VIPS`.
const fn by_flag(addresses: &mut Addresses) -> [(u32, &mut BTreeSet<IpAddr>); 6] {
    [
        (ADDRESS_VIP, &mut addresses.vips),
        (ADDRESS_SHARED, &mut addresses.shared),
        (ADDRESS_LOCAL, &mut addresses.local),
        (ADDRESS_NODE_PORT, &mut addresses.node_ports),
        (ADDRESS_NAT, &mut addresses.nat),
        (ADDRESS_INNER, &mut addresses.inner),
    ]
}
