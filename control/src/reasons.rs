//! Explains the reasons that end packets: meaning, cause and remedy. `guideway drops` shows the explanations,
//! and `deploy/docs/drops.md` is generated from them.

/// The explanation of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// `drop`, `fail`, `pass`, `reply`, `to_client`, `to_node`, `punt`, `mend` or `edge`.
    pub action: &'static str,
    /// The reason's label, as in the metrics.
    pub reason: &'static str,
    /// What happened, in at most [`MEANING_WIDTH`] columns.
    pub meaning: &'static str,
    /// How it comes about.
    pub cause: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
}

/// Largest width of a meaning: what a table of 80 columns leaves for it.
pub const MEANING_WIDTH: usize = 32;

/// The remedy of a reason that is no fault.
const NOTHING: &str = "Nothing: this is as it should be.";

/// Returns the explanation of a reason of an action.
pub fn explanation(action: &str, reason: &str) -> Option<&'static Explanation> {
    let mut all = EXPLANATIONS.iter();
    all.find(|one| (one.action, one.reason) == (action, reason))
}

/// Returns the explanation of the reason with a name.
///
/// # Errors
///
/// When no reason has this name, with a text for the user who typed it.
pub fn parse(name: &str) -> Result<Explanation, String> {
    let found = EXPLANATIONS.iter().find(|one| one.reason == name);
    found
        .copied()
        .ok_or_else(|| "no reason has this name; `guideway drops --all` lists all".to_owned())
}

macro_rules! explanations {
    ($($action:ident { $($reason:literal: $meaning:literal; $cause:literal; $remedy:expr;)* })*) => {
        /// Every reason, by action.
        pub const EXPLANATIONS: &[Explanation] = &[$($(Explanation {
            action: stringify!($action),
            reason: $reason,
            meaning: $meaning,
            cause: $cause,
            remedy: $remedy,
        },)*)*];
    };
}

explanations! {
    drop {
        "source_range": "client outside source ranges";
            "The client's address is in none of the source ranges. `loadBalancerSourceRanges` hold at load-balancer addresses only, `source_ranges` of the file at the address and the NodePort.";
            "If the client may use the service, add its network to the source ranges of the service.";
        "no_backend": "ICMP error or return, no backend";
            "An ICMP error about a packet of a service that has no backend, or a datagram of one that nodes returned. Other packets to such a service are answered, or count as `no_local_backend`.";
            "See `guideway backends` and the pods of the Service: are they there, ready, and selected?";
        "ttl_expired": "TTL too low for one more hop";
            "NAT mode: the TTL of a later fragment or of an ICMP error is used up. For other packets the sender gets an answer (`time_exceeded`).";
            "A few are normal. If there are many, look for a routing loop with `traceroute`.";
        "no_local_backend": "Local policy, no pod here";
            "The Service has `externalTrafficPolicy: Local`, and this node has none of its pods.";
            "Let the load balancer in front check `healthCheckNodePort`, so that it sends to nodes with pods only.";
        "fragment_out_of_order": "fragment before its first one";
            "A later fragment came before its datagram's first one, or the first one was lost. Only the first one has the ports, and tells whether a ping is asked for.";
            "Avoid fragments: have clients send smaller datagrams, or raise the MTU of the path. Or have the agent hold those of datagrams with ports: `mend: on`.";
        "fragment_opaque": "fragment that hides its ports";
            "A first fragment that is cut inside the transport header, or a later one that overlaps it (RFC 1858).";
            "No ordinary sender does this. Look at the source with `guideway capture reason fragment_opaque -w FILE`.";
        "fragmented_icmp": "ICMP message in fragments";
            "The first fragment of an ICMP message to a VIP is no ping, or has IP options. Or a trusted edge has sent a fragment of an ICMP message.";
            "No ordinary sender does this: look at the source with `guideway capture reason fragmented_icmp -w FILE`.";
        "icmp_options": "ICMP with IP options";
            "ICMP to a VIP with IPv6 extension headers, or with IPv4 options that an answer would have to carry too. Whole echo requests with Record Route and Timestamp options are answered.";
            "Nothing, unless a client of yours needs it: VIPs answer `ping`, also with `-R` or `-T`.";
        "answer_limited": "source had enough answers";
            "A RST or an ICMP error was due, but answers to one source are limited. Pings are not.";
            "A port scan or a flood has many. If it is a client of yours, find out why it asks for what is not served.";
        "unanswerable": "not served, no answer allowed";
            "Nothing serves this, and no answer may be sent: it was a RST or an ICMP error, or the source is no host.";
            "Nothing: stray packets come to every public address.";
        "malformed_icmp": "ICMP error that quotes nothing";
            "An ICMP error that does not quote a packet whose flow can be followed.";
            "Nothing. But if path MTU errors go missing, look for a middlebox that cuts them short.";
        "unknown_pod": "edge named a pod not here";
            "An edge sent the packet for a pod that is not on this node. The pod has gone, or the edge lags behind.";
            "Some are normal while pods end. If they go on, compare `guideway backends` on the edge with the node.";
        "unknown_pod_syn": "SYN, edge named a pod not here";
            "An edge sent a new connection for a pod that is not on this node. The pod has gone, or edge or node lag behind. No other pod gets it, because its next packet would be for the same pod.";
            "Some are normal while pods begin and end: the client sends its SYN again after a second. If they go on, compare `guideway backends` on the edge with the node.";
        "sent_back": "edge sent what is unknown here";
            "An edge sent a packet for a service that this node does not know, and the stack would route it back.";
            "Some are normal after a change. If they go on, compare `guideway services` and `guideway status` on both machines.";
        "inner_not_ours": "inner packet for no service";
            "A trusted edge or node sent IP-in-IP whose inner packet is for no service of this node.";
            "If the pod network is IP-in-IP between nodes' addresses (Calico's `ipip`), change it to VXLAN.";
        "vip_headers": "to a VIP, unreadable headers";
            "IP headers that are cut short, too many, or with a source route.";
            "No ordinary client does this. Look at the source with `guideway capture reason vip_headers -w FILE`.";
        "vip_protocol": "to a VIP, no TCP/UDP/SCTP";
            "A packet to a VIP of a protocol that no service can have, such as GRE or ESP.";
            "Nothing: services are TCP, UDP or SCTP.";
        "vip_transport": "to a VIP, cut short";
            "A packet to a VIP that ends inside its TCP, UDP or SCTP header.";
            "No ordinary client does this. If many clients do, look for a middlebox on the way that cuts packets.";
        "vip_encap": "IP-in-IP to a VIP";
            "Somebody sends IP-in-IP to a VIP. Nothing takes the outer header off there.";
            "Edges have to send to the node's own address: look at `nodes` in the sender's configuration.";
        "vip_icmp": "ICMP to a VIP, no echo or error";
            "An ICMP message to a VIP other than an echo request or an error, such as a timestamp request.";
            "Nothing: VIPs answer `ping` only.";
        "node_port_headers": "to a NodePort, headers too long";
            "A packet to an address with NodePorts has headers that hide its ports: too many, or cut short.";
            "No ordinary client does this. Look at the source with `guideway capture reason node_port_headers -w FILE`.";
        "source_is_vip": "forged: comes from a VIP";
            "The source is a VIP, and no client has a VIP.";
            "Filter forged sources where they enter your network.";
        "flow_conflict": "client port already in use";
            "The client's port already talks to the same pod by another VIP of the pod, and no other port was free.";
            "If a client uses one port for several VIPs of a pod, let it use more ports.";
        "unknown_flow": "unknown connection, port in use";
            "The packet continues a connection that is not known here, while the client's port talks to the same pod by another VIP.";
            "A few are normal after connections end. The client begins anew by itself.";
        "flow_table_full": "no entry for a new flow";
            "The kernel gave a new flow no entry. A full table makes room by itself, so the table is small for the machine's number of CPUs.";
            "A few do no harm: the client sends again. If they go on, raise `tables.flows` and restart the agent: flows go on.";
        "nat_unknown_flow": "NAT mode: unknown connection";
            "The packet continues a connection that this edge does not know. The connection idled too long, or came in by another edge before.";
            "A few are normal. If there are many after flows moved to another edge, use `ipip` or `l2dsr`, whose connections survive that.";
        "nat_ports_exhausted": "NAT mode: no free source port";
            "Every source port towards this backend that was tried is in use.";
            "Widen `nat.ports`, add backends, or use `ipip` or `l2dsr` for the service.";
        "nat_table_full": "NAT mode: table is full";
            "The table of NAT flows is full; or the service has its share of it, and none of the service's flows gives way.";
            "Raise `tables.nat_flows` and restart the agent: flows go on. `guideway status` shows the fill.";
        "stage_missing": "part of the program not there";
            "A later stage of the program was missing for a moment, as while the agent replaces the program.";
            "If it goes on for more than a minute, restart the agent and look at its log.";
        "mtu_exceeded": "too long for the next hop";
            "With its outer header the packet is longer than the next hop's MTU, and its sender cannot be asked for less.";
            "Raise the MTU between edges and nodes by 40, or lower that of the pods. See `path MTU` in `guideway backends`.";
        "fragmentation_needed": "too long, may be fragmented";
            "The packet is IPv4 without DF and too long with its outer header. A router would cut it into fragments; XDP cannot.";
            "Raise the MTU between edges and nodes by 40, or have clients set DF (path MTU discovery), as TCP does. Or have the agent cut such packets: `mend: on`. A jumbo frame is dropped even then.";
        "next_hop_unresolved": "no neighbour for the backend";
            "Neither the agent nor the kernel's FIB knows the MAC of the next hop to the backend's node.";
            "Run `ip route get NODE` and `ip neigh` on this machine. Is there a route? Does the node answer ARP? If packets end so just when a node is new or its neighbour entry was lost, have the agent hold them meanwhile: `mend: on`.";
        "not_on_link": "L2 DSR backend behind a router";
            "Mode `l2dsr` reaches machines of the same segment only. The way to this one has a router.";
            "Use `ipip` for the service (`guideway.dev/mode`), or move the edge into the segment.";
        "no_outer_source": "no address to send from";
            "This machine has no address of the outer header's family.";
            "Give the machine one, or set `sources.ipv4` or `sources.ipv6`.";
        "table_changed": "a table changed meanwhile";
            "A table changed between two look-ups for the packet.";
            "A few are normal, and the client sends again. If they go on, restart the agent and look at its log.";
        "no_headroom": "no room for an outer header";
            "The driver leaves no room in front of the frame.";
            "Attach in `generic` mode, or use another driver; `guideway check` names the interface's driver.";
        "not_writable": "no memory for a reply";
            "The kernel had no memory to make a reply's headers writable.";
            "Look at the machine's memory.";
        "malformed_inner": "edge sent no IP packet inside";
            "A trusted source sent IP-in-IP, and what is inside is no IP packet.";
            "Look at the sender with `guideway capture reason malformed_inner -w FILE`. Is `trusted_edges` too wide?";
        "ecn_dropped": "congestion on the way (ECN)";
            "A router marked the outer header for congestion, and the packet inside cannot carry the mark (RFC 6040).";
            "Some are normal on a busy path. If there are many, look for the congested link between edge and node.";
        "return_limited": "returned, more than are tried";
            "More packets of flows that no node knows than this node returns, or than this machine looks for the owners of: ten thousand a second on each CPU.";
            "After a change of backends, clients send again. Without one, somebody sends segments of no connection: see where from with `guideway capture reason return_limited -w FILE`.";
        "return_refused": "returned by another node";
            "A packet claims to be returned, but it does not come from the node that it was sent to.";
            "A few are normal while backends change. If there are many, somebody forges them: let no other machine send from the nodes' addresses.";
        "return_unexpected": "returned, but never sent so";
            "A packet claims to be returned, but with more tries left than its slot has had owners, or with none.";
            "A few are normal while backends change. If there are many, somebody forges them.";
        "flow_not_copied": "flow is still being copied";
            "While an upgrade copies flows into a table of another layout, a pod sent a segment of a connection that is not there yet.";
            "Normal for a moment during such an upgrade: the pod sends again.";
    }
    fail {
        "unsupported": "device takes no frames from XDP";
            "The driver cannot send frames that XDP redirects. A veth can if its peer has an XDP program or GRO.";
            "`guideway check --interface DEV` says what to do; for a veth, put a pass-through program on its peer.";
        "device_down": "device is down";
            "The device by which the frame was to leave is down.";
            "`ip link set DEV up`, or look at the cable.";
        "no_device": "device is gone";
            "The device by which the frame was to leave has been removed.";
            "A few are normal as pods end. If they go on, restart the agent and look at its log.";
        "too_long": "longer than the device's MTU";
            "The frame is longer than the MTU of the device that it was to leave by.";
            "Raise the device's MTU: `ip link set DEV mtu NUMBER`.";
        "transmit": "driver could not send it back";
            "The driver had no room in its queue, or its other end (of a veth) takes none.";
            "Raise the ring (`ethtool -G`), add queues (`ethtool -L`); for a veth see `guideway check --interface DEV`.";
        "other": "another error of the kernel";
            "The kernel refused a redirected frame for another reason. Other XDP programs of the machine count here too.";
            "`perf trace -e xdp:xdp_redirect_err` shows the error number.";
    }
    pass {
        "runt_frame": "no whole Ethernet header";
            "The frame ends inside its Ethernet header or VLAN tags.";
            NOTHING;
        "group_address": "broadcast or multicast";
            "The destination MAC is a group address.";
            NOTHING;
        "vlan_depth": "too many VLAN tags";
            "The frame has more than two VLAN tags; for a service of mode `nat`, more than one, or one of 802.1ad.";
            "Have the switch take off the tags that are too many.";
        "not_ip": "neither IPv4 nor IPv6";
            "ARP, LLDP and the like.";
            NOTHING;
        "truncated_ip": "IP packet cut short";
            "The frame ends before the length that the IP header states.";
            "Nothing; the kernel drops it. If there are many, look for a faulty device on the way.";
        "malformed_ip": "contradictory IP header";
            "Version or header length contradict the Ethernet type or each other.";
            "Nothing; the kernel drops it.";
        "extension_depth": "too many extension headers";
            "A packet to no VIP with more IPv6 extension headers than Guideway follows.";
            NOTHING;
        "routing_header": "IPv6 routing header";
            "A routing header with segments left: the destination is not the final one.";
            NOTHING;
        "icmp": "ICMP to the machine";
            "ICMP that is for no VIP: the kernel answers.";
            NOTHING;
        "protocol": "other transport protocol";
            "A protocol that no service can have, to no VIP.";
            NOTHING;
        "truncated_transport": "transport header cut short";
            "The packet ends inside its TCP, UDP or SCTP header, to no VIP.";
            "Nothing; the kernel drops it.";
        "fragment_not_ours": "fragment to no VIP";
            "A fragment for an address that is no VIP.";
            NOTHING;
        "no_service": "no service here";
            "No service has this address, port and protocol. All of the machine's own traffic counts here, so it always grows.";
            "If a client times out, see whether `guideway services` lists the address and port it uses.";
        "local_backend": "the backend is this machine";
            "The chosen backend is this machine, whose own stack has the VIP.";
            NOTHING;
        "encap_not_ours": "IP-in-IP, not taken out here";
            "IP-in-IP for an address at which this machine takes no outer headers off, or the machine is no node.";
            "If edges send it, give this machine the role `node`, and have them send to its address under `nodes`.";
        "encap_untrusted": "IP-in-IP from a stranger";
            "IP-in-IP whose outer source is no trusted edge. `guideway drops` names the last such source.";
            "If it is an edge of yours, list it under `trusted_edges`, or in Kubernetes in the EndpointSlice with the edges outside the cluster.";
        "decapsulated": "from an edge, VIP on lo";
            "An edge sent it for a VIP that this machine has itself. The outer header was taken off.";
            NOTHING;
        "delivered": "to a pod of this machine";
            "The destination was translated. The packet is on its way to a pod here.";
            NOTHING;
        "translated": "reply of a pod here";
            "The source of a pod's reply was translated back; or the same was done to an ICMP error about a packet to a pod.";
            NOTHING;
        "probe_sent": "our own check, sent";
            "A health check of this machine. It takes the way of a client's packet.";
            NOTHING;
        "probe_answer": "our own check, answered";
            "The answer to a health check of this machine.";
            NOTHING;
        "local_flow": "the kernel's own flow";
            "A flow of this machine's kernel that has a NodePort as its source port.";
            NOTHING;
        "nat_not_ours": "to a NAT port, unknown flow";
            "A packet to a source port of NAT mode, but of no known flow. The flow idled too long, or is another program's.";
            "If other programs send from these ports, keep them apart: `nat.ports`, `net.ipv4.ip_local_port_range`.";
        "path_mtu": "router says: path MTU smaller";
            "An ICMP error about an outer packet. The path to a node has a smaller MTU than its next hop.";
            "Edges heed it by themselves. To be rid of it, raise the MTU of the path; `guideway backends` shows the path.";
        "announced_elsewhere": "another machine announces it";
            "Another machine announces an address that this machine announces too. The log names its MAC.";
            "A few are normal while an address moves. If they go on, take the address off the other machine.";
    }
    reply {
        "echo_reply": "answered a ping";
            "Somebody pings a VIP.";
            NOTHING;
        "packet_too_big": "asked for smaller packets";
            "A client's packet did not fit with its outer header. The client was told the MTU that fits.";
            "Nothing: clients adapt. To be rid of it, raise the MTU between edges and nodes by 40.";
        "time_exceeded": "answered a traceroute";
            "TTL or hop limit too low for one more hop.";
            NOTHING;
        "port_unreachable": "nothing serves this UDP port";
            "A UDP or SCTP packet to a port of a VIP that no service has, or to a service without backends.";
            "If the port should be served, see `guideway services` and `guideway backends`.";
        "reset": "nothing serves this TCP port";
            "A TCP packet to a port of a VIP that no service has, to a service without backends, or of a connection to a pod that has gone.";
            "If the port should be served, see `guideway services` and `guideway backends`.";
        "neighbour": "answered ARP or ND for a VIP";
            "A neighbour asked for the MAC of an announced address.";
            NOTHING;
        "returned": "unknown flow, to the edge";
            "A packet of a flow that this node does not know, or an ICMP error about one. The edge that sent it has other owners for the flow's slot, and tries them.";
            NOTHING;
    }
    to_client {
        "nat_reply": "NAT mode: backend's reply";
            "A packet of NAT mode from a backend, on its way to the client.";
            NOTHING;
        "nat_error": "NAT mode: ICMP error";
            "An ICMP error about a packet of NAT mode, on its way to the client.";
            NOTHING;
    }
    to_node {
        "retried": "returned, next owner is tried";
            "A node returned a packet whose flow it does not know, and this edge sends it to another backend that has owned the flow's slot, or to the present one again.";
            "Nothing, after backends of a service have changed: each connection of a backend that lost its slot is looked for once, and for five minutes each new flow of UDP. If it goes on without a change, look for the clients of dead connections with `guideway capture to_node -w FILE`.";
    }
    punt {
        "punted_fragment": "early fragment, to the agent";
            "A later fragment to a VIP, or from an edge, came before its datagram's first one. XDP handed it to the agent, which mends it (`mend: on`).";
            "Nothing. If there are many, find out what on the way changes the order of packets, or have clients send smaller datagrams.";
        "punted_node_fragment": "the same, to a node's address";
            "As `punted_fragment`, to an address of this machine with NodePorts or of mode `nat`. It may be for the kernel, which gets it in the end.";
            "Nothing. If there are many, find out what on the way changes the order of packets.";
        "punted_too_big": "too long, to be cut by the agent";
            "An IPv4 packet without DF is too long with its outer header, or for its next hop. XDP handed it to the agent, which cuts it into fragments (`mend: on`).";
            "Nothing. Each takes the agent some microseconds. If there are many, raise the MTU between edges and nodes by 40, or have clients set DF (path MTU discovery).";
        "punted_next_hop": "no neighbour yet, to the agent";
            "The agent and the kernel's FIB do not know the MAC of the next hop to the backend's node: the node is new, or its neighbour entry was lost. XDP handed the packet to the agent, which holds it until the kernel has resolved the neighbour (`mend: on`).";
            "Nothing. If it goes on, see `mend_next_hop_unresolved`.";
        "punted_carry": "finished, for the agent to send";
            "The device of the next hop takes no frames from XDP: a bridge, stacked VLANs, a veth whose peer has no program. XDP finished the packet, counted it as forwarded (or as what it is), and handed it to the agent, which sends it by that device (`mend: on`).";
            "Nothing, if about 1 us of one CPU for each packet is no matter. Otherwise have the nodes behind an interface that takes redirected frames.";
    }
    mend {
        "mend_taken": "received by the agent";
            "The agent has received a punted packet. This is the sum of all others below, but `mend_lost_`, and of what is held. The counters of this section begin anew with the agent.";
            NOTHING;
        "mended": "mended, sent on by XDP";
            "The ports or the next hop became known, and the packet went back to XDP, which counts it again as it counts others.";
            NOTHING;
        "mend_passed_on": "ports unknown, to the kernel";
            "The ports of a packet to an address of this machine stayed unknown. The kernel got it.";
            NOTHING;
        "mend_timed_out": "first fragment did not come";
            "The first fragment of the datagram did not come in time (`mend_limits.wait`): it is lost, or goes by another edge.";
            "If there are many of ordinary clients, have routers spread by addresses alone, so that all fragments reach one edge.";
        "mend_source_share": "source has its share of memory";
            "The held packets of this source take all that one source may have (`mend_limits.source_kib`).";
            "A flood of fragments has many. If it is a client of yours, raise `mend_limits.source_kib`.";
        "mend_out_of_memory": "memory needed for newer ones";
            "The held packets took all the memory (`mend_limits.memory_kib`). Those that had waited longest gave way.";
            "A flood of fragments has many. If your clients have, raise `mend_limits.memory_kib`.";
        "mend_overlap": "fragments overlap";
            "Fragments of one datagram overlap. None of those that are held is used (RFC 5722).";
            "No ordinary sender does this: look at the source with `guideway capture reason punted_fragment -w FILE`.";
        "mend_duplicate": "held already";
            "The same fragment is held already.";
            NOTHING;
        "mend_unreadable": "cannot be held or cut";
            "The packet is no later fragment, or its datagram would have more than 65535 bytes, or its header or its options are damaged.";
            "No ordinary sender does this: look at the source with `guideway capture punt -w FILE`.";
        "mend_unsent": "way back did not take it";
            "The veth pair by which mended packets come back did not take the packet, because its queue was full or somebody has removed it.";
            "If it goes on, see whether `ip link` shows `guideway-mended`, and restart the agent.";
        "mend_ended": "held as the agent ended";
            "The packet was held as the agent ended, or as mending was switched off or got other limits.";
            NOTHING;
        "mend_cut": "cut into fragments";
            "The packet was cut, and its fragments went back to XDP, which counts each of them as it counts others.";
            NOTHING;
        "mend_no_piece_fits": "MTU too small even for fragments";
            "The next hop's MTU leaves no room for a header and eight bytes behind the outer header.";
            "Raise the MTU between edges and nodes: it is below 100.";
        "mend_next_hop_unresolved": "no neighbour for the backend";
            "The next hop to the backend's node did not become known in time (`mend_limits.next_hop_wait`). Without mending this is `next_hop_unresolved`.";
            "Run `ip route get NODE` and `ip neigh` on this machine. Is there a route? Does the node answer ARP?";
        "mend_next_hop_full": "too many wait for a neighbour";
            "As many packets as may (`mend_limits.next_hop_packets`) wait already for the next hop to the backend's node, or what waits for all next hops takes half of `mend_limits.memory_kib`.";
            "While a node does not answer ARP, nothing. If there are many although its entry comes soon, raise the two.";
        "mend_carried": "sent by the agent";
            "XDP had finished the packet. The agent has sent it by the device, which takes none from XDP.";
            NOTHING;
        "mend_not_carried": "no socket for the device";
            "The agent has no AF_XDP socket by which the device sends, or it was closed before the packet had left: another program has the device's queue 0, the device is gone, or 16 devices have sockets already.";
            "`guideway status`, line `mend`, says why.";
        "mend_carry_full": "device sends too slowly";
            "The packet was for a device that takes no frames from XDP, and as many as have room wait for it to send.";
            "See whether the device or the one below it is congested (`ip -s link`). Have the nodes behind an interface that takes redirected frames.";
        "mend_lost_no_buffer": "no buffer free at the socket";
            "The kernel had no buffer for a punted packet: the agent took packets out too slowly.";
            "A flood of fragments has many. Otherwise look at the load of the machine's CPUs.";
        "mend_lost_ring_full": "receive ring of the socket full";
            "The receive ring of a queue's socket was full: the agent took packets out too slowly.";
            "A flood of fragments has many. Otherwise look at the load of the machine's CPUs.";
        "mend_lost_too_large": "too long for the socket";
            "A punted packet did not fit into a buffer of the socket.";
            "This should not be: report it.";
    }
    edge {
        "edge_taken": "taken by a thread";
            "A thread of `datapath: afxdp` has taken the packet. This is the sum of all others below, but `edge_lost`. The counters of this section begin anew with the agent.";
            NOTHING;
        "edge_sent": "sent by a thread";
            "The packet was forwarded or answered, as the other sections and the services count it, and is in the ring of its queue.";
            NOTHING;
        "edge_dropped": "dropped by a thread";
            "The packet ended for a reason that is counted under `drop`.";
            "See there.";
        "edge_passed": "not ours, to the kernel";
            "The packet was redirected to a thread and is for no service: it is for an address that others have too, or IP-in-IP that looks like a returned packet.";
            NOTHING;
        "edge_not_passed": "not ours, and not taken there";
            "The veth pair by which packets go to the kernel did not take the packet, because its queue was full or somebody has removed it.";
            "If it goes on, see whether `ip link` shows `guideway-mended`, and restart the agent.";
        "edge_other_device": "next hop by another interface";
            "The packet was to leave by another interface than the one that it came in by, which threads cannot do.";
            "Have the nodes, or the router to them, on the interface that clients come by.";
        "edge_lost": "no room at the socket";
            "The kernel had no buffer or no place in the receive ring for the packet: the thread of its queue took packets out too slowly, or sends more slowly than they come. Or the packet is larger than the interface's MTU was when the thread began.";
            "Spread the traffic over more receive queues (`ethtool -L`), or use a kernel that runs the XDP programs.";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use fastpath::mend::{LOSSES, Outcome};
    use fastpath::whole_edge::{EDGE_LOST, EdgeOutcome};
    use xdp_prog::failure::Failure;
    use xdp_prog::reason::{self, ReasonKind};

    use super::*;

    #[test]
    fn every_reason_has_words_that_fit() {
        let kind = |kind| match kind {
            ReasonKind::Pass => "pass",
            ReasonKind::Drop => "drop",
            ReasonKind::Reply => "reply",
            ReasonKind::ToClient => "to_client",
            ReasonKind::ToNode => "to_node",
            ReasonKind::Punt => "punt",
        };
        let reasons = reason::all().map(|(of, label)| (kind(of), label));
        let failures = Failure::ALL.map(|failure| ("fail", failure.label()));
        let outcomes = Outcome::ALL.map(Outcome::label).into_iter();
        let mended = outcomes.chain(LOSSES).map(|label| ("mend", label));
        let edge = EdgeOutcome::ALL.map(EdgeOutcome::label).into_iter();
        let edge = edge.chain([EDGE_LOST]).map(|label| ("edge", label));
        let known = reasons.chain(failures).chain(mended).chain(edge);
        let known: BTreeSet<_> = known.collect();
        let explained = EXPLANATIONS.iter().map(|one| (one.action, one.reason));
        assert_eq!(explained.clone().collect::<BTreeSet<_>>(), known);
        assert_eq!(explained.count(), known.len());
        for one in EXPLANATIONS {
            assert!(one.meaning.len() <= MEANING_WIDTH, "{one:?}");
        }
        let names: BTreeSet<_> = EXPLANATIONS.iter().map(|one| one.reason).collect();
        assert_eq!(names.len(), EXPLANATIONS.len(), "one name, one reason");
    }

    /// Writes the page for `deploy/docs`.
    fn page() -> String {
        let mut page = "# Why packets end: drops and other reasons\n\n\
            `guideway drops` counts each packet that did not go on to a backend, by reason. The metrics `guideway_packets_total`\n\
            and `guideway_transmit_failures_total` have the reasons as labels. This page says what each reason means, how it comes\n\
            about and what to do. `guideway drops --explain REASON` says the same at the terminal.\n\n\
            `guideway capture reason REASON -w FILE` writes the packets of a reason to a file. It takes no reason of `fail`,\n\
            `mend` or `edge`, because these show only after the program has run. It sees no packet that pods or the machine itself send (`translated`,\n\
            `probe_sent`, `not_writable`, `flow_not_copied`): use tcpdump for those.\n"
            .to_owned();
        for (action, title) in [
            ("drop", "Dropped"),
            ("fail", "Sent by XDP, but lost by the kernel or the driver"),
            ("pass", "Passed on to the machine's own kernel"),
            ("reply", "Answered by Guideway itself"),
            ("to_client", "Sent on to clients"),
            ("to_node", "Sent on to another node"),
            ("punt", "Handed to the agent, which mends them"),
            (
                "mend",
                "What became of packets that were handed to the agent",
            ),
            ("edge", "What threads do with packets (`datapath: afxdp`)"),
        ] {
            page += &format!("\n## {title} (`{action}`)\n\n");
            page += "| reason | meaning | cause | remedy |\n|---|---|---|---|\n";
            let of_action = EXPLANATIONS.iter().filter(|one| one.action == action);
            for one in of_action {
                let Explanation {
                    reason,
                    meaning,
                    cause,
                    remedy,
                    ..
                } = one;
                page += &format!(
                    "| <a id=\"{reason}\"></a>`{reason}` | {meaning} | {cause} | {remedy} |\n"
                );
            }
        }
        page
    }

    #[test]
    fn page_of_the_documentation_is_made_of_this_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/docs/drops.md");
        if std::env::var_os("GUIDEWAY_WRITE_DOCS").is_some() {
            std::fs::write(&path, page()).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == page(),
            "{} is another: run `make reference`",
            path.display()
        );
    }
}
