//! The directory of a result: written after each round, read and checked whole.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::Serialize as _;

use super::{
    Comparability, Interval, Measurement, Run, SCHEMA_VERSION, Stream,
    doubts::{Checks, breach_of_littles_law},
    figures, merge,
    model::Trial,
    read_log, start_of_log, write_csv, write_hgrm, write_log,
};
use crate::{environment, probe::Tally};

/// Name of the file with everything but the histograms.
const JSON: &str = "result.json";

/// The intervals of each stream of a series.
pub type Streams = BTreeMap<Stream, Vec<Interval>>;

/// Why a result cannot be written, read or trusted.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// A file cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The result is of another version of the format.
    #[error(
        "result.json has schema_version {found}, this program reads {SCHEMA_VERSION}: use the guideway-bench that wrote it"
    )]
    Version {
        /// The version that was found.
        found: String,
    },
    /// `result.json` does not have the form of its schema.
    #[error("result.json is cut off or has another form than its schema: {reason}")]
    Form {
        /// The parser's message, with line and column.
        reason: String,
    },
    /// A file of histograms cannot be used.
    #[error("{file}: {reason}")]
    Histogram {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something was changed after it was measured.
    #[error("{what} does not agree with the measured data: {details}")]
    Edited {
        /// The figure or file.
        what: String,
        /// What is there, and what should be.
        details: String,
    },
}

/// Returns the SHA-256 of bytes in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A result with its files.
#[derive(Clone, Debug)]
pub struct Files {
    /// What `result.json` says.
    pub run: Run,
    /// `result.json` as written.
    pub json: String,
    /// The interval logs as written, by name.
    pub logs: BTreeMap<String, String>,
    /// The intervals of each series.
    pub series: BTreeMap<String, Streams>,
}

/// Returns the name of a stream's file, without its ending.
pub(super) fn stem(series: &str, stream: Stream) -> String {
    format!("{series}.{}", stream.name())
}

impl Files {
    /// Computes all figures of a run from its histograms, and makes its files.
    ///
    /// # Errors
    ///
    /// When a histogram cannot be encoded.
    pub fn make(
        mut run: Run,
        started: f64,
        series: BTreeMap<String, Streams>,
    ) -> Result<Self, ResultError> {
        let mut logs = BTreeMap::new();
        run.files.clear();
        for (name, streams) in &series {
            for (&stream, intervals) in streams {
                let log = write_log(name, stream, started, intervals)?;
                let file = stem(name, stream) + ".hlog";
                run.files.insert(file.clone(), digest(log.as_bytes()));
                logs.insert(file, log);
            }
        }
        // The log has milliseconds: figures are those of what is read back.
        let series = read_series(&run, &logs)?;
        compute(&mut run, &series);
        let json = write_json(&run).map_err(|error| ResultError::Form {
            reason: error.to_string(),
        })?;
        Ok(Self {
            run,
            json,
            logs,
            series,
        })
    }

    /// Writes the directory, in place of the whole of what is there: it is never a mixture of two results.
    ///
    /// # Errors
    ///
    /// When a file cannot be written, or the file system cannot exchange two directories in one step.
    pub fn write(&self, directory: &Path) -> Result<(), ResultError> {
        let draft = directory.with_added_extension("draft");
        remove(&draft)?;
        fs::create_dir_all(&draft).map_err(failed("create", &draft))?;
        let write = |name: &str, content: &str| {
            let path = draft.join(name);
            fs::write(&path, content).map_err(failed("write", &path))
        };
        for (name, log) in &self.logs {
            write(name, log)?;
        }
        for (name, streams) in &self.series {
            for (&stream, intervals) in streams {
                let all = merge(intervals.iter().map(|interval| &interval.histogram));
                let stem = stem(name, stream);
                write(&format!("{stem}.hgrm"), &write_hgrm(&all))?;
                write(&format!("{stem}.csv"), &write_csv(&all))?;
            }
        }
        write(JSON, &self.json)?;
        let flags = if directory.exists() {
            RenameFlags::EXCHANGE
        } else {
            RenameFlags::NOREPLACE
        };
        renameat_with(CWD, &draft, CWD, directory, flags)
            .map_err(|errno| failed("replace", directory)(errno.into()))?;
        remove(&draft)
    }

    /// Reads the result in a directory and checks it. A directory that is absent or empty has none.
    ///
    /// # Errors
    ///
    /// As for [`Files::read`].
    pub fn find(directory: &Path) -> Result<Option<Self>, ResultError> {
        let is_empty = match fs::read_dir(directory) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if is_empty {
            return Ok(None);
        }
        Self::read(directory).map(Some)
    }

    /// Returns the start of the run since the epoch, as the logs have it.
    ///
    /// # Errors
    ///
    /// When there is no log.
    pub fn started(&self) -> Result<Duration, ResultError> {
        let start = self.logs.values().find_map(|log| start_of_log(log));
        start.ok_or_else(|| ResultError::Histogram {
            file: "every .hlog".to_owned(),
            reason: "it tells no start".to_owned(),
        })
    }

    /// Reads a directory and checks it.
    ///
    /// # Errors
    ///
    /// When a file is missing, damaged, of another version or edited.
    pub fn read(directory: &Path) -> Result<Self, ResultError> {
        let read = |name: &str| {
            let path = directory.join(name);
            fs::read_to_string(&path).map_err(failed("read", &path))
        };
        let json = read(JSON)?;
        let run = parse(&json)?;
        let logs = run.files.keys().map(|name| Ok((name.clone(), read(name)?)));
        let logs = logs.collect::<Result<_, ResultError>>()?;
        Self::of_texts(json, logs)
    }

    /// Takes a result from the texts of its files and checks it.
    ///
    /// # Errors
    ///
    /// As for [`Files::read`].
    pub fn of_texts(json: String, logs: BTreeMap<String, String>) -> Result<Self, ResultError> {
        let run = parse(&json)?;
        check_digests(&run, &logs)?;
        let series = read_series(&run, &logs)?;
        let files = Self {
            run,
            json,
            logs,
            series,
        };
        files.check()?;
        Ok(files)
    }

    /// Computes every figure again and compares.
    fn check(&self) -> Result<(), ResultError> {
        for series in &self.run.series {
            for trial in &series.trials {
                let name = format!("round {} of {}", trial.round, series.name);
                check_tally(&name, trial)?;
                if !series.is_timed() {
                    continue;
                }
                let of_round = |stream| -> u64 {
                    let intervals = self.series[&series.name][&stream].iter();
                    let own = intervals.filter(|interval| interval.round == trial.round);
                    own.map(|interval| interval.histogram.len()).sum()
                };
                expect(
                    &name,
                    "round trips",
                    of_round(Stream::RoundTrip),
                    trial.tally.received,
                )?;
                let uncorrected = of_round(Stream::RoundTripUncorrected);
                expect(&name, "uncorrected", uncorrected, trial.tally.received)?;
                expect(
                    &name,
                    "requests",
                    of_round(Stream::Lateness),
                    trial.tally.sent,
                )?;
                let streams = self.run.scenario.streams(&series.load);
                if streams.contains(&Stream::RoundTripStamped) {
                    let stamped = of_round(Stream::RoundTripStamped);
                    let possible = stamped.min(trial.tally.received);
                    expect(&name, "stamped round trips", stamped, possible)?;
                }
                // What was answered has arrived.
                if streams.contains(&Stream::Forward) {
                    let forward = of_round(Stream::Forward);
                    let possible = forward.clamp(trial.tally.received, trial.tally.sent);
                    expect(&name, "arrivals", forward, possible)?;
                }
            }
        }
        let mut computed = self.run.clone();
        compute(&mut computed, &self.series);
        for (own, right) in self.run.series.iter().zip(&computed.series) {
            compare(&own.name, &own.figures, &right.figures)?;
            for (own_trial, right) in own.trials.iter().zip(&right.trials) {
                let what = format!("round {} of {}", own_trial.round, own.name);
                compare(&what, &own_trial.figures, &right.figures)?;
                compare(&what, &own_trial.doubts, &right.doubts)?;
            }
        }
        for (own, right) in self.run.measurements.iter().zip(&computed.measurements) {
            compare(&format!("{} of {}", own.quantity, own.subject), own, right)?;
        }
        compare(
            "the comparability",
            &self.run.comparability,
            &computed.comparability,
        )
    }
}

/// Fills in whatever follows from the rest.
fn compute(run: &mut Run, series: &BTreeMap<String, Streams>) {
    let nothing = Streams::new();
    let checks = Checks::of(run);
    for one in &mut run.series {
        let streams = &series[&one.name];
        for trial in &mut one.trials {
            let holds = !trial.is_overloaded() && breach_of_littles_law(trial, streams).is_none();
            let counted = if holds { streams } else { &nothing };
            trial.figures = figures(counted, Some(trial.round));
            trial.doubts = checks.doubts(trial, &one.system, &one.load, streams);
        }
        let breached = |trial: &Trial| breach_of_littles_law(trial, streams).is_some();
        let holds = !one.is_overloaded() && !one.trials.iter().any(breached);
        let counted = if holds { streams } else { &nothing };
        one.figures = figures(counted, None);
    }
    run.measurements.iter_mut().for_each(Measurement::compute);
    run.comparability = Comparability::of(environment::comparable(&run.environment, &run.scenario));
}

fn read_series(
    run: &Run,
    logs: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, Streams>, ResultError> {
    let mut all = BTreeMap::new();
    for series in &run.series {
        let mut streams = Streams::new();
        for stream in run.scenario.streams(&series.load) {
            let file = stem(&series.name, stream) + ".hlog";
            let log = logs.get(&file).ok_or_else(|| ResultError::Histogram {
                file: file.clone(),
                reason: "it is missing".to_owned(),
            })?;
            streams.insert(stream, read_log(&series.name, stream, log)?);
        }
        all.insert(series.name.clone(), streams);
    }
    Ok(all)
}

/// Writes a run as lines of JSON. Reports embed it: with tabs they are a seventh smaller than with two spaces.
fn write_json(run: &Run) -> serde_json::Result<String> {
    let mut json = Vec::new();
    let tabs = serde_json::ser::PrettyFormatter::with_indent(b"\t");
    run.serialize(&mut serde_json::Serializer::with_formatter(&mut json, tabs))?;
    json.push(b'\n');
    Ok(String::from_utf8(json).expect("JSON is UTF-8"))
}

fn parse(json: &str) -> Result<Run, ResultError> {
    let form = |error: serde_json::Error| ResultError::Form {
        reason: error.to_string(),
    };
    let value: serde_json::Value = serde_json::from_str(json).map_err(form)?;
    let found = &value["schema_version"];
    if *found != SCHEMA_VERSION {
        return Err(ResultError::Version {
            found: found.to_string(),
        });
    }
    // From the text once more: errors name line and column.
    serde_json::from_str(json).map_err(form)
}

fn check_digests(run: &Run, logs: &BTreeMap<String, String>) -> Result<(), ResultError> {
    for (name, expected) in &run.files {
        let log = logs.get(name).map(|log| digest(log.as_bytes()));
        if log.as_ref() != Some(expected) {
            return Err(ResultError::Edited {
                what: name.clone(),
                details: format!(
                    "its SHA-256 is {}, result.json says {expected}",
                    log.as_deref().unwrap_or("absent")
                ),
            });
        }
    }
    Ok(())
}

fn check_tally(what: &str, trial: &Trial) -> Result<(), ResultError> {
    let tally = trial.tally;
    let adds_up = |tally: Tally| {
        let accounted = tally.received + tally.lost;
        tally.sent <= tally.offered
            && accounted <= tally.sent
            && tally.sent <= accounted + tally.corrupt
    };
    let holds = adds_up(tally)
        && (trial.background.iter().chain(&trial.losses)).all(|passed| adds_up(passed.tally))
        && (trial.shares.is_empty() || trial.shares.iter().sum::<u64>() == tally.received);
    if holds {
        return Ok(());
    }
    Err(ResultError::Edited {
        what: what.to_owned(),
        details: format!("probes sent, received and lost do not add up: {tally:?}"),
    })
}

fn expect(what: &str, of: &str, histogram: u64, tally: u64) -> Result<(), ResultError> {
    if histogram == tally {
        return Ok(());
    }
    Err(ResultError::Edited {
        what: what.to_owned(),
        details: format!("{histogram} {of} are in the histograms, {tally} were counted"),
    })
}

/// Compares a written part with what it should be, as JSON: both have gone through the same text.
fn compare<T: serde::Serialize>(what: &str, own: &T, right: &T) -> Result<(), ResultError> {
    let text = |part: &T| serde_json::to_string(part).unwrap_or_default();
    let (own, right) = (text(own), text(right));
    if own == right {
        return Ok(());
    }
    let place = own
        .bytes()
        .zip(right.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    let excerpt = |text: &str| -> String {
        let start = place.saturating_sub(24);
        text.chars().skip(start).take(64).collect()
    };
    Err(ResultError::Edited {
        what: what.to_owned(),
        details: format!(
            "...{}... should be ...{}...",
            excerpt(&own),
            excerpt(&right)
        ),
    })
}

fn remove(directory: &Path) -> Result<(), ResultError> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("remove", directory)(error))
        }
        _ => Ok(()),
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ResultError {
    let path = path.to_owned();
    move |source| ResultError::File {
        action,
        path,
        source,
    }
}
