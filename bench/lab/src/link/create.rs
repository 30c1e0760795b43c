//! Creates veth pairs and bridges.

use std::os::fd::AsRawFd;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{
        BridgeStpState, InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo,
        LinkMessage,
    },
};

use super::{Link, Mac, link_up};
use crate::{Namespace, Result};

/// A veth pair that is about to be created between two namespaces.
#[derive(Debug)]
pub struct Veth<'a, 'b> {
    a: End<'a>,
    b: End<'b>,
    queues: u32,
    mtu: u32,
}

#[derive(Debug)]
struct End<'ns> {
    namespace: &'ns Namespace,
    name: String,
    mac: Mac,
}

impl<'a, 'b> Veth<'a, 'b> {
    /// Plans a pair with one queue, an MTU of 1500, and MAC addresses that depend only on the namespaces'
    /// labels and the interfaces' names.
    pub fn between(a: (&'a Namespace, &str), b: (&'b Namespace, &str)) -> Self {
        Self {
            a: End::new(a),
            b: End::new(b),
            queues: 1,
            mtu: 1500,
        }
    }

    /// Sets the number of receive queues and of transmit queues of both ends.
    #[must_use]
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Gives both ends this MTU.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Creates the pair, with both ends up and ready.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`](crate::Error::Kernel), for example when a name is taken; otherwise as for [`Link::wait_until_ready`].
    pub fn create(self) -> Result<(Link<'a>, Link<'b>)> {
        let (a, b) = self.lay()?;
        a.wait_until_ready()?;
        b.wait_until_ready()?;
        Ok((a, b))
    }

    /// Creates the pair with both ends up. The caller waits until they are ready, for example for many pairs
    /// together.
    pub(crate) fn lay(self) -> Result<(Link<'a>, Link<'b>)> {
        let mut peer = self.end(&self.b);
        let fd = self.b.namespace.net().as_raw_fd();
        peer.attributes.push(LinkAttribute::NetNsFd(fd));
        let mut message = self.end(&self.a);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.a.namespace.add_link(message, &self.a.name)?;
        let a = self.a.namespace.link(&self.a.name)?;
        let b = self.b.namespace.link(&self.b.name)?;
        // Not in the request, because an end cannot be up before it has its peer.
        a.set_up()?;
        b.set_up()?;
        Ok((a, b))
    }

    fn end(&self, end: &End<'_>) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(end.name.clone()),
            LinkAttribute::Address(end.mac.to_vec()),
            LinkAttribute::Mtu(self.mtu),
            LinkAttribute::NumTxQueues(self.queues),
            LinkAttribute::NumRxQueues(self.queues),
        ];
        message
    }
}

impl<'ns> End<'ns> {
    fn new((namespace, name): (&'ns Namespace, &str)) -> Self {
        Self {
            namespace,
            name: name.to_owned(),
            mac: stable_mac(namespace.label(), name),
        }
    }
}

impl Namespace {
    /// Creates a bridge that forwards at once: without spanning tree, multicast snooping and netfilter.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`](crate::Error::Kernel), for example when the kernel has no bridges.
    pub fn add_bridge(&self, name: &str) -> Result<Link<'_>> {
        let mut message = link_up();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Address(stable_mac(self.label(), name).to_vec()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Bridge),
                LinkInfo::Data(InfoData::Bridge(vec![
                    InfoBridge::StpState(BridgeStpState::Disabled),
                    InfoBridge::ForwardDelay(0),
                    InfoBridge::MulticastSnooping(false),
                ])),
            ]),
        ];
        self.add_link(message, name)?;
        // With br_netfilter, iptables and its IP header checks would see bridged packets. The keys are missing
        // if it is not built in.
        for key in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
            let key = format!("net/bridge/{key}");
            if self.sysctl(&key).is_ok() {
                self.set_sysctl(&key, "0")?;
            }
        }
        self.link(name)
    }

    fn add_link(&self, message: LinkMessage, name: &str) -> Result<()> {
        self.request(
            RouteNetlinkMessage::NewLink(message),
            NLM_F_CREATE | NLM_F_EXCL,
            || format!("create the interface {name}"),
        )
    }
}

/// Returns a locally administered address, hashed from the names by FNV-1a, so that it is the same in every run.
fn stable_mac(label: &str, interface: &str) -> Mac {
    let hash = [label, "/", interface]
        .iter()
        .flat_map(|part| part.bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let [_, _, _, a, b, c, d, e] = hash.to_be_bytes();
    [0x02, a, b, c, d, e]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_macs_are_local_unicast_and_differ_by_label_and_interface() {
        let mac = stable_mac("edge0", "eth0");
        assert_eq!(mac[0], 0x02);
        assert_eq!(mac, stable_mac("edge0", "eth0"));
        assert_ne!(mac, stable_mac("edge1", "eth0"));
        assert_ne!(mac, stable_mac("edge0", "eth1"));
    }
}
