//! The running kernel, as far as BPF depends on it.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use rustix::fs::statfs;

/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// A kernel's release, reduced to what features depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    pub major: u32,
    pub minor: u32,
}

impl KernelVersion {
    /// The oldest kernel that Guideway runs on: XDP programs for frames of several buffers came
    /// with 5.18, without them a jumbo MTU would exclude native mode. (`bpf_link` for XDP: 5.9;
    /// BPF memory charged to the cgroup and not to `RLIMIT_MEMLOCK`: 5.11.)
    pub const MINIMUM: Self = Self {
        major: 5,
        minor: 18,
    };

    /// The first whose `PREEMPT_RT` may do without the lock that work on packets takes (`PREEMPT_RT_NEEDS_BH_LOCK`).
    const WITHOUT_BH_LOCK: Self = Self {
        major: 6,
        minor: 18,
    };

    /// Reads the two numbers a release begins with (`6.1.0-38-amd64`).
    #[must_use]
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some(Self {
            major: numbers.next()?.parse().ok()?,
            minor: numbers.next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Whether BPF programs are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jit {
    /// They are.
    On,
    /// They are interpreted: several times slower.
    Off,
    /// The setting is not visible: the kernel has none, or this is not the first network namespace.
    Unknown,
}

/// How far the kernel is locked against its administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    /// Not at all, or the kernel has no lockdown.
    None,
    /// Nothing may change the kernel's code; BPF works.
    Integrity,
    /// Nothing may read kernel memory: BPF programs that do are refused.
    Confidentiality,
}

/// Facts about the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The release as `uname -r` prints it.
    pub release: String,
    /// Its numbers, if it has the usual form.
    pub version: Option<KernelVersion>,
    pub jit: Jit,
    /// Whether the kernel describes its types (`/sys/kernel/btf/vmlinux`).
    pub btf: bool,
    pub lockdown: Lockdown,
    /// `kernel.unprivileged_bpf_disabled`, where visible.
    pub unprivileged_bpf_disabled: Option<bool>,
    /// Whether packets that come in on a CPU are worked on one after the other.
    pub softirq: Softirq,
}

/// How work on packets shares a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Softirq {
    /// One after the other: nothing preempts it but what is no work on packets.
    InTurn,
    /// `PREEMPT_RT` without `PREEMPT_RT_NEEDS_BH_LOCK`: a thread of one device may preempt that of another.
    Preempted,
    /// `PREEMPT_RT` of a kernel that may be built without that lock, and whose configuration is not visible.
    Unknown,
}

impl Kernel {
    /// Tells whether the kernel is known to be older than [`KernelVersion::MINIMUM`].
    #[must_use]
    pub fn is_too_old(&self) -> bool {
        self.version
            .is_some_and(|version| version < KernelVersion::MINIMUM)
    }
}

/// Reads the facts about the running kernel.
#[must_use]
pub fn kernel() -> Kernel {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version = KernelVersion::parse(&release);
    let build = read("/proc/sys/kernel/version").unwrap_or_default();
    let configuration = fs::read_to_string(format!("/boot/config-{release}")).ok();
    Kernel {
        softirq: softirq(version, &build, configuration.as_deref()),
        version,
        release,
        jit: match read("/proc/sys/net/core/bpf_jit_enable").as_deref() {
            Some("0") => Jit::Off,
            Some(_) => Jit::On,
            None => Jit::Unknown,
        },
        btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
        lockdown: lockdown(&read("/sys/kernel/security/lockdown").unwrap_or_default()),
        unprivileged_bpf_disabled: read("/proc/sys/kernel/unprivileged_bpf_disabled")
            .map(|value| value != "0"),
    }
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Judges by `uname -v` and the configuration of the build.
fn softirq(version: Option<KernelVersion>, build: &str, configuration: Option<&str>) -> Softirq {
    let is_realtime = build.split_whitespace().any(|word| word == "PREEMPT_RT");
    let has_the_lock = version.is_some_and(|version| version < KernelVersion::WITHOUT_BH_LOCK);
    if !is_realtime || has_the_lock {
        return Softirq::InTurn;
    }
    match configuration {
        Some(lines)
            if lines
                .lines()
                .any(|line| line == "CONFIG_PREEMPT_RT_NEEDS_BH_LOCK=y") =>
        {
            Softirq::InTurn
        }
        Some(_) => Softirq::Preempted,
        None => Softirq::Unknown,
    }
}

fn lockdown(levels: &str) -> Lockdown {
    if levels.contains("[confidentiality]") {
        Lockdown::Confidentiality
    } else if levels.contains("[integrity]") {
        Lockdown::Integrity
    } else {
        Lockdown::None
    }
}

/// What a path that should be on a BPF file system is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bpffs {
    /// A BPF file system.
    Mounted,
    /// Another file system.
    Other { directory: PathBuf, magic: u64 },
}

/// Looks at the file system that `path`, or its nearest existing ancestor, is on.
///
/// # Errors
///
/// When the file system cannot be asked.
pub fn bpffs(path: &Path) -> io::Result<Bpffs> {
    let directory = path
        .ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or(Path::new("/"));
    // The field's type differs between architectures; magic numbers have 32 bits.
    let magic = u64::try_from(statfs(directory)?.f_type).unwrap_or(0) & 0xffff_ffff;
    if magic == BPF_FS_MAGIC {
        return Ok(Bpffs::Mounted);
    }
    Ok(Bpffs::Other {
        directory: directory.to_owned(),
        magic,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions_are_understood() {
        let version = |major, minor| Some(KernelVersion { major, minor });
        assert_eq!(KernelVersion::parse("6.1.0-38-amd64"), version(6, 1));
        assert_eq!(KernelVersion::parse("5.15.167.4-microsoft"), version(5, 15));
        assert_eq!(KernelVersion::parse("6.12-rc1"), version(6, 12));
        assert_eq!(KernelVersion::parse("next"), None);
    }

    #[test]
    fn older_minor_is_older_although_its_text_is_greater() {
        let old = KernelVersion::parse("5.9.1").unwrap();
        assert!(old < KernelVersion::MINIMUM);
        assert!(KernelVersion::parse("5.18.0").unwrap() >= KernelVersion::MINIMUM);
    }

    #[test]
    fn realtime_kernels_work_on_packets_in_turn_where_they_lock() {
        const RT: &str = "#1 SMP PREEMPT_RT Debian 6.18.5-1 (2026-01-16)";
        let with = Some("CONFIG_PREEMPT_RT=y\nCONFIG_PREEMPT_RT_NEEDS_BH_LOCK=y\n");
        let without = Some("CONFIG_PREEMPT_RT=y\n# CONFIG_PREEMPT_RT_NEEDS_BH_LOCK is not set\n");
        for (release, build, configuration, expected) in [
            ("6.18.5", "#1 SMP PREEMPT_DYNAMIC", None, Softirq::InTurn),
            ("6.12.9-rt", RT, None, Softirq::InTurn),
            ("6.18.5-rt", RT, with, Softirq::InTurn),
            ("6.18.5-rt", RT, without, Softirq::Preempted),
            ("6.18.5-rt", RT, None, Softirq::Unknown),
            ("7.0.0", RT, without, Softirq::Preempted),
        ] {
            let version = KernelVersion::parse(release);
            let found = softirq(version, build, configuration);
            assert_eq!(found, expected, "{release} {build}");
        }
    }

    #[test]
    fn bracketed_level_is_the_one_in_force() {
        assert_eq!(
            lockdown("none [integrity] confidentiality"),
            Lockdown::Integrity
        );
        assert_eq!(lockdown("[none] integrity confidentiality"), Lockdown::None);
        assert_eq!(
            lockdown("none integrity [confidentiality]"),
            Lockdown::Confidentiality
        );
    }

    #[test]
    fn missing_directory_is_judged_by_its_ancestor() {
        let found = bpffs(Path::new("/proc/no/such/directory")).unwrap();
        assert_eq!(
            found,
            Bpffs::Other {
                directory: "/proc".into(),
                magic: 0x9fa0,
            }
        );
    }
}
