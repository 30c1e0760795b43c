//! `guideway-bench report`: results in the form that a reader or a program wants.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use bench::{redact::Redactor, report, result::Files};

use super::read;

/// The lines of a Markdown file between which the table stands.
const BEGIN: &str = "<!-- begin of the report -->\n";
const END: &str = "<!-- end of the report -->\n";

/// Reports results: as text, or in the formats that are asked for. The page has the measured data in it.
#[derive(Debug, clap::Args)]
pub(crate) struct Report {
    /// Directories of results.
    #[arg(required = true, value_name = "RESULT")]
    results: Vec<PathBuf>,
    /// Write the page to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write verdicts, comparisons and results as JSON to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the figures of all series and rounds as CSV to this file.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the figures to this file as OpenMetrics.
    #[arg(long, value_name = "FILE")]
    openmetrics: Option<PathBuf>,
    /// Write the charts as SVG into this directory.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write the first result's table into this Markdown file, between its lines `<!-- begin of the report -->` and
    /// `<!-- end of the report -->`.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Replace host names, addresses and MACs in all that is written: the same one always by the same word.
    #[arg(long)]
    redact: bool,
    /// Write the redacted results, too, into directories of this one: result-1, result-2, ..
    #[arg(long, value_name = "DIR", requires = "redact")]
    results_to: Option<PathBuf>,
}

impl Report {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let results = self.results.iter().map(|path| read(path));
        let mut results: Vec<Files> = results.collect::<Result<_>>()?;
        if self.redact {
            results = Redactor::new(&results).redact(&results)?;
        }
        if !self.write_files(&results)? {
            let texts: Vec<String> = results.iter().map(report::text).collect();
            print!("{}", texts.join("\n"));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Writes what is asked for, and returns whether anything is.
    fn write_files(&self, results: &[Files]) -> Result<bool> {
        let mut files: Vec<(PathBuf, String)> = Vec::new();
        let mut add = |path: &Option<PathBuf>, make: &dyn Fn() -> Result<String>| -> Result<()> {
            if let Some(path) = path {
                files.push((path.clone(), make()?));
            }
            Ok(())
        };
        add(&self.html, &|| Ok(report::render(results)))?;
        add(&self.json, &|| Ok(report::json(results)?))?;
        add(&self.csv, &|| Ok(report::csv(results)))?;
        add(&self.openmetrics, &|| Ok(report::open_metrics(results)))?;
        if let Some(page) = &self.markdown {
            files.push((
                page.clone(),
                with_table(page, &report::markdown(&results[0]))?,
            ));
        }
        if let Some(directory) = &self.svg {
            fs::create_dir_all(directory)
                .with_context(|| format!("creating {}", directory.display()))?;
            let drawings = report::drawings(results).into_iter();
            files.extend(drawings.map(|(name, drawing)| (directory.join(name), drawing)));
        }
        for (path, content) in &files {
            fs::write(path, content).with_context(|| format!("writing {}", path.display()))?;
        }
        if let Some(directory) = &self.results_to {
            for (number, files) in (1..).zip(results) {
                files.write(&directory.join(format!("result-{number}")))?;
            }
        }
        Ok(!files.is_empty() || self.results_to.is_some())
    }
}

/// Returns the text of a Markdown file with the table in its place.
fn with_table(page: &Path, table: &str) -> Result<String> {
    let text = fs::read_to_string(page).with_context(|| format!("reading {}", page.display()))?;
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some([before, BEGIN, table, END, after].concat())
    });
    parts.with_context(|| format!("{} lacks the line {BEGIN:?} or {END:?}", page.display()))
}
