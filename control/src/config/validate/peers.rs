//! The rules for the section `peers`.

use std::net::{IpAddr, SocketAddr};

use serde_saphyr::Spanned;

use super::super::{Kubernetes, Listen, Peers, PeersFound};
use super::values::{self, Refusal, refusal};
use super::{MAX_PATH, Rules, position, raw};
use crate::desired::unusable;
use crate::kubernetes::shared_secret::PEERS_KEY;

impl Rules {
    /// Reads how this edge exchanges owners with others.
    pub(super) fn peers(
        &mut self,
        file: &raw::File,
        kubernetes: Option<&Kubernetes>,
    ) -> Option<Peers> {
        let section = file.peers.as_ref()?;
        let remedy = "give an address and port of this machine that other edges reach";
        let read = values::listen;
        let listen = &section.value.listen;
        let listen = self.required("peers.listen", section, listen, remedy, read);
        let found = match kubernetes {
            Some(_) => self.peers_of_cluster(section, listen),
            None => self.peers_of_file(section),
        };
        Some(Peers {
            listen: listen.flatten(),
            found,
        })
    }

    fn peers_of_file(&mut self, section: &Spanned<raw::Peers>) -> PeersFound {
        const WITHOUT_KEY: &str = "make a file with 32 random bytes or more, the same for all edges, such as by \
                                   `openssl rand -base64 48`, and name it here";
        let raw::Peers {
            addresses,
            key_file,
            ..
        } = &section.value;
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
        PeersFound::InFile {
            addresses: addresses.into_keys().collect(),
            key_file: file.unwrap_or_default(),
        }
    }

    fn peers_of_cluster(
        &mut self,
        section: &Spanned<raw::Peers>,
        listen: Option<Option<Listen>>,
    ) -> PeersFound {
        let raw::Peers {
            listen: written,
            addresses,
            key_file,
        } = &section.value;
        if let Some(addresses) = addresses {
            let instead = "edges are the machines of kubernetes.service";
            self.says_the_api("peers.addresses", Some(position(addresses)), instead);
        }
        if let Some(key_file) = key_file {
            let instead = format!("the key is in the Secret {}", PEERS_KEY.name);
            self.says_the_api("peers.key_file", Some(position(key_file)), &instead);
        }
        if listen == Some(None) {
            let reason = "other edges are asked at its port";
            let remedy = "give an address and port of this machine, or remove peers";
            let at = written.as_ref().map(position);
            self.report(at, "peers.listen", "off", refusal(reason, remedy));
        }
        PeersFound::InCluster {
            port: listen.flatten().map_or(0, Listen::port),
        }
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
