//! Parts of the documentation that are made of rows that were measured and are kept.

use std::{env, fs, path::Path};

use serde::de::DeserializeOwned;

/// What ends a part.
const END: &str = "<!-- end -->\n";

fn directory() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Reads the rows of a file beside this crate's manifest, one JSON object a line.
pub(crate) fn rows<R: DeserializeOwned>(file: &str) -> Vec<R> {
    let rows = fs::read_to_string(directory().join(file)).unwrap();
    let rows = rows.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.collect()
}

/// Checks that the part of a page after the line `begin` is what was made, or writes it so.
pub(crate) fn expect_part(page: &str, begin: &str, made: &str) {
    expect_page(page, |text| {
        let (before, rest) = text.split_once(begin).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        [before, begin, "\n", made, END, after].concat()
    });
}

/// Checks that a page is what is made of it, or writes it so.
pub(crate) fn expect_page(page: &str, made_of: impl Fn(&str) -> String) {
    let path = directory().join(page);
    let made = made_of(&fs::read_to_string(&path).unwrap());
    if env::var_os("GUIDEWAY_WRITE_DOCS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text == made,
        "bench/{page} has other figures; write them anew with: make reference"
    );
}
