//! The container image.

use std::process::Command;

use super::chart::text;

const GUIDEWAY: &str = env!("CARGO_BIN_EXE_guideway");

/// What distroless `cc` has.
const LIBRARIES: [&str; 5] = [
    "linux-vdso.so.1",
    "libgcc_s.so.1",
    "libc.so.6",
    "libm.so.6",
    "ld-linux",
];

#[test]
fn binary_links_only_what_the_image_has() {
    let output = Command::new("ldd").arg(GUIDEWAY).output().unwrap();
    let libraries = String::from_utf8(output.stdout).unwrap();
    assert!(libraries.contains("libc.so.6"), "{libraries}");
    for line in libraries.lines() {
        let known = LIBRARIES.iter().any(|library| line.contains(library));
        assert!(known, "{line}");
    }
}

#[test]
fn files_that_the_build_copies_exist() {
    let dockerfile = text("Dockerfile");
    let copies = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|copy| !copy.starts_with("--"));
    for copy in copies {
        let mut words: Vec<_> = copy.split_whitespace().collect();
        words.pop();
        for file in words {
            let path = super::chart::deploy("..").join(file);
            assert!(path.exists(), "{file}");
        }
    }
}
