//! Network cards that a run takes for itself: into a namespace of its own, so that nothing else uses them, and back in the
//! end. And the reasons not to.

use std::{
    env, fs,
    net::IpAddr,
    process::{self, Command},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use fastpath::facts::{NativeXdp, interface};
use lab::{AtEnd, HardwareStamps, Link, Namespace, at_end, output, wait_for};
use serde_json::Value;

use crate::{scenario::Port, wire::LinkDown};

/// What the kernel answers ARP for, and from which address it asks: only the card's own.
const SYSCTLS: [(&str, &str); 2] = [("arp_ignore", "1"), ("arp_announce", "2")];

/// How long the kernel may take to give a card back.
const RETURN_TIMEOUT: Duration = Duration::from_secs(3);

/// A card in a namespace. On drop, or when a signal ends this program, it is given back with its addresses. After
/// SIGKILL, the kernel gives it back, when the next run removes the namespace, but down and without addresses.
#[derive(Debug)]
pub(crate) struct Card {
    // First: it is given back before its namespace is removed.
    _back: AtEnd,
    namespace: Namespace,
    device: String,
}

impl Card {
    /// Takes a card, and gives it the addresses of the scenario.
    ///
    /// # Errors
    ///
    /// When it cannot be moved; [`LinkDown`] when it has no carrier within 30 s.
    pub(crate) fn take(port: &Port, label: &str) -> Result<Self> {
        let device = &port.device;
        let before = Before::of(device)?;
        let namespace = Namespace::new(label)?;
        for (key, value) in SYSCTLS {
            namespace.set_sysctl(&format!("net/ipv4/conf/all/{key}"), value)?;
        }
        let (name, own) = (namespace.name().to_owned(), device.clone());
        let back = at_end(move || before.give_back(&name, &own));
        ip(&["link", "set", device, "netns", namespace.name()])?;
        let link = namespace.link(device)?;
        link.set_up()?;
        for prefix in port.prefixes() {
            link.add_address(prefix)?;
        }
        link.wait_until_ready().or_else(|late| {
            let has_carrier = link.carrier_changes()?.is_some();
            ensure!(has_carrier, LinkDown(device.clone()));
            Err(late.into())
        })?;
        Ok(Self {
            _back: back,
            namespace,
            device: device.clone(),
        })
    }

    /// Has the card stamp all frames, until it is given back.
    ///
    /// # Errors
    ///
    /// When it cannot.
    pub(super) fn stamp_frames(&self) -> Result<()> {
        let set = || HardwareStamps::ALL.set(&self.device);
        self.namespace
            .run(set)
            .with_context(|| format!("having {} stamp frames", self.device))
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(crate) fn link(&self) -> Result<Link<'_>> {
        Ok(self.namespace.link(&self.device)?)
    }

    /// Runs `ip` in the card's namespace.
    pub(super) fn ip(&self, arguments: &[&str]) -> Result<String> {
        let namespace = ["-n", self.namespace.name()];
        ip(&[&namespace[..], arguments].concat())
    }
}

/// How a card was before it was taken.
#[derive(Debug)]
struct Before {
    addresses: Vec<String>,
    was_up: bool,
    /// `None` for a card that has no stamps.
    stamps: Option<HardwareStamps>,
}

impl Before {
    fn of(device: &str) -> Result<Self> {
        let shown = show(&["address", "show", "dev", device])?;
        let card = &shown[0];
        let addresses = card["addr_info"].as_array().into_iter().flatten();
        let global = addresses.filter(|one| one["scope"] == "global");
        let prefix = |one: &Value| Some(format!("{}/{}", one["local"].as_str()?, one["prefixlen"]));
        let flags = card["flags"].as_array().into_iter().flatten();
        Ok(Self {
            addresses: global.filter_map(prefix).collect(),
            was_up: flags.into_iter().any(|flag| flag == "UP"),
            stamps: HardwareStamps::of(device).ok(),
        })
    }

    /// Nobody is left to tell of a failure.
    fn give_back(self, namespace: &str, device: &str) {
        let own = process::id().to_string();
        let _ = ip(&["-n", namespace, "link", "set", device, "netns", &own]);
        if let Some(stamps) = self.stamps {
            let _ = stamps.set(device);
        }
        if self.was_up {
            let _ = ip(&["link", "set", device, "up"]);
        }
        for address in &self.addresses {
            let _ = ip(&["address", "add", address, "dev", device]);
        }
    }
}

/// Returns the reasons not to take a card, each with its remedy.
pub fn reasons_against(port: &Port) -> Vec<String> {
    let device = &port.device;
    let Ok(link) = find(device) else {
        return vec![format!("there is no interface {device}: name another one")];
    };
    let mut reasons = Vec::new();
    if link[0]["xdp"]["prog"].is_object() || link[0]["xdp"]["mode"].as_u64() > Some(0) {
        reasons.push(format!(
            "{device} has an XDP program of others: detach it (ip link set dev {device} xdp off), or name another one"
        ));
    }
    if port.given_up {
        return reasons;
    }
    let remedy =
        format!("name another one, or write given_up: true if {device} is there for tests alone");
    for family in ["-4", "-6"] {
        let routes = show(&[family, "route", "show", "default"]).unwrap_or_default();
        if routes
            .as_array()
            .into_iter()
            .flatten()
            .any(|route| uses(route, device))
        {
            reasons.push(format!("{device} has the default route: {remedy}"));
            break;
        }
    }
    let addresses = show(&["address", "show", "dev", device]).unwrap_or_default();
    let addresses = addresses[0]["addr_info"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let is_own = |login: &IpAddr| {
        let mut texts = addresses.iter().filter_map(|one| one["local"].as_str());
        texts.any(|text| text.parse::<IpAddr>() == Ok(*login))
    };
    if let Some(login) = login_address().filter(is_own) {
        reasons.push(format!(
            "{device} has the address {login} of this login: {remedy}"
        ));
    }
    reasons
}

/// Returns the reason why a card cannot stamp frames, with its remedy.
pub fn reason_against_stamps(port: &Port) -> Option<String> {
    let device = &port.device;
    let can = HardwareStamps::are_supported(device).unwrap_or(false);
    (!can).then(|| {
        format!("{device} does not stamp all frames (ethtool -T {device}): write stamps: kernel, or name another card")
    })
}

/// Returns the reason why no program of ours can run in the driver of a card, with its remedy. Before Linux 6.3, the kernel
/// does not tell.
pub fn reason_against_xdp(port: &Port) -> Option<String> {
    let device = &port.device;
    let native = interface(device).ok()?.native_xdp;
    (native == NativeXdp::Unsupported).then(|| {
        format!("the driver of {device} has no native XDP, which frames of a generator take: name another card, or write generator: sockets")
    })
}

/// Finds an interface. A run that was killed may have left it in a namespace, which the kernel takes down in the background.
fn find(device: &str) -> Result<Value> {
    let look = || show(&["link", "show", "dev", device]);
    look().or_else(|_| {
        lab::sweep();
        let awaited = format!("there is an interface {device}");
        Ok(wait_for(&awaited, RETURN_TIMEOUT, || {
            look().map_err(|error| format!("{error:#}"))
        })?)
    })
}

/// Tells whether a route leaves by a device, alone or among others.
fn uses(route: &Value, device: &str) -> bool {
    let hops = route["nexthops"].as_array().into_iter().flatten();
    route["dev"] == device || hops.into_iter().any(|hop| hop["dev"] == device)
}

/// Returns the address of this machine that the login came to by SSH; `None` without one. `sudo` takes the variable out of
/// the environment, but not out of that of the shell before.
fn login_address() -> Option<IpAddr> {
    const VARIABLE: &str = "SSH_CONNECTION";
    if let Ok(own) = env::var(VARIABLE) {
        return server_of(&own);
    }
    let mut process = process::id();
    while process > 1 {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment);
        let mut variables = environment
            .split('\0')
            .filter_map(|pair| pair.split_once('='));
        if let Some((_, value)) = variables.find(|(name, _)| *name == VARIABLE) {
            return server_of(value);
        }
        process = parent(process)?;
    }
    None
}

/// Reads the third word of `SSH_CONNECTION`: client and its port, server and its port (ssh(1)).
fn server_of(value: &str) -> Option<IpAddr> {
    value.split(' ').nth(2)?.parse().ok()
}

fn parent(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    lines
        .find(|(name, _)| *name == "PPid")?
        .1
        .trim()
        .parse()
        .ok()
}

fn show(arguments: &[&str]) -> Result<Value> {
    let text = ip(&[&["-json", "-details"][..], arguments].concat())?;
    // Without a route, it writes nothing.
    let text = if text.trim().is_empty() { "[]" } else { &text };
    serde_json::from_str(text).context("reading what ip shows")
}

fn ip(arguments: &[&str]) -> Result<String> {
    Ok(output(Command::new("ip").args(arguments))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_login_is_that_of_the_server() {
        let of = |text| server_of(text).map(|address: IpAddr| address.to_string());
        assert_eq!(
            of("192.0.2.7 50022 198.51.100.1 22"),
            Some("198.51.100.1".to_owned())
        );
        assert_eq!(
            of("2001:db8::7 50022 2001:db8::1 22"),
            Some("2001:db8::1".to_owned())
        );
        assert_eq!(of("nonsense"), None);
    }

    #[test]
    fn a_route_uses_its_device_and_those_of_all_its_next_hops() {
        let route = serde_json::json!({ "dst": "default", "dev": "eth0" });
        let several = serde_json::json!({ "dst": "default", "nexthops": [{ "dev": "eth1" }, { "dev": "eth2" }] });
        assert!(uses(&route, "eth0") && !uses(&route, "eth2"));
        assert!(uses(&several, "eth2") && !uses(&several, "eth0"));
    }
}
