//! The first engine: the library's functions in this process.

use xdp_prog::{
    frame::HostFrame,
    process::{Action, process, resume},
};

use super::{
    kernel::INGRESS,
    tables::{Event, ModelTables},
};

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) action: Action,
    pub(crate) bytes: Vec<u8>,
    pub(crate) events: Vec<Event>,
}

/// Takes one frame through the host functions.
pub(crate) fn run(tables: &ModelTables<'_>, input: &[u8], headroom: usize) -> Outcome {
    let mut frame = HostFrame::with_headroom(input, headroom);
    let mut action = process(&mut frame, tables, INGRESS);
    let duties = tables.duties();
    while let Action::Continue(stage) = action {
        assert!(
            stage.is_reached(duties),
            "{stage:?} is not loaded on a machine with {duties:?}"
        );
        action = resume(stage, &mut frame, tables, INGRESS);
    }
    Outcome {
        action,
        bytes: frame.bytes().to_vec(),
        events: tables.take_events(),
    }
}
