//! The real kube-proxy, fed by the real API server.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use lab::{
    Machine, Namespace, Process,
    kubernetes::{ControlPlane, ProxyMode},
};
use serde_json::{Value, json};

use super::{Listing, PORT, address_of};
use crate::{control::writer, datapath::Protocol, scenario::AddressFamily};

/// The namespace of all Services.
const NAMESPACE: &str = "default";

/// An API server with Services, and the kube-proxies that follow it. They end on drop.
#[derive(Debug)]
pub(super) struct Cluster {
    // First, because fields are dropped in order, and programs must end before what they talk to.
    /// By machine, each with its mode.
    proxies: Mutex<BTreeMap<String, (Process, ProxyMode)>>,
    control_plane: ControlPlane,
}

impl Cluster {
    /// Starts a kube-proxy on each edge. Every Service has the edges' addresses of `listings`, which have the same ports.
    pub(super) fn start(
        edges: &[(&Machine, ProxyMode, Listing)],
        nodes: &[Machine],
        progress: &(dyn Fn(&str) + Sync),
    ) -> Result<Self> {
        let control_plane = ControlPlane::start()?;
        let vips = edges.iter().flat_map(|(_, _, listing)| listing.vips());
        let vips: Vec<IpAddr> = vips.collect();
        let listing = &edges[0].2;
        let gateway = writer::serve(&control_plane)?;
        let write = |writer: &mut writer::Writer, number| {
            let of_family = |&family| {
                let addresses = nodes.iter().map(|node| address_of(node, family));
                (family, addresses.collect())
            };
            let service = Service {
                name: format!("bench-{number}"),
                vips: vips.clone(),
                protocols: listing.protocols.clone(),
                port: listing.port(number),
                backends: listing.families.iter().map(of_family).collect(),
                target: PORT,
            };
            service.write(writer)
        };
        let fill = || writer::write_all(listing.services, progress, write);
        (control_plane.machine().run(fill)).context("writing Services to the API server")?;
        drop(gateway);
        progress("starting kube-proxy");
        let run = |(machine, mode, _): &(&Machine, ProxyMode, Listing)| {
            prepare(machine.namespace(), Machine::INTERFACE)?;
            control_plane.connect(machine.namespace())?;
            control_plane.add_node(machine)?;
            let name = machine.label();
            let proxy = control_plane.run_kube_proxy(machine.namespace(), name, *mode)?;
            Ok((name.to_owned(), (proxy, *mode)))
        };
        let proxies = edges.iter().map(run).collect::<Result<_>>()?;
        Ok(Self {
            proxies: Mutex::new(proxies),
            control_plane,
        })
    }

    /// Ends the kube-proxy of a machine, and starts another one.
    pub(super) fn restart(&self, machine: &Machine, timeout: Duration) -> Result<()> {
        let mut proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        let name = machine.label();
        let (proxy, mode) = proxies.get_mut(name).context("it has a kube-proxy")?;
        proxy.stop(timeout)?;
        *proxy = (self.control_plane).run_kube_proxy(machine.namespace(), name, *mode)?;
        Ok(())
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
        let mut slices = self.backends.iter();
        slices.try_for_each(|(family, backends)| {
            let slice = self.slice(*family, backends);
            writer.create(&writer::slices(NAMESPACE), &slice)
        })
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
