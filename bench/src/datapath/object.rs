//! The bench's own object: its maps and programs by name, and live frames by its generators.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Ebpf, Pod,
    maps::{Array, Map, MapData},
    programs::{SchedClassifier, TestRun as _, TestRunAttrs, TestRunOptions, Xdp, XdpMode},
};
use xdp_prog::{
    abi::Traffic,
    bench::{Cursor, map, program},
};

use super::{
    Order, Stream,
    frames::{self, Family, context_of},
};

/// Frames per call of the veth driver: the kernel's default for live frames.
const BATCH: u32 = 64;

/// Has a generator make frames that differ from this one by their flows. Returns its program.
pub(super) fn generate(bench: &mut Ebpf, family: Family, frame: &[u8]) -> Result<&'static str> {
    array(bench, map::TEMPLATE)?.set(0, frames::template(frame), 0)?;
    Ok(match family {
        Family::V4 => program::GENERATE_V4,
        Family::V6 => program::GENERATE_V6,
    })
}

/// Sets the flows of the next frames. `sent` is the number of frames before them, with which a stream goes on.
pub(super) fn set_stream(bench: &mut Ebpf, stream: Stream, sent: u32) -> Result<()> {
    let Stream { flows, order } = stream;
    let cursor = Cursor {
        flows,
        next: sent % flows,
        random: match order {
            Order::InTurn => 0,
            Order::Random => 1 + u64::from(sent),
        },
    };
    array(bench, map::CURSOR)?.set(0, cursor, 0)?;
    Ok(())
}

/// Has a generator send so many live frames, of the length of this one, into a device.
pub(super) fn send_live(
    bench: &Ebpf,
    generator: &str,
    frame: &[u8],
    device: u32,
    frames: u32,
) -> Result<()> {
    let context = context_of(frame.len(), device)?;
    let options = TestRunOptions {
        data_in: Some(frame),
        ctx_in: Some(&context),
        repeat: frames,
        attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
        ..TestRunOptions::default()
    };
    let generator = xdp(bench, generator)?;
    generator.test_run(options).context("sending live frames")?;
    Ok(())
}

pub(super) fn array<'a, T: Pod>(
    object: &'a mut Ebpf,
    name: &str,
) -> Result<Array<&'a mut MapData, T>> {
    Ok(Array::try_from(map_mut(object, name)?)?)
}

/// Returns what the sink has counted.
pub(super) fn received(object: &mut Ebpf) -> Result<Traffic> {
    Ok(array(object, map::RECEIVED)?.get(&0, 0)?)
}

/// Waits until sinks, whose frames are `received`, get nothing more.
///
/// # Errors
///
/// When frames go on coming.
pub(super) fn settle(mut received: impl FnMut() -> Result<u64>) -> Result<()> {
    /// How long nothing must come.
    const QUIET: Duration = Duration::from_millis(200);
    /// How long this is waited for at most.
    const PATIENCE: Duration = Duration::from_secs(10);
    let begin = Instant::now();
    let mut last = received()?;
    loop {
        thread::sleep(QUIET);
        let now = received()?;
        if now == last {
            return Ok(());
        }
        ensure!(begin.elapsed() < PATIENCE, "frames go on coming");
        last = now;
    }
}

pub(super) fn map_mut<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut Map> {
    object
        .map_mut(name)
        .with_context(|| format!("the object has no map {name}"))
}

pub(super) fn attach(object: &mut Ebpf, name: &str, device: u32) -> Result<()> {
    xdp_mut(object, name)?
        .attach_to_if_index(device, XdpMode::Driver)
        .with_context(|| format!("attaching {name}"))?;
    Ok(())
}

/// Attaches a generator to a device that gets no frames. The kernel waits for an RCU grace period, of milliseconds, whenever
/// a program is run that no device has.
pub(super) fn keep_ready(object: &mut Ebpf, name: &str, idle: u32) -> Result<()> {
    let generator = xdp_mut(object, name)?;
    let attached = generator.attach_to_if_index(idle, XdpMode::Skb).map(drop);
    attached.context("attaching the generator to a device without traffic")
}

pub(super) fn xdp<'a>(object: &'a Ebpf, name: &str) -> Result<&'a Xdp> {
    let program = object.program(name).with_context(|| missing(name))?;
    Ok(program.try_into()?)
}

pub(super) fn xdp_mut<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    let program = object.program_mut(name).with_context(|| missing(name))?;
    Ok(program.try_into()?)
}

pub(super) fn classifier<'a>(object: &'a Ebpf, name: &str) -> Result<&'a SchedClassifier> {
    let program = object.program(name).with_context(|| missing(name))?;
    Ok(program.try_into()?)
}

pub(super) fn classifier_mut<'a>(
    object: &'a mut Ebpf,
    name: &str,
) -> Result<&'a mut SchedClassifier> {
    let program = object.program_mut(name).with_context(|| missing(name))?;
    Ok(program.try_into()?)
}

fn missing(name: &str) -> String {
    format!("the object has no program {name}")
}
