//! The proof that a balancer balances: frames that are sent one by one, and what becomes of each.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use lab::RawSocket;
use xdp_prog::wire::ethernet;

use super::{
    BACKENDS, Case, ESTABLISHED, Way, backends,
    packets::{self, Seen, Stage},
    wire::{PATIENCE, Wire},
};
use crate::{
    datapath::{
        frames::{Family, Protocol},
        tables,
    },
    load::frame::Framing,
};

/// Flows by which a balancer proves itself, if they need no handshake.
const PROVED: u16 = 96;

/// Has the balancer at the far end prove itself. Known flows of TCP have had their handshakes after this.
pub(super) fn prove(wire: &Wire, case: Case, way: Way) -> Result<()> {
    let near = wire.near()?;
    // Frames that a program sends back arrive only where there is one.
    near.attach_pass()?;
    let kind = match case.family {
        Family::V4 => ethernet::IPV4,
        Family::V6 => ethernet::IPV6,
    };
    let proof = Proof {
        socket: RawSocket::open(&near, kind)?,
        framing: wire.framing(case)?,
        case,
        way,
    };
    let flows = match case.protocol {
        Protocol::Udp => PROVED,
        Protocol::Tcp => ESTABLISHED,
    };
    let mut shares = [0; BACKENDS as usize];
    for flow in 0..flows {
        let backend = proof.flow(flow).with_context(|| format!("flow {flow}"))?;
        if let Some(backend) = backend {
            shares[backend] += 1;
        }
    }
    ensure!(
        way == Way::Unchanged || !shares.contains(&0),
        "the backends got {shares:?} flows"
    );
    Ok(near.detach_xdp()?)
}

struct Proof {
    socket: RawSocket,
    framing: Framing,
    case: Case,
    way: Way,
}

impl Proof {
    /// Sends the first packet of a flow, the answer to it, and another one. Returns the backend that the flow went to.
    fn flow(&self, flow: u16) -> Result<Option<usize>> {
        let (seen, backend) = self.packet(flow, Stage::First)?;
        if let Way::Translated { .. } = self.way {
            let ends = [seen.destination, seen.source];
            let seen = self.exchange(ends, flow, Stage::Answer)?;
            let [client, service] = self.case.ends_of(flow);
            ensure!(
                [seen.source, seen.destination] == [service, client],
                "the answer to {client} came out as {seen:?}"
            );
        }
        let (_, later) = self.packet(flow, Stage::Later)?;
        ensure!(
            later == backend,
            "its backend was {backend:?}, then {later:?}"
        );
        Ok(backend)
    }

    /// Sends a packet to the Service. Returns what came out, and the backend that it is for.
    fn packet(&self, flow: u16, stage: Stage) -> Result<(Seen, Option<usize>)> {
        let ends = self.case.ends_of(flow);
        let seen = self.exchange(ends, flow, stage)?;
        let [client, service] = ends;
        let came_out = || format!("{client} to {service} came out as {seen:?}");
        let is_untranslated = [seen.source, seen.destination] == ends;
        let backend = match (self.way, seen.outer) {
            (Way::Unchanged, None) if is_untranslated => return Ok((seen, None)),
            (Way::Encapsulated, Some(node)) if is_untranslated => node,
            (Way::Translated { is_masqueraded }, None) => {
                let here = tables::addresses(self.case.family).here;
                let has_source = if is_masqueraded {
                    seen.source.ip() == here
                } else {
                    seen.source == client
                };
                let has_port = seen.destination.port() == tables::TARGET_PORT;
                ensure!(has_source && has_port, came_out());
                seen.destination.ip()
            }
            _ => bail!(came_out()),
        };
        let backends = backends(self.case.family);
        let place = backends.iter().position(|one| *one == backend);
        Ok((seen, Some(place.with_context(came_out)?)))
    }

    /// Sends a frame. Returns what comes back, which must be of the same flow.
    fn exchange(&self, ends: [SocketAddr; 2], flow: u16, stage: Stage) -> Result<Seen> {
        let frame = packets::frame(self.framing, ends, flow, stage);
        ensure!(self.socket.send(&frame)?, "the device has no room");
        loop {
            let frame = self.socket.receive(PATIENCE)?;
            let frame = frame.context("nothing came out")?;
            // The kernel sends packets of its own.
            if let Some(seen) = packets::read(&frame, self.case.family)? {
                ensure!(seen.flow == flow, "another packet came out: {seen:?}");
                return Ok(seen);
            }
        }
    }
}
