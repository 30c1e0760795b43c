//! What the documentation tells `helm` and `kubectl` is taken as it stands there.

use std::path::Path;

use super::chart::{deploy, template};

#[test]
fn values_that_pages_set_render() {
    let mut count = 0;
    for (page, text) in pages() {
        for code in text
            .replace("\\\n", " ")
            .lines()
            .flat_map(|line| line.split('`'))
        {
            let words = shlex::split(code).unwrap_or_default();
            let pairs = words.windows(2).filter(|pair| pair[0] == "--set");
            let values: Vec<&str> = pairs.map(|pair| pair[1].as_str()).collect();
            if values.is_empty() {
                continue;
            }
            count += 1;
            let output = template(&values);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{page}: {values:?}: {errors}");
        }
    }
    assert!(count > 5, "{count}");
}

/// The objects that pages have applied from their text, each with its page.
pub(crate) fn documents() -> Vec<(String, String)> {
    let mut documents = Vec::new();
    for (page, text) in pages() {
        let applied = text.split("<<EOF\n").skip(1);
        let applied = applied.filter_map(|part| part.split("\nEOF").next());
        let shown = text.split("```yaml\n").skip(1);
        let shown = shown.filter_map(|part| part.split("```").next());
        let objects = applied.chain(shown.filter(|text| text.starts_with("apiVersion")));
        documents.extend(objects.map(|objects| (page.clone(), objects.to_owned())));
    }
    documents
}

/// The README and every page of the documentation, by name.
fn pages() -> Vec<(String, String)> {
    let readme = deploy("../README.md");
    let docs = std::fs::read_dir(deploy("docs")).unwrap();
    let docs = docs.map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    std::iter::once(readme)
        .chain(docs)
        .map(|path| (name(&path), std::fs::read_to_string(&path).unwrap()))
        .collect()
}
