//! Findings of `guideway check`, and the page that shows them.

use serde::Serialize;

use crate::render::{Page, printable};

/// The judgement about a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Severity {
    /// The fact is as it should be.
    Ok,
    /// It works, but slower or with a risk.
    Warn,
    /// It does not work.
    Fail,
}

/// A fact with its judgement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// Subject of the finding: `kernel`, `process`, `config`, `kubernetes`, an interface or an edge.
    pub(crate) subject: String,
    /// The property that was checked.
    pub(crate) check: &'static str,
    pub(crate) detail: String,
    /// What to do; empty if nothing.
    pub(crate) remedy: String,
}

/// Collects the findings about one subject.
pub(crate) struct SubjectReport {
    subject: String,
    pub(crate) findings: Vec<Finding>,
}

impl SubjectReport {
    pub(crate) fn of(subject: &str) -> Self {
        Self {
            subject: subject.to_owned(),
            findings: Vec::new(),
        }
    }

    pub(crate) fn ok(&mut self, check: &'static str, detail: impl Into<String>) {
        self.find(Severity::Ok, check, detail.into(), String::new());
    }

    pub(crate) fn warn(
        &mut self,
        check: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.find(Severity::Warn, check, detail.into(), remedy.into());
    }

    pub(crate) fn fail(
        &mut self,
        check: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.find(Severity::Fail, check, detail.into(), remedy.into());
    }

    fn find(&mut self, severity: Severity, check: &'static str, detail: String, remedy: String) {
        self.findings.push(Finding {
            severity,
            subject: self.subject.clone(),
            check,
            detail,
            remedy,
        });
    }
}

/// Formats the findings in columns, with the number of each severity at the end.
pub(crate) fn page(findings: &[Finding], page: &mut Page) {
    let widest = |length: fn(&Finding) -> usize| findings.iter().map(length).max().unwrap_or(0);
    let subject = widest(|finding| finding.subject.len());
    let check = widest(|finding| finding.check.len());
    for finding in findings {
        let severity = match finding.severity {
            Severity::Ok => "OK",
            Severity::Warn => "WARN",
            Severity::Fail => "FAIL",
        };
        let lead = format!(
            "{severity:<4}  {:<subject$}  {:<check$}  ",
            printable(&finding.subject),
            finding.check
        );
        page.hanging(&lead, lead.len(), &finding.detail);
        if !finding.remedy.is_empty() {
            let remedy = format!("-> {}", finding.remedy);
            page.hanging(&" ".repeat(lead.len()), lead.len(), &remedy);
        }
    }
    let number = |severity| {
        let of_severity = findings
            .iter()
            .filter(|finding| finding.severity == severity);
        of_severity.count()
    };
    page.line("");
    page.line(&format!(
        "{} OK, {} WARN, {} FAIL",
        number(Severity::Ok),
        number(Severity::Warn),
        number(Severity::Fail)
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_fits_its_terminal_and_ends_with_the_sums() {
        let address = "[2001:db8:1234:5678:9abc:def0:1234:5678]:10256";
        let mut report = SubjectReport::of("enp1s0f0np0");
        report.ok("merging offloads", "off");
        report.warn(
            "merging offloads",
            format!("{}{address}", "some words ".repeat(20)),
            "other words ".repeat(10),
        );
        for width in [80, 160] {
            let mut drawn = Page::new(width);
            page(&report.findings, &mut drawn);
            let page = drawn.into_text();
            for line in page.lines() {
                assert!(line.len() <= width && line.trim_end() == line, "{page}");
            }
            assert!(page.contains(address), "{page}");
            assert_eq!(page.matches("other").count(), 10, "{page}");
            assert!(page.ends_with("\n1 OK, 1 WARN, 0 FAIL\n"), "{page}");
        }
    }
}
