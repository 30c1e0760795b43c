//! Where the packets of a capture come from: the programs' ring buffer, or the agent, where its threads take packets.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use fastpath::capture::{Capture, CaptureError, Captured, Interface, Options};
use fastpath::pins::Pins;

use crate::api::client::{AskError, ask};
use crate::api::{CapturedEvents, Request};
use crate::hex;

/// How soon a signal or the end of the time is noticed.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause before the agent is asked again that had no packets. Its queue must have room for those that come meanwhile.
const ASK_PAUSE: Duration = Duration::from_millis(10);

/// A running capture; it ends when this is dropped.
pub(super) struct PacketSource {
    capture: Capture,
    /// The agent's.
    socket: PathBuf,
    /// What the agent has answered last.
    waiting: VecDeque<Captured>,
    /// Whether the agent may have more.
    has_more: bool,
    /// Packets that the agent has lost.
    lost: u64,
}

impl PacketSource {
    /// Starts a capture.
    ///
    /// # Errors
    ///
    /// When it cannot start, or the agent has to be asked for the packets and does not answer.
    pub(super) fn start(pins: &Pins, options: &Options, socket: PathBuf) -> Result<Self> {
        let mut source = Self {
            capture: Capture::start(pins, options)?,
            socket,
            waiting: VecDeque::new(),
            has_more: false,
            lost: 0,
        };
        if source.capture.is_by_threads() {
            source.ask().context(
                "threads of the agent take the packets here (datapath: afxdp), which has to be asked for copies",
            )?;
        }
        Ok(source)
    }

    /// Lists the interfaces on which packets are captured.
    pub(super) fn interfaces(&self) -> &[Interface] {
        self.capture.interfaces()
    }

    /// Waits for packets, but not for long.
    ///
    /// # Errors
    ///
    /// When the capture cannot go on.
    pub(super) fn wait(&mut self) -> Result<()> {
        if !self.capture.is_by_threads() {
            return Ok(self.capture.wait(PAUSE)?);
        }
        let pause = if self.has_more {
            Duration::ZERO
        } else {
            ASK_PAUSE
        };
        self.capture.wait(pause)?;
        match self.ask() {
            Ok(()) => Ok(()),
            // An agent that restarts has threads again soon.
            Err(AskError::NotRunning { .. } | AskError::Broken { .. } | AskError::Refused(_)) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the next packet, `None` if there is none now.
    ///
    /// # Errors
    ///
    /// When the capture cannot go on.
    pub(super) fn take(&mut self) -> Result<Option<Captured>, CaptureError> {
        match self.waiting.pop_front() {
            Some(captured) => Ok(Some(captured)),
            None => self.capture.take(),
        }
    }

    /// Stops copying. What was copied can still be taken.
    ///
    /// # Errors
    ///
    /// When the programs cannot be told.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.capture.stop()?;
        if self.capture.is_by_threads() {
            // By the first question, its threads learn that it is over.
            while self.ask().is_ok() && self.has_more {}
        }
        Ok(())
    }

    /// Returns how many packets were lost for want of room.
    ///
    /// # Errors
    ///
    /// When the counter cannot be read.
    pub(super) fn lost(&self) -> Result<u64, CaptureError> {
        Ok(self.lost + self.capture.lost()?)
    }

    /// Asks the agent for packets.
    fn ask(&mut self) -> Result<(), AskError> {
        self.has_more = false;
        let CapturedEvents { events, lost } = ask(&self.socket, &Request::Capture {})?;
        self.has_more = !events.is_empty();
        self.lost += lost;
        // An agent that counts other reasons has been refused, so these can be read.
        let bytes = events.iter().filter_map(|event| hex::decode(event));
        let read = bytes.filter_map(|bytes| Captured::read(&bytes));
        self.waiting.extend(read);
        Ok(())
    }
}
