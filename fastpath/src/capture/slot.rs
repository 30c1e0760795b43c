//! The place of the capturing program, which one process on a machine rents at a time.

use std::io;

use aya::{
    maps::{Array, Map, MapData, MapError, ProgramArray},
    programs::Xdp,
};
use aya_obj::programs::XdpAttachType;
use xdp_prog::{
    abi::map,
    capture::{Settings, Slot},
};

use super::error::{CaptureError, failed, not_opened};
use crate::{clock::monotonic_ns, pins::Pins};

/// The settings of the capture, which say who captures, and until when.
pub(crate) struct Lease(Array<MapData, Settings>);

impl Lease {
    /// Uses the open map.
    ///
    /// # Errors
    ///
    /// Fails if it has another layout.
    pub(crate) fn over(data: MapData) -> Result<Self, CaptureError> {
        let settings = Array::try_from(Map::Array(data));
        settings.map(Self).map_err(failed(map::CAPTURE_SETTINGS))
    }

    /// Returns the settings, of a capture that may be over.
    ///
    /// # Errors
    ///
    /// Fails if the map cannot be read.
    pub(crate) fn settings(&self) -> Result<Settings, CaptureError> {
        let settings = self.0.get(&0, 0);
        settings.map_err(failed(map::CAPTURE_SETTINGS))
    }

    fn set(&mut self, settings: Settings) -> Result<(), CaptureError> {
        let written = self.0.set(0, settings, 0);
        written.map_err(failed(map::CAPTURE_SETTINGS))
    }
}

/// The slot of the capturing program, and the settings of the capture.
pub(super) struct CaptureSlot {
    slots: ProgramArray<MapData>,
    lease: Lease,
    /// Id of the program that was put in the slot.
    program: Option<u32>,
    pub(super) is_rented: bool,
}

impl CaptureSlot {
    pub(super) fn open(pins: &Pins) -> Result<Self, CaptureError> {
        Ok(Self {
            slots: open_pinned(pins, map::CAPTURE, Map::ProgramArray)?,
            lease: Lease::over(pins.open_map(map::CAPTURE_SETTINGS)?)?,
            program: None,
            is_rented: false,
        })
    }

    /// Returns the id of the process that captures, `None` if none does.
    pub(super) fn owner(&self) -> Result<Option<u32>, CaptureError> {
        let settings = self.lease.settings()?;
        Ok((settings.owner != 0 && settings.until_ns > monotonic_ns()).then_some(settings.owner))
    }

    /// Writes the settings, which start or extend the lease.
    pub(super) fn rent(&mut self, settings: Settings) -> Result<(), CaptureError> {
        self.lease.set(settings)?;
        self.is_rented = true;
        Ok(())
    }

    /// Puts the pinned program in the slot, unless it is there.
    pub(super) fn fill(&mut self, pins: &Pins) -> Result<(), CaptureError> {
        let program =
            Xdp::from_pin(pins.capture_program(), XdpAttachType::Interface).map_err(not_opened)?;
        let id = program.info().map_err(not_opened)?.id();
        if self.program != Some(id) {
            let program = program.fd().map_err(not_opened)?;
            let filled = self.slots.set(Slot::Around.index(), program, 0);
            filled.map_err(failed(map::CAPTURE))?;
            self.program = Some(id);
        }
        Ok(())
    }

    /// Has the next [`CaptureSlot::fill`] put the program in the slot, whoever else may have used it.
    pub(super) fn forget_program(&mut self) {
        self.program = None;
    }

    pub(super) fn clear(&mut self) -> Result<(), CaptureError> {
        if !self.is_rented {
            return Ok(());
        }
        self.is_rented = false;
        self.program = None;
        match self.slots.clear_index(&Slot::Around.index()) {
            // The slot is empty already.
            Err(MapError::SyscallError(error))
                if error.io_error.kind() == io::ErrorKind::NotFound => {}
            result => result.map_err(failed(map::CAPTURE))?,
        }
        let mut settings = self.lease.settings()?;
        settings.owner = 0;
        settings.until_ns = 0;
        self.lease.set(settings)
    }
}

pub(super) fn open_pinned<M: TryFrom<Map, Error = MapError>>(
    pins: &Pins,
    name: &'static str,
    wrap: fn(MapData) -> Map,
) -> Result<M, CaptureError> {
    M::try_from(wrap(pins.open_map(name)?)).map_err(failed(name))
}

/// Removes the program and settings of a capture that was killed. The agent calls this from time to time.
///
/// # Errors
///
/// Fails if the maps cannot be used.
pub fn clear_away(pins: &Pins) -> Result<(), CaptureError> {
    let mut slot = CaptureSlot::open(pins)?;
    let settings = slot.lease.settings()?;
    if settings.owner != 0 && slot.owner()?.is_none() {
        slot.is_rented = true;
        slot.clear()?;
    }
    Ok(())
}
