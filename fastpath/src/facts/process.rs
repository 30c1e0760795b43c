//! The permissions of this process.

use std::{fmt, fs};

use rustix::process::{Resource, getrlimit};

/// A capability that BPF or packet sockets need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// Network administration: attaching, netlink changes.
    NetAdmin,
    /// Raw and AF_XDP sockets.
    NetRaw,
    /// Memory locked beyond the limit, for AF_XDP.
    IpcLock,
    /// Limits of resources, such as that of locked memory, which loading for a whole edge lifts.
    SysResource,
    /// System administration: includes BPF, and names the programs of others.
    SysAdmin,
    /// Verifier privileges: programs with pointers and bounded loops.
    Perfmon,
    /// Creates maps and loads programs.
    Bpf,
}

impl Capability {
    /// The capabilities that are needed to load and attach the XDP program.
    pub const REQUIRED: [Self; 3] = [Self::Bpf, Self::NetAdmin, Self::Perfmon];

    /// Returns the capability's bit number (`linux/capability.h`).
    const fn bit(self) -> u32 {
        match self {
            Self::NetAdmin => 12,
            Self::NetRaw => 13,
            Self::IpcLock => 14,
            Self::SysAdmin => 21,
            Self::SysResource => 24,
            Self::Perfmon => 38,
            Self::Bpf => 39,
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::IpcLock => "CAP_IPC_LOCK",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysResource => "CAP_SYS_RESOURCE",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        })
    }
}

/// The permissions of the calling thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    effective: u64,
    /// The limit of locked memory in bytes, if there is one.
    memory_limit: Option<u64>,
    /// Whether a seccomp filter checks the thread's system calls, as in most containers.
    pub seccomp_filter: bool,
    /// Whether the capabilities count only inside a user namespace, where BPF cannot be used.
    pub in_user_namespace: bool,
}

impl Process {
    /// Tells whether a capability is in effect; `CAP_SYS_ADMIN` includes BPF and PERFMON.
    #[must_use]
    pub const fn has(&self, capability: Capability) -> bool {
        let implied = matches!(capability, Capability::Bpf | Capability::Perfmon)
            && self.effective >> Capability::SysAdmin.bit() & 1 == 1;
        implied || self.effective >> capability.bit() & 1 == 1
    }

    /// Returns how many bytes of memory the sockets of a whole edge may lock; `None` if there is no limit.
    #[must_use]
    pub fn lockable_bytes(&self) -> Option<u64> {
        let lifts = [Capability::IpcLock, Capability::SysResource];
        let has_limit = !lifts.into_iter().any(|capability| self.has(capability));
        self.memory_limit.filter(|_| has_limit)
    }

    /// Lists the capabilities of `needed` that are not in effect.
    #[must_use]
    pub fn missing(&self, needed: &[Capability]) -> Vec<Capability> {
        needed
            .iter()
            .copied()
            .filter(|capability| !self.has(*capability))
            .collect()
    }
}

/// Reads the permissions of the calling thread.
#[must_use]
pub fn process() -> Process {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let uid_map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    Process {
        memory_limit: getrlimit(Resource::Memlock).current,
        ..parse(&status, &uid_map)
    }
}

/// Reads what the files say, which is nothing about limits.
fn parse(status: &str, uid_map: &str) -> Process {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    Process {
        effective: field("CapEff")
            .and_then(|hex| u64::from_str_radix(hex, 16).ok())
            .unwrap_or(0),
        memory_limit: None,
        seccomp_filter: field("Seccomp") == Some("2"),
        // The initial user namespace maps all 2^32 - 1 user ids to themselves.
        in_user_namespace: !uid_map.is_empty()
            && uid_map.split_whitespace().ne(["0", "0", "4294967295"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_NAMESPACE: &str = "         0          0 4294967295\n";

    #[test]
    fn capabilities_are_read_by_bit() {
        let process = parse("CapEff:\t000000c000003000\nSeccomp:\t2\n", FIRST_NAMESPACE);
        assert!(process.seccomp_filter);
        assert!(!process.in_user_namespace);
        assert_eq!(process.missing(&Capability::REQUIRED), []);
        assert_eq!(
            process.missing(&[Capability::SysAdmin, Capability::IpcLock]),
            [Capability::SysAdmin, Capability::IpcLock]
        );
    }

    #[test]
    fn sys_admin_stands_for_bpf_and_perfmon_only() {
        let process = parse("CapEff:\t0000000000200000\n", FIRST_NAMESPACE);
        assert_eq!(
            process.missing(&Capability::REQUIRED),
            [Capability::NetAdmin]
        );
    }

    #[test]
    fn limit_of_locked_memory_counts_unless_it_can_be_lifted() {
        for (capabilities, lockable) in [
            ("0000000000002000", Some(4096)),
            ("0000000000006000", None),
            ("0000000001002000", None),
        ] {
            let process = Process {
                memory_limit: Some(4096),
                ..parse(&format!("CapEff:\t{capabilities}\n"), FIRST_NAMESPACE)
            };
            assert_eq!(process.lockable_bytes(), lockable, "{capabilities}");
        }
    }

    #[test]
    fn partial_uid_map_is_a_user_namespace() {
        assert!(parse("", "0 100000 65536\n").in_user_namespace);
    }
}
