//! Network cards of this machine, and devices under test that are not ours.

use std::net::{IpAddr, SocketAddr};

use lab::Cidr;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AddressFamily;

/// The port of backends, where none is named.
pub const BACKEND_PORT: u16 = 7000;

/// The cards of the wires `ports` and `reflector`. Addresses are texts, as the scenario has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ports {
    /// The card that requests leave by.
    pub client: Port,
    /// The card that they arrive at. Each of its addresses is a backend. `null` with the wire `reflector`.
    pub backend: Option<Port>,
    /// The addresses of `guideway-bench reflect`, each a backend, in the same order; none with the wire `ports`.
    pub reflector: Vec<String>,
    /// Networks that frames may go to, besides those of the cards.
    pub networks: Vec<String>,
    /// A command of a shell that tells facts of the machine that answers, one a line: name, colon, value. `null` without one.
    pub facts: Option<String>,
}

/// A network card that a run takes for itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// The interface.
    pub device: String,
    /// The addresses that it gets, each with the length of its network.
    pub addresses: Vec<String>,
    /// Whether the card is given up for tests: then it may have the default route, or an address of the login, and frames
    /// may leave by it to any address.
    pub given_up: bool,
}

/// A device under test, and how it is brought up and reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnderTest {
    /// Its name among the systems.
    pub name: String,
    /// Commands of a shell.
    pub commands: Commands,
    /// The next hops from the client's card, one of each family at most. Without one, the targets are on the cable.
    pub via: Vec<String>,
    /// The next hops from the backends' card, likewise.
    pub back: Vec<String>,
    /// Where flows go to, in turn: addresses with ports.
    pub to: Vec<String>,
}

/// Commands around a device under test; `null` where there is nothing to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Commands {
    /// Brings the device up, and ends.
    pub up: Option<String>,
    /// Succeeds once the device is up.
    pub check: Option<String>,
    /// Takes the device down, whether it is up or not.
    pub down: Option<String>,
    /// Tells facts of the device once it is up, one a line: name, colon, value.
    pub facts: Option<String>,
}

impl Ports {
    /// Returns the addresses of the backends, by their numbers, of one family.
    pub fn backends(&self, family: AddressFamily) -> Vec<IpAddr> {
        let own = self
            .backend
            .iter()
            .flat_map(Port::prefixes)
            .map(|prefix| prefix.address);
        let remote = self.reflector.iter().filter_map(|text| text.parse().ok());
        own.chain(remote)
            .filter(|address| family.has(*address))
            .collect()
    }

    /// Tells whether frames may go to an address.
    pub fn allows(&self, address: IpAddr) -> bool {
        let own = [Some(&self.client), self.backend.as_ref()];
        let own = own.into_iter().flatten().flat_map(Port::prefixes);
        let named = self.networks.iter().filter_map(|text| text.parse().ok());
        let mut networks = own.chain(named);
        self.client.given_up || networks.any(|network: Cidr| contains(network, address))
    }
}

impl Port {
    /// Returns its addresses.
    pub fn prefixes(&self) -> impl Iterator<Item = Cidr> {
        self.addresses.iter().filter_map(|text| text.parse().ok())
    }

    /// Returns its first address of a family.
    pub fn address(&self, family: AddressFamily) -> Option<IpAddr> {
        let mut own = self.prefixes().map(|prefix| prefix.address);
        own.find(|address| family.has(*address))
    }
}

impl UnderTest {
    /// Returns where flows of a family go to.
    pub fn targets(&self, family: AddressFamily) -> Vec<SocketAddr> {
        let all = self.to.iter().filter_map(|text| text.parse().ok());
        all.filter(|to: &SocketAddr| family.has(to.ip())).collect()
    }
}

/// Returns the next hop of a family.
pub fn hop_of(hops: &[String], family: AddressFamily) -> Option<IpAddr> {
    let mut all = hops.iter().filter_map(|text| text.parse().ok());
    all.find(|hop| family.has(*hop))
}

impl AddressFamily {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// Tells whether an address is of this family.
    pub fn has(self, address: IpAddr) -> bool {
        address.is_ipv4() == (self == Self::Ipv4)
    }
}

/// Tells whether a network has an address.
fn contains(network: Cidr, address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    };
    let differing = bits(network.address) ^ bits(address);
    network.address.is_ipv4() == address.is_ipv4()
        && differing.leading_zeros() >= u32::from(network.length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_the_addresses_of_its_prefix_and_family() {
        for (network, address, expected) in [
            ("192.0.2.10/24", "192.0.2.200", true),
            ("192.0.2.10/24", "192.0.3.1", false),
            ("192.0.2.10/32", "192.0.2.10", true),
            ("0.0.0.0/0", "198.51.100.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("2001:db8::1/128", "2001:db8::2", false),
        ] {
            let (network, address) = (network.parse().unwrap(), address.parse().unwrap());
            assert_eq!(contains(network, address), expected, "{network} {address}");
        }
    }
}
