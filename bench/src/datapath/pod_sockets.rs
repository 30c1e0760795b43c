//! The connections of the pod of the bench, as the kernel has them. The namespace of the bench is the pod's own.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
};

use anyhow::Result;
use lab::{Cidr, Namespace};
use nix::sys::socket::{setsockopt, sockopt::TcpRepair};
use socket2::{Domain, Protocol, Socket, Type};
use xdp_prog::bench::client;

use super::{
    frames::Family,
    tables::{self, ASKED_FLOWS, TARGET_PORT, plus},
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

fn client_of(family: Family, flow: u32) -> SocketAddr {
    let (bits, port) = client(flow);
    SocketAddr::new(plus(tables::addresses(family).client, bits), port)
}
