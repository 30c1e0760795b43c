//! Next hops as text.

use std::collections::HashMap;

use fastpath::nexthop::Resolution;

use crate::announce::Mac;

/// What each packet costs that the agent sends by a device that takes no frames from XDP.
pub(crate) const CARRY_COST: &str = "about 1 us of one CPU for each packet";

pub(crate) const fn state(next_hop: Option<Resolution>) -> &'static str {
    match next_hop {
        Some(Resolution::Resolved(_)) => "resolved",
        Some(Resolution::Local) => "local",
        Some(Resolution::Unresolved(_)) | None => "unresolved",
    }
}

/// Returns the MAC address of a resolved next hop.
pub(crate) fn mac(next_hop: Option<Resolution>) -> Option<String> {
    match next_hop {
        Some(Resolution::Resolved(hop)) => Some(Mac(hop.destination_mac).to_string()),
        _ => None,
    }
}

/// Names of this machine's devices, by index.
#[derive(Debug, Default)]
pub(crate) struct DeviceNames(HashMap<u32, String>);

impl DeviceNames {
    /// Reads them from the kernel. Without an answer there are none.
    pub(crate) fn read() -> Self {
        let interfaces = nix::net::if_::if_nameindex().ok();
        let interfaces = interfaces.iter().flat_map(|all| all.iter());
        let name = |interface: &nix::net::if_::Interface| {
            let name = interface.name().to_string_lossy().into_owned();
            (interface.index(), name)
        };
        Self(interfaces.map(name).collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &String> {
        self.0.values()
    }

    pub(crate) fn of(&self, ifindex: u32) -> String {
        let name = self.0.get(&ifindex);
        name.map_or_else(|| format!("ifindex {ifindex}"), String::clone)
    }

    /// Returns the name of the device that packets leave by, or why there is none.
    pub(crate) fn describe(&self, next_hop: Option<Resolution>) -> String {
        match next_hop {
            Some(Resolution::Resolved(hop)) if hop.is_carried => {
                format!("{} (carried)", self.of(hop.ifindex))
            }
            Some(Resolution::Resolved(hop)) => self.of(hop.ifindex),
            Some(Resolution::Local) => "this machine".to_owned(),
            Some(Resolution::Unresolved(reason)) => reason.to_string(),
            None => "not looked up".to_owned(),
        }
    }
}
