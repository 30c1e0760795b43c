//! Reasons why a capture fails.

use std::io;

use aya::{maps::MapError, programs::ProgramError};
use xdp_prog::capture::{INTERFACES, Slot};

use crate::{
    pins::PinError,
    refusal::{Refusal, is_refusal},
};

/// Reasons why frames cannot be captured.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error(transparent)]
    Pins(#[from] PinError),
    #[error(
        "the program is attached to no interface, by the pins below {root}; \
         is the agent running, with this pin directory?"
    )]
    NotAttached { root: String },
    #[error("interface {name}: the program is not attached to it, but to {attached}")]
    OtherInterface {
        name: String,
        /// The interfaces that the program is attached to.
        attached: String,
    },
    #[error("more than {INTERFACES} interfaces; name none to capture on all")]
    Interfaces,
    #[error(
        "the running agent counts other reasons than this program knows: they are of different builds; use the \
         agent's own"
    )]
    OtherBuild,
    #[error("process {owner} captures already; there is one capture at a time on a machine")]
    Busy { owner: u32 },
    #[error("cannot {attempt}: {refusal}")]
    Refused {
        attempt: String,
        refusal: Refusal,
        #[source]
        source: io::Error,
    },
    #[error("cannot use map {map}")]
    Map {
        map: &'static str,
        #[source]
        source: Box<MapError>,
    },
    #[error("cannot open the pinned program {}", Slot::Around.program())]
    Program(#[source] Box<ProgramError>),
    #[error("cannot wait for frames")]
    Wait(#[source] io::Error),
}

pub(super) fn failed(map: &'static str) -> impl Fn(MapError) -> CaptureError {
    move |error| match error {
        MapError::SyscallError(error) if is_refusal(&error.io_error) => CaptureError::Refused {
            attempt: format!("use map {map}"),
            refusal: Refusal::of_bpf(),
            source: error.io_error,
        },
        source => CaptureError::Map {
            map,
            source: Box::new(source),
        },
    }
}

pub(super) fn not_opened(error: ProgramError) -> CaptureError {
    match error {
        ProgramError::SyscallError(error) if is_refusal(&error.io_error) => CaptureError::Refused {
            attempt: "open the capture program".to_owned(),
            refusal: Refusal::of_bpf(),
            source: error.io_error,
        },
        source => CaptureError::Program(Box::new(source)),
    }
}
