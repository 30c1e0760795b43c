//! Captures: copies of frames as they reach the XDP program and as they leave it.
//!
//! The programs that copy are loaded and pinned with the others. A capture puts one of them in place for as long as
//! it lasts (see `xdp_prog::capture`). It needs no running agent, and a machine runs one capture at a time. A capture
//! that is killed leaves its program in place, but the program copies nothing once the capture's lease has ended. The
//! next capture or the agent removes it.
//!
//! On a whole edge no such program is pinned. The threads of the agent obey the settings and the lease
//! ([`EdgeCaptures`](crate::whole_edge::EdgeCaptures)), and whoever captures asks the agent for their copies.

mod error;
mod headers;
mod slot;

use std::{
    fmt, io, process,
    time::{Duration, Instant},
};

use aya::maps::{Map, MapData, PerCpuArray, RingBuf};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
pub use xdp_prog::capture::{Event, Filter, INTERFACES, Network, Outcomes, Reasons, SNAP_MAX};
use xdp_prog::{abi::map, capture::Settings, reason::REASON_COUNT};
use zerocopy::FromBytes;

#[cfg(any(feature = "xsk", test))]
pub(crate) use self::slot::Lease;
pub use self::{
    error::CaptureError,
    headers::{Headers, Packet},
    slot::clear_away,
};
use self::{
    error::failed,
    slot::{CaptureSlot, open_pinned},
};
use crate::{
    clock::monotonic_ns,
    cpus,
    pins::{Pins, read_link},
};

/// How long the programs copy frames without a renewal by the capturing process.
const LEASE_NS: u64 = 10_000_000_000;
/// How often that process renews.
const RENEWAL: Duration = Duration::from_millis(500);

/// Options of a capture.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interfaces; an empty list means all that the program is attached to.
    pub interfaces: Vec<String>,
    pub filter: Filter,
    pub outcomes: Outcomes,
    /// Captures one frame in this many, chosen at random.
    pub sample: u32,
    /// Bytes of each frame that are kept, up to [`SNAP_MAX`].
    pub snap: u32,
}

/// An interface on which frames are captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub index: u32,
}

/// A captured frame.
#[derive(Clone, Debug)]
pub struct Captured {
    pub event: Event,
    /// The front of the frame as it came in.
    pub before: Vec<u8>,
    /// The front of the frame as it goes on.
    pub after: Vec<u8>,
}

/// Return codes of XDP programs.
pub mod action {
    /// The frame ends here (`XDP_DROP`).
    pub const DROP: u32 = 1;
    /// The stack gets the frame (`XDP_PASS`).
    pub const PASS: u32 = 2;
    /// The frame leaves by the device that it came in by (`XDP_TX`).
    pub const TRANSMIT: u32 = 3;
    /// The frame leaves by another device (`XDP_REDIRECT`).
    pub const REDIRECT: u32 = 4;
}

/// A running capture; it ends when this is dropped.
pub struct Capture {
    pins: Pins,
    options: Options,
    interfaces: Vec<Interface>,
    slot: CaptureSlot,
    /// Whether threads copy, and no program.
    is_by_threads: bool,
    events: RingBuf<MapData>,
    lost: PerCpuArray<MapData, u64>,
    lost_before: u64,
    renewed: Instant,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture")
            .field("interfaces", &self.interfaces)
            .finish_non_exhaustive()
    }
}

impl Capture {
    /// Starts a capture.
    ///
    /// # Errors
    ///
    /// Each error names the cause and the remedy. Nothing is left behind.
    pub fn start(pins: &Pins, options: &Options) -> Result<Self, CaptureError> {
        let interfaces = interfaces(pins, &options.interfaces)?;
        check_build(pins)?;
        let mut slot = CaptureSlot::open(pins)?;
        if let Some(owner) = slot.owner()? {
            return Err(CaptureError::Busy { owner });
        }
        let mut events: RingBuf<MapData> = open_pinned(pins, map::EVENTS, Map::RingBuf)?;
        // Frames that an earlier capture has left.
        while events.next().is_some() {}
        let lost = open_pinned(pins, map::EVENTS_LOST, Map::PerCpuArray)?;
        let lost_before = sum(&lost)?;
        slot.rent(settings(options, &interfaces)?)?;
        let mut capture = Self {
            pins: pins.clone(),
            options: options.clone(),
            interfaces,
            slot,
            is_by_threads: false,
            events,
            lost,
            lost_before,
            renewed: Instant::now(),
        };
        capture.fill()?;
        Ok(capture)
    }

    /// Tells whether threads of the agent copy the frames, and no program does. The agent has to be asked for the copies
    /// then, and here are none to take. An agent that starts may change it.
    #[must_use]
    pub const fn is_by_threads(&self) -> bool {
        self.is_by_threads
    }

    /// Lists the interfaces on which frames are captured.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Waits until there is a frame, the time is over, or a signal arrives.
    ///
    /// Call it again and again: each call renews the capture's lease. It also moves on to the programs of an agent
    /// that has started meanwhile.
    ///
    /// # Errors
    ///
    /// Fails if the programs are gone, or if the kernel does not let this thread wait.
    pub fn wait(&mut self, time: Duration) -> Result<(), CaptureError> {
        self.renew()?;
        let time = Timespec::try_from(time.min(RENEWAL));
        let time = time.map_err(|error| CaptureError::Wait(io::Error::other(error)))?;
        let mut fds = [PollFd::new(&self.events, PollFlags::IN)];
        match poll(&mut fds, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(CaptureError::Wait(error.into())),
        }
    }

    /// Returns the next frame, `None` if there is none now.
    ///
    /// # Errors
    ///
    /// As for [`Capture::wait`].
    pub fn take(&mut self) -> Result<Option<Captured>, CaptureError> {
        self.renew()?;
        // The programs write only events that can be read.
        Ok(self.events.next().and_then(|item| Captured::read(&item)))
    }

    /// Returns how many frames were lost because the ring buffer was full.
    ///
    /// # Errors
    ///
    /// Fails if the counter cannot be read.
    pub fn lost(&self) -> Result<u64, CaptureError> {
        Ok(sum(&self.lost)?.saturating_sub(self.lost_before))
    }

    /// Stops copying frames. Frames that were copied can still be taken.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be removed from its slot.
    pub fn stop(&mut self) -> Result<(), CaptureError> {
        self.slot.clear()
    }

    fn renew(&mut self) -> Result<(), CaptureError> {
        if self.renewed.elapsed() < RENEWAL || !self.slot.is_rented {
            return Ok(());
        }
        match self.slot.owner()? {
            Some(owner) if owner == process::id() => {}
            // This process was held up for so long that its lease ended.
            None => self.slot.forget_program(),
            Some(owner) => {
                self.slot.is_rented = false;
                return Err(CaptureError::Busy { owner });
            }
        }
        self.renewed = Instant::now();
        self.interfaces = interfaces(&self.pins, &self.options.interfaces)?;
        self.slot.rent(settings(&self.options, &self.interfaces)?)?;
        self.fill()
    }

    /// Has the program copy frames, unless threads do.
    fn fill(&mut self) -> Result<(), CaptureError> {
        self.is_by_threads = !self.pins.capture_program().exists();
        match self.is_by_threads {
            true => Ok(()),
            false => self.slot.fill(&self.pins),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Best effort: the lease ends by itself otherwise.
        let _ = self.stop();
    }
}

impl Captured {
    /// Tells whether the frame leaves other than it came.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        let (before, after) = (self.event.before_length, self.event.after_length);
        before != after || self.before != self.after
    }

    /// Reads an event and the copies behind it; `None` if something is missing.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (event, copies) = Event::read_from_prefix(bytes).ok()?;
        let (before, rest) = copies.split_at_checked(event.before_copied as usize)?;
        Some(Self {
            event,
            before: before.to_vec(),
            after: rest.get(..event.after_copied as usize)?.to_vec(),
        })
    }
}

/// Finds the wanted interfaces among those that the program is attached to; all of them if none is wanted.
fn interfaces(pins: &Pins, wanted: &[String]) -> Result<Vec<Interface>, CaptureError> {
    let mut found = Vec::new();
    for name in pins.interfaces()? {
        let path = pins.link(&name);
        if !path.exists() {
            continue;
        }
        let index = read_link(&path)?.ifindex;
        if index != 0 {
            found.push(Interface { name, index });
        }
    }
    if found.is_empty() {
        return Err(CaptureError::NotAttached {
            root: pins.root().display().to_string(),
        });
    }
    let names = || found.iter().map(|interface| interface.name.as_str());
    if let Some(other) = wanted
        .iter()
        .find(|name| !names().any(|found| found == *name))
    {
        return Err(CaptureError::OtherInterface {
            name: other.clone(),
            attached: names().collect::<Vec<_>>().join(", "),
        });
    }
    if !wanted.is_empty() {
        found.retain(|interface| wanted.contains(&interface.name));
    }
    Ok(found)
}

fn check_build(pins: &Pins) -> Result<(), CaptureError> {
    let reasons = pins.open_map(map::REASONS)?;
    let reasons = reasons.info().map_err(failed(map::REASONS))?;
    let count = u32::try_from(REASON_COUNT).unwrap_or(u32::MAX);
    let entries = cpus::entries_of_all(count, reasons.value_size())
        .map_err(|source| failed(map::REASONS)(source.into()))?;
    if reasons.max_entries() == entries {
        Ok(())
    } else {
        Err(CaptureError::OtherBuild)
    }
}

fn settings(options: &Options, interfaces: &[Interface]) -> Result<Settings, CaptureError> {
    let mut settings = Settings {
        until_ns: monotonic_ns().saturating_add(LEASE_NS),
        filter: options.filter,
        outcomes: options.outcomes,
        sample: options.sample.max(1),
        snap: options.snap.clamp(1, SNAP_MAX),
        owner: process::id(),
        interface_count: 0,
        interfaces: [0; INTERFACES],
    };
    if !options.interfaces.is_empty() {
        if interfaces.len() > INTERFACES {
            return Err(CaptureError::Interfaces);
        }
        for (place, interface) in settings.interfaces.iter_mut().zip(interfaces) {
            *place = interface.index;
            settings.interface_count += 1;
        }
    }
    Ok(settings)
}

fn sum(lost: &PerCpuArray<MapData, u64>) -> Result<u64, CaptureError> {
    let counts = lost.get(&0, 0).map_err(failed(map::EVENTS_LOST))?;
    Ok(counts.iter().sum())
}
