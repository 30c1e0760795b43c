//! The first engine: the library's functions in this process.

use xdp_prog::{
    decide::{Action, process},
    frame::HostFrame,
};

use super::{
    kernel::INGRESS,
    tables::{Counts, ModelTables, TableSet},
};

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) action: Action,
    pub(crate) bytes: Vec<u8>,
    pub(crate) counts: Counts,
}

/// Takes one frame through the host functions.
pub(crate) fn run(tables: &TableSet, input: &[u8], headroom: usize) -> Outcome {
    let model = ModelTables::new(tables);
    let mut frame = HostFrame::with_headroom(input, headroom);
    let action = process(&mut frame, &model, INGRESS);
    Outcome {
        action,
        bytes: frame.bytes().to_vec(),
        counts: model.take_counts(),
    }
}
