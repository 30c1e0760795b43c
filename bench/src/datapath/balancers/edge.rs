//! Brings balancers up on the machine at the far end.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use fastpath::{
    attach,
    load::Loaded,
    nexthop::{NextHop, Resolution},
    tables::{Addresses, BackendSpec, ForwardMode, ServiceKey, ServiceSpec, Tables},
};
use lab::{Cidr, output};
use xdp_prog::bench::program;

use super::{Balancer, backends, rules, service, wire::Wire};
use crate::datapath::{
    frames::{Family, PORT, Protocol},
    tables::{self, TARGET_PORT},
};

/// Ports of NAT mode: enough for all flows of the trials.
const NAT_PORTS: (u16, u16) = (1_024, 60_000);

/// A balancer to bring up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge<'a> {
    pub(super) balancer: Balancer,
    pub(super) services: u32,
    pub(super) protocol: Protocol,
    /// The directory of kube-proxy's rules.
    pub(super) rules: &'a Path,
}

impl Edge<'_> {
    /// Returns the programs that load rules, and their files.
    fn rule_files(self) -> Vec<(&'static str, PathBuf)> {
        let file = |kind| rules::file(self.rules, self.protocol, self.services, kind);
        match self.balancer {
            Balancer::KubeProxyNftables => vec![("nft", file(rules::NFT))],
            Balancer::KubeProxyIptables => vec![
                ("iptables-restore", file(rules::IPTABLES_V4)),
                ("ip6tables-restore", file(rules::IPTABLES_V6)),
            ],
            _ => Vec::new(),
        }
    }

    /// Tells whether all rules that it needs are there.
    pub(super) fn has_rules(self) -> bool {
        self.rule_files().iter().all(|(_, file)| file.exists())
    }

    /// Starts it.
    pub(super) fn bring_up(self, wire: &mut Wire, ours: &mut Ours) -> Result<()> {
        match self.balancer {
            Balancer::Null => wire.attach_far(program::FLOOR),
            Balancer::Routing => Ok(()),
            Balancer::OursIpip => ours.serve(self, wire, ForwardMode::Ipip),
            Balancer::OursNat => ours.serve(self, wire, ForwardMode::Nat),
            Balancer::KubeProxyNftables | Balancer::KubeProxyIptables => self.load_rules(wire),
            Balancer::IpvsIpip => self.configure_ipvs(wire, "--ipip", PORT),
            Balancer::IpvsNat => self.configure_ipvs(wire, "--masquerading", TARGET_PORT),
        }
    }

    /// Returns Guideway's key of a Service.
    fn key(self, family: Family, number: u32) -> ServiceKey {
        ServiceKey {
            address: service(family, number),
            port: PORT,
            protocol: self.protocol.into(),
        }
    }

    fn load_rules(self, wire: &Wire) -> Result<()> {
        for (program, file) in self.rule_files() {
            let mut command = wire.edge().command(program);
            if program == "nft" {
                command.arg("-f");
            }
            output(command.arg(file))?;
        }
        Ok(())
    }

    /// Gives IPVS the Services. Its addresses must be the machine's own.
    fn configure_ipvs(self, wire: &Wire, forwarding: &str, port: u16) -> Result<()> {
        let loopback = wire.edge().link("lo")?;
        let kind = match self.protocol {
            Protocol::Udp => "--udp-service",
            Protocol::Tcp => "--tcp-service",
        };
        for family in Family::ALL {
            for number in 0..self.services {
                let address = service(family, number);
                loopback.add_address(Cidr::host(address))?;
                let service = SocketAddr::new(address, PORT).to_string();
                let ipvsadm = |arguments: &[&str]| {
                    let mut command = wire.edge().command("ipvsadm");
                    output(command.args(arguments)).map(drop)
                };
                ipvsadm(&["--add-service", kind, &service, "--scheduler", "rr"])?;
                for backend in backends(family) {
                    let server = SocketAddr::new(backend, port).to_string();
                    let server = ["--real-server", &server, forwarding];
                    ipvsadm(&[&["--add-server", kind, &service][..], &server[..]].concat())?;
                }
            }
        }
        Ok(())
    }
}

/// Guideway's program and tables. They are loaded once, because the emulated machine verifies programs slowly; what one
/// trial knows of flows is of no use to another, as all have clients of their own.
pub(super) struct Ours {
    product: Loaded,
    tables: Tables,
}

impl Ours {
    pub(super) fn load() -> Result<Self> {
        let product = tables::load()?;
        let mut tables = Tables::open(&product)?;
        tables.set_settings(tables::with_nat(NAT_PORTS))?;
        Ok(Self { product, tables })
    }

    /// Has the far machine serve the Services of an edge.
    fn serve(&mut self, edge: Edge<'_>, wire: &Wire, mode: ForwardMode) -> Result<()> {
        let installed: Vec<ServiceKey> = self.tables.services().map(|(key, _)| *key).collect();
        for key in installed {
            self.tables.remove_service(&key)?;
        }
        let here = Family::ALL.map(|family| tables::addresses(family).here);
        let all = |family| (0..edge.services).map(move |number| service(family, number));
        let addresses = Addresses {
            vips: Family::ALL.into_iter().flat_map(all).collect(),
            local: here.into(),
            nat: here.into(),
            ..Addresses::default()
        };
        self.tables.set_addresses(addresses.into())?;
        for (family, here) in Family::ALL.into_iter().zip(here) {
            let hop = Resolution::Resolved(NextHop {
                ifindex: wire.far()?.index(),
                source_mac: wire.far()?.mac(),
                destination_mac: wire.near()?.mac(),
                is_carried: false,
                via_gateway: false,
                vlan: None,
                mtu: 1500,
                source: Some(here),
            });
            for backend in backends(family) {
                self.tables.set_next_hop(backend, hop)?;
            }
            self.tables.set_next_hop(here, Resolution::Local)?;
            for number in 0..edge.services {
                let (key, spec) = (edge.key(family, number), spec(mode, family, number));
                self.tables.put_service(key, &spec)?;
            }
        }
        let attach = || self.product.attach(Wire::FAR, &attach::Options::default());
        let attached = wire.edge().run(attach).map(drop);
        attached.context("attaching Guideway's program")
    }
}

fn spec(mode: ForwardMode, family: Family, number: u32) -> ServiceSpec {
    let backend = |address| match mode {
        ForwardMode::Nat => BackendSpec::nat((address, TARGET_PORT).into(), 1),
        _ => BackendSpec::node(address, 1),
    };
    ServiceSpec {
        mode,
        owner: 1 + number,
        backends: backends(family).map(backend).into(),
        ..ServiceSpec::default()
    }
}
