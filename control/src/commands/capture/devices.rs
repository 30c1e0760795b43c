//! Finds the names of network devices for captured packets.

use std::collections::BTreeMap;
use std::fs;

use crate::announce::Mac;
use crate::next_hop::DeviceNames;

/// The devices of this machine.
#[derive(Debug, Default)]
pub(super) struct Devices {
    names: DeviceNames,
    /// Names by MAC address; empty if several devices have the same address.
    macs: BTreeMap<String, String>,
}

impl Devices {
    pub(super) fn read() -> Self {
        let names = DeviceNames::read();
        let mut macs = BTreeMap::new();
        for name in names.iter() {
            if let Ok(mac) = fs::read_to_string(format!("/sys/class/net/{name}/address")) {
                let place = macs.entry(mac.trim().to_owned());
                place
                    .and_modify(String::clear)
                    .or_insert_with(|| name.clone());
            }
        }
        Self { names, macs }
    }

    /// Returns the name of a device by its index.
    pub(super) fn name(&self, ifindex: u32) -> String {
        self.names.of(ifindex)
    }

    /// Returns the name of the only device with a MAC address.
    pub(super) fn with_mac(&self, mac: [u8; 6]) -> Option<String> {
        let name = self.macs.get(&Mac(mac).to_string())?;
        (!name.is_empty()).then(|| name.clone())
    }
}
