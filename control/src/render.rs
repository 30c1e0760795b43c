//! Formats tables and numbers for people. Columns are aligned and as wide as their content; numbers are aligned
//! to the right.

use std::fmt::Display;

/// A table. It is formatted when all rows are known. A row is one text, as tables have up to 250 000 rows.
#[derive(Debug)]
pub struct Table<const COLUMNS: usize> {
    titles: [&'static str; COLUMNS],
    widths: [usize; COLUMNS],
    rows: Vec<Box<str>>,
}

/// Space between two columns.
const GAP: &str = "  ";
/// Separates the cells of a row. [`printable`] leaves no such character in a cell.
const BETWEEN_CELLS: char = '\0';

impl<const COLUMNS: usize> Table<COLUMNS> {
    /// Creates a table with column titles. A title that begins with `>` aligns its column to the right. A
    /// column without a title is not shown.
    pub fn new(titles: [&'static str; COLUMNS]) -> Self {
        Self {
            titles,
            widths: titles.map(|title| width(heading(title))),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: [&dyn Display; COLUMNS]) {
        let mut row = String::new();
        for ((cell, title), widest) in cells.into_iter().zip(self.titles).zip(&mut self.widths) {
            if !title.is_empty() {
                let cell = printable(&cell.to_string());
                *widest = width(&cell).max(*widest);
                row.push_str(&cell);
            }
            row.push(BETWEEN_CELLS);
        }
        self.rows.push(row.into());
    }

    /// Formats titles and rows. Returns the line `none` if there are no rows.
    pub fn render(&self, none: &str) -> String {
        if self.rows.is_empty() {
            return format!("{none}\n");
        }
        let line_length: usize = self.widths.iter().map(|width| width + GAP.len()).sum();
        let mut text = String::with_capacity((self.rows.len() + 1) * line_length);
        self.line(&mut text, self.titles.into_iter().map(heading));
        for row in &self.rows {
            self.line(&mut text, row.split(BETWEEN_CELLS));
        }
        text
    }

    /// Adds a line with these cells, without space at its end.
    fn line<'c>(&self, text: &mut String, cells: impl Iterator<Item = &'c str>) {
        for ((cell, width), title) in cells.zip(self.widths).zip(self.titles) {
            if title.is_empty() {
                continue;
            }
            let cell = match title.starts_with('>') {
                true => format!("{cell:>width$}{GAP}"),
                false => format!("{cell:<width$}{GAP}"),
            };
            text.push_str(&cell);
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
}

/// Returns the title as it is shown.
fn heading(title: &'static str) -> &'static str {
    title.trim_start_matches('>')
}

/// Returns the number of characters. That is the width, because everything shown is ASCII except names of interfaces.
fn width(cell: &str) -> usize {
    cell.chars().count()
}

/// Escapes text from elsewhere, so that it cannot control the terminal. Quotes and backslashes stay.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\'' | '"' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

/// Wraps a text at spaces into lines of at most `width` characters. A longer word gets a line of its own.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Formats a count: in full below 100 000, else with three digits, as in `1.23M`.
pub fn count(value: u64) -> String {
    if value < 100_000 {
        return value.to_string();
    }
    let (unit, suffix) = match value {
        1_000_000_000_000.. => (1_000_000_000_000, "T"),
        1_000_000_000.. => (1_000_000_000, "G"),
        1_000_000.. => (1_000_000, "M"),
        _ => (1_000, "k"),
    };
    let (whole, hundredths) = (value / unit, value % unit * 100 / unit);
    match whole {
        0..10 => format!("{whole}.{hundredths:02}{suffix}"),
        10..100 => format!("{whole}.{}{suffix}", hundredths / 10),
        _ => format!("{whole}{suffix}"),
    }
}

/// Formats a ratio in percent with two decimals; `-` if the whole is 0.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let hundredths = u128::from(part) * 10_000 / u128::from(whole);
    format!("{}.{:02}%", hundredths / 100, hundredths % 100)
}

/// Formats a duration in its two largest units: `3d 4h`, `2m 5s`.
pub fn duration(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m {rest}s"),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_trailing_space() {
        let mut table = Table::new(["NAME", ">PACKETS", "NOTE"]);
        table.row([&"web", &7, &""]);
        table.row([&"a-long-name", &123_456_789, &"x"]);
        assert_eq!(
            table.render("none"),
            "NAME           PACKETS  NOTE\n\
             web                  7\n\
             a-long-name  123456789  x\n"
        );
    }

    #[test]
    fn empty_table_says_so() {
        assert_eq!(Table::new(["NAME"]).render("no services"), "no services\n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let mut table = Table::new(["NAME"]);
        table.row([&"\x1b[2Jx"]);
        assert!(!table.render("").contains('\x1b'));
    }

    #[test]
    fn columns_without_a_title_are_not_shown() {
        let mut table = Table::new(["NAME", "", ">PACKETS"]);
        table.row([&"web", &"hidden", &7]);
        assert_eq!(table.render(""), "NAME  PACKETS\nweb         7\n");
    }

    #[test]
    fn texts_break_at_spaces() {
        assert_eq!(wrapped("ab cd efghij k", 5), ["ab cd", "efghij", "k"]);
        assert_eq!(wrapped("", 5), [""]);
    }

    #[test]
    fn counts_stay_short() {
        let cases = [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100k"),
            (1_234_567, "1.23M"),
            (12_345_678, "12.3M"),
            (999_999_999, "999M"),
            (u64::MAX, "18446744T"),
        ];
        for (value, text) in cases {
            assert_eq!(count(value), text);
        }
    }

    #[test]
    fn parts_and_spans() {
        assert_eq!(percent(1, 3), "33.33%");
        assert_eq!(percent(0, 0), "-");
        assert_eq!(duration(59), "59s");
        assert_eq!(duration(125), "2m 5s");
        assert_eq!(duration(7_260), "2h 1m");
        assert_eq!(duration(266_400), "3d 2h");
    }
}
