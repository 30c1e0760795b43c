//! Network settings (sysctl) that affect service traffic.

use std::{fs, ops::RangeInclusive};

/// The kernel's default of `gc_thresh3` (`arp_tbl` and `nd_tbl`).
const NEIGHBOUR_CAPACITY: usize = 1024;

/// How strictly the kernel checks the source addresses of incoming IPv4 packets (RFC 3704).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReversePathFilter {
    /// No check.
    Off,
    /// The route to the source must lead to the ingress interface.
    Strict,
    /// The source must have a route by any interface.
    Loose,
}

/// Returns the reverse path filter of an interface: the stricter number of its own setting and the setting `all`.
#[must_use]
pub fn reverse_path_filter(interface: &str) -> Option<ReversePathFilter> {
    let setting = |name: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
        fs::read_to_string(path).ok()?.trim().parse::<u8>().ok()
    };
    Some(match setting("all")?.max(setting(interface)?) {
        0 => ReversePathFilter::Off,
        1 => ReversePathFilter::Strict,
        _ => ReversePathFilter::Loose,
    })
}

/// Tells whether the kernel forwards a family's packets that come in by an interface.
#[must_use]
pub fn forwards(interface: &str, v4: bool) -> bool {
    let family = if v4 { "ipv4" } else { "ipv6" };
    let path = format!("/proc/sys/net/{family}/conf/{interface}/forwarding");
    fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
}

/// The kernel's neighbour table of a family; all network namespaces of the machine share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourTable {
    /// Number of entries; only visible in the initial network namespace.
    pub entries: Option<usize>,
    /// Largest number of entries (`gc_thresh3`).
    pub capacity: usize,
}

/// Reads how full a family's neighbour table is.
#[must_use]
pub fn neighbour_table(v4: bool) -> NeighbourTable {
    let (family, cache) = if v4 {
        ("ipv4", "arp")
    } else {
        ("ipv6", "ndisc")
    };
    let capacity = fs::read_to_string(format!("/proc/sys/net/{family}/neigh/default/gc_thresh3"));
    let statistics = fs::read_to_string(format!("/proc/net/stat/{cache}_cache"));
    NeighbourTable {
        entries: statistics.ok().and_then(|text| entries(&text)),
        capacity: capacity
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(NEIGHBOUR_CAPACITY),
    }
}

/// Reads the first number of the first line below the header. There is a line for each CPU, all with the same number.
fn entries(statistics: &str) -> Option<usize> {
    let line = statistics.lines().nth(1)?;
    usize::from_str_radix(line.split_whitespace().next()?, 16).ok()
}

/// The ports that the kernel chooses for its own connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPorts {
    /// The range (`net.ipv4.ip_local_port_range`).
    pub range: RangeInclusive<u16>,
    /// Ports of the range that the kernel leaves out (`net.ipv4.ip_local_reserved_ports`).
    pub reserved: Vec<RangeInclusive<u16>>,
}

impl LocalPorts {
    /// Tells whether the kernel may choose this port.
    #[must_use]
    pub fn takes(&self, port: u16) -> bool {
        self.range.contains(&port) && !self.reserved.iter().any(|range| range.contains(&port))
    }
}

/// Reads the ports that the kernel chooses for its own connections.
#[must_use]
pub fn local_ports() -> Option<LocalPorts> {
    let read = |name| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok();
    ports(
        &read("ip_local_port_range")?,
        &read("ip_local_reserved_ports").unwrap_or_default(),
    )
}

fn ports(range: &str, reserved: &str) -> Option<LocalPorts> {
    let mut ends = range.split_whitespace().map(str::parse);
    let range = ends.next()?.ok()?..=ends.next()?.ok()?;
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    Some(LocalPorts {
        range,
        reserved: reserved.trim().split(',').filter_map(part).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_not_taken() {
        let ports = ports("32768\t60999\n", "8080,40000-40010\n").unwrap();
        assert_eq!(ports.reserved, [8080..=8080, 40000..=40010]);
        assert!(ports.takes(32768) && ports.takes(60999) && ports.takes(40011));
        assert!(!ports.takes(32767) && !ports.takes(40000) && !ports.takes(40010));
    }

    #[test]
    fn entries_of_a_neighbour_table_are_read_in_hexadecimal() {
        let head = "entries  allocs   destroys hash_grows\n";
        let text = format!("{head}0000001f 0000010d 0000010b 00000000\n0000001f 0 0 0\n");
        assert_eq!(entries(&text), Some(31));
        assert_eq!(entries(head), None);
    }

    #[test]
    fn without_reserved_ports_the_whole_range_is_taken() {
        let ports = ports("30000 32767", "\n").unwrap();
        assert_eq!(ports.reserved, []);
        assert!(ports.takes(30000) && !ports.takes(29999));
    }
}
