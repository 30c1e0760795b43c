//! The container image.

use std::process::Command;

use lab::output;

use super::chart::text;

const GUIDEWAY: &str = env!("CARGO_BIN_EXE_guideway");

/// How the build collects the libraries below the image's root.
const LIBRARIES: &str =
    "ldd /out/usr/bin/guideway | grep -o '/[^ ]*' | xargs cp --parents --dereference -t /out";

#[test]
fn binary_runs_with_the_files_of_the_image_alone() {
    assert!(text("Dockerfile").contains(LIBRARIES));
    let image = tempfile::tempdir().unwrap();
    let root = image.path().to_str().unwrap();
    std::fs::create_dir_all(image.path().join("usr/bin")).unwrap();
    // By a process of its own, or what other tests fork meanwhile holds the program open for writing, and it cannot be run.
    output(
        Command::new("cp")
            .arg(GUIDEWAY)
            .arg(image.path().join("usr/bin")),
    )
    .unwrap();
    let collect = LIBRARIES.replace("/out", root);
    output(Command::new("sh").args(["-c", &collect])).unwrap();
    let version = output(Command::new("chroot").args([root, "/usr/bin/guideway", "--version"]));
    assert_eq!(
        version.unwrap().trim(),
        concat!("guideway ", env!("CARGO_PKG_VERSION"))
    );
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
