//! The connections of the pod of the bench, as the kernel has them. The namespace of the bench is the pod's own.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
};

use anyhow::Result;
use aya::maps::{HashMap, Map, MapData};
use fastpath::load::Loaded;
use lab::{Cidr, Namespace};
use nix::sys::socket::{setsockopt, sockopt::TcpRepair};
use socket2::{Domain, Protocol, Socket, Type};
use xdp_prog::abi::{PodFlow, Tuple, map};

use super::{
    Case,
    frames::Family,
    tables::{self, ASKED_FLOWS, TARGET_PORT, client_of},
};
use crate::host;

/// Gives the namespace the addresses of the pod and its clients, on its loopback device. No frames leave by that one.
pub(super) fn add_addresses(namespace: &Namespace) -> Result<()> {
    namespace.set_sysctl("net/ipv6/conf/lo/disable_ipv6", "0")?;
    let loopback = namespace.link("lo")?;
    for family in Family::ALL {
        let clients = (0..ASKED_FLOWS).map(|flow| client_of(family, flow).ip());
        let all: BTreeSet<IpAddr> = clients.chain([tables::addresses(family).pod]).collect();
        for address in all {
            loopback.add_address(Cidr::host(address))?;
        }
    }
    Ok(())
}

/// Opens the pod's ends of the first flows' connections. Must be called inside the namespace.
pub(super) fn open(family: Family) -> io::Result<Vec<Socket>> {
    host::allow_many_sockets();
    let pod = SocketAddr::new(tables::addresses(family).pod, TARGET_PORT);
    let open = |flow| {
        let socket = Socket::new(Domain::for_address(pod), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        // Under repair, connecting sends nothing, and neither does closing (tcp(7)).
        setsockopt(&socket, TcpRepair, &1)?;
        socket.bind(&pod.into())?;
        socket.connect(&client_of(family, flow).into())?;
        Ok(socket)
    };
    (0..ASKED_FLOWS).map(open).collect()
}

/// Tells whether the kernel has told a node of all these connections.
pub(super) fn are_known(product: &Loaded, case: Case) -> Result<bool> {
    let flows: HashMap<MapData, Tuple, PodFlow> =
        HashMap::try_from(Map::LruHashMap(product.map(map::FLOWS)?))?;
    for flow in 0..ASKED_FLOWS {
        let flow = tables::pod_tuple(case.family, case.protocol, flow);
        if !flows.get(&flow, 0)?.has_had_socket() {
            return Ok(false);
        }
    }
    Ok(true)
}
