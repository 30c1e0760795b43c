//! The result of a run: a directory with `result.json` and the histograms that its figures are made of.
//!
//! | file | holds |
//! |---|---|
//! | `result.json` | a [`Run`]; its JSON Schema is `bench/result.schema.json` |
//! | `SERIES.STREAM.hlog` | one histogram an interval, with the round as tag (HdrHistogram log, format 1.3) |
//! | `SERIES.STREAM.hgrm` | its percentile distribution over all rounds, in microseconds |
//! | `SERIES.STREAM.csv` | the same, one line for each distinct value, in nanoseconds |
//!
//! Figures come from the logs alone, by [`figures`]: histograms are merged, percentiles are never averaged. So
//! whoever has the directory can compute every figure again, and `verify` does.

mod directory;
mod distribution;
mod doubts;
mod log;
mod measurement;
mod model;
#[cfg(test)]
pub(crate) mod tests;

pub use directory::{Files, ResultError, Streams, digest};
pub use distribution::{Distribution, Percentile, merge, new_histogram};
pub use doubts::CEILING;
pub(crate) use doubts::OF_FULL_TABLE;
pub use log::{Interval, read_log, start_of_log, write_csv, write_hgrm, write_log};
pub use measurement::Measurement;
pub use model::{
    Comparability, Figures, Happened, KEPT_UP, Quietness, Run, SCHEMA_VERSION, Series, Stream,
    Tool, Trial, figures,
};
