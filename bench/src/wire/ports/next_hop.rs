//! Next hops: resolved by ARP and ND once, and kept.

use std::{
    net::{IpAddr, UdpSocket},
    time::Duration,
};

use anyhow::{Context, Result};
use lab::{Mac, wait_for};
use serde_json::Value;

use super::card::Card;

/// How long a next hop may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A port that is of no matter: a packet to it has the kernel ask for the next hop.
const DISCARD: u16 = 9;

/// Forgets all next hops of a card.
pub(super) fn forget(card: &Card) -> Result<()> {
    let link = card.link()?;
    for state in ["all", "permanent"] {
        card.ip(&["neighbour", "flush", "dev", link.name(), "nud", state])?;
    }
    Ok(())
}

/// Asks for a next hop and keeps its MAC address, which it returns.
///
/// # Errors
///
/// When nobody answers within 10 s.
pub(super) fn resolve(card: &Card, hop: IpAddr) -> Result<Mac> {
    let link = card.link()?;
    let address = hop.to_string();
    let ask = || -> Result<Mac> {
        card.namespace().run(|| {
            let any = if hop.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            UdpSocket::bind(any)?.send_to(&[0], (hop, DISCARD))
        })?;
        let shown = card.ip(&["-json", "neighbour", "show", &address, "dev", link.name()])?;
        mac_of(&shown).context("no answer")
    };
    let (label, device) = (card.namespace().label(), link.name());
    let awaited = format!("{address} answers at {device}, the card of the {label}");
    let mac = wait_for(&awaited, TIMEOUT, || {
        ask().map_err(|error| format!("{error:#}"))
    })?;
    link.set_neighbour(hop, mac)?;
    Ok(mac)
}

/// Reads the MAC address of `ip -json neighbour`; `None` while it is not known.
fn mac_of(shown: &str) -> Option<Mac> {
    let all: Value = serde_json::from_str(shown).ok()?;
    let text = all[0]["lladdr"].as_str()?;
    let bytes: Vec<u8> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<Result<_, _>>()
        .ok()?;
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_is_read_once_it_is_known() {
        let known = r#"[{"dst":"192.0.2.1","lladdr":"02:00:00:00:00:0a","state":["REACHABLE"]}]"#;
        assert_eq!(mac_of(known), Some([2, 0, 0, 0, 0, 10]));
        for unknown in [r#"[{"dst":"192.0.2.1","state":["INCOMPLETE"]}]"#, "[]", ""] {
            assert_eq!(mac_of(unknown), None, "{unknown}");
        }
    }
}
