//! The pages of the repository, as CommonMark reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// One page.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Below the root of the repository.
    pub(crate) path: PathBuf,
    /// The names of its headings, as links have them.
    pub(crate) anchors: BTreeSet<String>,
    /// Where its links lead.
    pub(crate) links: Vec<Text>,
    /// Its code within lines.
    pub(crate) code: Vec<Text>,
    /// Its blocks of code.
    pub(crate) blocks: Vec<Block>,
}

/// A piece of a page.
#[derive(Debug)]
pub(crate) struct Text {
    /// Page and line, for messages.
    pub(crate) at: String,
    pub(crate) text: String,
}

/// A block of code.
#[derive(Debug)]
pub(crate) struct Block {
    /// Page and line, for messages.
    pub(crate) at: String,
    /// The words behind the fence: the language first.
    pub(crate) info: String,
    pub(crate) text: String,
}

impl Block {
    /// Tells whether the first word behind the fence is this one.
    pub(crate) fn is(&self, language: &str) -> bool {
        self.info.split_whitespace().next() == Some(language)
    }
}

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Reads a file below the root.
pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every page of the repository.
pub(crate) fn pages() -> Vec<Page> {
    let mut found = Vec::new();
    for folder in [".", "bench", "control", "deploy", "fastpath", "xdp-prog"] {
        find(&root().join(folder), folder != ".", &mut found);
    }
    found.sort();
    assert!(found.len() > 20, "{found:?}");
    let below = |path: PathBuf| path.strip_prefix(root()).unwrap().to_owned();
    found
        .into_iter()
        .map(|path| Page::read(below(path)))
        .collect()
}

/// The pages for users: those that say what to type, and name what there is.
pub(crate) fn manual() -> Vec<Page> {
    let is_manual = |page: &Page| {
        page.path == Path::new("README.md")
            || page.path == Path::new("bench/README.md")
            || page.path.starts_with("deploy")
    };
    pages().into_iter().filter(is_manual).collect()
}

fn find(folder: &Path, deep: bool, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_page = path.extension().is_some_and(|extension| extension == "md");
        let is_build = path.file_name().is_some_and(|name| name == "target");
        if path.is_dir() && deep && !is_build {
            find(&path, deep, found);
        } else if is_page {
            found.push(path.components().collect());
        }
    }
}

impl Page {
    fn read(path: PathBuf) -> Self {
        let text = read(&path);
        let lines: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        let at = |offset: usize| {
            let line = lines.partition_point(|&end| end < offset) + 1;
            format!("{}:{line}", path.display())
        };
        let mut page = Self::default();
        let mut titles = BTreeMap::new();
        let mut heading: Option<String> = None;
        let mut block: Option<Block> = None;
        for (event, range) in Parser::new_ext(&text, Options::ENABLE_TABLES).into_offset_iter() {
            let at = at(range.start);
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors
                        .insert(anchor(&heading.take().unwrap(), &mut titles));
                }
                Event::Start(Tag::Link { dest_url, .. }) => page.links.push(Text {
                    at,
                    text: dest_url.into_string(),
                }),
                Event::Start(Tag::CodeBlock(kind)) => {
                    let info = match kind {
                        CodeBlockKind::Fenced(info) => info.into_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    let text = String::new();
                    block = Some(Block { at, info, text });
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Text(text) => match (&mut block, &mut heading) {
                    (Some(block), _) => block.text += &text,
                    (None, Some(heading)) => *heading += &text,
                    (None, None) => {}
                },
                Event::InlineHtml(html) => {
                    let id = html.strip_prefix("<a id=\"");
                    let id = id.and_then(|id| id.split('"').next());
                    page.anchors.extend(id.map(str::to_owned));
                }
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        *heading += &code;
                    }
                    let text = code.into_string();
                    page.code.push(Text { at, text });
                }
                _ => {}
            }
        }
        page.path = path;
        page
    }
}

/// The name of a heading in links, as GitHub makes it; a second one of the same words has a number.
fn anchor(heading: &str, titles: &mut BTreeMap<String, usize>) -> String {
    let letters = heading.trim().chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter if letter.is_alphanumeric() => Some(letter.to_ascii_lowercase()),
        _ => None,
    });
    let name: String = letters.collect();
    let count = titles.entry(name.clone()).or_default();
    *count += 1;
    match *count {
        1 => name,
        count => format!("{name}-{}", count - 1),
    }
}
