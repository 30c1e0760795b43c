//! The rules of `datapath: afxdp`: an edge alone, without NAT mode.

use super::values::refusal;
use super::{Config, Rules, position, raw};
use crate::config::Datapath;
use crate::desired::ForwardMode;

impl Rules {
    /// Refuses what threads over AF_XDP sockets do not do, each by its name.
    pub(super) fn fits_whole_edge(&mut self, file: &raw::File, config: &Config) {
        let Some(text) = file.datapath.as_ref() else {
            return;
        };
        self.origins.datapath = Some(position(text));
        if config.datapath != Datapath::Afxdp {
            return;
        }
        for (what, instead) in beyond_whole_edge(config) {
            let remedy = format!("{instead}, or leave datapath out");
            self.refuse(
                "datapath",
                text,
                refusal(format!("not with {what}"), remedy),
            );
        }
    }
}

/// Lists what a configuration asks for that `datapath: afxdp` does not do, with what to do instead.
fn beyond_whole_edge(config: &Config) -> Vec<(String, &'static str)> {
    let desired = &config.desired;
    let sections = [
        (
            !desired.edge,
            "a machine that is no edge",
            "add edge to roles",
        ),
        (
            config.kubernetes.is_some(),
            "services from Kubernetes, which may have pods here or be by nat",
            "list the services in the file",
        ),
        (
            desired.announce.is_some(),
            "announce",
            "have a router route the VIPs here",
        ),
        (desired.mend.is_some(), "mend: on", "leave mend out"),
    ];
    let sections = sections
        .into_iter()
        .filter(|(is_asked_for, ..)| *is_asked_for);
    let sections = sections.map(|(_, what, instead)| (what.to_owned(), instead));
    let services = desired.services.values().filter_map(|service| {
        let name = &service.name;
        if service.spec.mode == ForwardMode::Nat {
            Some((
                format!("service {name} by nat"),
                "give it mode ipip or l2dsr",
            ))
        } else if service.spec.node_port {
            Some((format!("the NodePort of service {name}"), "give it a VIP"))
        } else {
            None
        }
    });
    sections.chain(services).collect()
}
