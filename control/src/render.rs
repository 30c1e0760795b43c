//! Formats pages, tables and numbers for people. Columns are aligned and as wide as their content; numbers are aligned
//! to the right. No line is wider than its page: texts are wrapped at spaces, and the rows of a table that is too wide
//! go on in a second line. Nothing is cut.

use std::fmt::Display;
use std::iter::repeat_n;

/// A page, of lines that are no longer than its width.
#[derive(Debug)]
pub struct Page {
    width: usize,
    text: String,
}

impl Page {
    /// The width of a page whose lines stay whole.
    pub const ENDLESS: usize = usize::MAX;

    /// Creates a page of some width.
    pub const fn new(width: usize) -> Self {
        let text = String::new();
        Self { width, text }
    }

    /// Adds a line. What follows a break is indented.
    pub fn line(&mut self, text: &str) {
        self.hanging("", 2, text);
    }

    /// Adds indented lines. What follows a break is indented further.
    pub fn note(&mut self, text: &str) {
        for line in text.lines() {
            self.hanging("  ", 4, line);
        }
    }

    /// Adds a line that begins with a lead. What follows a break begins at column `indent`.
    pub fn hanging(&mut self, lead: &str, indent: usize, text: &str) {
        self.text += lead;
        let text = printable(&text.replace('\n', " "));
        hang(&mut self.text, self.width, indent, &text);
        self.text.truncate(self.text.trim_end_matches(' ').len());
        self.text.push('\n');
    }

    /// Adds a table, or the line `none` if it has no rows.
    pub fn table<const COLUMNS: usize>(&mut self, table: &Table<COLUMNS>, none: &str) {
        if table.rows.is_empty() {
            return self.line(none);
        }
        table.write(&mut self.text, self.width);
    }

    /// Returns the text.
    pub fn into_text(self) -> String {
        self.text
    }
}

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

    /// Writes titles and rows to a page of some width.
    fn write(&self, page: &mut String, page_width: usize) {
        let line_length: usize = self.widths.iter().map(|width| width + GAP.len()).sum();
        page.reserve((self.rows.len() + 1) * line_length);
        self.line(page, page_width, self.titles.into_iter().map(heading));
        for row in &self.rows {
            self.line(page, page_width, row.split(BETWEEN_CELLS));
        }
    }

    /// Writes these cells. A column that finds no room begins a second line, in every row alike.
    fn line<'c>(&self, page: &mut String, page_width: usize, cells: impl Iterator<Item = &'c str>) {
        let mut used = 0;
        for ((cell, width), title) in cells.zip(self.widths).zip(self.titles) {
            if title.is_empty() {
                continue;
            }
            if used > 0 && used + width > page_width {
                break_line(page);
                page.push_str(GAP);
                used = GAP.len();
            }
            match title.starts_with('>') {
                // The next column finds no room behind it.
                _ if used + width > page_width => hang(page, page_width, used, cell),
                true => page.push_str(&format!("{cell:>width$}")),
                false => page.push_str(&format!("{cell:<width$}")),
            }
            page.push_str(GAP);
            used += width + GAP.len();
        }
        break_line(page);
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

/// Writes a text behind what is in the last line, wrapped at spaces. What follows a break begins at column `indent`, or
/// further left for a long word, so that no address is broken. Only a word that is longer than a line is.
fn hang(page: &mut String, page_width: usize, indent: usize, text: &str) {
    let begin = page.rfind('\n').map_or(0, |at| at + 1);
    let mut used = width(&page[begin..]);
    let mut gap = "";
    for word in text.split(' ') {
        let length = width(word);
        if used + gap.len() + length > page_width {
            break_line(page);
            used = indent.min(page_width.saturating_sub(length));
            page.extend(repeat_n(' ', used));
            gap = "";
        }
        page.push_str(gap);
        for (at, letter) in word.chars().enumerate() {
            if at > 0 && at % page_width == 0 {
                page.push('\n');
            }
            page.push(letter);
        }
        used += gap.len() + length;
        gap = " ";
    }
}

/// Ends the last line, without space at its end, unless it is empty.
fn break_line(page: &mut String) {
    page.truncate(page.trim_end_matches(' ').len());
    if !page.is_empty() && !page.ends_with('\n') {
        page.push('\n');
    }
}

/// Escapes text from elsewhere, so that it cannot control the terminal. Quotes and backslashes stay.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            // The only case but for an attack, and faster than to ask what it would be escaped as.
            ' '..='~' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
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

    fn shown<const COLUMNS: usize>(table: &Table<COLUMNS>, width: usize) -> String {
        let mut page = Page::new(width);
        page.table(table, "none");
        page.into_text()
    }

    #[test]
    fn columns_line_up_and_lines_have_no_trailing_space() {
        let mut table = Table::new(["NAME", ">PACKETS", "NOTE"]);
        table.row([&"web", &7, &""]);
        table.row([&"a-long-name", &123_456_789, &"x"]);
        assert_eq!(
            shown(&table, Page::ENDLESS),
            "NAME           PACKETS  NOTE\n\
             web                  7\n\
             a-long-name  123456789  x\n"
        );
    }

    #[test]
    fn columns_without_room_go_on_in_a_second_line_of_every_row() {
        let mut table = Table::new(["NAME", "ADDRESS", ">PACKETS", "NOTE"]);
        table.row([&"web", &"192.0.2.10:80/tcp", &7, &""]);
        table.row([&"a", &"b", &8, &"some words in a cell"]);
        assert_eq!(
            shown(&table, 23),
            "NAME  ADDRESS\n  PACKETS\n  NOTE\n\
             web   192.0.2.10:80/tcp\n        7\n\
             a     b\n        8\n  some words in a cell\n"
        );
        assert_eq!(
            shown(&table, 17),
            "NAME\n  ADDRESS\n  PACKETS\n  NOTE\n\
             web\n192.0.2.10:80/tcp\n        7\n\
             a\n  b\n        8\n  some words in a\n  cell\n"
        );
    }

    #[test]
    fn empty_table_says_so() {
        assert_eq!(shown(&Table::new(["NAME"]), 80), "none\n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let mut table = Table::new(["NAME"]);
        table.row([&"\x1b[2Jx"]);
        assert!(!shown(&table, 80).contains('\x1b'));
        let mut page = Page::new(80);
        page.note("\x1b[2Jx");
        assert!(!page.into_text().contains('\x1b'));
    }

    #[test]
    fn columns_without_a_title_are_not_shown() {
        let mut table = Table::new(["NAME", "", ">PACKETS"]);
        table.row([&"web", &"hidden", &7]);
        assert_eq!(shown(&table, 80), "NAME  PACKETS\nweb         7\n");
    }

    #[test]
    fn texts_break_at_spaces_and_long_words_begin_further_left() {
        let cases = [
            ("ab cd efghij k", "- ab cd\n  efghij\n  k\n"),
            ("ab cdefghi jk", "- ab\n cdefghi\n  jk\n"),
            ("0123456789abcdefg h", "-\n01234567\n89abcdef\ng\n  h\n"),
            ("", "-\n"),
        ];
        for (text, wrapped) in cases {
            let mut page = Page::new(8);
            page.hanging("- ", 2, text);
            assert_eq!(page.into_text(), wrapped);
        }
        let mut page = Page::new(8);
        page.note("12345678 ab\ncd");
        page.line("");
        page.line("ab cd\nefg hi");
        assert_eq!(
            page.into_text(),
            "12345678\n    ab\n  cd\n\nab cd\n  efg hi\n"
        );
        let mut page = Page::new(Page::ENDLESS);
        page.note(&"words ".repeat(100));
        assert_eq!(page.into_text().lines().count(), 1);
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
