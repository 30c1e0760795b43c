//! MTUs of paths to nodes, if routers report that they are smaller than the next hop's.
//!
//! The program notes the last ICMP error about each node behind a router ([`xdp_prog::decide::icmp::path`]); this
//! module judges it. Anybody can forge an error, but not easily the tag of the quoted packet: 11 bits that name one
//! of the node's pods. And each time, only one error per node is judged.
//!
//! That is the last error that came, whatever it says. If the program kept the first one, or the one with the
//! smallest MTU, a single forged error would keep every true one out until it is judged. This way a forger must outdo
//! the routers, which answer packets that are too large for as long as they come. A forged error never raises an MTU,
//! because only smaller ones count.

use std::net::IpAddr;

use xdp_prog::{
    abi::{BACKEND_NAT, PathReport},
    reason::PassReason,
};

use super::{TableError, Tables, syscall_map::EXIST, types::address_of};
use crate::nexthop::Resolution;

/// The smallest MTU of an IPv6 path, in bytes (RFC 8200 section 5).
const LEAST_V6: u32 = 1280;
/// The smallest MTU of an IPv4 path that is believed, in bytes: behind the outer header fits the packet that every
/// host takes (RFC 791 section 3.1).
const LEAST_V4: u32 = 576 + 20;

impl Tables {
    /// Sets the MTU of the path to a node in bytes; `None` restores the next hop's.
    ///
    /// # Errors
    ///
    /// Fails if the table of next hops is full; the old MTU stays.
    pub fn set_path_mtu(&mut self, node: IpAddr, mtu: Option<u32>) -> Result<(), TableError> {
        let old = match mtu {
            Some(mtu) => self.contents.path_mtus.insert(node, mtu),
            None => self.contents.path_mtus.remove(&node),
        };
        let Some(resolution) = self.next_hop(node) else {
            return Ok(());
        };
        self.set_next_hop(node, resolution).inspect_err(|_| {
            match old {
                Some(old) => self.contents.path_mtus.insert(node, old),
                None => self.contents.path_mtus.remove(&node),
            };
        })
    }

    /// Makes the program note errors about packets to the nodes behind a router, and about no others.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a write.
    pub fn watch_paths(&mut self) -> Result<(), TableError> {
        let is_routed = |resolution: Option<Resolution>| match resolution {
            Some(Resolution::Resolved(hop)) => hop.via_gateway,
            Some(Resolution::Local | Resolution::Unresolved(_)) | None => false,
        };
        let routes = self.contents.node_routes.iter();
        let routed = routes.filter(|(_, route)| is_routed(route.resolution));
        // The program writes the reports, so those that exist stay.
        let known = self.paths.held();
        let report = |node| known.get(node).copied().unwrap_or_default();
        let wanted = routed.map(|(node, _)| (*node, report(node))).collect();
        self.paths.replace(&wanted)
    }

    /// Tells whether any node is behind a router.
    pub fn has_paths(&self) -> bool {
        !self.paths.held().is_empty()
    }

    /// Takes the reports since the last call: nodes whose path has a smaller MTU than known, each with that MTU in
    /// bytes.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses to read or to clear the reports.
    pub fn take_path_mtus(&mut self) -> Result<Vec<(IpAddr, u32)>, TableError> {
        // Mostly there are no reports; one counter shows that.
        let count = self.counters.reason(PassReason::PathMtu.index());
        if std::mem::replace(&mut self.path_errors, count) == count {
            return Ok(Vec::new());
        }
        let mut smaller = Vec::new();
        for (key, report) in self.paths.map().entries()? {
            if !report.is_some() {
                continue;
            }
            let forgotten = PathReport::default();
            self.paths.map().insert_if(key, forgotten, EXIST)?;
            let node = address_of(key);
            smaller.extend(self.judge(node, report).map(|mtu| (node, mtu)));
        }
        Ok(smaller)
    }

    /// Returns the MTU of the path to a node in bytes, if the reported packet could have been sent from here and the
    /// report is news.
    fn judge(&self, node: IpAddr, report: PathReport) -> Option<u32> {
        let Some(Resolution::Resolved(hop)) = self.next_hop(node) else {
            return None;
        };
        let least = if node.is_ipv4() { LEAST_V4 } else { LEAST_V6 };
        let mtu = u32::from(report.mtu()).max(least);
        let is_news = mtu < self.path_mtu(node).unwrap_or(hop.mtu);
        let may_be_sent = u32::from(report.length()) <= hop.mtu;
        (is_news && may_be_sent && self.has_tag(node, report)).then_some(mtu)
    }

    /// Tells whether packets to a node carry this tag.
    fn has_tag(&self, node: IpAddr, report: PathReport) -> bool {
        let backends = self.backends_of(node);
        let mut entries = backends
            .iter()
            .filter_map(|(_, id)| self.backends.read(*id));
        entries.any(|entry| entry.flags & BACKEND_NAT == 0 && entry.tag == report.tag().pod_bits())
    }
}
