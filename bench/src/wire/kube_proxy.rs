//! The real kube-proxy, fed by the real API server.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use lab::{
    Machine, Namespace, Process, Signal,
    kubernetes::{CHANGE_TIME, ControlPlane, ProxyMode, wait_until_programmed, wait_until_synced},
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::{Listing, PORT, address_of, running::expect_program};
use crate::{
    control::writer,
    datapath::Protocol,
    host,
    scenario::{AddressFamily, System},
};

/// The namespace of all Services.
const NAMESPACE: &str = "default";

/// An API server with Services, and the kube-proxies that follow it. They end on drop.
#[derive(Debug)]
pub(super) struct Cluster {
    // First, because fields are dropped in order, and programs must end before what they talk to.
    /// By machine.
    proxies: Mutex<BTreeMap<String, Proxy>>,
    /// The `kubectl proxy` that changes go through.
    _gateway: Process,
    control_plane: Mutex<ControlPlane>,
    services: Services,
}

#[derive(Debug)]
struct Proxy {
    process: Process,
    mode: ProxyMode,
    /// Changes of EndpointSlices since its start.
    told: u64,
}

impl Cluster {
    /// Starts a kube-proxy on each edge. Every Service has the edges' addresses of `listings`, which have the same ports.
    pub(super) fn start(
        edges: &[(&Machine, ProxyMode, Listing)],
        nodes: &[Machine],
        progress: &(dyn Fn(&str) + Sync),
    ) -> Result<Self> {
        let services = Services::of(edges.iter().map(|(_, _, listing)| listing), nodes)?;
        let control_plane = ControlPlane::start()?;
        let gateway = writer::serve(&control_plane)?;
        let write = |writer: &mut writer::Writer, number| services.of_number(number).write(writer);
        let fill = || writer::write_all(services.listing.services, progress, write);
        (control_plane.machine().run(fill)).context("writing Services to the API server")?;
        progress("starting kube-proxy");
        let mut proxies = BTreeMap::new();
        for &(machine, mode, _) in edges {
            prepare(machine.namespace(), Machine::INTERFACE)?;
            control_plane.connect(machine.namespace())?;
            control_plane.add_node(machine)?;
            let name = machine.label();
            let process = control_plane.start_kube_proxy(machine.namespace(), name, mode)?;
            let proxy = Proxy {
                process,
                mode,
                told: 0,
            };
            proxies.insert(name.to_owned(), proxy);
        }
        // All are at work at the same time.
        for (machine, ..) in edges {
            let proxy = proxies.get_mut(machine.label());
            let proxy = proxy.context("each edge has a kube-proxy")?;
            wait_until_programmed(machine.namespace(), &mut proxy.process)?;
        }
        Ok(Self {
            proxies: Mutex::new(proxies),
            _gateway: gateway,
            control_plane: Mutex::new(control_plane),
            services,
        })
    }

    /// Checks that the kube-proxy of a machine runs, and what it follows.
    ///
    /// # Errors
    ///
    /// [`SystemEnded`](super::SystemEnded) when one of them has ended.
    pub(super) fn expect_programs(&self, system: System, machine: &Machine) -> Result<()> {
        let mut proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        let proxy = proxies.get_mut(machine.label());
        let proxy = proxy.context("it has a kube-proxy")?;
        expect_program(system, machine.label(), &mut proxy.process)?;
        let mut control_plane = self.control_plane();
        let label = control_plane.machine().label().to_owned();
        let mut programs = control_plane.programs().into_iter();
        Ok(programs.try_for_each(|program| expect_program(system, &label, program))?)
    }

    fn control_plane(&self) -> MutexGuard<'_, ControlPlane> {
        let control_plane = self.control_plane.lock();
        control_plane.unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the kube-proxy of a machine, and starts another one.
    pub(super) fn restart(&self, machine: &Machine, timeout: Duration) -> Result<()> {
        let mut proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        let name = machine.label();
        let proxy = proxies.get_mut(name).context("it has a kube-proxy")?;
        proxy.process.stop(timeout)?;
        let control_plane = self.control_plane();
        proxy.process = control_plane.run_kube_proxy(machine.namespace(), name, proxy.mode)?;
        proxy.told = 0;
        Ok(())
    }

    /// Takes the last endpoint from these Services. Until [`Cluster::give_back`], only the kube-proxy of one machine knows:
    /// work of the others would be measured with its own.
    pub(super) fn take_last_endpoint(&self, machine: &Machine, services: &[u32]) -> Result<()> {
        let mut proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        let others = proxies
            .iter_mut()
            .filter(|(name, _)| *name != machine.label());
        for (_, other) in others {
            other.process.signal(Signal::SIGSTOP)?;
        }
        self.write_endpoints(&mut proxies, services, Service::without_last_endpoint)
    }

    /// Gives the endpoint back, and waits until all kube-proxies of `machines` have programmed that.
    pub(super) fn give_back<'a>(
        &self,
        machines: impl Iterator<Item = &'a Machine>,
        services: &[u32],
    ) -> Result<()> {
        let mut proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        for proxy in proxies.values_mut() {
            proxy.process.signal(Signal::SIGCONT)?;
        }
        self.write_endpoints(&mut proxies, services, |service| service)?;
        for machine in machines {
            let proxy = proxies.get_mut(machine.label());
            let proxy = proxy.context("it has a kube-proxy")?;
            wait_until_synced(machine.namespace(), &mut proxy.process, proxy.told)?;
        }
        Ok(())
    }

    fn write_endpoints(
        &self,
        proxies: &mut BTreeMap<String, Proxy>,
        services: &[u32],
        change: impl Fn(Service) -> Service + Sync,
    ) -> Result<()> {
        let now = host::rfc3339(clock_gettime(ClockId::Realtime));
        let write = |writer: &mut writer::Writer, number| {
            change(self.services.of_number(number)).write_endpoints(writer, &now)
        };
        let write = || writer::write_each(services, write);
        (self.control_plane().machine().run(write)).context("writing EndpointSlices")?;
        let slices = services.len() * self.services.backends.len();
        for proxy in proxies.values_mut() {
            proxy.told += slices as u64;
        }
        Ok(())
    }
}

/// What the Services have in common.
#[derive(Debug)]
struct Services {
    listing: Listing,
    vips: Vec<IpAddr>,
    backends: Vec<(AddressFamily, Vec<IpAddr>)>,
}

impl Services {
    fn of<'a>(
        listings: impl Iterator<Item = &'a Listing> + Clone,
        nodes: &[Machine],
    ) -> Result<Self> {
        let vips = listings.clone().flat_map(Listing::vips).collect();
        let mut listings = listings;
        let listing = listings.next().context("there is a kube-proxy")?.clone();
        let of_family = |&family| {
            let addresses = nodes.iter().map(|node| address_of(node, family));
            (family, addresses.collect())
        };
        Ok(Self {
            vips,
            backends: listing.families.iter().map(of_family).collect(),
            listing,
        })
    }

    fn of_number(&self, number: u32) -> Service {
        Service {
            name: format!("bench-{number}"),
            vips: self.vips.clone(),
            protocols: self.listing.protocols.clone(),
            port: self.listing.port(number),
            backends: self.backends.clone(),
            target: PORT,
        }
    }
}

/// Makes a machine with one interface forward, as a Node's CNI plugin does.
pub(crate) fn prepare(machine: &Namespace, interface: &str) -> Result<()> {
    machine.enable_forwarding()?;
    // A redirect to the node would bypass it.
    for scope in ["all", "default", interface] {
        machine.set_sysctl(&format!("net/ipv4/conf/{scope}/send_redirects"), "0")?;
    }
    Ok(())
}

/// A Service with its endpoints, as the API server has them.
pub(crate) struct Service {
    pub(crate) name: String,
    /// The addresses of the load balancer.
    pub(crate) vips: Vec<IpAddr>,
    pub(crate) protocols: Vec<Protocol>,
    pub(crate) port: u16,
    /// The addresses of the endpoints, for each family of the Service.
    pub(crate) backends: Vec<(AddressFamily, Vec<IpAddr>)>,
    /// The endpoints' port.
    pub(crate) target: u16,
}

impl Service {
    /// Creates the objects.
    pub(crate) fn write(&self, writer: &mut writer::Writer) -> Result<()> {
        writer.create_service(&self.object(), &self.status())?;
        let path = writer::slices(NAMESPACE);
        let mut slices = self.slices();
        slices.try_for_each(|slice| writer.create(&path, &slice))
    }

    /// Writes the endpoints over those of before, as of a time (RFC 3339).
    fn write_endpoints(&self, writer: &mut writer::Writer, now: &str) -> Result<()> {
        let path = writer::slices(NAMESPACE);
        let mut slices = self.slices();
        slices.try_for_each(|mut slice| {
            slice["metadata"]["annotations"] = json!({CHANGE_TIME: now});
            writer.replace(&path, &slice)
        })
    }

    fn without_last_endpoint(mut self) -> Self {
        for (_, backends) in &mut self.backends {
            backends.pop();
        }
        self
    }

    fn slices(&self) -> impl Iterator<Item = Value> {
        let slices = self.backends.iter();
        slices.map(|(family, backends)| self.slice(*family, backends))
    }

    fn object(&self) -> Value {
        let families = self.backends.iter().map(|(family, _)| family_name(*family));
        let families: Vec<&str> = families.collect();
        let policy = match families.len() {
            1 => "SingleStack",
            _ => "RequireDualStack",
        };
        let ports = self.protocols.iter().map(|protocol| {
            json!({
                "name": protocol.to_string(), "protocol": upper(*protocol),
                "port": self.port, "targetPort": self.target,
            })
        });
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": self.name},
            "spec": {
                // NodePorts are too few for as many Services.
                "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
                "loadBalancerClass": "guideway.dev/bench",
                "ipFamilies": families, "ipFamilyPolicy": policy,
                "ports": ports.collect::<Vec<_>>(),
            },
        })
    }

    fn status(&self) -> Value {
        let vips = self.vips.iter();
        let ingress = vips.map(|vip| json!({"ip": vip, "ipMode": "VIP"}));
        json!({"loadBalancer": {"ingress": ingress.collect::<Vec<_>>()}})
    }

    fn slice(&self, family: AddressFamily, backends: &[IpAddr]) -> Value {
        let endpoints = backends.iter().map(|address| {
            json!({
                "addresses": [address],
                "conditions": {"ready": true, "serving": true, "terminating": false},
            })
        });
        let ports = self.protocols.iter().map(|protocol| {
            json!({
                "name": protocol.to_string(), "protocol": upper(*protocol), "port": self.target,
            })
        });
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{}-{family}", self.name),
                "labels": {"kubernetes.io/service-name": self.name},
            },
            "addressType": family_name(family),
            "ports": ports.collect::<Vec<_>>(),
            "endpoints": endpoints.collect::<Vec<_>>(),
        })
    }
}

/// Returns the name that Kubernetes has for a family.
fn family_name(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::Ipv4 => "IPv4",
        AddressFamily::Ipv6 => "IPv6",
    }
}

fn upper(protocol: Protocol) -> String {
    protocol.to_string().to_uppercase()
}
