//! A proxy in a pod that takes the pod's connections under a port of its own, as a sidecar of Istio does.
//!
//! ```text
//!  client -> pod:8080 --- nftables: redirect ---> pod:15006 haproxy -> 127.0.0.1:8080 the pod's program
//! ```

use std::net::TcpStream;

use lab::{Machine, Process, wait_for};

use super::TIMEOUT;

/// Where Istio's Envoy takes what comes to a pod.
const PORT: u16 = 15_006;

/// A running proxy; it ends on drop, and its redirect goes with the pod.
#[derive(Debug)]
pub(crate) struct Sidecar {
    _proxy: Process,
}

impl Sidecar {
    /// Starts a proxy for connections to a port of the pod.
    pub(crate) fn start(pod: &Machine, target_port: u16) -> Self {
        let namespace = pod.namespace();
        let redirect = format!(
            "table inet sidecar {{
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    tcp dport {target_port} redirect to :{PORT}
  }}
}}
"
        );
        namespace.nft(&redirect).unwrap();
        let config = namespace.write_file("haproxy.cfg", config(target_port));
        let mut haproxy = namespace.command("haproxy");
        let mut proxy = Process::spawn(haproxy.args(["-db", "-f"]).arg(config.unwrap())).unwrap();
        for address in [pod.v4(), pod.v6()] {
            wait_for("the proxy listens", TIMEOUT, || {
                assert!(proxy.is_running(), "{}", proxy.last_lines(20));
                namespace.run(|| TcpStream::connect((address, PORT)))
            })
            .unwrap();
        }
        Self { _proxy: proxy }
    }
}

/// A connection may be idle for as long as a test takes.
fn config(target_port: u16) -> String {
    format!(
        "global
  nbthread 1
  maxconn 1000
defaults
  mode tcp
  timeout connect 60s
  timeout client 1h
  timeout server 1h
listen v4
  bind 0.0.0.0:{PORT}
  server program 127.0.0.1:{target_port}
listen v6
  bind [::]:{PORT} v6only
  server program [::1]:{target_port}
"
    )
}
