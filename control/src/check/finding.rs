//! Findings of `guideway check`, and the page that shows them.

use serde::Serialize;

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

/// Width of the page in characters; `detail` and `remedy` are wrapped to it.
const WIDTH: usize = 80;

/// Formats the findings in columns, with the number of each severity at the end.
pub(crate) fn page(findings: &[Finding]) -> String {
    let widest = |length: fn(&Finding) -> usize| findings.iter().map(length).max().unwrap_or(0);
    let subject = widest(|finding| finding.subject.len());
    let check = widest(|finding| finding.check.len());
    let margin = "WARN  ".len() + subject + 2 + check + 2;
    let mut page = String::new();
    for finding in findings {
        let severity = match finding.severity {
            Severity::Ok => "OK",
            Severity::Warn => "WARN",
            Severity::Fail => "FAIL",
        };
        page.push_str(&format!(
            "{severity:<4}  {:<subject$}  {:<check$}  ",
            finding.subject, finding.check
        ));
        page.push_str(&wrapped(&finding.detail, margin));
        if !finding.remedy.is_empty() {
            page.push_str(&" ".repeat(margin));
            page.push_str(&wrapped(&format!("-> {}", finding.remedy), margin));
        }
    }
    let number = |severity| {
        let of_severity = findings
            .iter()
            .filter(|finding| finding.severity == severity);
        of_severity.count()
    };
    page.push_str(&format!(
        "\n{} OK, {} WARN, {} FAIL\n",
        number(Severity::Ok),
        number(Severity::Warn),
        number(Severity::Fail)
    ));
    page
}

/// Wraps a text between words. The first line starts at column `margin`; the others are indented to it.
fn wrapped(text: &str, margin: usize) -> String {
    let room = WIDTH.saturating_sub(margin).max(20);
    let mut page = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > room {
            page.push('\n');
            page.push_str(&" ".repeat(margin));
            used = 0;
        } else if used > 0 {
            page.push(' ');
            used += 1;
        }
        page.push_str(word);
        used += length;
    }
    page.push('\n');
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_wrapped_to_80_columns_and_ends_with_the_sums() {
        let mut report = SubjectReport::of("enp1s0f0np0");
        report.ok("merging offloads", "off");
        report.warn(
            "merging offloads",
            "some words ".repeat(20),
            "other words ".repeat(10),
        );
        let page = page(&report.findings);
        assert!(
            page.lines()
                .all(|line| line.len() <= WIDTH && line.trim_end() == line),
            "{page}"
        );
        assert!(page.ends_with("\n1 OK, 1 WARN, 0 FAIL\n"), "{page}");
    }
}
