//! Writes objects to a real API server, over several connections at once.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use lab::{Process, kubernetes::ControlPlane};
use serde_json::{Value, json};

use super::cluster::DEFAULT;

/// Address at which `kubectl proxy` accepts requests without certificate or token.
const PROXY: &str = "127.0.0.1:8001";
const PROXY_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of connections that write at the same time.
const WRITERS: u32 = 8;

/// Starts the `kubectl proxy` that all writers use, on the control plane's machine.
pub(crate) fn serve(control_plane: &ControlPlane) -> Result<Process> {
    let mut command = control_plane.kubectl_command()?;
    let mut proxy = Process::spawn(command.args(["proxy", "--port=8001"]))?;
    proxy.wait_for_line("Starting to serve", PROXY_TIMEOUT)?;
    Ok(proxy)
}

/// Calls `write` for each Service's number, on several connections, and says how far it is. Runs on the control plane's
/// machine.
pub(crate) fn write_all(
    services: u32,
    progress: &(dyn Fn(&str) + Sync),
    write: impl Fn(&mut Writer, u32) -> Result<()> + Sync,
) -> Result<()> {
    let (done, is_done) = (AtomicU32::new(0), AtomicBool::new(false));
    let numbers: Vec<u32> = (0..services).collect();
    thread::scope(|scope| {
        let teller = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let done = done.load(Ordering::Relaxed);
                progress(&format!("filling, {done} of {services} services"));
                thread::park_timeout(Duration::from_millis(500));
            }
        });
        let outcome = write_each(&numbers, |writer, number| {
            write(writer, number)?;
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        is_done.store(true, Ordering::Relaxed);
        teller.thread().unpark();
        outcome
    })
}

/// Calls `write` for each of these Services, on several connections. Runs on the control plane's machine.
pub(crate) fn write_each(
    services: &[u32],
    write: impl Fn(&mut Writer, u32) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut writer = Writer::connect()?;
        while let Some(&number) = services.get(next.fetch_add(1, Ordering::Relaxed)) {
            write(&mut writer, number)?;
        }
        anyhow::Ok(())
    };
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(work)).collect();
        let mut ended = writers.into_iter();
        ended.try_for_each(|writer| writer.join().expect("a writer does not panic"))
    })
}

/// Returns the path of a namespace's EndpointSlices.
pub(crate) fn slices(namespace: &str) -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
}

/// A connection to `kubectl proxy`.
#[derive(Debug)]
pub(crate) struct Writer(BufReader<TcpStream>);

impl Writer {
    /// Connects on the control plane's machine, where [`serve`] must have been called.
    pub(crate) fn connect() -> Result<Self> {
        let stream = TcpStream::connect(PROXY).context("connecting to kubectl proxy")?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Creates an object in the collection at `path`.
    pub(crate) fn create(&mut self, path: &str, object: &Value) -> Result<()> {
        self.request("POST", path, "application/json", object)
    }

    /// Writes an object over the one of its name in the collection at `path`.
    pub(crate) fn replace(&mut self, path: &str, object: &Value) -> Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        self.request("PUT", &format!("{path}/{name}"), "application/json", object)
    }

    /// Creates a Service, and gives it the status that a controller would.
    pub(crate) fn create_service(&mut self, service: &Value, status: &Value) -> Result<()> {
        let services = format!("/api/v1/namespaces/{DEFAULT}/services");
        self.create(&services, service)?;
        let name = service["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{services}/{name}/status");
        let status = json!({"status": status});
        self.request("PATCH", &path, "application/merge-patch+json", &status)
    }

    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> Result<()> {
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
