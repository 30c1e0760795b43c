//! The names of network devices, by what a captured packet says of them.

use std::collections::BTreeMap;
use std::fs;

use crate::hex;

/// The devices of this machine.
#[derive(Debug, Default)]
pub(super) struct Devices {
    names: BTreeMap<u32, String>,
    /// By MAC address; empty where several have the same.
    macs: BTreeMap<String, String>,
}

impl Devices {
    /// Lists them.
    pub(super) fn read() -> Self {
        let mut devices = Self::default();
        let Ok(interfaces) = nix::net::if_::if_nameindex() else {
            return devices;
        };
        for interface in &interfaces {
            let name = interface.name().to_string_lossy().into_owned();
            if let Ok(mac) = fs::read_to_string(format!("/sys/class/net/{name}/address")) {
                let place = devices.macs.entry(mac.trim().to_owned());
                place
                    .and_modify(String::clear)
                    .or_insert_with(|| name.clone());
            }
            devices.names.insert(interface.index(), name);
        }
        devices
    }

    /// Returns the name of the device with this number.
    pub(super) fn name(&self, ifindex: u32) -> String {
        let name = self.names.get(&ifindex).cloned();
        name.unwrap_or_else(|| format!("ifindex {ifindex}"))
    }

    /// Returns the name of the one device with this MAC address.
    pub(super) fn with_mac(&self, mac: [u8; 6]) -> Option<String> {
        let name = self.macs.get(&hex::mac(mac))?;
        (!name.is_empty()).then(|| name.clone())
    }
}
