//! The rules for what NAT mode sends from.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::super::{Origins, raw};
use super::Rules;
use super::values::{decimal, position};
use crate::desired::{ForwardMode, NatSettings, Service, ServiceKey};

impl Rules {
    pub(super) fn nat(&mut self, nat: Option<&raw::Nat>, origins: &mut Origins) -> NatSettings {
        let mut wanted = NatSettings::default();
        let Some(nat) = nat else {
            return wanted;
        };
        let origins = &mut origins.nat;
        if let Some(text) = &nat.ipv4 {
            wanted.v4 = self.own_v4("nat.ipv4", text, origins);
        }
        if let Some(text) = &nat.ipv6 {
            wanted.v6 = self.own_v6("nat.ipv6", text, origins);
        }
        let range = nat
            .ports
            .as_ref()
            .and_then(|text| self.port_range("nat.ports", text, "write it like 61001-65535"));
        if let Some(range) = range {
            wanted.first_port = *range.start();
            wanted.ports = range.end() - range.start() + 1;
        }
        wanted
    }

    /// Refuses NodePorts that replies to NAT mode could come for.
    pub(super) fn nat_fits(
        &mut self,
        file: &raw::File,
        ports: RangeInclusive<u16>,
        services: &BTreeMap<ServiceKey, Service>,
    ) {
        let mut specs = services.values().map(|service| &service.spec);
        if !specs.any(|spec| spec.mode == ForwardMode::Nat) {
            return;
        }
        let listed = file.services.iter().flat_map(|listed| &listed.value);
        for (index, service) in listed.enumerate() {
            let Some(text) = &service.value.node_port else {
                continue;
            };
            if decimal(&text.value).is_some_and(|port: u16| ports.contains(&port)) {
                let reason = match file.nat.as_ref().and_then(|nat| nat.ports.as_ref()) {
                    Some(range) => format!(
                        "NAT mode sends from this port, by nat.ports at {}",
                        position(range)
                    ),
                    None => format!(
                        "NAT mode sends from this port, one of {}-{}",
                        ports.start(),
                        ports.end()
                    ),
                };
                let field = format!("services[{index}].node_port");
                self.refuse(
                    &field,
                    text,
                    reason,
                    "use another NodePort, or another range for nat.ports",
                );
            }
        }
    }
}
