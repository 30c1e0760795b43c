//! The programs: loading them, and making them reachable from each other.

use std::{io, path::Path};

use aya::{
    Ebpf, EbpfError,
    maps::{MapData, MapError, MapType, ProgramArray},
    programs::{ProgramError, ProgramFd, SchedClassifier, Xdp},
};
use xdp_prog::{
    abi::{EGRESS_PROGRAM, XDP_PROGRAM, map},
    capture::Slot,
    punt::{MENDED_PROGRAM, UNPUNTED_PROGRAM},
    stage::{Duties, Stage},
};

use super::error::{LoadError, pinned_map_error};
use crate::pins::{PinError, Pins, pin, unpin};

/// Loads every program, then makes the stages reachable.
///
/// Nothing changes for running programs before the verifier has accepted all of the new ones. The map of stages may
/// be adopted, and programs that are attached already may use it. A stage may be newer than the program that calls
/// it, because it parses the unchanged frame again.
pub(super) fn load_programs(
    ebpf: &mut Ebpf,
    has_af_xdp: bool,
    duties: Duties,
) -> Result<(), EbpfError> {
    let reached = Stage::ALL
        .into_iter()
        .filter(|stage| stage.is_reached(duties));
    let stages = load_stages(ebpf, has_af_xdp, reached)?;
    load_xdp(ebpf, XDP_PROGRAM)?;
    load_xdp(ebpf, MENDED_PROGRAM)?;
    load_xdp(ebpf, Slot::Around.program())?;
    let edge = (Slot::Edge.index(), load_xdp(ebpf, Slot::Edge.program())?);
    let egress: &mut SchedClassifier = ebpf
        .program_mut(EGRESS_PROGRAM)
        .ok_or(ProgramError::UnexpectedProgramType)?
        .try_into()?;
    egress.load()?;
    set_programs(ebpf, map::STAGES, &stages)?;
    set_programs(ebpf, map::CAPTURE, &[edge])
}

/// Loads stages; returns the index of each, and its program.
pub(super) fn load_stages(
    ebpf: &mut Ebpf,
    has_af_xdp: bool,
    stages: impl Iterator<Item = Stage>,
) -> Result<Vec<(u32, ProgramFd)>, EbpfError> {
    stages
        .map(|stage| {
            let program = match stage {
                Stage::Punt if !has_af_xdp => UNPUNTED_PROGRAM,
                stage => stage.program(),
            };
            Ok((stage.index(), load_xdp(ebpf, program)?))
        })
        .collect()
}

/// Pins an array in place of the map of sockets, which only kernels with AF_XDP make. The loader adopts it, and no
/// program that is loaded there uses it.
pub(super) fn pin_stand_in(declared: &aya_obj::Map, path: &Path) -> Result<(), LoadError> {
    if path.exists() {
        return Ok(());
    }
    let array = aya_obj::Map::new_from_params(
        MapType::Array as u32,
        declared.key_size(),
        declared.value_size(),
        declared.max_entries(),
        0,
    );
    let array = MapData::create(array, map::XSKS, None);
    let array = array.map_err(|error| pinned_map_error(map::XSKS, error))?;
    pin(path, |path| array.pin(path))?;
    Ok(())
}

pub(super) fn load_xdp(ebpf: &mut Ebpf, name: &str) -> Result<ProgramFd, EbpfError> {
    let program = xdp(ebpf, name)?;
    // An attempt that failed has loaded some.
    if program.fd().is_err() {
        program.load()?;
    }
    Ok(program.fd()?.try_clone().map_err(MapError::from)?)
}

pub(super) fn set_programs(
    ebpf: &mut Ebpf,
    name: &str,
    programs: &[(u32, ProgramFd)],
) -> Result<(), EbpfError> {
    let map = ebpf.map_mut(name).ok_or_else(|| MapError::InvalidName {
        name: name.to_owned(),
    })?;
    let mut array = ProgramArray::try_from(map)?;
    for (index, program) in programs {
        array.set(*index, program, 0)?;
    }
    Ok(())
}

/// Pins the program that captures put in place; a running capture moves on to it.
pub(super) fn pin_capture(ebpf: &mut Ebpf, pins: &Pins) -> Result<(), LoadError> {
    let path = pins.capture_program();
    unpin(&path)?;
    let program = xdp(ebpf, Slot::Around.program());
    let program =
        program.map_err(|error| PinError::io("make it", &path, io::Error::other(error)))?;
    pin(&path, |path| program.pin(path))?;
    Ok(())
}

fn xdp<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut Xdp, ProgramError> {
    ebpf.program_mut(name)
        .ok_or(ProgramError::UnexpectedProgramType)?
        .try_into()
}
