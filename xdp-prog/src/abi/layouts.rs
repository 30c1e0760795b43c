//! Ties the layouts of the tables, and the lists that index them, to [`VERSION`] and to the numbers in [`CONTINUITY`].
//!
//! Fingerprints cover declarations in the source, without comments: the types in maps, with their fields in order and
//! their sizes, the maps themselves, flags and widths, and every list whose positions are indices. None of these types
//! has padding, so the order and the types of the fields give their offsets.
//!
//! A map's own fingerprint covers the map, the types that it names, the types and widths that these name, and the flags
//! that are documented as theirs by a link. Words that a type packs by hand are named by the documentation of the map.
//!
//! `released.txt` has the fingerprints of the last release. Whoever releases runs these tests with
//! `GUIDEWAY_WRITE_LAYOUTS=1`, which writes it.

extern crate std;

use std::{
    collections::BTreeSet,
    env, format, fs,
    path::{Path, PathBuf},
    string::{String, ToString},
    vec,
    vec::Vec,
};

use super::{CONTINUITY, VERSION, map};
use crate::{failure::Failure, reason, stage::Stage};

/// Marks a line that belongs to the layout of the tests alone.
const TEST_LAYOUT: &str = "#[cfg(feature = \"test-layout\")]";

#[test]
fn version_rises_once_per_release_with_the_layouts() {
    let Released { version, all, .. } = released();
    if fingerprint(&all_texts(&declarations())) == all {
        assert_eq!(
            VERSION, version,
            "VERSION was raised, but layouts and reasons are those of the last release: put VERSION back"
        );
    } else {
        assert_eq!(
            VERSION,
            version + 1,
            "layouts of tables, maps, flags or lists of reasons differ from those of the last release: raise VERSION \
             in xdp-prog/src/abi.rs, and say so in CHANGELOG.md. Once per release is enough"
        );
    }
}

#[test]
fn number_of_a_layout_rises_with_the_layout() {
    let declared = declarations();
    let released = released();
    for known in CONTINUITY {
        let name = known.map;
        let actual = fingerprint(&declared_for(&declared, name));
        let expected = match released.map(name) {
            Some((layout, fingerprint)) if fingerprint == actual => layout,
            _ => VERSION,
        };
        assert_eq!(
            known.layout, expected,
            "{name}: an unchanged layout keeps the number of the last release, a changed or new one gets VERSION, in \
             xdp-prog/src/abi/continuity.rs. For a changed one, fastpath/src/tables/inherit.rs converts what must go on. If \
             only the wording changed (a type under another name in the same place), this holds all the same"
        );
    }
}

#[test]
fn each_map_is_listed_once_and_is_there() {
    let declared = declarations();
    let mut seen = BTreeSet::new();
    for known in CONTINUITY {
        assert!(seen.insert(known.map), "{} is listed twice", known.map);
        let of_map = declared_for(&declared, known.map);
        let begins = format!("static {}:", known.map);
        assert!(of_map[0].starts_with(&begins), "{begins} {of_map:?}");
    }
}

#[test]
fn fingerprint_tells_every_part_of_a_declaration() {
    let source = "/// A comment.\n#[repr(C)]\npub struct A {\n    /// One.\n    pub a: u32,\n    b: [u8; 4],\n}\n\
                  pub struct B(pub u64);\nplain_data! {\n    A: 8,\n}\npub const FLAG: u8 = 1;\n\
                  #[btf_map]\nstatic M: HashMap<A, u32, 4> =\n    HashMap::new();\n";
    let of = |source: &str| fingerprint(&all_texts(&declarations_in(source)));
    for (part, other) in [
        ("pub a: u32", "pub a: i32"),
        ("pub a: u32", "pub c: u32"),
        ("    b: [u8; 4],\n", ""),
        ("[u8; 4]", "[u8; 8]"),
        ("B(pub u64)", "B(pub u32)"),
        ("A: 8", "A: 12"),
        ("FLAG: u8 = 1", "FLAG: u8 = 2"),
        ("HashMap<A, u32, 4>", "LruHashMap<A, u32, 4>"),
        ("static M", "static N"),
    ] {
        let changed = source.replacen(part, other, 1);
        assert_ne!(changed, source, "{part} is not there");
        assert_ne!(of(&changed), of(source), "{part} -> {other}");
    }
    let reworded = source
        .replace("/// One.", "/// Two.")
        .replace("A comment.", "Another one.");
    assert_eq!(of(&reworded), of(source));
}

#[test]
fn fingerprint_of_a_map_tells_what_the_map_names_and_nothing_else() {
    const SOURCE: &str = "\
pub struct Key(u64);
impl Key {
    const WIDTH: u32 = 8;
}
pub struct Value {
    inner: Inner,
}
pub struct Inner {
    word: u64,
}
pub struct Packed(pub u32);
impl Packed {
    const BIT: u32 = 1;
}
pub struct Other(u64);
plain_data! {
    Inner: 8,
    Other: 8,
}
/// [`Value::inner`]: a flag.
pub const FLAG: u8 = 1;
/// [`Other`]: a flag.
pub const OTHER_FLAG: u8 = 1;
pub mod map {
    /// Hash from [`super::Key`] to [`super::Value`], two [`super::Packed`]s.
    pub const M: &str = \"M\";
}
static M: HashMap<Key, Value, 4> = HashMap::new();
static N: HashMap<Key, Other, 4> = HashMap::new();
";
    let of = |source: &str| fingerprint(&declared_for(&declarations_in(source), "M"));
    let change = |part: &str, other| SOURCE.replacen(part, other, 1);
    for (part, other) in [
        ("Key(u64)", "Key(u32)"),
        ("WIDTH: u32 = 8", "WIDTH: u32 = 9"),
        ("inner: Inner", "outer: Inner"),
        ("word: u64", "word: [u32; 2]"),
        ("Packed(pub u32)", "Packed(pub u16)"),
        ("BIT: u32 = 1", "BIT: u32 = 2"),
        ("Inner: 8", "Inner: 9"),
        ("const FLAG: u8 = 1", "const FLAG: u8 = 2"),
        ("M: HashMap<Key", "M: LruHashMap<Key"),
    ] {
        assert_ne!(of(&change(part, other)), of(SOURCE), "{part} -> {other}");
    }
    for (part, other) in [
        ("Other(u64)", "Other(u32)"),
        ("Other: 8", "Other: 9"),
        ("OTHER_FLAG: u8 = 1", "OTHER_FLAG: u8 = 2"),
        ("N: HashMap<Key", "N: LruHashMap<Key"),
    ] {
        assert_eq!(of(&change(part, other)), of(SOURCE), "{part} -> {other}");
    }
}

#[test]
fn no_source_of_declarations_is_missed() {
    let declared = declarations();
    for part in [
        "struct PodFlow {",
        "struct Settings {",
        "struct Config {",
        "Service: 64",
        "static FLOWS: LruHashMap<Tuple, PodFlow",
        "static CAPTURE_SETTINGS",
        "const SERVICE_NAT: u32 = 16",
        "reason pass runt_frame",
        "stage guideway_receive",
        "failure no_device",
    ] {
        let is_part = |one: &Declaration| one.text.replace("pub ", "").contains(part);
        assert!(declared.iter().any(is_part), "{part} is in no declaration");
    }
    let of = |map, part: &str| {
        declared_for(&declared, map)
            .iter()
            .any(|one| one.contains(part))
    };
    for (map, part) in [
        (map::LUT, "const PAST: u32"),
        (map::PASTS, "const PINNED: u32"),
        (map::PINS, "const MARK: u64"),
        (map::VIPS, "const ADDRESS_INNER: u32"),
        (map::BACKENDS, "const BACKEND_DOWN: u32"),
        (map::CONFIG, "const CONFIG_MEND: u32"),
        (map::FLOWS, "const FLOW_ASKED: u8"),
        (map::NAT_FORWARD, "const NAT_CONDEMNED: u8"),
        (map::SERVICE, "const LOG2_BITS: u32"),
        (map::LOCAL_FLOWS, "const CLOSED: u64"),
    ] {
        assert!(of(map, part), "{part} is not in the layout of {map}");
    }
    assert!(!of(map::FLOWS, "NatMark"));
}

/// The fingerprints of the last release.
struct Released {
    version: u32,
    /// Of all declarations.
    all: u64,
    /// Each map with the number of its layout, and its fingerprint.
    maps: Vec<(String, u32, u64)>,
}

impl Released {
    fn map(&self, name: &str) -> Option<(u32, u64)> {
        let mut maps = self.maps.iter();
        let found = maps.find(|(map, ..)| map == name);
        found.map(|(_, layout, fingerprint)| (*layout, *fingerprint))
    }
}

/// Reads the file of the last release; makes it of this one first, if that is asked for.
fn released() -> Released {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/abi/released.txt");
    if env::var_os("GUIDEWAY_WRITE_LAYOUTS").is_some() {
        fs::write(&path, release()).unwrap();
    }
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| {
        let [name, number, fingerprint]: [&str; 3] =
            line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let fingerprint = u64::from_str_radix(fingerprint, 16).unwrap();
        (name.to_string(), number.parse().unwrap(), fingerprint)
    });
    let (_, version, all) = lines.next().unwrap();
    Released {
        version,
        all,
        maps: lines.collect(),
    }
}

/// Writes the present fingerprints as those of a release.
fn release() -> String {
    let declared = declarations();
    let line =
        |name, number, texts: &[String]| format!("{name} {number} {:016x}\n", fingerprint(texts));
    let mut text = line("VERSION", VERSION, &all_texts(&declared));
    for known in CONTINUITY {
        text += &line(known.map, known.layout, &declared_for(&declared, known.map));
    }
    text
}

/// A declaration, without comments, in one line.
struct Declaration {
    text: String,
    /// The type whose width or size it is.
    of: Option<String>,
    /// What its documentation links to.
    links: Vec<String>,
}

impl Declaration {
    fn new(text: String) -> Self {
        Self {
            text,
            of: None,
            links: Vec::new(),
        }
    }

    /// Returns the name behind a keyword.
    fn name_of(&self, keyword: &str) -> Option<&str> {
        let (_, rest) = self.text.split_once(keyword)?;
        rest.split(|part: char| !is_of_name(part)).next()
    }

    fn is_map(&self) -> bool {
        self.text.starts_with("static ")
    }

    fn is_map_name(&self) -> bool {
        self.text.contains(": &str")
    }

    /// Tells whether it is a type of this name, belongs to one, or is a flag of this name or of one.
    fn belongs_to(&self, names: &BTreeSet<String>) -> bool {
        let is_named = |name: Option<&str>| name.is_some_and(|name| names.contains(name));
        // A width is known by its type: several types have one of the same name.
        let is_flag = self.of.is_none() && self.name_of("const ").is_some();
        is_named(self.of.as_deref())
            || is_named(self.name_of("struct "))
            || is_flag && is_named(self.name_of("const "))
            || is_flag && self.links.iter().any(|link| names.contains(link))
    }
}

/// Lists the declarations that make up the layout of a map, the map's own first.
fn declared_for(declared: &[Declaration], map: &str) -> Vec<String> {
    let own = declared
        .iter()
        .find(|one| one.is_map() && one.name_of("static ") == Some(map));
    let own = own.map_or("", |own| &own.text);
    let mut names: BTreeSet<String> = names_in(own).map(str::to_string).collect();
    let documented = declared
        .iter()
        .find(|one| one.is_map_name() && one.name_of("const ") == Some(map));
    names.extend(documented.into_iter().flat_map(|one| one.links.clone()));
    loop {
        let others = declared
            .iter()
            .filter(|one| !one.is_map() && !one.is_map_name() && one.belongs_to(&names));
        let others: Vec<String> = others.map(|one| one.text.clone()).collect();
        let known = names.len();
        names.extend(
            others
                .iter()
                .flat_map(|one| names_in(one))
                .map(str::to_string),
        );
        if names.len() == known {
            return [vec![own.to_string()], others].concat();
        }
    }
}

fn names_in(text: &str) -> impl Iterator<Item = &str> {
    let names = text.split(|part: char| !is_of_name(part));
    names.filter(|name| name.starts_with(char::is_uppercase) && *name != "Self")
}

fn is_of_name(part: char) -> bool {
    part.is_alphanumeric() || part == '_'
}

/// Lists every declaration that must not change under one version, and the names of maps.
fn declarations() -> Vec<Declaration> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = sources_below(&source.join("abi"));
    files.extend([source.join("abi.rs"), source.join("capture.rs")]);
    let mut declared = Vec::new();
    for file in files {
        declared.extend(declarations_in(&fs::read_to_string(file).unwrap()));
    }
    for file in sources_below(&source.join("bin/guideway")) {
        let found = declarations_in(&fs::read_to_string(file).unwrap());
        declared.extend(found.into_iter().filter(Declaration::is_map));
    }
    let kind = |kind| format!("{kind:?}").to_lowercase();
    let reasons = reason::all().map(|(of, label)| format!("reason {} {label}", kind(of)));
    let failures = Failure::ALL.map(|cause| format!("failure {}", cause.label()));
    let stages = Stage::ALL.map(|stage| format!("stage {}", stage.program()));
    let lists = reasons.chain(failures).chain(stages);
    declared.extend(lists.map(Declaration::new));
    declared
}

fn sources_below(directory: &Path) -> Vec<PathBuf> {
    const NO_LAYOUTS: [&str; 3] = ["layouts.rs", "continuity.rs", "released.txt"];
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources_below(&path));
        } else if NO_LAYOUTS.iter().all(|name| !path.ends_with(name)) {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Finds declarations as rustfmt leaves them.
fn declarations_in(source: &str) -> Vec<Declaration> {
    let product = source
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(source);
    let mut lines = product.lines();
    let mut declared = Vec::new();
    let mut links = Vec::new();
    let mut implemented = None;
    while let Some(line) = lines.next() {
        if line.trim() == TEST_LAYOUT {
            lines.next();
        } else if let Some(comment) = line.trim().strip_prefix("///") {
            links.extend(links_in(comment));
        } else if let Some(ends) = end_of_declaration(line.trim()) {
            let whole = declaration(line, ends, &mut lines);
            let links = core::mem::take(&mut links);
            match entries_of_sizes(&whole) {
                Some(entries) => declared.extend(entries),
                None => declared.push(Declaration {
                    of: implemented.clone().filter(|_| whole.contains("const ")),
                    links,
                    text: whole,
                }),
            }
        } else {
            implemented = match line {
                "}" => None,
                line => implementation(line).or(implemented),
            };
            if line.is_empty() || line.contains("fn ") {
                links.clear();
            }
        }
    }
    declared
}

/// Reads a declaration to its end, in one line. The constructor of a map does not belong to its layout.
fn declaration<'s>(
    first: &'s str,
    ends: &str,
    lines: &mut impl Iterator<Item = &'s str>,
) -> String {
    let mut whole = uncommented(first).to_string();
    while !whole.ends_with(ends) {
        let Some(line) = lines.next() else { break };
        if line.trim() == TEST_LAYOUT {
            lines.next();
        } else if !line.contains("not(feature = \"test-layout\")") {
            whole.push(' ');
            whole.push_str(uncommented(line));
        }
    }
    let words: Vec<&str> = whole.split_whitespace().collect();
    let whole = words.join(" ");
    match whole.starts_with("static ") || whole.starts_with("pub static ") {
        true => whole.split(" = ").next().unwrap_or(&whole).to_string(),
        false => whole,
    }
}

fn uncommented(line: &str) -> &str {
    line.split("//").next().unwrap_or("").trim()
}

/// Splits a list of sizes; `None` if it is something else.
fn entries_of_sizes(whole: &str) -> Option<Vec<Declaration>> {
    let (head, list) = whole.split_once('{')?;
    if !head.ends_with("plain_data! ") {
        return None;
    }
    let entries = list.trim_end_matches('}').split(',').map(str::trim);
    let entries = entries.filter_map(|entry| {
        let (name, _) = entry.split_once(':')?;
        Some(Declaration {
            of: Some(name.to_string()),
            ..Declaration::new(entry.to_string())
        })
    });
    Some(entries.collect())
}

/// Returns the type that an `impl` block is of, which begins with this line.
fn implementation(line: &str) -> Option<String> {
    let rest = line.strip_prefix("impl")?;
    let of = rest.rsplit(" for ").next().unwrap_or(rest);
    names_in(of).next().map(str::to_string)
}

/// Lists the types and flags that a comment links to: `A` of "[`A::b`]", and of "[`super::A`]".
fn links_in(comment: &str) -> Vec<String> {
    let links = comment.split("[`").skip(1);
    let links = links.filter_map(|link| Some(link.split_once("`]")?.0));
    links
        .filter_map(|link| names_in(link).next())
        .map(str::to_string)
        .collect()
}

/// Returns the end of the declaration that begins with this line; `None` if none begins.
fn end_of_declaration(line: &str) -> Option<&'static str> {
    let line = line
        .trim_start_matches("pub(crate) ")
        .trim_start_matches("pub(super) ")
        .trim_start_matches("pub ");
    if line.starts_with("struct ") || line.starts_with("enum ") {
        return Some(if line.contains('{') { "}" } else { ";" });
    }
    if line.ends_with("plain_data! {") {
        return Some("}");
    }
    let is_number = [": u8 =", ": u16 =", ": u32 =", ": u64 =", ": &str ="];
    let is_flag = line.starts_with("const ") && is_number.iter().any(|kind| line.contains(kind));
    let is_version = line.starts_with("const VERSION");
    let is_map = line.starts_with("static ") && line.contains('<');
    ((is_flag && !is_version) || is_map).then_some(";")
}

fn all_texts(declared: &[Declaration]) -> Vec<String> {
    declared.iter().map(|one| one.text.clone()).collect()
}

/// Hashes the declarations by FNV-1a, which gives the same result on every host.
fn fingerprint(declared: &[String]) -> u64 {
    let bytes = declared.iter().flat_map(|one| one.bytes().chain([b'\n']));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
