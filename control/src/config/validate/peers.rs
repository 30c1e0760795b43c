//! The rules for the section `peers`.

use std::net::{IpAddr, SocketAddr};

use super::super::{Kubernetes, Peers};
use super::values::{self, Refusal, refusal};
use super::{MAX_PATH, Rules, position, raw};
use crate::desired::unusable;

impl Rules {
    /// Reads how this edge exchanges owners with others.
    pub(super) fn peers(
        &mut self,
        file: &raw::File,
        kubernetes: Option<&Kubernetes>,
    ) -> Option<Peers> {
        const WITHOUT_KEY: &str = "make a file with 32 random bytes or more, the same for all edges, such as by \
                                   `openssl rand -base64 48`, and name it here";
        let section = file.peers.as_ref()?;
        if kubernetes.is_some_and(|kubernetes| kubernetes.honour_hints) {
            let reason = "with topology hints, edges in other zones have other backends";
            let remedy = "set kubernetes.topology_hints to ignore, or remove peers";
            let refusal = refusal(reason, remedy);
            self.report(Some(position(section)), "peers", "", refusal);
        }
        let raw::Peers {
            listen,
            addresses,
            key_file,
        } = &section.value;
        let remedy = "give an address and port of this machine that other edges reach";
        let listen = self.required("peers.listen", section, listen, remedy, values::listen);
        let listed = addresses.as_ref();
        if listed.is_none_or(|listed| listed.value.is_empty()) {
            let at = Some(listed.map_or_else(|| position(section), position));
            let remedy = "list address and port of every edge; this one's may be among them";
            self.missing("peers.addresses", at, remedy);
        }
        let addresses = self.set("peers.addresses", addresses, "edge", edge);
        let read = values::path(MAX_PATH);
        let file = self.required("peers.key_file", section, key_file, WITHOUT_KEY, read);
        self.origins.key_file = key_file.as_ref().map(position);
        Some(Peers {
            listen: listen.flatten(),
            addresses: addresses.into_keys().collect(),
            key_file: file.unwrap_or_default(),
        })
    }
}

/// Reads address and port of an edge.
fn edge(text: &str) -> Result<SocketAddr, Refusal> {
    let remedy = "write it like 192.0.2.1:9754 or [2001:db8::1]:9754";
    let socket: SocketAddr = text
        .parse()
        .map_err(|_| refusal("not an address and port", remedy))?;
    if socket.port() == 0 {
        return Err(refusal("port 0 is reserved", remedy));
    }
    match unusable(socket.ip()) {
        None => Ok(socket),
        Some(reason) => {
            let remedy = match socket.ip().to_canonical() {
                IpAddr::V4(inner) if socket.is_ipv6() => {
                    format!("write it as {inner}:{}", socket.port())
                }
                _ => "give an address of the edge that other edges reach".to_owned(),
            };
            Err(refusal(reason, remedy))
        }
    }
}
