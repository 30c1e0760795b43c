//! The kernel's own generator, pktgen: its frames leave by kernel threads, one for each CPU.
//!
//! It is driven by files (Linux `Documentation/networking/pktgen.rst`): `pgctrl` starts and stops all threads,
//! `kpktgend_N` gives the thread of CPU N its devices, and each device has a file of its own with what it sends. All of
//! them are of one network namespace. Whatever is written is read back and compared.
//!
//! A device's name in there is that of an interface, and anything behind an `@`. Ours end in `@guideway` and a number: so what a run
//! that was killed has left is told from the devices of others, and removed when the next run begins.
//!
//! The payload begins with a magic number, a sequence number of the device, and a time. The second half of the magic and
//! the sequence number are what the sink of live frames takes for a tag and a number.

mod device;
mod files;

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use xdp_prog::bench::{PORTS_PER_CLIENT, Pace};

pub use self::files::{Pktgen, PktgenError};
use self::{device::Settings, files::Configured};
use super::{
    Asked,
    numbered::{client, frames_in},
};
use crate::scenario::{FlowOrder, Load};

/// Where the files are, for the calling thread's network namespace.
pub const ROOT: &str = "/proc/thread-self/net/pktgen";
/// The number that payloads begin with (`PKTGEN_MAGIC` of the kernel's net/core/pktgen.c).
pub(crate) const MAGIC: [u8; 4] = [0xbe, 0x9b, 0xe9, 0x55];
/// Offset of the tag in the payload, and the tag: the second half of the magic number.
pub(super) const TAG: (usize, u16) = (2, 0xe955);
/// Bytes at the start of a payload that pktgen writes: magic and sequence number, seconds and microseconds.
pub const HEADER_LENGTH: usize = 16;
/// Source ports of a device's flows: the first of them.
const FIRST_PORT: u16 = 10_000;
/// Most flows of a load: each of a device's flows has a port.
pub const MOST_FLOWS: u32 = 32_768;

/// What is sent, and where it leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending<'a> {
    /// The interface, of the calling thread's namespace.
    pub(super) interface: &'a str,
    /// Destination and source MAC address.
    pub(super) macs: [u8; 12],
    /// Where flows go to, in turn.
    pub(super) services: &'a [SocketAddr],
    pub(super) load: &'a Load,
}

/// Has pktgen send a trial's frames. Returns how long that took, and the pace at the end.
///
/// # Errors
///
/// When the kernel has no pktgen, others use it, or it does not do what was written.
pub(super) fn send(
    root: &Path,
    sending: &Sending<'_>,
    asked: Asked,
    pace: Pace,
) -> Result<(f64, Pace)> {
    let pktgen = Pktgen::open(root)?;
    let settings = settings(sending, queues(sending.interface));
    let configured = pktgen.configure(sending.interface, &settings)?;
    let sent = run(&configured, asked).context("having pktgen send")?;
    configured.remove()?;
    let number = u32::try_from(sent.frames).context("more frames than a trial can count")?;
    Ok((
        sent.seconds,
        Pace {
            sent: number,
            ..pace
        },
    ))
}

/// Tells whether frames of a load have one sequence of numbers: those of several devices have one each.
pub(super) fn has_one_sequence(load: &Load, services: usize) -> bool {
    flows_by_device(load, services).len() == 1
}

/// What the devices have sent.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sent {
    frames: u64,
    seconds: f64,
}

fn run(configured: &Configured<'_>, asked: Asked) -> Result<Sent> {
    let devices = configured.devices().len() as u64;
    for (number, device) in (0..).zip(configured.devices()) {
        match asked.rate {
            Some(rate) => {
                let frames = u64::from(frames_in(asked.seconds, rate));
                let own = frames / devices + u64::from(number < frames % devices);
                // A count of 0 would be endless.
                device.set_count(own.max(1))?;
                device.set_rate(rate / devices as f64)?;
            }
            None => {
                device.set_count(0)?;
                device.set_no_delay()?;
            }
        }
    }
    let is_endless = asked.rate.is_none();
    let began = Instant::now();
    thread::scope(|scope| {
        let stop = scope.spawn(|| {
            if is_endless {
                thread::sleep(Duration::from_secs_f64(asked.seconds));
                configured.stop()?;
            }
            Ok::<(), PktgenError>(())
        });
        let started = configured.start();
        let stopped = stop.join().expect("it does not panic");
        started.and(stopped)
    })?;
    let mut sent = Sent {
        frames: 0,
        seconds: 0.0,
    };
    for device in configured.devices() {
        let told = device.told()?;
        sent.frames += told.frames;
        sent.seconds = sent.seconds.max(told.seconds);
    }
    if sent.seconds == 0.0 {
        sent.seconds = began.elapsed().as_secs_f64();
    }
    Ok(sent)
}

/// Returns the client of each flow of a load to so many Services, as the devices have them.
pub(crate) fn clients(load: &Load, services: usize) -> Vec<SocketAddr> {
    let devices = flows_by_device(load, services);
    let places: Vec<(u32, usize)> = devices.into_keys().collect();
    let mut begun = BTreeMap::new();
    let client = |flow: u32| {
        let place = place_of(load, services, flow);
        let number = places.iter().position(|one| *one == place).unwrap_or(0);
        let mut client = client_of(load, number);
        let before: &mut u16 = begun.entry(place).or_insert(0);
        client.set_port(FIRST_PORT + *before);
        *before += 1;
        client
    };
    (0..load.flows.min(MOST_FLOWS)).map(client).collect()
}

/// Returns the client of the flows of a device, with the port of the first. Each device has one of its own.
fn client_of(load: &Load, device: usize) -> SocketAddr {
    let number = u32::try_from(device).unwrap_or(0) + 1;
    let mut client = client(load.family, number * PORTS_PER_CLIENT);
    client.set_port(FIRST_PORT);
    client
}

/// Returns the thread and the Service of a flow.
fn place_of(load: &Load, services: usize, flow: u32) -> (u32, usize) {
    (flow % load.threads, flow as usize % services.max(1))
}

/// Returns how many flows each device has, by its thread and Service: flows take turns with both.
fn flows_by_device(load: &Load, services: usize) -> BTreeMap<(u32, usize), u16> {
    let mut devices = BTreeMap::new();
    for flow in 0..load.flows.min(MOST_FLOWS) {
        *devices.entry(place_of(load, services, flow)).or_insert(0) += 1;
    }
    devices
}

/// Returns what each device sends, with its thread. `queues` is how many transmit queues the interface has.
fn settings(sending: &Sending<'_>, queues: u32) -> Vec<(u32, Settings)> {
    let Sending {
        macs,
        services,
        load,
        ..
    } = *sending;
    let devices = flows_by_device(load, services.len());
    let [destination, source] = [&macs[..6], &macs[6..]].map(|mac| {
        let bytes: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        bytes.join(":")
    });
    let each = devices.into_iter().enumerate();
    each.map(|(number, ((thread, service), flows))| {
        let settings = Settings {
            macs: [destination.clone(), source.clone()],
            from: client_of(load, number),
            flows,
            to: services[service],
            draws_flows: load.flow_order == FlowOrder::Uniform,
            sizes: load.frame_bytes.clone(),
            vlan: load.vlan,
            queue: thread % queues.max(1),
        };
        (thread, settings)
    })
    .collect()
}

/// Returns how many transmit queues an interface has; 1 if it does not tell.
fn queues(interface: &str) -> u32 {
    let entries = fs::read_dir(format!("/sys/class/net/{interface}/queues"));
    let names = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    let queues = names.filter(|name| name.to_string_lossy().starts_with("tx-"));
    u32::try_from(queues.count()).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests;
