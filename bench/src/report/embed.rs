//! The measured data inside a page: put in, taken out, and held against the page.

use std::collections::BTreeMap;

use maud::{Markup, PreEscaped, html};

use super::render;
use crate::result::{Files, ResultError};

/// Name of the block that holds `result.json`.
const JSON: &str = "result.json";
/// Begin of a block. No script: browsers run nothing of this type.
const OPEN: &str = "<script type=\"application/octet-stream\" id=\"";
const CLOSE: &str = "</script>";

/// Why a page is not what was measured.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The page has no data, or not all.
    #[error("the report holds no complete result: {0}")]
    Data(String),
    /// The data is damaged or edited.
    #[error("the embedded result was changed")]
    Result(#[from] ResultError),
    /// The page is not the one that the data makes.
    #[error(
        "line {line} of the report is not what its data makes; there is ...{found}..., which should be ...{expected}..."
    )]
    Page {
        /// Line, from 1.
        line: usize,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
    },
    /// Another version of the program made the page.
    #[error(
        "the report was made by {found}, this is {own}: verify it with the version that made it"
    )]
    Generator {
        /// The version in the page.
        found: String,
        /// The own version.
        own: String,
    },
}

/// Returns the blocks of a result. Its files are there as they are, but for `<`, which JSON can write in another way.
pub(super) fn blocks(files: &Files, number: usize) -> Markup {
    let json = escape(&files.json);
    let logs = files
        .logs
        .iter()
        .map(|(name, log)| (name.as_str(), log.as_str()));
    let blocks = [(JSON, json.as_str())].into_iter().chain(logs);
    html! {
        @for (name, content) in blocks {
            script type="application/octet-stream" id={ (number) "/" (name) } { (PreEscaped(content)) }
        }
    }
}

/// Strings of JSON alone can hold the character; `serde_json` never writes it this way itself.
fn escape(json: &str) -> String {
    json.replace('<', "\\u003c")
}

/// Checks a page: takes the data out, computes every figure from the histograms again, and makes the page again.
///
/// # Errors
///
/// The first thing that differs.
pub fn verify(page: &str) -> Result<Vec<Files>, ReportError> {
    let results = extract(page)?;
    agree(page, &render(&results))?;
    Ok(results)
}

fn agree(page: &str, expected: &str) -> Result<(), ReportError> {
    if page == expected {
        return Ok(());
    }
    let (own, found) = (generator(expected), generator(page));
    if own != found {
        return Err(ReportError::Generator { found, own });
    }
    Err(difference(page, expected))
}

fn extract(page: &str) -> Result<Vec<Files>, ReportError> {
    let mut texts: BTreeMap<usize, BTreeMap<String, String>> = BTreeMap::new();
    let mut rest = page;
    while let Some((_, block)) = rest.split_once(OPEN) {
        let cut = || ReportError::Data("a block of data is cut off".to_owned());
        let (id, block) = block.split_once("\">").ok_or_else(cut)?;
        let (content, after) = block.split_once(CLOSE).ok_or_else(cut)?;
        let (number, name) = id.split_once('/').ok_or_else(cut)?;
        let number = number.parse().map_err(|_| cut())?;
        let result = texts.entry(number).or_default();
        result.insert(name.to_owned(), content.to_owned());
        rest = after;
    }
    if texts.is_empty() {
        return Err(ReportError::Data("there is no data in it".to_owned()));
    }
    let results = texts.into_values().map(|mut logs| {
        let missing = || ReportError::Data("there is no result.json in it".to_owned());
        let json = logs.remove(JSON).ok_or_else(missing)?;
        Ok(Files::of_texts(json.replace("\\u003c", "<"), logs)?)
    });
    results.collect()
}

fn generator(page: &str) -> String {
    let after = page.split_once("name=\"generator\" content=\"");
    let name = after.and_then(|(_, after)| after.split('"').next());
    name.unwrap_or("nobody").to_owned()
}

fn difference(page: &str, expected: &str) -> ReportError {
    let same = page
        .bytes()
        .zip(expected.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    let line = 1 + page
        .bytes()
        .take(same)
        .filter(|&byte| byte == b'\n')
        .count();
    let excerpt = |text: &str| {
        let bytes = text.as_bytes();
        let bytes = &bytes[same.saturating_sub(20)..bytes.len().min(same + 40)];
        String::from_utf8_lossy(bytes).into_owned()
    };
    ReportError::Page {
        line,
        found: excerpt(page),
        expected: excerpt(expected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    use crate::{
        result::{Stream, digest, new_histogram, tests::sample, write_log},
        stats::SplitMix64,
    };

    fn page() -> String {
        render(&[sample(1, 1.4), sample(2, 1.0)])
    }

    #[test]
    fn a_page_verifies_and_gives_its_results_back() {
        let results = verify(&page()).unwrap();
        let names: Vec<usize> = results.iter().map(|files| files.run.series.len()).collect();
        assert_eq!(names, [2, 2]);
        assert!(results[0].run.environment["kernel.release"].contains("</script>"));
    }

    /// Each digit of the page is part of a figure, a bucket, a fact, or where something stands.
    #[test]
    fn each_of_200_random_edits_is_found() {
        let page = render(&[sample(1, 1.4)]);
        let places: Vec<usize> = page
            .bytes()
            .enumerate()
            .filter(|(_, byte)| byte.is_ascii_digit())
            .map(|(place, _)| place)
            .collect();
        // Half of the edits hit the part that is read, half the data.
        let begin = page.find(OPEN).unwrap();
        let (read, data): (Vec<usize>, Vec<usize>) = places.iter().partition(|&&at| at < begin);
        let mut random = SplitMix64::new(3);
        for edit in 0..200 {
            let part = if edit % 2 == 0 { &read } else { &data };
            let place = part[random.below(part.len())];
            let mut edited = page.clone().into_bytes();
            let digit = edited[place] - b'0';
            let other = u8::try_from(1 + random.below(9)).unwrap();
            edited[place] = b'0' + (digit + other) % 10;
            let edited = String::from_utf8(edited).unwrap();
            // What is computed again follows from the data alone, which an edit before it leaves as it is.
            let found = if place < begin {
                agree(&edited, &page)
            } else {
                verify(&edited).map(drop)
            };
            assert!(found.is_err(), "edit {edit} at {place}");
        }
    }

    /// Returns where the figures of a result are: every number of them.
    fn places_of_figures(value: &Value, path: &str, is_figure: bool) -> Vec<String> {
        let deeper = |(key, value): (&str, &Value)| {
            let is_figure = is_figure || ["figures", "shares"].contains(&key);
            places_of_figures(value, &format!("{path}/{key}"), is_figure)
        };
        match value {
            Value::Number(_) if is_figure => vec![path.to_owned()],
            Value::Array(all) => {
                let keys: Vec<String> = (0..all.len()).map(|place| place.to_string()).collect();
                keys.iter()
                    .map(String::as_str)
                    .zip(all)
                    .flat_map(deeper)
                    .collect()
            }
            Value::Object(all) => all
                .iter()
                .map(|(key, value)| (key.as_str(), value))
                .flat_map(deeper)
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Changes a number of the figures.
    fn forge_figure(files: &mut Files, random: &mut SplitMix64) {
        let mut run: Value = serde_json::from_str(&files.json).unwrap();
        let places = places_of_figures(&run["series"], "/series", false);
        let place = run
            .pointer_mut(&places[random.below(places.len())])
            .unwrap();
        let by = 1 + random.below(9);
        *place = match place.as_u64() {
            Some(number) => (number + by as u64).into(),
            None => (place.as_f64().unwrap() + by as f64 / 10.0).into(),
        };
        files.json = run.to_string();
    }

    /// Moves a value of a random histogram, and makes the digest fit.
    fn forge_bucket(files: &mut Files, random: &mut SplitMix64) {
        let names: Vec<String> = files.series.keys().cloned().collect();
        let name = &names[random.below(names.len())];
        let stream = Stream::ALL[random.below(Stream::ALL.len())];
        let started = files.started().unwrap().as_secs_f64();
        let intervals = files
            .series
            .get_mut(name)
            .unwrap()
            .get_mut(&stream)
            .unwrap();
        let place = random.below(intervals.len());
        let histogram = &mut intervals[place].histogram;
        let values: Vec<u64> = histogram
            .iter_recorded()
            .map(|one| one.value_iterated_to())
            .collect();
        let value = values[random.below(values.len())];
        let mut one = new_histogram();
        one.record(value).unwrap();
        histogram.subtract(one).unwrap();
        histogram.record(value * 2 + 3).unwrap();
        let log = write_log(name, stream, started, intervals).unwrap();
        let file = format!("{name}.{}.hlog", stream.name());
        files.json = files
            .json
            .replace(&files.run.files[&file], &digest(log.as_bytes()));
        files.logs.insert(file, log);
    }

    #[test]
    fn each_of_200_figures_and_buckets_is_found_though_digests_and_page_were_made_to_fit() {
        let files = sample(1, 1.4);
        let mut random = SplitMix64::new(9);
        for edit in 0..200 {
            let mut forged = files.clone();
            let forge = if edit % 2 == 0 {
                forge_figure
            } else {
                forge_bucket
            };
            forge(&mut forged, &mut random);
            // This is what a check of the page begins with.
            let found = Files::of_texts(forged.json.clone(), forged.logs.clone());
            assert!(
                matches!(found, Err(ResultError::Edited { .. })),
                "edit {edit}: {found:?}"
            );
            if edit < 10 {
                forged.run = serde_json::from_str(&forged.json).unwrap();
                let error = verify(&render(&[forged])).unwrap_err();
                assert!(
                    matches!(error, ReportError::Result(_)),
                    "edit {edit}: {error:?}"
                );
            }
        }
    }

    #[test]
    fn pages_without_data_and_of_other_versions_are_refused_as_such() {
        assert!(matches!(verify("<html>"), Err(ReportError::Data(_))));
        let cut = page();
        let cut = &cut[..cut.rfind(CLOSE).unwrap()];
        assert!(matches!(verify(cut), Err(ReportError::Data(_))));
        let other = page().replacen("guideway-bench 0.", "guideway-bench 9.", 1);
        assert!(matches!(verify(&other), Err(ReportError::Generator { .. })));
    }

    #[test]
    fn the_page_runs_nothing_and_asks_for_nothing() {
        let page = page();
        assert!(page.contains("default-src 'none'; style-src 'sha256-"));
        for forbidden in ["src=", "href=", "url(", "@import", "onload", "style="] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        for script in page.split("<script").skip(1) {
            assert!(script.starts_with(" type=\"application/octet-stream\""));
        }
    }
}
