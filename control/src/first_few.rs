//! Shortens a list of names to one line.

use std::fmt::Display;

const NAMED: usize = 5;

/// Returns the first few names, and the number of the others.
pub(crate) fn first_few<T: Display>(names: impl IntoIterator<Item = T>) -> String {
    let mut names = names.into_iter();
    let named: Vec<String> = names
        .by_ref()
        .take(NAMED)
        .map(|name| name.to_string())
        .collect();
    let named = named.join(", ");
    match names.count() {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_few_are_named_and_the_others_counted() {
        assert_eq!(first_few(1..=3), "1, 2, 3");
        assert_eq!(first_few(1..=5), "1, 2, 3, 4, 5");
        assert_eq!(first_few(1..=7), "1, 2, 3, 4, 5 and 2 more");
    }
}
