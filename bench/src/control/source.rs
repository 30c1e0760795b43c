//! The server that the agent follows: a real API server, or a recorded one.

use std::sync::Mutex;

use anyhow::Result;
use lab::{
    Namespace, Process,
    kubernetes::{ControlPlane, FakeApiServer},
};
use serde::Serialize;
use serde_json::json;

use super::{
    cluster::{Cluster, DEFAULT, SYSTEM},
    writer::{self, Writer, slices},
};

/// Where a cluster comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A real etcd and kube-apiserver.
    Real,
    /// Recorded lists and watches, played back by this process.
    Recorded,
}

impl Source {
    /// Returns the source's name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::Recorded => "recorded",
        }
    }
}

/// A server that has a whole cluster.
#[derive(Debug)]
pub(super) enum Server {
    Real {
        /// A connection to the API server, for changes.
        writer: Mutex<Writer>,
        /// The proxy that the connection goes through. It ends before the control plane.
        _proxy: Process,
        _control_plane: Box<ControlPlane>,
    },
    Recorded(FakeApiServer),
}

impl Server {
    /// Starts a server, fills it, and gives a machine a kubeconfig for it.
    pub(super) fn start(
        source: Source,
        cluster: &Cluster,
        machine: &Namespace,
        progress: &(dyn Fn(&str) + Sync),
    ) -> Result<Self> {
        match source {
            Source::Real => {
                let control_plane = ControlPlane::start()?;
                control_plane.connect(machine)?;
                control_plane.write_kubeconfig(machine, ControlPlane::ADMIN)?;
                let proxy = writer::serve(&control_plane)?;
                let machine = control_plane.machine();
                machine.run(|| fill(cluster, progress))?;
                Ok(Self::Real {
                    writer: Mutex::new(machine.run(Writer::connect)?),
                    _proxy: proxy,
                    _control_plane: Box::new(control_plane),
                })
            }
            Source::Recorded => {
                let server = FakeApiServer::new();
                server.serve(machine)?;
                for number in 0..cluster.nodes {
                    server.put(Cluster::node(number));
                }
                for slice in cluster.presence() {
                    server.put(slice);
                }
                for number in 0..cluster.services {
                    server.put(Cluster::served_service(number));
                    server.put(cluster.served_slice(number, 0));
                }
                Ok(Self::Recorded(server))
            }
        }
    }

    /// Writes a Node as its kubelet does at its `beat`-th heartbeat.
    pub(super) fn put_heartbeat(&self, node: u32, beat: u32) -> Result<()> {
        let object = Cluster::heartbeat(node, beat);
        match self {
            Self::Recorded(server) => {
                server.put(object);
                Ok(())
            }
            Self::Real { writer, .. } => {
                let path = format!("/api/v1/nodes/node-{node}/status");
                let status = json!({"status": object["status"]});
                let mut writer = writer.lock().expect("no writer panics");
                writer.request("PATCH", &path, "application/merge-patch+json", &status)
            }
        }
    }

    /// Writes the slice of a Service after `change` changes.
    pub(super) fn put_slice(&self, cluster: &Cluster, service: u32, change: u32) -> Result<()> {
        match self {
            Self::Recorded(server) => {
                server.put(cluster.served_slice(service, change));
                Ok(())
            }
            Self::Real { writer, .. } => {
                let slice = cluster.slice(service, change);
                let mut writer = writer.lock().expect("no writer panics");
                writer.replace(&slices(DEFAULT), &slice)
            }
        }
    }
}

/// Writes all objects of a cluster to the real API server of this machine.
fn fill(cluster: &Cluster, progress: &(dyn Fn(&str) + Sync)) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}});
    let mut writer = Writer::connect()?;
    writer.create("/api/v1/namespaces", &namespace)?;
    for number in 0..cluster.nodes {
        writer.create("/api/v1/nodes", &Cluster::node(number))?;
    }
    for slice in cluster.presence() {
        writer.create(&slices(SYSTEM), &slice)?;
    }
    let write = |writer: &mut Writer, number| {
        let status = Cluster::service_status(number);
        writer.create_service(&Cluster::service(number), &status)?;
        writer.create(&slices(DEFAULT), &cluster.slice(number, 0))
    };
    writer::write_all(cluster.services, progress, write)
}
