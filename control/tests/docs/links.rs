//! Every link leads to a file and a heading that exist.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::page::{pages, root};

#[test]
fn links_lead_to_files_and_headings_that_exist() {
    let pages = pages();
    let anchors: BTreeMap<&Path, _> = pages
        .iter()
        .map(|page| (page.path.as_path(), &page.anchors))
        .collect();
    let mut broken = Vec::new();
    for page in &pages {
        for link in &page.links {
            if link.text.contains("://") {
                continue;
            }
            let (path, anchor) = link.text.split_once('#').unwrap_or((&link.text, ""));
            let target = match path {
                "" => page.path.clone(),
                path => normal(&page.path.parent().unwrap().join(path)),
            };
            let leads = root().join(&target).exists()
                && (anchor.is_empty()
                    || anchors
                        .get(target.as_path())
                        .is_some_and(|anchors| anchors.contains(anchor)));
            if !leads {
                broken.push(format!("{}: {}", link.at, link.text));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "links that lead nowhere:\n{}",
        broken.join("\n")
    );
}

/// Takes `..` out of a path.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}
