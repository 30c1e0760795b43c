//! Reads addresses and networks as kube-proxy does. Objects stored by old Kubernetes versions may have leading
//! zeros in IPv4 addresses; kube-proxy reads them as decimal.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// Reads an address.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    match text.parse() {
        Ok(address) => Some(address),
        Err(_) => ipv4_with_zeros(text).map(IpAddr::V4),
    }
}

/// Reads a network. Surrounding white space is ignored, and host bits are cleared.
pub(super) fn network(text: &str) -> Option<IpNet> {
    let (front, length) = text.trim().split_once('/')?;
    let length = decimal(length)?;
    let network = IpNet::new(address(front)?, u8::try_from(length).ok()?);
    Some(network.ok()?.trunc())
}

fn ipv4_with_zeros(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = u8::try_from(decimal(parts.next()?)?).ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

fn decimal(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_are_decimal() {
        assert_eq!(address("010.001.0.08"), "10.1.0.8".parse().ok());
        assert_eq!(network(" 010.0.0.0/08 "), "10.0.0.0/8".parse().ok());
        assert_eq!(network("10.1.2.3/8"), "10.0.0.0/8".parse().ok());
        assert_eq!(network("fd00::/64"), "fd00::/64".parse().ok());
    }

    #[test]
    fn anything_else_is_none() {
        for text in [
            "",
            "10.0.0",
            "10.0.0.0.0",
            "10.0.0.256",
            "10.0.0.+1",
            "x",
            "fe80::1%eth0",
        ] {
            assert_eq!(address(text), None, "{text}");
        }
        for text in [
            "",
            "/",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "fd00::/129",
        ] {
            assert_eq!(network(text), None, "{text}");
        }
    }
}
