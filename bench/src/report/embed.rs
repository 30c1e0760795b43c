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
    use crate::{result::tests::sample, stats::SplitMix64};

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

    #[test]
    fn a_bucket_that_was_moved_is_found_though_its_digest_was_made_to_fit() {
        let mut files = sample(1, 1.4);
        let intervals = files.series.get_mut("direct-1").unwrap();
        let intervals = intervals
            .get_mut(&crate::result::Stream::RoundTrip)
            .unwrap();
        let histogram = &mut intervals[0].histogram;
        let value = histogram.max();
        histogram.subtract(single(value)).unwrap();
        histogram.record(value / 2).unwrap();
        let log = crate::result::write_log(
            "direct-1",
            crate::result::Stream::RoundTrip,
            1_795_219_200.0,
            intervals,
        );
        let (name, log) = ("direct-1.round-trip.hlog", log.unwrap());
        let digest = crate::result::digest(log.as_bytes());
        files.json = files.json.replace(&files.run.files[name], &digest);
        files.logs.insert(name.to_owned(), log);
        let error = verify(&render(&[files])).unwrap_err();
        assert!(
            matches!(error, ReportError::Result(ResultError::Edited { .. })),
            "{error:?}"
        );
    }

    fn single(value: u64) -> hdrhistogram::Histogram<u64> {
        let mut histogram = crate::result::new_histogram();
        histogram.record(value).unwrap();
        histogram
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
