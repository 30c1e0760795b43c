//! The real kube-proxy, fed by the real API server.

use std::net::IpAddr;

use anyhow::{Context, Result};
use lab::{
    Machine, Process,
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
    _proxies: Vec<Process>,
    _control_plane: ControlPlane,
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
            writer.create_service(&service(listing, number), &status(&vips))?;
            let mut slices = listing.families.iter();
            slices.try_for_each(|&family| {
                let slice = slice(listing, family, number, nodes);
                writer.create(&writer::slices(NAMESPACE), &slice)
            })
        };
        let fill = || writer::write_all(listing.services, progress, write);
        (control_plane.machine().run(fill)).context("writing Services to the API server")?;
        drop(gateway);
        progress("starting kube-proxy");
        let run = |(machine, mode, _): &(&Machine, ProxyMode, Listing)| {
            prepare(machine)?;
            control_plane.connect(machine.namespace())?;
            control_plane.add_node(machine)?;
            let name = machine.label();
            Ok(control_plane.run_kube_proxy(machine.namespace(), name, *mode)?)
        };
        let proxies = edges.iter().map(run).collect::<Result<_>>()?;
        Ok(Self {
            _proxies: proxies,
            _control_plane: control_plane,
        })
    }
}

/// Makes a machine forward, as a Node's CNI plugin does.
pub(super) fn prepare(machine: &Machine) -> Result<()> {
    let namespace = machine.namespace();
    namespace.enable_forwarding()?;
    // It has one interface. A redirect to the node would bypass it.
    for scope in ["all", "default", Machine::INTERFACE] {
        namespace.set_sysctl(&format!("net/ipv4/conf/{scope}/send_redirects"), "0")?;
    }
    Ok(())
}

fn name(number: u32) -> String {
    format!("bench-{number}")
}

fn service(listing: &Listing, number: u32) -> Value {
    let families: Vec<&str> = listing.families.iter().copied().map(family_name).collect();
    let policy = match families.len() {
        1 => "SingleStack",
        _ => "RequireDualStack",
    };
    let ports = listing.protocols.iter().map(|protocol| {
        json!({
            "name": protocol.to_string(), "protocol": upper(*protocol),
            "port": listing.port(number), "targetPort": PORT,
        })
    });
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name(number)},
        "spec": {
            // NodePorts are too few for as many Services.
            "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
            "loadBalancerClass": "guideway.dev/bench",
            "ipFamilies": families, "ipFamilyPolicy": policy,
            "ports": ports.collect::<Vec<_>>(),
        },
    })
}

fn status(vips: &[IpAddr]) -> Value {
    let ingress = vips
        .iter()
        .map(|vip| json!({"ip": vip.to_string(), "ipMode": "VIP"}));
    json!({"loadBalancer": {"ingress": ingress.collect::<Vec<_>>()}})
}

fn slice(listing: &Listing, family: AddressFamily, number: u32, nodes: &[Machine]) -> Value {
    let name = name(number);
    let endpoints = nodes.iter().map(|node| {
        json!({
            "addresses": [address_of(node, family).to_string()],
            "conditions": {"ready": true, "serving": true, "terminating": false},
        })
    });
    let ports = listing.protocols.iter().map(|protocol| {
        json!({"name": protocol.to_string(), "protocol": upper(*protocol), "port": PORT})
    });
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{name}-{family}"), "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": family_name(family),
        "ports": ports.collect::<Vec<_>>(),
        "endpoints": endpoints.collect::<Vec<_>>(),
    })
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
