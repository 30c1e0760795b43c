//! The wire with its generator and sink, and the machine in between.

use std::{thread, time::Duration};

use anyhow::{Context, Result, ensure};
use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, MapData},
    programs::{
        Program, ProgramError, SchedClassifier, TcAttachType, TestRun, TestRunAttrs,
        TestRunOptions, Xdp, XdpMode,
    },
};
use fastpath::object;
use lab::{Cidr, Link, Namespace, Offload, Route, Veth};
use xdp_prog::{
    abi::Traffic,
    bench::{LISTED_LENGTH, Listed, Schedule, map, program},
};

use super::{
    Case, ESTABLISHED, NEW, TRIALS, Way, backends,
    packets::{self, Stage},
};
use crate::{
    datapath::{
        frames::{self, EDGE_V4, EDGE_V6, Family},
        object::keep_ready,
    },
    load::{frame::Framing, sockets::now_ns},
    wire::kube_proxy::prepare,
};

/// Frames in the generator's list: known flows, then new ones for each trial.
pub(super) const LISTED: u16 = ESTABLISHED + TRIALS * NEW;
/// How long a frame that is sent alone may take, and all frames of a trial.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two ticks of the kernel's clock, which come at multiples of it (`CONFIG_HZ=250`).
const TICK: Duration = Duration::from_millis(4);
/// Without a frame for so long, the machine is quiet.
const QUIET: Duration = Duration::from_secs(2);
/// How long it may take until it is.
const SETTLE: Duration = Duration::from_secs(120);
/// Frames per call of the veth driver: the kernel's default for live frames.
const BATCH: u32 = 64;
/// Number of the default gateway among the nodes.
const GATEWAY: u8 = 99;

/// Where the sink is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sink {
    /// At the balancer's end of the wire, in its place.
    Far,
    /// At the generator's end.
    Near,
    /// There too, for packets to which the stack has added a header: a TC program, because veth would copy them for an
    /// XDP program, which wants the room that the header has taken.
    NearOfStack,
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
    /// Extra work for each frame, in eighths of a step.
    work: u32,
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
            .map_max_entries(map::LIST, LISTED.into())
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
            work: 0,
        };
        wire.load_generator()?;
        wire.route()?;
        Ok(wire)
    }

    fn load_generator(&mut self) -> Result<()> {
        let generator: &mut Xdp = program_of(&mut self.object, program::GENERATE_LIST)?;
        generator.load()?;
        let idle = self.source.link("lo")?.index();
        let object = &mut self.object;
        self.source
            .run(|| keep_ready(object, program::GENERATE_LIST, idle))
    }

    fn route(&self) -> Result<()> {
        let (near, far) = (self.near()?, self.far()?);
        // As NICs have it. Without it, veth takes no live frames.
        far.set_offload(Offload::Gro, true)?;
        prepare(&self.edge, Self::FAR)?;
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

    /// Returns what frames from the near end to the far one have in common.
    pub(super) fn framing(&self, case: Case) -> Result<Framing> {
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&self.far()?.mac());
        macs[6..].copy_from_slice(&self.near()?.mac());
        let protocol = case.protocol;
        Ok(Framing::plain(macs, protocol))
    }

    /// Attaches the sink. Where an XDP program sends frames back, it has to be at the near end before.
    pub(super) fn attach_sink(&mut self, sink: Sink) -> Result<()> {
        match sink {
            Sink::Far => self.attach_far(program::SINK),
            Sink::Near => {
                let near = self.source.link(Self::NEAR)?;
                attach(&mut self.object, program::SINK, &near)
            }
            Sink::NearOfStack => {
                let sink: &mut SchedClassifier = program_of(&mut self.object, program::SINK_SKB)?;
                sink.load()?;
                let attach = || sink.attach(Self::NEAR, TcAttachType::Ingress);
                let attached = self.source.run(attach).map(drop);
                attached.context("attaching the sink of the stack")
            }
        }
    }

    /// Attaches one of the bench's own XDP programs at the balancer's end.
    pub(super) fn attach_far(&mut self, name: &str) -> Result<()> {
        attach(&mut self.object, name, &self.edge.link(Self::FAR)?)
    }

    /// Gives the generator its frames, which go that way.
    pub(super) fn set_frames(&mut self, case: Case, way: Way) -> Result<()> {
        let (framing, device) = (self.framing(case)?, self.near()?.index());
        let mut list = array_of(&mut self.object, map::LIST)?;
        for flow in 0..LISTED {
            let stage = if flow < ESTABLISHED {
                Stage::Later
            } else {
                Stage::First
            };
            let bytes = packets::frame(framing, case.ends_of(flow), flow, stage);
            list.set(flow.into(), Listed { device, bytes }, 0)?;
        }
        let outer = match way {
            Way::Encapsulated => case.family.header_length(),
            Way::Unchanged | Way::Translated { .. } => 0,
        };
        self.length = (LISTED_LENGTH + outer) as u64;
        Ok(())
    }

    /// Has each frame take longer from now on: by so many eighths of a step of [`work`](xdp_prog::bench::work).
    pub(super) fn set_work(&mut self, eighths: u32) {
        self.work = eighths;
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
    pub(super) fn send(&mut self, first: u16, among: u16, frames: u32) -> Result<f64> {
        let schedule = Schedule {
            frames: among.into(),
            next: first.into(),
            work: self.work,
            ..Schedule::default()
        };
        array_of(&mut self.object, map::SCHEDULE)?.set(0, schedule, 0)?;
        self.received.set(0, Traffic::default(), 0)?;
        let generator: &mut Xdp = program_of(&mut self.object, program::GENERATE_LIST)?;
        let received = &self.received;
        let send = || -> Result<(Duration, Traffic)> {
            let options = TestRunOptions {
                data_in: Some(&[0; LISTED_LENGTH]),
                repeat: frames,
                attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
                ..TestRunOptions::default()
            };
            // Trials of one length have the same number of ticks if they begin at the same distance from one.
            let tick = u64::try_from(TICK.as_nanos())?;
            thread::sleep(Duration::from_nanos(tick - now_ns() % tick) + TICK / 8);
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
}

/// Loads an XDP program and attaches it.
fn attach(object: &mut Ebpf, name: &str, link: &Link<'_>) -> Result<()> {
    let program: &mut Xdp = program_of(object, name)?;
    program.load()?;
    let attach = || program.attach_to_if_index(link.index(), XdpMode::Driver);
    let attached = link.namespace().run(attach).map(drop);
    attached.with_context(|| format!("attaching {name} to {}", link.name()))
}

fn program_of<'a, P>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut P>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = object.program_mut(name);
    let program = program.with_context(|| format!("the object has no program {name}"))?;
    Ok(program.try_into()?)
}

fn array_of<'a, T: Pod>(object: &'a mut Ebpf, name: &str) -> Result<Array<&'a mut MapData, T>> {
    let map = object.map_mut(name);
    let map = map.with_context(|| format!("the object has no map {name}"))?;
    Ok(Array::try_from(map)?)
}
