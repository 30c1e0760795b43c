//! The programs of the generator and the sink, and the devices that they are attached to.

use anyhow::{Context, Result};
use aya::{
    Ebpf, EbpfLoader,
    programs::{
        SchedClassifier, TcAttachType, Xdp, XdpMode, tc::SchedClassifierLinkId, xdp::XdpLinkId,
    },
};
use xdp_prog::bench::{Numbered, map, program};

use super::{Path, maps};

/// The programs while they are attached.
pub(super) struct Attached {
    sink: AttachedSink,
    generator: XdpLinkId,
}

enum AttachedSink {
    Driver(XdpLinkId),
    Stack(SchedClassifierLinkId),
}

/// Loads the programs for these frames and this list of flows.
///
/// # Errors
///
/// When the kernel refuses them.
pub(super) fn load(path: &Path<'_>, frames: &[Numbered], flows: &[u32]) -> Result<Ebpf> {
    let mut object = EbpfLoader::new()
        .map_max_entries(map::NUMBERED, u32::try_from(frames.len())?)
        .map_max_entries(map::FLOWS, u32::try_from(flows.len())?)
        // Of other programs in the object: large ones take long to make.
        .map_max_entries(map::SERVICES_V4, 1)
        .map_max_entries(map::SERVICES_V6, 1)
        .load(fastpath::object::bench_bytes())
        .context("loading the generator")?;
    maps::fill(&mut object, map::NUMBERED, frames)?;
    maps::fill(&mut object, map::FLOWS, flows)?;
    xdp(&mut object, program::GENERATE_NUMBERED)?.load()?;
    if path.from_stack {
        classifier(&mut object)?.load()?;
    } else {
        xdp(&mut object, program::SINK_NUMBERED)?.load()?;
    }
    Ok(object)
}

/// Attaches the programs.
///
/// # Errors
///
/// When a device takes none.
pub(super) fn attach(path: &Path<'_>, object: &mut Ebpf) -> Result<Attached> {
    let Path { entry, sink, .. } = path;
    if let Some(entry) = entry {
        entry.attach_pass()?;
    }
    if path.replaces_pass {
        sink.detach_xdp()?;
    }
    let attached = sink.namespace().run(|| -> Result<AttachedSink> {
        Ok(if path.from_stack {
            let id = classifier(object)?.attach(sink.name(), TcAttachType::Ingress)?;
            AttachedSink::Stack(id)
        } else {
            let program = xdp(object, program::SINK_NUMBERED)?;
            let id = program.attach_to_if_index(sink.index(), XdpMode::Driver)?;
            AttachedSink::Driver(id)
        })
    });
    let sink = attached.context("attaching the sink")?;
    // Each time that a program is run which no device has, the kernel waits for an RCU grace period: for milliseconds,
    // which would count as time of the frames. This device has no traffic.
    let idle = path.out.namespace().link("lo")?;
    let generator = xdp(object, program::GENERATE_NUMBERED)?;
    let attach = || generator.attach_to_if_index(idle.index(), XdpMode::Skb);
    let generator = (idle.namespace().run(attach))
        .context("attaching the generator to a device without traffic")?;
    Ok(Attached { sink, generator })
}

/// Leaves the devices as they were before.
///
/// # Errors
///
/// When a program cannot be detached.
pub(super) fn detach(path: &Path<'_>, object: &mut Ebpf, attached: Attached) -> Result<()> {
    let generator = xdp(object, program::GENERATE_NUMBERED)?;
    (generator.detach(attached.generator)).context("detaching the generator")?;
    let detached = match attached.sink {
        AttachedSink::Driver(id) => xdp(object, program::SINK_NUMBERED)?.detach(id),
        AttachedSink::Stack(id) => classifier(object)?.detach(id),
    };
    detached.context("detaching the sink")?;
    if path.replaces_pass {
        path.sink.attach_pass()?;
    }
    if let Some(entry) = &path.entry {
        entry.detach_xdp()?;
    }
    Ok(())
}

/// Returns the generator, to run it.
///
/// # Errors
///
/// When the object has none.
pub(super) fn generator(object: &Ebpf) -> Result<&Xdp> {
    let program = object.program(program::GENERATE_NUMBERED);
    let program = program.context("the object has no generator")?;
    Ok(program.try_into()?)
}

fn xdp<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    let program = object.program_mut(name);
    let program = program.with_context(|| format!("the object has no program {name}"))?;
    Ok(program.try_into()?)
}

fn classifier(object: &mut Ebpf) -> Result<&mut SchedClassifier> {
    let program = object.program_mut(program::SINK_NUMBERED_SKB);
    let program = program.context("the object has no sink for the stack")?;
    Ok(program.try_into()?)
}
