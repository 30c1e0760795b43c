//! Ties the layouts of the tables, and the lists that index them, to [`VERSION`].
//!
//! The fingerprint covers declarations in the source, without comments: the types in maps, with their fields in order
//! and their sizes, the maps themselves, flags and widths, and every list whose positions are indices. None of these
//! types has padding, so the order and the types of the fields give their offsets.

extern crate std;

use std::{
    format, fs,
    path::{Path, PathBuf},
    string::{String, ToString},
    vec::Vec,
};

use super::VERSION;
use crate::{failure::Failure, reason, stage::Stage};

/// [`VERSION`] and [`FINGERPRINT`] of the last release; each release records both here.
const RELEASED: (u32, u64) = (3, 0x7eed_d505_43ae_d031);

/// Fingerprint of the present declarations.
const FINGERPRINT: u64 = 0x2481_44d9_94a3_b498;

#[test]
fn layouts_are_those_of_the_recorded_fingerprint() {
    let declared = declarations();
    let actual = fingerprint(&declared);
    assert!(
        actual == FINGERPRINT,
        "layouts of tables, maps, flags or lists of reasons have changed.\n\
         1. Put {actual:#018x} into FINGERPRINT in xdp-prog/src/abi/layouts.rs.\n\
         2. VERSION in xdp-prog/src/abi.rs is {VERSION}, that of the last release {}: where they are equal, raise \
         VERSION by one, and say so in CHANGELOG.md. Once per release is enough.\n\
         If only the wording changed (a type under another name in the same place), 1 and 2 hold all the same.",
        RELEASED.0,
    );
}

#[test]
fn version_rises_once_per_release_with_the_layouts() {
    let (version, released) = RELEASED;
    if FINGERPRINT == released {
        assert_eq!(
            VERSION, version,
            "VERSION was raised, but layouts and reasons are those of the last release: put VERSION back"
        );
    } else {
        assert_eq!(
            VERSION,
            version + 1,
            "layouts or reasons differ from those of the last release, whose VERSION was {version}: VERSION in \
             xdp-prog/src/abi.rs must be one higher"
        );
    }
}

#[test]
fn fingerprint_tells_every_part_of_a_declaration() {
    let source = "/// A comment.\n#[repr(C)]\npub struct A {\n    /// One.\n    pub a: u32,\n    b: [u8; 4],\n}\n\
                  pub struct B(pub u64);\nplain_data! {\n    A: 8,\n}\npub const FLAG: u8 = 1;\n\
                  #[btf_map]\nstatic M: HashMap<A, u32, 4> =\n    HashMap::new();\n";
    let of = |source: &str| fingerprint(&declarations_in(source));
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
        let is_part = |one: &String| one.replace("pub ", "").contains(part);
        assert!(declared.iter().any(is_part), "{part} is in no declaration");
    }
}

/// Lists every declaration that must not change under one version.
fn declarations() -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = sources_below(&source.join("abi"));
    files.extend([source.join("abi.rs"), source.join("capture.rs")]);
    let mut declared = Vec::new();
    for file in files {
        declared.extend(declarations_in(&fs::read_to_string(file).unwrap()));
    }
    for file in sources_below(&source.join("bin/guideway")) {
        let found = declarations_in(&fs::read_to_string(file).unwrap());
        declared.extend(found.into_iter().filter(|one| one.starts_with("static ")));
    }
    let kind = |kind| format!("{kind:?}").to_lowercase();
    declared.extend(reason::all().map(|(of, label)| format!("reason {} {label}", kind(of))));
    declared.extend(Failure::ALL.map(|cause| format!("failure {}", cause.label())));
    declared.extend(Stage::ALL.map(|stage| format!("stage {}", stage.program())));
    declared
}

fn sources_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources_below(&path));
        } else if path.file_name().unwrap() != "layouts.rs" {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Finds declarations as rustfmt leaves them, each in one line.
fn declarations_in(source: &str) -> Vec<String> {
    let product = source
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(source);
    let uncommented = |line: &str| line.split("//").next().unwrap_or("").trim().to_string();
    let mut lines = product.lines().map(uncommented);
    let mut declared = Vec::new();
    while let Some(first) = lines.next() {
        let Some(ends) = end_of_declaration(&first) else {
            continue;
        };
        let mut whole = first;
        while !whole.ends_with(ends) {
            let Some(line) = lines.next() else { break };
            whole.push(' ');
            whole.push_str(&line);
        }
        // The constructor of a map does not belong to its layout.
        let words: Vec<&str> = whole.split_whitespace().collect();
        let whole = words.join(" ");
        let kept = whole.split(" = ").next().unwrap_or(&whole);
        declared.push(if whole.contains("static ") {
            kept.to_string()
        } else {
            whole
        });
    }
    declared
}

/// Returns the end of the declaration that begins with this line; `None` if none begins.
fn end_of_declaration(line: &str) -> Option<&'static str> {
    let line = line
        .trim_start_matches("pub(crate) ")
        .trim_start_matches("pub ");
    if line.starts_with("struct ") || line.starts_with("enum ") {
        return Some(if line.contains('{') { "}" } else { ";" });
    }
    if line.ends_with("plain_data! {") {
        return Some("}");
    }
    let is_number = [": u8 =", ": u16 =", ": u32 ="];
    let is_flag = line.starts_with("const ") && is_number.iter().any(|kind| line.contains(kind));
    let is_version = line.starts_with("const VERSION");
    let is_map = line.starts_with("static ") && line.contains('<');
    ((is_flag && !is_version) || is_map).then_some(";")
}

/// Hashes the declarations by FNV-1a, which gives the same result on every host.
fn fingerprint(declared: &[String]) -> u64 {
    let bytes = declared.iter().flat_map(|one| one.bytes().chain([b'\n']));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
