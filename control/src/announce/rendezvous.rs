//! Rendezvous hashing: each address belongs to the edge with the highest hash of address and edge.
//!
//! A new edge takes an equal share from all others. The addresses of an edge that leaves are spread over all
//! others. No other address moves. The hash function never changes, because edges of different builds must
//! agree.

use std::net::{IpAddr, Ipv6Addr};

use crate::hash::{fnv_1a, mix};

/// Returns the edge that an address belongs to; `None` if there are no edges.
pub fn holder<'e>(address: IpAddr, edges: impl IntoIterator<Item = &'e str>) -> Option<&'e str> {
    // If two edges have the same hash, the name decides.
    let score = |edge: &&'e str| (hash(address, edge), *edge);
    edges.into_iter().max_by_key(score)
}

fn hash(address: IpAddr, edge: &str) -> u64 {
    let address: Ipv6Addr = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let address = address.to_bits();
    let (high, low) = (
        (address >> 64) as u64,
        (address & 0xffff_ffff_ffff_ffff) as u64,
    );
    mix(mix(fnv_1a(0, edge) ^ high) ^ low)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::Ipv4Addr;

    use super::*;

    fn addresses() -> impl Iterator<Item = IpAddr> {
        (0..10_000).map(|n| Ipv4Addr::from_bits(0xcb00_7100 + n).into())
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("node-{n}")).collect()
    }

    fn spread(edges: &[String]) -> BTreeMap<IpAddr, &str> {
        let of = |address| holder(address, edges.iter().map(String::as_str)).unwrap();
        addresses().map(|address| (address, of(address))).collect()
    }

    #[test]
    fn addresses_are_spread_evenly() {
        let edges = names(5);
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for edge in spread(&edges).into_values() {
            *counts.entry(edge).or_default() += 1;
        }
        assert_eq!(counts.len(), 5);
        // Each within four standard deviations (40) of 2000.
        let is_even = |count: &u32| (1840..2160).contains(count);
        assert!(counts.values().all(is_even), "{counts:?}");
    }

    #[test]
    fn only_what_a_lost_edge_held_moves() {
        let mut edges = names(5);
        let all = edges.clone();
        let before = spread(&all);
        let lost = edges.remove(2);
        let after = spread(&edges);
        for (address, edge) in before {
            if edge != lost {
                assert_eq!(after[&address], edge, "{address}");
            }
        }
    }

    #[test]
    fn order_of_edges_does_not_matter() {
        let edges = names(5);
        let reversed: Vec<String> = edges.iter().rev().cloned().collect();
        assert_eq!(spread(&edges), spread(&reversed));
    }

    #[test]
    fn other_builds_choose_the_same() {
        let edges = ["a", "b", "c"];
        let of = |text: &str| holder(text.parse().unwrap(), edges).unwrap();
        let chosen = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1"].map(of);
        assert_eq!(chosen, ["c", "a", "a", "a"]);
        assert_eq!(holder("192.0.2.1".parse().unwrap(), []), None);
    }
}
