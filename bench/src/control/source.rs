//! The server that the agent follows: a real API server, or a recorded one.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use lab::{
    Namespace, Process,
    kubernetes::{ControlPlane, FakeApiServer},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::cluster::{self, Cluster, DEFAULT, SYSTEM};

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
                let proxy = proxy(&control_plane)?;
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
                let name = slice["metadata"]["name"].as_str().unwrap_or_default();
                let path = format!("{}/{name}", slices(DEFAULT));
                let mut writer = writer.lock().expect("no writer panics");
                writer.request("PUT", &path, "application/json", &slice)
            }
        }
    }
}

/// Address at which `kubectl proxy` accepts requests without certificate or token.
const PROXY: &str = "127.0.0.1:8001";
const PROXY_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of connections that write at the same time.
const WRITERS: u32 = 8;

fn proxy(control_plane: &ControlPlane) -> Result<Process> {
    let mut command = control_plane.kubectl_command()?;
    let mut proxy = Process::spawn(command.args(["proxy", "--port=8001"]))?;
    proxy.wait_for_line("Starting to serve", PROXY_TIMEOUT)?;
    Ok(proxy)
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
    let next = AtomicU32::new(0);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| scope.spawn(|| fill_services(cluster, &next)))
            .collect();
        while !writers.iter().all(thread::ScopedJoinHandle::is_finished) {
            let done = next.load(Ordering::Relaxed).min(cluster.services);
            progress(&format!("filling, {done} of {} services", cluster.services));
            thread::sleep(Duration::from_millis(500));
        }
        for writer in writers {
            writer.join().expect("a writer does not panic")?;
        }
        Ok(())
    })
}

fn fill_services(cluster: &Cluster, next: &AtomicU32) -> Result<()> {
    let mut writer = Writer::connect()?;
    let services = format!("/api/v1/namespaces/{DEFAULT}/services");
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= cluster.services {
            return Ok(());
        }
        writer.create(&services, &Cluster::service(number))?;
        let status = json!({"status": Cluster::service_status(number)});
        let path = format!("{services}/{}/status", cluster::name(number));
        writer.request("PATCH", &path, "application/merge-patch+json", &status)?;
        writer.create(&slices(DEFAULT), &cluster.slice(number, 0))?;
    }
}

fn slices(namespace: &str) -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
}

/// A connection to `kubectl proxy`.
#[derive(Debug)]
pub(super) struct Writer(BufReader<TcpStream>);

impl Writer {
    fn connect() -> Result<Self> {
        let stream = TcpStream::connect(PROXY).context("connecting to kubectl proxy")?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    fn create(&mut self, path: &str, object: &Value) -> Result<()> {
        self.request("POST", path, "application/json", object)
    }

    fn request(&mut self, method: &str, path: &str, kind: &str, body: &Value) -> Result<()> {
        let body = body.to_string();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {PROXY}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.0.get_mut().write_all(request.as_bytes())?;
        let (status, answer) = self.read_answer()?;
        ensure!(
            status.contains(" 20"),
            "{method} {path}: {status}: {answer}"
        );
        Ok(())
    }

    fn read_answer(&mut self) -> Result<(String, String)> {
        let status = self.line()?;
        let (mut length, mut is_chunked) = (0, false);
        loop {
            let header = self.line()?.to_ascii_lowercase();
            match header.split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse()?,
                Some(("transfer-encoding", value)) => is_chunked = value.contains("chunked"),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = Vec::new();
        if !is_chunked {
            self.0.by_ref().take(length).read_to_end(&mut body)?;
        }
        while is_chunked {
            let length = u64::from_str_radix(&self.line()?, 16).context("a chunk's length")?;
            self.0.by_ref().take(length).read_to_end(&mut body)?;
            self.line()?;
            is_chunked = length > 0;
        }
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self
            .0
            .read_line(&mut line)
            .context("reading the proxy's answer")?;
        ensure!(read > 0, "the proxy has closed the connection");
        Ok(line.trim_end().to_owned())
    }
}
