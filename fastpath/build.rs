//! Builds the BPF objects from `xdp-prog` and leaves them in `OUT_DIR`, where `object` embeds them.
//!
//! The object needs a compiler with the source of `core` (there is no prebuilt `core` for the flags
//! below) and `bpf-linker`. Both are looked for in this order; `make setup` installs them:
//!
//! 1. `GUIDEWAY_BPF_TOOLCHAIN`: the name of a rustup toolchain or the path of a sysroot;
//! 2. the rustup toolchain `bpf`, by convention a link to the distribution's compiler;
//! 3. the rustup toolchain `nightly`;
//! 4. the distribution's compiler in `/usr`, without rustup.
//!
//! `bpf-linker` comes from `PATH`, else from `$XDG_CACHE_HOME/guideway/bpf-linker-VERSION/bin`.
//!
//! Both must be of a version of `deploy/versions.env`. Others are passed over, and named where there is none of these;
//! `GUIDEWAY_UNPINNED=1` takes the first of any version, and whoever sets `GUIDEWAY_BPF_TOOLCHAIN` has asked for what
//! it names.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSection};

/// The flags of the BPF build, apart from the host architecture.
///
/// - `debuginfo` and `--btf`: BTF describes maps and types, its line info lets the verifier quote source.
/// - `disable-expand-memcpy-in-order`: the linker's default turns every small `memset` and `memmove`
///   into a call, which the BPF target does not have; without it they become stores.
/// - `v3`: 32-bit ALU and compare instructions, understood since Linux 5.1.
/// - `allows-misaligned-mem-access`: one load for a four-byte field at an odd offset, as in packets
///   behind an Ethernet header, instead of four loads and shifts. The kernel accepts it for packet
///   memory wherever the CPU does.
const FLAGS: [&str; 5] = [
    "-Cdebuginfo=2",
    "-Clink-arg=--btf",
    "-Clink-arg=--disable-expand-memcpy-in-order",
    "-Ctarget-cpu=v3",
    "-Ctarget-feature=+allows-misaligned-mem-access",
];

/// The binaries of `xdp-prog`: the product's and the bench's.
const OBJECTS: [&str; 2] = ["guideway", "guideway-bench-programs"];

const REMEDY: &str = "`make setup` installs what is missing";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Cargo shows this apart from the output of the build.
            println!("cargo::error={error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let manifest_dir = PathBuf::from(var("CARGO_MANIFEST_DIR")?);
    let workspace = manifest_dir
        .parent()
        .context("the manifest directory has no parent")?;
    watch(workspace);

    let pins = Pins::read(workspace)?;
    let toolchain = Toolchain::find(&pins)?;
    let linker = find_linker(&pins)?;
    println!(
        "cargo::rustc-env=GUIDEWAY_BPF_BUILD={} ({}), {}",
        toolchain.version,
        toolchain.origin,
        first_line(Command::new(&linker).arg("--version"))?,
    );

    let built = build(workspace, &toolchain, &linker)?;
    for name in OBJECTS {
        let object = built.join(name);
        check(&object)?;
        let embedded = PathBuf::from(var("OUT_DIR")?).join(name);
        fs::copy(&object, &embedded)
            .with_context(|| format!("copying {} to {}", object.display(), embedded.display()))?;
    }
    Ok(())
}

fn watch(workspace: &Path) {
    for path in [
        "Cargo.lock",
        "Cargo.toml",
        "deploy/versions.env",
        "fastpath/build.rs",
        "xdp-prog/Cargo.toml",
        "xdp-prog/src",
    ] {
        println!("cargo::rerun-if-changed={}", workspace.join(path).display());
    }
    for name in [
        "GUIDEWAY_BPF_TOOLCHAIN",
        "GUIDEWAY_UNPINNED",
        "XDG_CACHE_HOME",
    ] {
        println!("cargo::rerun-if-env-changed={name}");
    }
}

/// The versions that the object is tested with.
struct Pins {
    rust: Vec<String>,
    linker: Vec<String>,
    /// Whether any other will do.
    any: bool,
}

impl Pins {
    fn read(workspace: &Path) -> Result<Self> {
        let path = workspace.join("deploy/versions.env");
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let versions = |key: &str| {
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
                .with_context(|| format!("{} has no {key}", path.display()))?;
            let words = value.trim_matches('"').split_whitespace();
            anyhow::Ok(words.map(str::to_owned).collect())
        };
        Ok(Self {
            rust: versions("RUST_VERSIONS")?,
            linker: versions("BPF_LINKER_VERSION")?,
            any: env::var("GUIDEWAY_UNPINNED").is_ok_and(|value| !value.is_empty()),
        })
    }

    /// Tells whether the first line of `--version` is of a version that may be used.
    fn allow(&self, pinned: &[String], line: &str) -> bool {
        let version = line.split_whitespace().nth(1).unwrap_or_default();
        self.any || pinned.iter().any(|one| one == version)
    }
}

/// Says what was found and passed over.
fn passed_over(found: &[String], pinned: &[String]) -> String {
    if found.is_empty() {
        return String::new();
    }
    format!(
        "; found, but not of a pinned version ({}): {}; GUIDEWAY_UNPINNED=1 takes it all the same",
        pinned.join(", "),
        found.join(", ")
    )
}

/// A compiler that can build `core` from source.
struct Toolchain {
    sysroot: PathBuf,
    /// Which of the places named in the module's documentation it comes from.
    origin: String,
    /// The first line of `rustc --version`.
    version: String,
}

impl Toolchain {
    fn find(pins: &Pins) -> Result<Self> {
        if let Ok(wanted) = env::var("GUIDEWAY_BPF_TOOLCHAIN") {
            let sysroot = if wanted.starts_with('/') {
                Some(PathBuf::from(&wanted))
            } else {
                rustup_sysroot(&wanted)
            };
            return sysroot
                .and_then(|sysroot| Self::at(sysroot, format!("GUIDEWAY_BPF_TOOLCHAIN={wanted}")))
                .with_context(|| {
                    format!(
                        "GUIDEWAY_BPF_TOOLCHAIN={wanted} is not a toolchain with cargo and rust-src"
                    )
                });
        }
        let in_rustup = |name| {
            let sysroot = rustup_sysroot(name)?;
            Self::at(sysroot, format!("rustup toolchain {name}"))
        };
        let in_usr = || Self::at(PathBuf::from("/usr"), "distribution".to_owned());
        let candidates = ["bpf", "nightly"].into_iter().filter_map(in_rustup);
        let mut unpinned = Vec::new();
        for toolchain in candidates.chain(std::iter::once_with(in_usr).flatten()) {
            if pins.allow(&pins.rust, &toolchain.version) {
                return Ok(toolchain);
            }
            unpinned.push(format!("{} ({})", toolchain.version, toolchain.origin));
        }
        bail!(
            "no toolchain can build the BPF object: it takes cargo, rustc and rust-src in a rustup \
             toolchain `bpf` or `nightly`, or in /usr; {REMEDY}{}",
            passed_over(&unpinned, &pins.rust)
        )
    }

    fn at(sysroot: PathBuf, origin: String) -> Option<Self> {
        let core = sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs");
        let cargo = sysroot.join("bin/cargo");
        if !core.exists() || !cargo.exists() {
            return None;
        }
        let version = first_line(Command::new(sysroot.join("bin/rustc")).arg("--version")).ok()?;
        Some(Self {
            sysroot,
            origin,
            version,
        })
    }

    fn cargo(&self) -> Command {
        let mut cargo = Command::new(self.sysroot.join("bin/cargo"));
        // What the outer cargo and rustup tell their children is about the host's toolchain.
        for name in [
            "CARGO",
            "RUSTC_WORKSPACE_WRAPPER",
            "RUSTDOC",
            "RUSTUP_TOOLCHAIN",
        ] {
            cargo.env_remove(name);
        }
        cargo.env("RUSTC", self.sysroot.join("bin/rustc"));
        if !self.version.contains("nightly") {
            // `-Z build-std` is unstable, and so is the BPF target without it.
            cargo.env("RUSTC_BOOTSTRAP", "1");
        }
        cargo
    }
}

fn rustup_sysroot(toolchain: &str) -> Option<PathBuf> {
    let mut rustc = Command::new("rustup");
    rustc
        .args(["run", toolchain, "rustc", "--print", "sysroot"])
        .env("RUSTUP_AUTO_INSTALL", "0");
    first_line(&mut rustc).ok().map(PathBuf::from)
}

fn find_linker(pins: &Pins) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(env::home_dir()?.join(".cache")))
        .unwrap_or_default()
        .join("guideway");
    let cached = fs::read_dir(&cache)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|dir| {
            dir.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("bpf-linker-"))
        })
        .map(|dir| dir.join("bin"));
    let linkers = env::split_paths(&path)
        .chain(cached)
        .map(|dir| dir.join("bpf-linker"))
        .filter(|linker| linker.is_file());
    let mut unpinned = Vec::new();
    for linker in linkers {
        let version = first_line(Command::new(&linker).arg("--version"))?;
        if pins.allow(&pins.linker, &version) {
            return Ok(linker);
        }
        unpinned.push(format!("{version} ({})", linker.display()));
    }
    bail!(
        "no bpf-linker in PATH or {}; {REMEDY}{}",
        cache.display(),
        passed_over(&unpinned, &pins.linker)
    )
}

fn build(workspace: &Path, toolchain: &Toolchain, linker: &Path) -> Result<PathBuf> {
    let target = match var("CARGO_CFG_TARGET_ENDIAN")?.as_str() {
        "big" => "bpfeb-unknown-none",
        _ => "bpfel-unknown-none",
    };
    let target_dir = PathBuf::from(var("OUT_DIR")?).join("target");
    // aya-ebpf chooses register layouts by this; without it, by the build machine.
    let arch = format!(
        "--cfg=bpf_target_arch=\"{}\"",
        var("CARGO_CFG_TARGET_ARCH")?
    );
    let flags = [&[arch.as_str()], &FLAGS[..]].concat().join("\x1f");
    let features = match env::var_os("CARGO_FEATURE_TEST_LAYOUT") {
        Some(_) => "--features=bpf-object,test-layout",
        None => "--features=bpf-object",
    };

    let mut cargo = toolchain.cargo();
    cargo
        .current_dir(workspace)
        .args(["build", "--locked", "--release", "-Zbuild-std=core"])
        .args(["--package=xdp-prog", "--bins", features])
        .args(["--target", target])
        // A directory of its own: the outer cargo holds the lock of the usual one.
        .arg("--target-dir")
        .arg(&target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        .env(
            format!(
                "CARGO_TARGET_{}_LINKER",
                target.to_uppercase().replace('-', "_")
            ),
            linker,
        );
    let status = cargo.status().context("running cargo for the BPF object")?;
    if !status.success() {
        bail!(
            "building the BPF object with {} ({}) failed: {status}",
            toolchain.version,
            toolchain.origin
        );
    }
    Ok(target_dir.join(target).join("release"))
}

/// Refuses an object that would load without types and source lines.
fn check(path: &Path) -> Result<()> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let object =
        object::File::parse(&*bytes).with_context(|| format!("parsing {}", path.display()))?;
    for section in [".BTF", ".BTF.ext"] {
        let filled = object
            .section_by_name(section)
            .is_some_and(|section| section.size() > 0);
        if !filled {
            bail!(
                "{} has no section {section}: bpf-linker and compiler do not fit together; {REMEDY}",
                path.display()
            );
        }
    }
    Ok(())
}

fn first_line(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("running {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", output.status);
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    Ok(stdout.lines().next().unwrap_or_default().to_owned())
}

fn var(name: &str) -> Result<String> {
    env::var_os(name)
        .map(OsString::into_string)
        .and_then(Result::ok)
        .with_context(|| format!("{name} is not set by cargo"))
}
