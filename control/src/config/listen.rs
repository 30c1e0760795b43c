//! Where the agent listens for HTTP.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// One address and port.
    At(SocketAddr),
    /// A port of each of the node's own addresses. With it one file does for many nodes.
    Node(u16),
}

/// The node's addresses are needed and not in the environment.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{listen} needs the addresses of the node in the variable {variable}, separated by commas, as a pod gets them of \
     status.hostIPs; {found}; set it, or write an address",
    variable = Listen::NODE_ADDRESSES
)]
pub struct NoNodeAddress {
    listen: Listen,
    found: String,
}

impl Listen {
    /// Environment variable with the node's addresses, separated by commas.
    pub const NODE_ADDRESSES: &str = "NODE_IPS";

    /// Returns the port.
    pub const fn port(self) -> u16 {
        match self {
            Self::At(socket) => socket.port(),
            Self::Node(port) => port,
        }
    }

    /// Returns the sockets to listen at. `addresses` is the value of [`Self::NODE_ADDRESSES`].
    ///
    /// # Errors
    ///
    /// When the node's addresses are needed and `addresses` has none.
    pub fn sockets(self, addresses: Option<&str>) -> Result<Vec<SocketAddr>, NoNodeAddress> {
        let port = match self {
            Self::At(socket) => return Ok(vec![socket]),
            Self::Node(port) => port,
        };
        let refused = |found: String| NoNodeAddress {
            listen: self,
            found,
        };
        let texts = addresses.unwrap_or_default().split(',').map(str::trim);
        let sockets = texts.filter(|text| !text.is_empty()).map(|text| {
            let address: Result<IpAddr, _> = text.parse();
            let address = address.map_err(|_| refused(format!("{text:?} is no address")))?;
            Ok(SocketAddr::new(address, port))
        });
        let sockets: Vec<SocketAddr> = sockets.collect::<Result<_, _>>()?;
        if sockets.is_empty() {
            return Err(refused("it names none".to_owned()));
        }
        Ok(sockets)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(socket) => socket.fmt(f),
            Self::Node(port) => write!(f, "node:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_stands_for_each_of_its_addresses() {
        let sockets = |addresses| Listen::Node(80).sockets(addresses);
        let both = sockets(Some("192.0.2.1,2001:db8::1")).unwrap();
        let expected = ["192.0.2.1:80", "[2001:db8::1]:80"].map(|text| text.parse().unwrap());
        assert_eq!(both, expected);
        for (addresses, found) in [
            (None, "it names none"),
            (Some(""), "it names none"),
            (Some("192.0.2.1,node1"), "\"node1\" is no address"),
        ] {
            let error = sockets(addresses).unwrap_err().to_string();
            let begin = "node:80 needs the addresses of the node in the variable NODE_IPS";
            assert!(error.starts_with(begin) && error.contains(found), "{error}");
        }
        let one = "192.0.2.9:80".parse().unwrap();
        assert_eq!(Listen::At(one).sockets(None).unwrap(), [one]);
    }
}
