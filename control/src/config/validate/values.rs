//! The rules for single values: addresses, prefixes, numbers, words, paths.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;

use super::super::{Datapath, Listen};
use crate::desired::{AttachMode, ForwardMode, unusable};

/// Why a value is rejected, and what to write instead.
pub(in crate::config) struct Refusal {
    pub(super) reason: String,
    pub(super) remedy: String,
}

pub(super) fn refusal(reason: impl Into<String>, remedy: impl Into<String>) -> Refusal {
    Refusal {
        reason: reason.into(),
        remedy: remedy.into(),
    }
}

type Read<T> = Result<T, Refusal>;

/// Reads one of a few words.
pub(super) fn word<T: Copy>(text: &str, words: &[(&str, T)], reason: &str) -> Read<T> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let (last, others) = words.split_last().expect("there are words");
        refusal(reason, format!("use {} or {last}", others.join(", ")))
    })
}

pub(super) fn switch(text: &str) -> Read<bool> {
    word(text, &[("on", true), ("off", false)], "not a switch")
}

pub(super) fn mode(text: &str) -> Read<ForwardMode> {
    let modes = [
        ("ipip", ForwardMode::Ipip),
        ("l2dsr", ForwardMode::L2dsr),
        ("nat", ForwardMode::Nat),
    ];
    word(text, &modes, "not a forwarding mode")
}

pub(super) fn datapath(text: &str) -> Read<Datapath> {
    let datapaths = [Datapath::Xdp, Datapath::Afxdp].map(|one| (one.name(), one));
    word(text, &datapaths, "not a datapath")
}

pub(super) fn attach_mode(text: &str) -> Read<AttachMode> {
    let modes = [
        ("native", AttachMode::Native),
        ("native-or-generic", AttachMode::NativeOrGeneric),
        ("generic", AttachMode::Generic),
    ];
    word(text, &modes, "not an attach mode")
}

/// Reads a number within a range.
pub(super) fn number<T: FromStr + PartialOrd>(
    text: &str,
    range: &RangeInclusive<T>,
    reason: &str,
    remedy: impl Into<String>,
) -> Read<T> {
    let number = decimal(text).filter(|number| range.contains(number));
    number.ok_or_else(|| refusal(reason, remedy))
}

pub(super) fn traffic_port(text: &str) -> Read<u16> {
    let remedy = "give a port from 1 to 65535";
    match decimal(text) {
        Some(0) => Err(refusal("port 0 is reserved", remedy)),
        Some(port) => Ok(port),
        None => Err(refusal("not a port", remedy)),
    }
}

/// Reads a range of ports in the form of `example`.
pub(super) fn port_range(text: &str, example: &str) -> Read<RangeInclusive<u16>> {
    let ends = text.split_once('-');
    let ends = ends.and_then(|(first, last)| Some((decimal(first)?, decimal(last)?)));
    match ends {
        Some((first, last)) if first > 0 && first <= last => Ok(first..=last),
        _ => Err(refusal(
            "not a range of ports",
            format!("write it like {example}"),
        )),
    }
}

/// Reads a seed: 64 bits, decimal or hexadecimal with `0x`.
pub(in crate::config) fn seed(text: &str) -> Read<u64> {
    let seed = match text.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None => decimal(text),
    };
    seed.ok_or_else(|| {
        let remedy = "use a number from 0 to 18446744073709551615 or 0x followed by up to 16 digits, \
                      the same on every edge";
        refusal("not a 64-bit number", remedy)
    })
}

/// Reads a network, or an address as a network of length 32 or 128.
pub(in crate::config) fn network(text: &str) -> Read<IpNet> {
    let network = IpNet::from_str(text).or_else(|_| IpAddr::from_str(text).map(IpNet::from));
    let Ok(network) = network else {
        let remedy = "write it like 192.0.2.0/24 or 2001:db8::/64";
        return Err(refusal("not an address or prefix", remedy));
    };
    if network.trunc() != network {
        let remedy = format!("did you mean {} or {}?", network.trunc(), network.addr());
        let reason = "the prefix has bits set beyond its length";
        return Err(refusal(reason, remedy));
    }
    Ok(network)
}

/// Reads a network from which IP-in-IP is accepted.
pub(super) fn edge_prefix(text: &str) -> Read<IpNet> {
    let prefix = network(text)?;
    let reason = if prefix.prefix_len() == 0 {
        Some("this prefix trusts every sender, who could then forge any source")
    } else {
        unusable(prefix.addr())
    };
    let remedy = "list the outer source addresses of the edges";
    reason.map_or(Ok(prefix), |reason| Err(refusal(reason, remedy)))
}

/// Reads a unicast address that packets on the wire may have.
pub(super) fn address(text: &str) -> Read<IpAddr> {
    let Ok(address) = IpAddr::from_str(text) else {
        let remedy = if text.contains('/') {
            "give the address alone, without a prefix length"
        } else {
            "write it like 192.0.2.1 or 2001:db8::1"
        };
        return Err(refusal("not an IP address", remedy));
    };
    let Some(reason) = unusable(address) else {
        return Ok(address);
    };
    let remedy = match address.to_canonical() {
        IpAddr::V4(inner) if address.is_ipv6() => format!("write it as {inner}"),
        _ => "give a unicast address".to_owned(),
    };
    Err(refusal(reason, remedy))
}

/// Reads where to listen; `off` means nowhere.
pub(super) fn listen(text: &str) -> Read<Option<Listen>> {
    if text == "off" {
        return Ok(None);
    }
    let listen = match text.strip_prefix("node:") {
        Some(port) => decimal(port).filter(|port| *port != 0).map(Listen::Node),
        None => SocketAddr::from_str(text)
            .ok()
            .filter(|address| address.port() != 0)
            .map(Listen::At),
    };
    listen.map(Some).ok_or_else(|| {
        let remedy = "write it like 127.0.0.1:9750 or [::1]:9750, node:9750 for the addresses of a pod's node, or off";
        refusal("not an address and port", remedy)
    })
}

/// Returns a reader for absolute paths of at most `longest` bytes.
pub(super) fn path(longest: usize) -> impl Fn(&str) -> Read<PathBuf> {
    move |text| {
        let path = PathBuf::from(text);
        if !path.is_absolute() || path.file_name().is_none() || text.contains('\0') {
            let remedy = "begin it with / and name a file or directory";
            return Err(refusal("not an absolute path", remedy));
        }
        if text.len() > longest {
            let remedy = format!("use at most {longest} bytes");
            return Err(refusal("the path is too long", remedy));
        }
        Ok(path)
    }
}

/// Reads the name of an interface, by the rules of the kernel's `dev_valid_name`.
pub(super) fn interface_name(text: &str) -> Read<String> {
    let is_bad = |byte: u8| b"/:\0".contains(&byte) || byte.is_ascii_whitespace();
    if (1..=15).contains(&text.len()) && ![".", ".."].contains(&text) && !text.bytes().any(is_bad) {
        return Ok(text.to_owned());
    }
    let remedy = "use 1 to 15 characters without spaces, slashes or colons, as `ip link` shows it";
    Err(refusal("not an interface name", remedy))
}

/// Reads a pattern of names of interfaces.
pub(super) fn interface_pattern(text: &str) -> Read<String> {
    if !text.contains(['*', '?']) || text.contains(['[', ']', '{', '}']) {
        let remedy = "write it like enp*s0f?: * stands for any characters, ? for one; or use name";
        return Err(refusal("not a pattern of interface names", remedy));
    }
    interface_name(text)
}

/// Parses decimal digits. `FromStr` would also accept a leading plus sign.
pub(super) fn decimal<T: FromStr>(text: &str) -> Option<T> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

pub(super) const fn family(is_ipv4: bool) -> &'static str {
    if is_ipv4 { "IPv4" } else { "IPv6" }
}
