//! What the systems are, in words.

use crate::scenario::System;

/// Says what a system is, and the way of a packet.
pub(super) fn system(system: System) -> String {
    const ANSWER_PAST: &str = "the nodes answer the client directly, past it";
    const ANSWER_BACK: &str = "the nodes answer to it, and it sends the answer on to the client";
    let ours = |mode: &str, end: &str| {
        format!(
            "Guideway: the router sends the address of the Service to an edge, which balances over three nodes \
             by {mode} (XDP, native mode, on veth); {end}"
        )
    };
    let proxy = |mode: &str| {
        format!(
            "kube-proxy {} of the Kubernetes project in {mode} mode, fed by a real API server: the router sends the \
             address of the Service to its machine, which balances over three nodes by DNAT and masquerades; {ANSWER_BACK}",
            lab::kubernetes::version()
        )
    };
    match system {
        System::Direct => {
            "no load balancer: the client sends to the nodes' own addresses through a router; \
             each flow has a node of its own"
                .to_owned()
        }
        System::Routing => {
            format!(
                "no load balancer, but one machine more, which routes (Linux, no netfilter rules): {ANSWER_PAST}"
            )
        }
        System::NullProgram => {
            format!(
                "no load balancer, but the least that an XDP program can do (native mode, on veth): it writes other MAC \
                 addresses and sends the packet on, always to the same node; {ANSWER_PAST}"
            )
        }
        System::OursIpip => ours(
            "IPIP",
            &format!("the agents of the nodes decapsulate; {ANSWER_PAST}"),
        ),
        System::OursL2dsr => ours("rewriting MAC addresses", ANSWER_PAST),
        System::OursNat => ours("NAT", ANSWER_BACK),
        System::OursNodeport => format!(
            "Guideway: the client sends to NodePorts of an edge, which balances over three pods behind three nodes by IPIP \
             (XDP, native mode, on veth); the agents of the nodes decapsulate and translate to the pods' addresses, and \
             at egress back; {ANSWER_PAST}"
        ),
        System::KubeProxyNftables => proxy("nftables"),
        System::KubeProxyIptables => proxy("iptables"),
        // The wires with network cards alone have them.
        System::Device(_) => String::new(),
    }
}
