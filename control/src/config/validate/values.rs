//! The rules for single values: addresses, prefixes, numbers, words, paths.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;
use serde_saphyr::Spanned;

use super::super::Listen;
use super::super::problem::{Position, Problem};
use super::super::shorten;
use super::Rules;
use crate::desired::{AttachMode, ForwardMode, unusable};

impl Rules {
    pub(super) fn mode(&mut self, field: &str, text: &Spanned<String>) -> Option<ForwardMode> {
        match text.value.as_str() {
            "ipip" => Some(ForwardMode::Ipip),
            "l2dsr" => Some(ForwardMode::L2dsr),
            "nat" => Some(ForwardMode::Nat),
            _ => {
                self.refuse(
                    field,
                    text,
                    "not a forwarding mode",
                    "use ipip, l2dsr or nat",
                );
                None
            }
        }
    }

    pub(super) fn attach_mode(
        &mut self,
        field: &str,
        text: &Spanned<String>,
    ) -> Option<AttachMode> {
        match text.value.as_str() {
            "native" => Some(AttachMode::Native),
            "native-or-generic" => Some(AttachMode::NativeOrGeneric),
            "generic" => Some(AttachMode::Generic),
            _ => {
                self.refuse(
                    field,
                    text,
                    "not an attach mode",
                    "use native, native-or-generic or generic",
                );
                None
            }
        }
    }

    pub(super) fn seed(&mut self, text: &Spanned<String>) -> Option<u64> {
        let seed = parse_seed(&text.value);
        if seed.is_none() {
            self.refuse(
                "hash_seed",
                text,
                "not a 64-bit number",
                "use a number from 0 to 18446744073709551615 or 0x followed by up to 16 digits, \
                 the same on every edge",
            );
        }
        seed
    }

    /// Takes an address or a network of any length, for clients and machines rather than senders of IP-in-IP.
    pub(super) fn network(&mut self, field: &str, text: &Spanned<String>) -> Option<IpNet> {
        let Some(network) = parse_network(&text.value) else {
            self.refuse(
                field,
                text,
                "not an address or prefix",
                "write it like 192.0.2.0/24 or 2001:db8::/64",
            );
            return None;
        };
        if network.trunc() != network {
            let remedy = format!("did you mean {} or {}?", network.trunc(), network.addr());
            let reason = "the prefix has bits set beyond its length";
            self.refuse(field, text, reason, remedy);
            return None;
        }
        Some(network)
    }

    /// Takes a switch.
    pub(super) fn switch(
        &mut self,
        field: &str,
        text: Option<&Spanned<String>>,
        default: bool,
    ) -> bool {
        match text.map(|text| (text.value.as_str(), text)) {
            None => default,
            Some(("on", _)) => true,
            Some(("off", _)) => false,
            Some((_, text)) => {
                self.refuse(field, text, "not a switch", "use on or off");
                default
            }
        }
    }

    pub(super) fn prefix(&mut self, field: &str, text: &Spanned<String>) -> Option<IpNet> {
        let Some(prefix) = parse_network(&text.value) else {
            self.refuse(
                field,
                text,
                "not an address or prefix",
                "write it like 192.0.2.0/24 or 2001:db8::/64",
            );
            return None;
        };
        if prefix.prefix_len() == 0 {
            self.refuse(
                field,
                text,
                "this prefix trusts every sender, who could then forge any source",
                "list the outer source addresses of the edges",
            );
            return None;
        }
        if prefix.trunc() != prefix {
            self.refuse(
                field,
                text,
                "the prefix has bits set beyond its length",
                format!("did you mean {} or {}?", prefix.trunc(), prefix.addr()),
            );
            return None;
        }
        if let Some(reason) = unusable(prefix.addr()) {
            self.refuse(
                field,
                text,
                reason,
                "list the outer source addresses of the edges",
            );
            return None;
        }
        Some(prefix)
    }

    pub(super) fn listen(&mut self, field: &str, text: &Spanned<String>) -> Option<Listen> {
        if text.value == "off" {
            return None;
        }
        let listen = match text.value.strip_prefix("node:") {
            Some(port) => decimal(port).filter(|port| *port != 0).map(Listen::Node),
            None => SocketAddr::from_str(&text.value)
                .ok()
                .filter(|address| address.port() != 0)
                .map(Listen::At),
        };
        match listen {
            Some(listen) => Some(listen),
            None => {
                self.refuse(
                    field,
                    text,
                    "not an address and port",
                    "write it like 127.0.0.1:9750 or [::1]:9750, node:9750 for the addresses of a pod's node, or off",
                );
                None
            }
        }
    }

    pub(super) fn path(
        &mut self,
        field: &str,
        text: &Spanned<String>,
        longest: usize,
    ) -> Option<PathBuf> {
        let path = PathBuf::from(&text.value);
        let usable = path.is_absolute() && path.file_name().is_some() && !text.value.contains('\0');
        if !usable {
            self.refuse(
                field,
                text,
                "not an absolute path",
                "begin it with / and name a file or directory",
            );
            return None;
        }
        if text.value.len() > longest {
            self.refuse(
                field,
                text,
                "the path is too long",
                format!("use at most {longest} bytes"),
            );
            return None;
        }
        Some(path)
    }

    /// Takes a unicast address that a packet on the wire may carry.
    pub(super) fn address(&mut self, field: &str, text: &Spanned<String>) -> Option<IpAddr> {
        let Ok(address) = IpAddr::from_str(&text.value) else {
            let remedy = if text.value.contains('/') {
                "give the address alone, without a prefix length"
            } else {
                "write it like 192.0.2.1 or 2001:db8::1"
            };
            self.refuse(field, text, "not an IP address", remedy);
            return None;
        };
        if let Some(reason) = unusable(address) {
            let remedy = match address.to_canonical() {
                IpAddr::V4(inner) if address.is_ipv6() => format!("write it as {inner}"),
                _ => "give a unicast address".to_owned(),
            };
            self.refuse(field, text, reason, remedy);
            return None;
        }
        Some(address)
    }

    pub(super) fn refuse(
        &mut self,
        field: &str,
        text: &Spanned<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.problems.push(Problem {
            position: Some(position(text)),
            field: field.to_owned(),
            value: shorten(&text.value),
            reason: reason.into(),
            remedy: remedy.into(),
        });
    }

    pub(super) fn missing(&mut self, field: &str, at: Option<Position>, remedy: impl Display) {
        self.problems.push(Problem {
            position: at,
            field: field.to_owned(),
            value: String::new(),
            reason: "missing".to_owned(),
            remedy: remedy.to_string(),
        });
    }
}

/// Returns the place where a value is used.
pub(super) fn position<T>(spanned: &Spanned<T>) -> Position {
    spanned.referenced.into()
}

/// Parses a network, or an address as a network of its own.
pub(in crate::config) fn parse_network(text: &str) -> Option<IpNet> {
    let network = IpNet::from_str(text);
    network
        .or_else(|_| IpAddr::from_str(text).map(IpNet::from))
        .ok()
}

/// Parses a seed: 64 bits, decimal or `0x`.
pub(in crate::config) fn parse_seed(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None => decimal(text),
    }
}

/// Parses plain decimal digits; `FromStr` would also take a leading plus sign.
pub(super) fn decimal<T: FromStr>(text: &str) -> Option<T> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

/// Follows the kernel's `dev_valid_name`.
pub(super) fn is_interface_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 15
        && name != "."
        && name != ".."
        && !name
            .bytes()
            .any(|byte| byte == b'/' || byte == b':' || byte == 0 || byte.is_ascii_whitespace())
}
