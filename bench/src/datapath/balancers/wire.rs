//! The wire with its generator and sink, and the machine in between.

use std::{thread, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, MapData},
    programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp, XdpMode},
};
use fastpath::object;
use lab::{Cidr, Link, Namespace, Offload, RawSocket, Route, Veth};
use xdp_prog::{
    abi::Traffic,
    bench::{LISTED_LENGTH, Listed, Schedule, map, program},
    wire::ethernet,
};

use super::{
    BACKENDS, Case, ESTABLISHED, NEW, TRIALS, Way, backends,
    packets::{self, Seen, Stage},
};
use crate::{
    datapath::{
        frames::{self, EDGE_V4, EDGE_V6, Family, Protocol},
        tables,
    },
    load::sockets::now_ns,
};

/// Frames in the generator's list: known flows, then new ones for each trial.
pub(super) const LISTED: u32 = ESTABLISHED + TRIALS * NEW;
/// Flows by which a balancer proves that it balances, if they need no handshake.
const PROVED: u32 = 96;
/// How long a frame that is sent alone may take, and all frames of a trial.
const PATIENCE: Duration = Duration::from_secs(10);
/// Without a frame for so long, the machine is quiet.
const QUIET: Duration = Duration::from_secs(2);
/// How long it may take until it is.
const SETTLE: Duration = Duration::from_secs(120);
/// Frames per call of the veth driver: the kernel's default for live frames.
const BATCH: u32 = 64;
/// Number of the default gateway among the nodes.
const GATEWAY: u8 = 99;

/// An end of the wire.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// Where the generator is.
    Near,
    /// At the balancer.
    Far,
}

/// The wire, and the machines at its ends.
pub(super) struct Wire {
    // First, because fields are dropped in order, and the programs must be detached before the machines are removed.
    object: Ebpf,
    received: Array<MapData, Traffic>,
    source: Namespace,
    edge: Namespace,
    /// Length of the frames that the sink is to get.
    length: u64,
}

impl Wire {
    pub(super) const FAR: &str = "far";
    const NEAR: &str = "near";

    /// Lays the wire, and makes the far machine a router on a segment with all backends, which the near end stands for.
    pub(super) fn lay() -> Result<Self> {
        let source = Namespace::new("source").context("making a network namespace")?;
        // The kernel's own IPv6 packets would be counted with ours.
        for scope in ["all", "default"] {
            source.set_sysctl(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "1")?;
        }
        let edge = Namespace::new("edge")?;
        // Without a link-local address, it sends no ICMPv6 redirect to a client whose packet leaves by the device that
        // it came by. For IPv4, `route` says so.
        edge.set_sysctl("net/ipv6/conf/default/addr_gen_mode", "1")?;
        Veth::between((&source, Self::NEAR), (&edge, Self::FAR)).create()?;
        let mut object = EbpfLoader::new()
            .map_max_entries(map::LIST, LISTED)
            .load(object::bench_bytes())
            .context("loading the bench's BPF object")?;
        let received = object.take_map(map::RECEIVED);
        let received = received.context("the object has no map of what was received")?;
        let mut wire = Self {
            object,
            received: Array::try_from(received)?,
            source,
            edge,
            length: 0,
        };
        for name in [program::GENERATE_LIST, program::SINK, program::FLOOR] {
            xdp_of(&mut wire.object, name)?.load()?;
        }
        // The kernel waits for an RCU grace period, of milliseconds, whenever a program that no device has is run.
        let idle = wire.source.link("lo")?.index();
        let generator = xdp_of(&mut wire.object, program::GENERATE_LIST)?;
        let attach = || generator.attach_to_if_index(idle, XdpMode::Skb);
        let attached = wire.source.run(attach).map(drop);
        attached.context("attaching the generator to a device without traffic")?;
        wire.route()?;
        Ok(wire)
    }

    fn route(&self) -> Result<()> {
        let (near, far) = (self.near()?, self.far()?);
        // As NICs have it. Without it, veth takes no live frames.
        far.set_offload(Offload::Gro, true)?;
        self.edge.enable_forwarding()?;
        for scope in ["all", "default", Self::FAR] {
            // It has one interface: a redirect to a backend would bypass it.
            let key = format!("net/ipv4/conf/{scope}/send_redirects");
            self.edge.set_sysctl(&key, "0")?;
        }
        for (address, length) in [(EDGE_V4.into(), 24), (EDGE_V6.into(), 64)] {
            far.add_address(Cidr { address, length })?;
        }
        for (family, any) in [(Family::V4, Cidr::ANY_V4), (Family::V6, Cidr::ANY_V6)] {
            let gateway = frames::node(family, GATEWAY);
            for neighbour in backends(family).into_iter().chain([gateway]) {
                far.set_neighbour(neighbour, near.mac())?;
            }
            self.edge.add_route(&Route::to(any).via(gateway))?;
        }
        Ok(())
    }

    /// Returns the balancer's machine.
    pub(super) fn edge(&self) -> &Namespace {
        &self.edge
    }

    pub(super) fn near(&self) -> lab::Result<Link<'_>> {
        self.source.link(Self::NEAR)
    }

    pub(super) fn far(&self) -> lab::Result<Link<'_>> {
        self.edge.link(Self::FAR)
    }

    /// Has the sink count what arrives at an end.
    pub(super) fn attach_sink(&mut self, end: End) -> Result<()> {
        self.attach(program::SINK, end)
    }

    /// Attaches one of the bench's own programs.
    pub(super) fn attach(&mut self, name: &str, end: End) -> Result<()> {
        let (machine, link) = match end {
            End::Near => (&self.source, self.near()?),
            End::Far => (&self.edge, self.far()?),
        };
        let index = link.index();
        let program = xdp_of(&mut self.object, name)?;
        let attach = || program.attach_to_if_index(index, XdpMode::Driver);
        let attached = machine.run(attach).map(drop);
        attached.with_context(|| format!("attaching {name} at the {end:?} end"))
    }

    /// Returns the MACs of frames from the near end to the far one.
    fn macs(&self) -> Result<[u8; 12]> {
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&self.far()?.mac());
        macs[6..].copy_from_slice(&self.near()?.mac());
        Ok(macs)
    }

    /// Gives the generator its frames, which go that way.
    pub(super) fn set_frames(&mut self, case: Case, way: Way) -> Result<()> {
        let (macs, device) = (self.macs()?, self.near()?.index());
        let mut list = self.array(map::LIST)?;
        for flow in 0..LISTED {
            let stage = if flow < ESTABLISHED {
                Stage::Later
            } else {
                Stage::First
            };
            let bytes = packets::frame(macs, case, flow, stage);
            list.set(flow, Listed { device, bytes }, 0)?;
        }
        let outer = match way {
            Way::Encapsulated => case.family.header_length(),
            Way::Unchanged | Way::Translated { .. } => 0,
        };
        self.length = (LISTED_LENGTH + outer) as u64;
        Ok(())
    }

    fn array<T: Pod>(&mut self, name: &str) -> Result<Array<&mut MapData, T>> {
        let map = self.object.map_mut(name);
        Ok(Array::try_from(map.with_context(|| {
            format!("the object has no map {name}")
        })?)?)
    }

    /// Waits until the kernel's own packets, such as reports of multicast groups, are out.
    pub(super) fn settle(&mut self) -> Result<()> {
        let began = now_ns();
        loop {
            let before = self.received.get(&0, 0)?;
            thread::sleep(QUIET);
            if self.received.get(&0, 0)? == before {
                return Ok(());
            }
            ensure!(
                Duration::from_nanos(now_ns() - began) < SETTLE,
                "packets that nobody sent keep coming"
            );
        }
    }

    /// Sends frames of the list, from `first` on, and round its first `among`. Returns the time per frame in
    /// nanoseconds, until the sink has them all.
    pub(super) fn send(&mut self, first: u32, among: u32, frames: u32) -> Result<f64> {
        let schedule = Schedule {
            frames: among,
            next: first,
            ..Schedule::default()
        };
        self.array(map::SCHEDULE)?.set(0, schedule, 0)?;
        self.received.set(0, Traffic::default(), 0)?;
        let generator = xdp_of(&mut self.object, program::GENERATE_LIST)?;
        let received = &self.received;
        let send = || -> Result<(Duration, Traffic)> {
            let options = TestRunOptions {
                data_in: Some(&[0; LISTED_LENGTH]),
                repeat: frames,
                attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
                ..TestRunOptions::default()
            };
            let began = now_ns();
            generator.test_run(options).context("sending live frames")?;
            loop {
                let received = received.get(&0, 0)?;
                let took = Duration::from_nanos(now_ns() - began);
                if received.packets >= u64::from(frames) || took > PATIENCE {
                    return Ok((took, received));
                }
                thread::yield_now();
            }
        };
        let (took, received) = self.source.run(send)?;
        let (packets, bytes) = (received.packets, received.bytes);
        ensure!(
            packets == u64::from(frames) && bytes == packets * self.length,
            "{packets} frames of {bytes} bytes in all arrived, expected {frames} of {} each",
            self.length
        );
        Ok(took.as_secs_f64() * 1e9 / f64::from(frames))
    }

    /// Sends frames one by one, and checks what becomes of each. Known flows of TCP have had their handshakes after this.
    pub(super) fn prove(&self, case: Case, way: Way) -> Result<()> {
        let near = self.near()?;
        // Frames that a program sends back arrive only where there is one.
        near.attach_pass()?;
        let kind = match case.family {
            Family::V4 => ethernet::IPV4,
            Family::V6 => ethernet::IPV6,
        };
        let proof = Proof {
            socket: RawSocket::open(&near, kind)?,
            macs: self.macs()?,
            case,
            way,
        };
        let flows = match case.protocol {
            Protocol::Udp => PROVED,
            Protocol::Tcp => ESTABLISHED,
        };
        let mut shares = [0; BACKENDS as usize];
        for flow in 0..flows {
            let proved = proof.flow(flow);
            let backend = proved.with_context(|| format!("flow {flow}"))?;
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
}

/// The proof that a balancer balances.
struct Proof {
    socket: RawSocket,
    macs: [u8; 12],
    case: Case,
    way: Way,
}

impl Proof {
    /// Sends the first packet of a flow, the answer to it, and another one. Returns the backend that the flow went to.
    fn flow(&self, flow: u32) -> Result<Option<usize>> {
        let (out, backend) = self.packet(flow, Stage::First)?;
        if let Way::Translated { .. } = self.way {
            let (client, service) = self.case.ends_of(flow);
            let (_, seen) = self.exchange(&packets::answer(&out))?;
            ensure!(
                (seen.source, seen.destination) == (service, client),
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

    /// Sends a packet, and returns what came out and the backend that it is for.
    fn packet(&self, flow: u32, stage: Stage) -> Result<(Vec<u8>, Option<usize>)> {
        let (client, service) = self.case.ends_of(flow);
        let sent = packets::frame(self.macs, self.case, flow, stage);
        let (out, seen) = self.exchange(&sent)?;
        let came_out = || format!("{client} to {service} came out as {seen:?}");
        ensure!(u32::from(seen.flow) == flow, came_out());
        let is_untranslated = (seen.source, seen.destination) == (client, service);
        let backend = match (self.way, seen.outer) {
            (Way::Unchanged, None) if is_untranslated => return Ok((out, None)),
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
        Ok((out, Some(place.with_context(came_out)?)))
    }

    /// Sends a frame, and returns what comes back.
    fn exchange(&self, frame: &[u8]) -> Result<(Vec<u8>, Seen)> {
        ensure!(self.socket.send(frame)?, "the device has no room");
        loop {
            let frame = self.socket.receive(PATIENCE)?;
            let frame = frame.context("nothing came out")?;
            // The kernel sends packets of its own.
            if let Some(seen) = packets::read(&frame, self.case.family)? {
                return Ok((frame, seen));
            }
        }
    }
}

fn xdp_of<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    let program = object.program_mut(name);
    let program = program.with_context(|| format!("the object has no program {name}"))?;
    Ok(program.try_into()?)
}
