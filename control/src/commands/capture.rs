//! `guideway capture`: writes packets as they arrive and as they leave to a file for Wireshark.

pub mod comment;
mod devices;
mod file;
pub mod filter;
mod source;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fastpath::capture::{Captured, Headers, Options, action};
use fastpath::clock::monotonic_ns;
use fastpath::pins::Pins;
use tokio::signal::unix::{SignalKind, signal};
use xdp_prog::punt::PuntHeader;

use self::comment::{Names, is_carried, is_punted};
use self::devices::Devices;
use self::file::{Direction, PcapNg, Record};
use self::source::PacketSource;
use super::{keys_of, width_of};
use crate::api::client::ask;
use crate::api::{Backend, Request, ServiceFilter};
use crate::cli;
use crate::render::Page;

/// Captures until enough packets were captured, the time is over, or a signal arrives.
///
/// # Errors
///
/// When the filter is invalid or names no service, nothing is attached, or the file cannot be written.
pub fn capture(options: &cli::Capture) -> Result<()> {
    let socket = options.agent.socket()?;
    let by_name = |name: &str| keys_of(&socket, name, None, None);
    let (filter, outcomes) = filter::parse(&options.filter, by_name)?;
    let is_over = stop_on_signal().context("cannot handle signals")?;
    let every = Request::Backends(ServiceFilter::default());
    let names = match ask::<Vec<Backend>>(&socket, &every) {
        Ok(rows) => Names::new(&rows),
        Err(error) => {
            tell(&format!("services and backends go without names: {error}"));
            Names::default()
        }
    };
    let mut source = PacketSource::start(
        &Pins::new(&options.pin_dir),
        &Options {
            interfaces: options.interface.clone(),
            filter,
            outcomes,
            sample: options.sample,
            snap: options.snaplen,
        },
        socket,
    )?;
    let mut session = Session {
        file: PcapNg::create(&options.write, options.snaplen, monotonic_ns())?,
        names,
        devices: Devices::read(),
        taken: 0,
        most: options.count.unwrap_or(u64::MAX),
    };
    let interfaces = source.interfaces().iter();
    let interfaces: Vec<_> = interfaces.map(|interface| interface.name.clone()).collect();
    for name in &interfaces {
        session.file.device(name)?;
    }
    session.file.flush()?;
    tell(&format!("capturing on {}", interfaces.join(", ")));

    let end = options
        .duration
        .map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
    let is_late = || end.is_some_and(|end| Instant::now() >= end);
    while !is_over.load(Ordering::Relaxed) && !is_late() && session.taken < session.most {
        source.wait()?;
        session.take_all(&mut source)?;
    }
    source.stop()?;
    session.take_all(&mut source)?;
    let lost = source.lost()?;
    let taken = session.taken;
    tell(&format!(
        "{taken} packets captured, {lost} lost for want of room"
    ));
    Ok(())
}

/// The state of a capture.
struct Session {
    file: PcapNg,
    names: Names,
    devices: Devices,
    taken: u64,
    most: u64,
}

impl Session {
    /// Writes the packets that are waiting, but no more than requested.
    fn take_all(&mut self, source: &mut PacketSource) -> Result<()> {
        while self.taken < self.most {
            let Some(captured) = source.take()? else {
                break;
            };
            self.taken += 1;
            self.write(&captured)?;
        }
        self.file.flush()
    }

    fn write(&mut self, captured: &Captured) -> Result<()> {
        let event = &captured.event;
        let before = Headers::read(&captured.before);
        let front = if is_carried(event) {
            PuntHeader::LENGTH
        } else {
            0
        };
        let bytes = captured.after.get(front..).unwrap_or_default();
        let after = (!bytes.is_empty()).then(|| Headers::read(bytes));
        let comment = self.names.comment(event, &before, after.as_ref());
        let device = self.devices.name(event.ifindex);
        self.file.write(Record {
            device: &device,
            time_ns: event.before_ns,
            length: event.before_length,
            bytes: &captured.before,
            direction: Direction::Inbound,
            comment: format!("before: {comment}"),
        })?;
        // An unchanged frame would only be in the file twice.
        let Some(after) = after.filter(|_| captured.is_changed() && !is_punted(event)) else {
            return Ok(());
        };
        let (device, direction) = match event.action {
            action::REDIRECT => (self.devices.with_mac(after.source_mac), Direction::Outbound),
            action::TRANSMIT => (None, Direction::Outbound),
            _ => (None, Direction::Inbound),
        };
        let device = device.unwrap_or_else(|| self.devices.name(event.ifindex));
        self.file.write(Record {
            device: &device,
            time_ns: event.after_ns,
            length: event
                .after_length
                .saturating_sub(u32::try_from(front).unwrap_or_default()),
            bytes,
            direction,
            comment: format!("after: {comment}"),
        })
    }
}

/// Returns a flag that is set by SIGINT, SIGTERM or SIGHUP.
fn stop_on_signal() -> io::Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let (mut interrupt, mut terminate, mut hang_up) = {
        let _context = runtime.enter();
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        )
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_over);
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hang_up.recv() => {}
            }
        });
        told.store(true, Ordering::Relaxed);
    });
    Ok(is_over)
}

/// Prints a message to standard error, because the packets may be on standard output.
fn tell(text: &str) {
    let mut page = Page::new(width_of(&io::stderr()));
    page.line(&format!("guideway: {text}"));
    // A failed write is ignored: nobody reads the message then.
    let _ = io::stderr().write_all(page.into_text().as_bytes());
}
