//! The real kube-proxy, fed by the real API server.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use lab::{
    Machine, Process,
    kubernetes::{ControlPlane, ProxyMode},
};
use serde_json::{Value, json};

use super::{Listing, PORT};
use crate::control::writer;

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
        let vips: Vec<Ipv4Addr> = edges.iter().map(|(_, _, listing)| listing.vip).collect();
        let listing = edges[0].2;
        let gateway = writer::serve(&control_plane)?;
        let write = |writer: &mut writer::Writer, number| {
            writer.create_service(&service(listing, number), &status(&vips))?;
            writer.create(&writer::slices(NAMESPACE), &slice(number, nodes))
        };
        let fill = || writer::write_all(listing.services, progress, write);
        (control_plane.machine().run(fill)).context("writing Services to the API server")?;
        drop(gateway);
        progress("starting kube-proxy");
        let run = |&(machine, mode, _): &(&Machine, ProxyMode, Listing)| {
            prepare(machine)?;
            control_plane.connect(machine.namespace())?;
            control_plane.add_node(machine)?;
            let name = machine.label();
            Ok(control_plane.run_kube_proxy(machine.namespace(), name, mode)?)
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

fn service(listing: Listing, number: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name(number)},
        "spec": {
            // NodePorts are too few for as many Services.
            "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
            "loadBalancerClass": "guideway.dev/bench",
            "ports": [{"protocol": "UDP", "port": listing.port(number), "targetPort": PORT}],
        },
    })
}

fn status(vips: &[Ipv4Addr]) -> Value {
    let ingress = vips
        .iter()
        .map(|vip| json!({"ip": vip.to_string(), "ipMode": "VIP"}));
    json!({"loadBalancer": {"ingress": ingress.collect::<Vec<_>>()}})
}

fn slice(number: u32, nodes: &[Machine]) -> Value {
    let name = name(number);
    let endpoints = nodes.iter().map(|node| {
        json!({
            "addresses": [node.v4().to_string()],
            "conditions": {"ready": true, "serving": true, "terminating": false},
        })
    });
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "", "protocol": "UDP", "port": PORT}],
        "endpoints": endpoints.collect::<Vec<_>>(),
    })
}
