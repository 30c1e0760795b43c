//! Reading network cards and devices under test.

use std::net::{IpAddr, SocketAddr};

use lab::Cidr;
use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use super::{Reader, Text};
use crate::scenario::{
    Background, Commands, DeviceName, GeneratorKind, Load, Named as _, Port, Ports, Scenario,
    System, UnderTest, WireKind, ports::BACKEND_PORT,
};

type Texts = Option<Vec<Spanned<String>>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PortsText {
    client: Option<Spanned<PortText>>,
    backend: Option<Spanned<PortText>>,
    reflector: Texts,
    networks: Texts,
    facts: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PortText {
    device: Text,
    addresses: Texts,
    given_up: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UnderTestText {
    name: Text,
    up: Text,
    check: Text,
    down: Text,
    facts: Text,
    via: Texts,
    back: Texts,
    to: Texts,
}

/// Most bytes of an interface's name (`IFNAMSIZ` of the kernel, without its NUL).
const LONGEST_DEVICE: usize = 15;
const NETWORK: &str = "write an address and a length, such as 192.0.2.10/24";
const ADDRESS: &str = "write an address, such as 192.0.2.1";
const TARGET: &str =
    "write an address, or one with a port, such as 198.51.100.10:80 or [2001:db8::1]:80";

impl Reader {
    /// Reads the cards that a wire needs.
    pub(super) fn ports(
        &mut self,
        text: Option<Spanned<PortsText>>,
        whole: Location,
        wire: WireKind,
    ) -> Option<Ports> {
        let has_ports = matches!(wire, WireKind::Ports | WireKind::Reflector);
        let at = text.as_ref().map_or(whole, |text| text.referenced);
        if !has_ports {
            let reason = format!("the wire {wire} has no ports");
            self.check(
                at,
                text.is_none(),
                &reason,
                "leave them out, or write wire: ports",
            );
            return None;
        }
        let remedy = "write ports: { client: { device: eth1, addresses: [192.0.2.10/24] }, ... }";
        self.check(at, text.is_some(), "ports is missing", remedy);
        let PortsText {
            client,
            backend,
            reflector,
            networks,
            facts,
        } = text?.value;
        let is_remote = wire == WireKind::Reflector;
        let of_facts = facts.as_ref().map_or(at, |text| text.referenced);
        let reason = "the backends of the wire ports are this machine's";
        let remedy = "leave facts out, or write wire: reflector";
        self.check(of_facts, facts.is_none() || is_remote, reason, remedy);
        let fits = backend.is_none() == is_remote && reflector.is_some() == is_remote;
        let reason = format!("the wire {wire} has other far ends");
        let remedy =
            "write a backend for the wire ports, and for reflector the reflector's addresses";
        self.check(at, fits, &reason, remedy);
        let client = self.port(client, at, "client");
        Some(Ports {
            client,
            backend: backend.map(|text| self.port(Some(text), at, "backend")),
            reflector: self.texts(reflector, |text| text.parse::<IpAddr>().is_ok(), ADDRESS),
            networks: self.texts(networks, |text| text.parse::<Cidr>().is_ok(), NETWORK),
            facts: facts.map(|text| text.value),
        })
    }

    fn port(&mut self, text: Option<Spanned<PortText>>, at: Location, field: &str) -> Port {
        let at = text.as_ref().map_or(at, |text| text.referenced);
        let given = text.is_some();
        let empty = || PortText {
            device: None,
            addresses: None,
            given_up: None,
        };
        let text = text.map_or_else(empty, |text| text.value);
        let remedy = "write { device: eth1, addresses: [192.0.2.10/24] }";
        self.check(at, given, &format!("{field} is missing"), remedy);
        let (device, of_device) = match text.device {
            Some(text) => (text.value, text.referenced),
            None => (String::new(), at),
        };
        let is_device = !device.is_empty()
            && device.len() <= LONGEST_DEVICE
            && device
                .chars()
                .all(|one| !one.is_whitespace() && !"/@".contains(one));
        let reason = format!("device is {device:?}");
        self.check(
            of_device,
            is_device || !given,
            &reason,
            "write the name of an interface",
        );
        let addresses = self.texts(text.addresses, |text| text.parse::<Cidr>().is_ok(), NETWORK);
        self.check(
            at,
            !addresses.is_empty() || !given,
            "addresses is missing",
            NETWORK,
        );
        let given_up = text
            .given_up
            .as_ref()
            .is_some_and(|text| text.value == "true");
        if let Some(text) = text.given_up {
            let reason = format!("given_up is {:?}", text.value);
            let is_known = ["true", "false"].contains(&text.value.as_str());
            self.check(text.referenced, is_known, &reason, "write true or false");
        }
        Port {
            device,
            addresses,
            given_up,
        }
    }

    /// Reads a list, and names each of its texts that is none of the kind.
    fn texts(
        &mut self,
        texts: Texts,
        is_right: impl Fn(&str) -> bool,
        remedy: &str,
    ) -> Vec<String> {
        let texts = texts.unwrap_or_default().into_iter();
        texts
            .map(|text| {
                let reason = format!("{:?} is something else", text.value);
                self.check(text.referenced, is_right(&text.value), &reason, remedy);
                text.value
            })
            .collect()
    }

    /// Reads the devices under test. Frames may go where the cards' networks are, and to those that are named besides.
    pub(super) fn under_test(
        &mut self,
        texts: Option<Vec<Spanned<UnderTestText>>>,
        ports: Option<&Ports>,
    ) -> Vec<UnderTest> {
        let mut all: Vec<UnderTest> = Vec::new();
        for text in texts.unwrap_or_default() {
            let at = text.referenced;
            let Some(ports) = ports else {
                let reason = "devices under test need ports";
                self.check(at, false, reason, "write wire: ports, and ports");
                continue;
            };
            let text = text.value;
            let (name, of_name) = match text.name {
                Some(text) => (text.value, text.referenced),
                None => (String::new(), at),
            };
            let mut own = System::NAMES.iter().map(|(name, _)| *name);
            let is_free = name == "direct" || !own.any(|own| own == name);
            let can = DeviceName::of(&name).is_some() && is_free;
            let remedy =
                "write a name of your own, or direct where nothing but cables is in between";
            self.check(of_name, can, &format!("name is {name:?}"), remedy);
            let is_new = all.iter().all(|one| one.name != name);
            self.check(
                of_name,
                is_new,
                &format!("{name} is there twice"),
                "name it once",
            );
            let targets = text.to.unwrap_or_default();
            let remedy = "write to: [198.51.100.10], where flows go";
            self.check(at, !targets.is_empty(), "to is missing", remedy);
            let to = targets
                .into_iter()
                .map(|target| self.target(&target, ports));
            let to = to.collect();
            let command = |text: Text| text.map(|text| text.value);
            let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
            all.push(UnderTest {
                name,
                commands: Commands {
                    up: command(text.up),
                    check: command(text.check),
                    down: command(text.down),
                    facts: command(text.facts),
                },
                via: self.texts(text.via, is_address, ADDRESS),
                back: self.texts(text.back, is_address, ADDRESS),
                to,
            });
        }
        all
    }

    fn target(&mut self, text: &Spanned<String>, ports: &Ports) -> String {
        let bare = || Some(SocketAddr::new(text.value.parse().ok()?, BACKEND_PORT));
        let target: Option<SocketAddr> = text.value.parse().ok().or_else(bare);
        let reason = format!("{:?} is no target", text.value);
        self.check(text.referenced, target.is_some(), &reason, TARGET);
        let Some(target) = target else {
            return text.value.clone();
        };
        let reason = format!("{} is in none of the scenario's networks", target.ip());
        let remedy = "add its network to networks, or write given_up: true for the client's card";
        self.check(text.referenced, ports.allows(target.ip()), &reason, remedy);
        target.to_string()
    }

    /// Finds a system by its name: one that the wire sets up itself, or a device under test.
    pub(super) fn system(
        &mut self,
        text: Spanned<String>,
        wire: WireKind,
        devices: &[UnderTest],
    ) -> System {
        let at = text.referenced;
        if wire == WireKind::Lab {
            return self.named(Some(text), at, "system", None);
        }
        let names: Vec<&str> = devices.iter().map(|one| one.name.as_str()).collect();
        let reason = format!("unknown system {:?}", text.value);
        let remedy = format!("write one of under_test ({})", names.join(", "));
        self.check(at, names.contains(&text.value.as_str()), &reason, &remedy);
        if text.value == "direct" {
            return System::Direct;
        }
        DeviceName::of(&text.value).map_or(System::Direct, System::Device)
    }

    /// Checks that cards and devices can carry the loads.
    pub(super) fn check_ports(&mut self, scenario: &Scenario, at: Location) {
        let Some(ports) = &scenario.ports else {
            return;
        };
        let reason = "the Services are those that `to` names";
        self.check(at, scenario.services == 1, reason, "leave services out");
        for (load, number) in scenario.loads.iter().zip(1..) {
            self.check_load(scenario, ports, load, number, at);
        }
    }

    fn check_load(
        &mut self,
        scenario: &Scenario,
        ports: &Ports,
        load: &Load,
        number: u32,
        at: Location,
    ) {
        let family = load.family;
        let has_address = ports.client.address(family).is_some();
        let reason =
            format!("load {number} is {family}, and the client's card has no such address");
        self.check(at, has_address, &reason, "add one to its addresses");
        let has_backend = !ports.backends(family).is_empty();
        let reason = format!("load {number} is {family}, and there is no such backend");
        self.check(at, has_backend, &reason, "add an address of one");
        for device in &scenario.under_test {
            let reason = format!(
                "load {number} is {family}, and {} has no such target",
                device.name
            );
            let has_target = !device.targets(family).is_empty();
            self.check(at, has_target, &reason, "add one to its `to`");
        }
        let reason = format!("load {number} has frames beside its requests");
        let can = load.background == Background::None;
        self.check(
            at,
            can,
            &reason,
            "write wire: lab, or a load of frames alone",
        );
        let is_counted =
            scenario.wire == WireKind::Ports || load.generator == GeneratorKind::Sockets;
        let reason = format!("load {number} makes frames, which are counted on this machine");
        self.check(
            at,
            is_counted,
            &reason,
            "write generator: sockets, or wire: ports",
        );
    }
}

#[cfg(test)]
mod tests;
