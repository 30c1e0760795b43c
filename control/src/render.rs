//! Tables for people: aligned columns, numbers to the right, as wide as their content.

/// Which side the content of a column leans to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table that is written when it is complete.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

/// Space between two columns.
const GAP: &str = "  ";

impl Table {
    /// Starts a table with these column titles.
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells stay empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows
            .push(cells.into_iter().map(|cell| printable(&cell)).collect());
    }

    /// Writes titles and rows, or `none` if there are no rows.
    pub fn render(&self, none: &str) -> String {
        if self.rows.is_empty() {
            return format!("{none}\n");
        }
        let titles: Vec<String> = self
            .columns
            .iter()
            .map(|(title, _)| (*title).to_owned())
            .collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells = self.rows.iter().chain([&titles]);
                cells
                    .filter_map(|row| row.get(column))
                    .map(|cell| width(cell))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for row in [&titles].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for (cell, ((_, align), width)) in row.iter().zip(self.columns.iter().zip(&widths)) {
                let space = " ".repeat(width - self::width(cell));
                match align {
                    Align::Left => line.extend([cell, &space, GAP]),
                    Align::Right => line.extend([&space, cell, GAP]),
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Everything shown is ASCII but for the names of interfaces, which are short.
fn width(cell: &str) -> usize {
    cell.chars().count()
}

/// Keeps text from elsewhere from steering the terminal; quotes stay as they are.
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

/// Writes a count in full below 100 000 and with three figures above: `99999`, `1.23M`.
pub fn count(value: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (1_000_000_000_000, "T"),
        (1_000_000_000, "G"),
        (1_000_000, "M"),
        (1_000, "k"),
    ];
    if value < 100_000 {
        return value.to_string();
    }
    for (unit, suffix) in UNITS {
        if value >= unit {
            let whole = value / unit;
            let hundredths = value % unit * 100 / unit;
            return match whole {
                0..10 => format!("{whole}.{hundredths:02}{suffix}"),
                10..100 => format!("{whole}.{}{suffix}", hundredths / 10),
                _ => format!("{whole}{suffix}"),
            };
        }
    }
    value.to_string()
}

/// Writes a part of a whole in per cent with two digits.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let hundredths = u128::from(part) * 10_000 / u128::from(whole);
    format!("{}.{:02}%", hundredths / 100, hundredths % 100)
}

/// Writes a time span with its two largest units: `3d 4h`, `2m 5s`.
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
        let mut table = Table::new(&[
            ("NAME", Align::Left),
            ("PACKETS", Align::Right),
            ("NOTE", Align::Left),
        ]);
        table.row(["web".to_owned(), "7".to_owned(), String::new()]);
        table.row([
            "a-long-name".to_owned(),
            "123456789".to_owned(),
            "x".to_owned(),
        ]);
        assert_eq!(
            table.render("none"),
            "NAME           PACKETS  NOTE\n\
             web                  7\n\
             a-long-name  123456789  x\n"
        );
    }

    #[test]
    fn empty_table_says_so() {
        assert_eq!(
            Table::new(&[("NAME", Align::Left)]).render("no services"),
            "no services\n"
        );
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let mut table = Table::new(&[("NAME", Align::Left)]);
        table.row(["\x1b[2Jx".to_owned()]);
        assert!(!table.render("").contains('\x1b'));
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
