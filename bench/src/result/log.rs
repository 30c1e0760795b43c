//! Histograms as files that other programs read.
//!
//! The formats are those of HdrHistogram's Java implementation: `HistogramLogWriter`, log format 1.3, and
//! `AbstractHistogram.outputPercentileDistribution`.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hdrhistogram::{
    Histogram,
    serialization::{
        Deserializer, V2DeflateSerializer,
        interval_log::{IntervalLogIterator, IntervalLogWriterBuilder, LogEntry, Tag},
    },
};

use super::{ResultError, Stream, directory::stem, new_histogram};

/// Nanoseconds of the unit that files for readers use.
const MICROSECOND_NS: f64 = 1_000.0;
/// Steps of a percentile distribution until the distance to 100 % is halved.
const STEPS_PER_HALF: u32 = 5;

/// The comment that tells the unit.
const UNIT: &str = "[Unit: nanoseconds; Interval_Max in microseconds]";

/// Returns the comment that tells what the values are, and whether they are corrected.
fn contents(series: &str, stream: Stream) -> String {
    format!("[{series}, {}: {}]", stream.name(), stream.meaning())
}

/// The values of one interval of a trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// The trial's round.
    pub round: u32,
    /// Begin of the interval, from the start of the run.
    pub start: Duration,
    /// Its length.
    pub length: Duration,
    /// The values, in nanoseconds.
    pub histogram: Histogram<u64>,
}

/// Writes the intervals of a stream as an interval log. `started` is the start of the run, in seconds since the epoch.
///
/// # Errors
///
/// When a histogram cannot be encoded.
pub fn write_log(
    series: &str,
    stream: Stream,
    started: f64,
    intervals: &[Interval],
) -> Result<String, ResultError> {
    let unwritable = |error: &dyn std::fmt::Display| ResultError::Histogram {
        file: format!("{series}.{}", stream.name()),
        reason: error.to_string(),
    };
    let base: SystemTime = UNIX_EPOCH + Duration::from_secs_f64(started);
    let (mut text, mut serializer) = (Vec::new(), V2DeflateSerializer::new());
    let mut writer = IntervalLogWriterBuilder::new()
        .add_comment("[Histogram log format version 1.3]")
        .add_comment(&contents(series, stream))
        .add_comment(UNIT)
        .with_start_time(base)
        .with_base_time(base)
        .with_max_value_divisor(MICROSECOND_NS)
        .begin_log_with(&mut text, &mut serializer)
        .map_err(|error| unwritable(&error))?;
    for interval in intervals {
        let tag = format!("round-{}", interval.round);
        writer
            .write_histogram(
                &interval.histogram,
                interval.start,
                interval.length,
                Tag::new(&tag),
            )
            .map_err(|error| unwritable(&error))?;
    }
    drop(writer);
    let text = String::from_utf8(text).map_err(|error| unwritable(&error))?;
    // Java's reader skips this line; its plotter expects it. The writer has no way to put it after the header.
    const LEGEND: &str = "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n";
    let header = text
        .lines()
        .take_while(|line| line.starts_with('#'))
        .map(|line| line.len() + 1)
        .sum();
    let (header, body) = text.split_at(header);
    Ok([header, LEGEND, body].concat())
}

/// Reads an interval log that [`write_log`] wrote.
///
/// # Errors
///
/// When the text is cut off, the log is of another series, stream or unit, an interval is of no round, or a histogram is
/// damaged or has other bounds.
pub fn read_log(series: &str, stream: Stream, text: &str) -> Result<Vec<Interval>, ResultError> {
    let broken = |reason: &dyn std::fmt::Display| ResultError::Histogram {
        file: stem(series, stream) + ".hlog",
        reason: reason.to_string(),
    };
    for comment in [&contents(series, stream), UNIT] {
        if !text
            .lines()
            .any(|line| line.strip_prefix('#') == Some(comment))
        {
            return Err(broken(&format!("it does not say \"#{comment}\"")));
        }
    }
    let text: String = text
        .split_inclusive('\n')
        .filter(|line| !line.starts_with('"'))
        .collect();
    if !text.ends_with('\n') {
        return Err(broken(&"it does not end with a whole line"));
    }
    let mut intervals = Vec::new();
    for entry in IntervalLogIterator::new(text.as_bytes()) {
        let entry = entry.map_err(|error| broken(&format!("it is no interval log: {error:?}")))?;
        let LogEntry::Interval(interval) = entry else {
            continue;
        };
        let round = interval
            .tag()
            .and_then(|tag| tag.as_str().strip_prefix("round-")?.parse().ok())
            .ok_or_else(|| broken(&"an interval has no tag round-N"))?;
        intervals.push(Interval {
            round,
            start: interval.start_timestamp(),
            length: interval.duration(),
            histogram: decode(interval.encoded_histogram()).map_err(|reason| broken(&reason))?,
        });
    }
    Ok(intervals)
}

/// Returns the start of the run since the epoch, if a log tells it.
pub fn start_of_log(text: &str) -> Option<Duration> {
    IntervalLogIterator::new(text.as_bytes()).find_map(|entry| match entry {
        Ok(LogEntry::StartTime(start)) => Some(start),
        _ => None,
    })
}

fn decode(encoded: &str) -> Result<Histogram<u64>, String> {
    let bytes = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, encoded)
        .map_err(|error| format!("a histogram is not base64: {error}"))?;
    let histogram: Histogram<u64> = Deserializer::new()
        .deserialize(&mut bytes.as_slice())
        .map_err(|error| format!("a histogram is damaged: {error:?}"))?;
    let ours = new_histogram();
    if (histogram.low(), histogram.high(), histogram.sigfig())
        != (ours.low(), ours.high(), ours.sigfig())
    {
        return Err(format!(
            "a histogram has the bounds {} to {} with {} digits, not {} to {} with {}: other units",
            histogram.low(),
            histogram.high(),
            histogram.sigfig(),
            ours.low(),
            ours.high(),
            ours.sigfig()
        ));
    }
    Ok(histogram)
}

/// Writes a percentile distribution in microseconds.
pub fn write_hgrm(histogram: &Histogram<u64>) -> String {
    let mut text = format!(
        "{:>12} {:>14} {:>10} {:>14}\n\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    );
    let micros = |ns: u64| ns as f64 / MICROSECOND_NS;
    let mut below = 0;
    for step in histogram.iter_quantiles(STEPS_PER_HALF) {
        below += step.count_since_last_iteration();
        let (value, share) = (
            micros(step.value_iterated_to()),
            step.quantile_iterated_to(),
        );
        // Writing to a string cannot fail.
        let _ = if share < 1.0 {
            let inverse = 1.0 / (1.0 - share);
            writeln!(
                text,
                "{value:>12.3} {share:.12} {below:>10} {inverse:>14.2}"
            )
        } else {
            writeln!(text, "{value:>12.3} {share:.12} {below:>10}")
        };
    }
    let (mean, stdev) = (histogram.mean(), histogram.stdev());
    let _ = write!(
        text,
        "#[Mean    = {:>12.3}, StdDeviation   = {:>12.3}]\n\
         #[Max     = {:>12.3}, Total count    = {:>12}]\n\
         #[Buckets = {:>12}, SubBuckets     = {:>12}]\n",
        mean / MICROSECOND_NS,
        stdev / MICROSECOND_NS,
        micros(histogram.max()),
        histogram.len(),
        histogram.buckets(),
        (2 * 10_u32.pow(histogram.sigfig().into())).next_power_of_two(),
    );
    text
}

/// Writes one line for each distinct value: the value in nanoseconds, its count, and the share of values up to it.
pub fn write_csv(histogram: &Histogram<u64>) -> String {
    let mut text = "value_ns,count,cumulative_share\n".to_owned();
    let mut below = 0;
    for bucket in histogram.iter_recorded() {
        let count = bucket.count_since_last_iteration();
        below += count;
        let share = below as f64 / histogram.len() as f64;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{},{count},{share}", bucket.value_iterated_to());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals() -> Vec<Interval> {
        (0..4_u32)
            .map(|number| {
                let mut histogram = new_histogram();
                for value in 1..500_u64 {
                    histogram
                        .record(value * value * u64::from(number + 1))
                        .unwrap();
                }
                Interval {
                    round: 1 + number / 2,
                    start: Duration::from_millis(u64::from(number) * 1_000 + 3),
                    length: Duration::from_secs(1),
                    histogram,
                }
            })
            .collect()
    }

    #[test]
    fn logs_have_the_lines_of_format_1_3_and_are_read_back() {
        let text = write_log("direct", Stream::RoundTrip, 1_795_219_200.5, &intervals()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "#[Histogram log format version 1.3]");
        assert!(text.contains("\n#[StartTime: 1795219200.500 (seconds since epoch)"));
        assert!(text.contains("\n\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\","));
        let first = lines.iter().find(|line| line.starts_with("Tag=")).unwrap();
        assert!(first.starts_with("Tag=round-1,0.003,1.000,249."), "{first}");
        assert!(first.contains(",HISTFAAA"), "{first}");
        assert_eq!(
            read_log("direct", Stream::RoundTrip, &text).unwrap(),
            intervals()
        );
        assert_eq!(
            start_of_log(&text),
            Some(Duration::from_secs_f64(1_795_219_200.5))
        );
    }

    #[test]
    fn cut_off_and_damaged_logs_are_refused_by_name() {
        let text = write_log("direct", Stream::RoundTrip, 0.0, &intervals()).unwrap();
        let message = |text: &str| {
            let error = read_log("direct", Stream::RoundTrip, text).unwrap_err();
            error.to_string()
        };
        assert!(message(&text[..text.len() - 40]).contains("direct.round-trip.hlog"));
        let untagged = text.replace("Tag=round-2,", "");
        assert!(message(&untagged).contains("round-N"));
        let damaged = text.replacen("HISTFA", "HISTEA", 1);
        assert!(message(&damaged).contains("damaged"), "{damaged}");
    }

    #[test]
    fn logs_of_another_stream_series_or_correction_are_refused() {
        let text = write_log("direct", Stream::RoundTrip, 0.0, &intervals()).unwrap();
        let message = |series, stream, text: &str| {
            let error = read_log(series, stream, text).unwrap_err();
            error.to_string()
        };
        let uncorrected = Stream::RoundTripUncorrected;
        assert!(message("direct", uncorrected, &text).contains("not corrected"));
        assert!(message("routing", Stream::RoundTrip, &text).contains("#[routing, "));
        let twice = text.replacen("corrected at its source", "corrected again", 1);
        assert!(message("direct", Stream::RoundTrip, &twice).contains("at its source"));
        let millis = text.replacen("Unit: nanoseconds", "Unit: milliseconds", 1);
        assert!(message("direct", Stream::RoundTrip, &millis).contains("nanoseconds"));
    }

    #[test]
    fn distributions_have_four_columns_and_the_last_line_three() {
        let text = write_hgrm(&intervals()[0].histogram);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            lines[0],
            ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
        );
        assert!(lines[1].is_empty());
        let (last, steps) = lines[2..].split_last().unwrap();
        assert!(steps.iter().all(|columns| columns.len() == 4));
        assert_eq!(last[1..], ["1.000000000000", "499"]);
        assert!(text.ends_with("SubBuckets     =         2048]\n"), "{text}");
    }

    #[test]
    fn csv_adds_up_to_all_values() {
        let histogram = &intervals()[0].histogram;
        let text = write_csv(histogram);
        let counts = text.lines().skip(1).map(|line| {
            let count = line.split(',').nth(1).unwrap();
            count.parse::<u64>().unwrap()
        });
        assert_eq!(counts.sum::<u64>(), histogram.len());
        assert!(text.ends_with(",1\n"));
    }
}
