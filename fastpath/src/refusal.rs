//! The likely reason why the kernel refused BPF work. The error number alone ("not permitted") has many causes.

use std::{fmt, io};

use crate::facts::{self, Capability, Lockdown};

/// The likely cause of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Capabilities are missing.
    Missing(Vec<Capability>),
    /// The process has the capabilities, but only inside a user namespace.
    UserNamespace,
    /// The kernel is locked down against its administrator.
    Lockdown,
    /// A seccomp filter checks the system calls.
    Seccomp,
    /// The file permissions of the pin directory forbid it.
    Ownership,
    /// None of the above; most likely a security module.
    Unknown,
}

impl Refusal {
    /// Looks for the cause of a refused `bpf` system call.
    #[must_use]
    pub fn of_bpf() -> Self {
        let process = facts::process();
        let missing = process.missing(&Capability::REQUIRED);
        if !missing.is_empty() {
            return Self::Missing(missing);
        }
        if process.in_user_namespace {
            return Self::UserNamespace;
        }
        if facts::kernel().lockdown == Lockdown::Confidentiality {
            return Self::Lockdown;
        }
        if process.seccomp_filter {
            return Self::Seccomp;
        }
        Self::Unknown
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(capabilities) => {
                f.write_str("this process lacks ")?;
                for (position, capability) in capabilities.iter().enumerate() {
                    let separator = if position == 0 { "" } else { ", " };
                    write!(f, "{separator}{capability}")?;
                }
                f.write_str(
                    "; run it as root, or grant them (systemd: AmbientCapabilities=, \
                     Kubernetes: securityContext.capabilities.add)",
                )
            }
            Self::UserNamespace => f.write_str(
                "this process runs in a user namespace, whose capabilities do not count for BPF; \
                 run it outside (a rootless container cannot)",
            ),
            Self::Lockdown => f.write_str(
                "kernel lockdown is in confidentiality mode; \
                 boot with lockdown=integrity or without Secure Boot",
            ),
            Self::Seccomp => f.write_str(
                "the capabilities are there, but a seccomp filter is active; \
                 allow bpf(2) in the container runtime's profile",
            ),
            Self::Ownership => f.write_str(
                "owner and mode of the directory do not let this user; \
                 run it as uid 0, or give it a pin directory of its own",
            ),
            Self::Unknown => f.write_str(
                "the capabilities are there; look for a denial by a security module \
                 (AppArmor, SELinux) in the kernel log",
            ),
        }
    }
}

/// Tells whether an error means "not permitted".
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}
