use crate::abi::{
    AddressKey, Backend, Config, EdgeMac, IndexEntry, NextHop, Past, PastOwner, Pod, PodKey,
    Service, ServiceKeyV4, ServiceKeyV6, Slot, Tuple,
};

/// The look-ups of a decision.
pub trait Tables {
    /// Returns the machine-wide settings.
    fn config(&self) -> Option<&Config>;
    /// Tells whether the agent has mended the frame, which therefore does not come by its sender's link.
    #[inline(always)]
    fn is_mended(&self) -> bool {
        false
    }
    /// Returns the flags of an address in `VIPS`; 0 if it is not there.
    fn address_flags(&self, address: &AddressKey) -> u32;
    /// Tells whether this machine accepts IP-in-IP from a source.
    fn is_trusted_edge(&self, source: &AddressKey) -> bool;
    /// Tells whether an edge sends L2 DSR frames from a MAC.
    fn is_edge_mac(&self, source: &EdgeMac) -> bool;
    /// Tells whether a client is in one of a service's source ranges.
    fn is_in_source_range(&self, service: u32, client: &AddressKey) -> bool;
    /// Tells whether a packet belongs to a flow of this machine's own kernel; `flow` is its tuple as it comes in.
    fn is_local_flow(&self, flow: &Tuple) -> bool;
    /// Returns a pod of this machine; the value is read with one load.
    fn pod(&self, key: &PodKey) -> Option<Pod>;
    /// Returns what the index says of an IPv4 service; the value is read with one load.
    fn service_v4(&self, key: &ServiceKeyV4) -> Option<IndexEntry>;
    /// Returns what the index says of an IPv6 service; the value is read with one load.
    fn service_v6(&self, key: &ServiceKeyV6) -> Option<IndexEntry>;
    /// Returns a service; its word is read with one load.
    fn service(&self, id: u32) -> Option<Service>;
    /// Returns a slot of the LUT arena; the value is read with one load.
    fn slot(&self, index: u32) -> Option<Slot>;
    /// Returns where the past owners of a slot are listed; the value is read with one load.
    fn past(&self, index: u32) -> Past;
    /// Returns an entry of a list of past owners.
    fn past_owner(&self, index: u32) -> PastOwner;
    /// Returns a backend.
    fn backend(&self, id: u32) -> Option<&Backend>;
    /// Returns a next hop.
    fn next_hop(&self, id: u32) -> Option<&NextHop>;
    /// Asks the kernel's FIB and neighbour table for the next hop to a backend. If the route leads through a VLAN
    /// device that `VLANS` lists, the result is the device below it and the tag.
    fn fib_next_hop(&self, backend: &Backend) -> Option<&NextHop>;
    /// Asks the FIB likewise for the next hop to any address.
    fn fib_route(&self, address: &AddressKey) -> Option<&NextHop>;
    /// Asks the FIB for the device that leads to an address, even if the neighbour is not known. A VLAN device is
    /// returned itself.
    fn fib_device(&self, address: &AddressKey) -> Option<u32>;
}
