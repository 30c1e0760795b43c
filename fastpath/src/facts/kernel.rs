//! The facts of the running kernel that BPF depends on.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::statfs,
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
};

/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// The first two numbers of a kernel's release, which features depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    pub major: u32,
    pub minor: u32,
}

impl KernelVersion {
    /// The oldest kernel that Guideway runs on. XDP programs for frames of several buffers came with 5.18; without
    /// them, a jumbo MTU would exclude native mode. `bpf_link` for XDP came with 5.9, and 5.11 charges BPF memory to
    /// the cgroup and not to `RLIMIT_MEMLOCK`.
    pub const MINIMUM: Self = Self {
        major: 5,
        minor: 18,
    };

    /// The oldest kernel on which a whole edge in user space runs. 5.10 has all that it takes since it has `bpf_link`
    /// for XDP (5.9), and is the oldest with long-term support that the tests run on.
    pub const WHOLE_EDGE: Self = Self {
        major: 5,
        minor: 10,
    };

    /// The first kernel that keeps a neighbour resolved by itself (`NTF_EXT_MANAGED`).
    pub const MANAGED_NEIGHBOURS: Self = Self {
        major: 5,
        minor: 16,
    };

    /// The first kernel whose `PREEMPT_RT` may lack the lock around packet processing (`PREEMPT_RT_NEEDS_BH_LOCK`).
    const WITHOUT_BH_LOCK: Self = Self {
        major: 6,
        minor: 18,
    };

    /// Reads the first two numbers of a release (`6.1.0-38-amd64`).
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

/// Whether the kernel compiles BPF programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jit {
    /// It compiles them.
    On,
    /// It interprets them, which is several times slower.
    Off,
    /// The setting is not visible: the kernel has none, or this is not the initial network namespace.
    Unknown,
}

/// The kernel's lockdown level, which restricts even its administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    /// No lockdown, or the kernel does not support it.
    None,
    /// Nobody may change the kernel's code; BPF works.
    Integrity,
    /// Nobody may read kernel memory: BPF programs that do are refused.
    Confidentiality,
}

/// Facts about the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The release as `uname -r` prints it.
    pub release: String,
    /// The release's numbers, if it has the usual form.
    pub version: Option<KernelVersion>,
    pub jit: Jit,
    /// Whether the kernel provides BTF, the description of its types (`/sys/kernel/btf/vmlinux`).
    pub btf: bool,
    pub lockdown: Lockdown,
    /// `kernel.unprivileged_bpf_disabled`, if it is visible.
    pub unprivileged_bpf_disabled: Option<bool>,
    /// Whether packets on one CPU are processed one after the other.
    pub softirq: Softirq,
}

/// Whether the processing of packets on one CPU can be preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Softirq {
    /// Packets are processed one after the other; no other packet's processing preempts it.
    InTurn,
    /// `PREEMPT_RT` without `PREEMPT_RT_NEEDS_BH_LOCK`: the thread of one device may preempt that of another.
    Preempted,
    /// `PREEMPT_RT` in a kernel that may have been built without that lock; its configuration is not visible.
    Unknown,
}

impl Kernel {
    /// Tells whether the kernel is known to be older than a version.
    #[must_use]
    pub fn is_older(&self, than: KernelVersion) -> bool {
        self.version.is_some_and(|version| version < than)
    }
}

/// Reads the facts of the running kernel.
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

/// Judges from `uname -v` and the build's configuration.
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

/// The file system that holds a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bpffs {
    /// A BPF file system.
    Mounted,
    /// Another file system: its magic number, and the directory that was looked at.
    Other { directory: PathBuf, magic: u64 },
}

/// Tells whether the kernel has AF_XDP sockets (`CONFIG_XDP_SOCKETS`).
#[must_use]
pub fn has_af_xdp() -> bool {
    const AF_XDP: u16 = 44;
    let family = AddressFamily::from_raw(AF_XDP);
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None);
    // Without the right to open one, the kernel says something else.
    socket.err() != Some(Errno::AFNOSUPPORT)
}

/// Looks at the file system of `path`, or of its nearest ancestor that exists.
///
/// # Errors
///
/// Fails if the file system cannot be read.
pub fn bpffs(path: &Path) -> io::Result<Bpffs> {
    let directory = path
        .ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or(Path::new("/"));
    // The field's type differs between architectures, but magic numbers have 32 bits.
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
