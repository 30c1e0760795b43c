//! Reasons why the programs could not be loaded.

use std::{collections::BTreeMap, io};

use aya::{EbpfError, maps::MapError, programs::ProgramError};

use super::MapLayout;
use crate::{
    facts::{self, KernelVersion, Softirq},
    pins::PinError,
    refusal::{Refusal, is_refusal},
};

/// Number of log lines of the verifier that a message quotes; the cause is at the end of the log.
const LOG_LINES: usize = 12;

/// Reasons why the programs could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(
        "kernel {release} is too old: {} or later is needed \
         (XDP programs for frames of several buffers); upgrade the kernel, or set `datapath: afxdp`",
        KernelVersion::MINIMUM
    )]
    KernelTooOld { release: String },
    #[error(
        "kernel {release} is too old: {} or later is needed (maps that threads share with the kernel); upgrade the \
         kernel",
        KernelVersion::WHOLE_EDGE
    )]
    TooOldForWholeEdge { release: String },
    #[error(
        "kernel {release} is built without AF_XDP (CONFIG_XDP_SOCKETS), which `datapath: afxdp` takes; use another \
         kernel, or leave datapath out"
    )]
    NoAfXdp { release: String },
    /// Two runs of a program may share a CPU and overwrite each other's per-CPU data.
    #[error(
        "kernel {release} is PREEMPT_RT {}: threads of two devices would share the scratch memory of a CPU; \
         use a kernel with PREEMPT_RT_NEEDS_BH_LOCK=y, or one without PREEMPT_RT",
        match softirq {
            Softirq::Unknown => "and does not tell (in /boot/config-...) whether it has PREEMPT_RT_NEEDS_BH_LOCK",
            Softirq::InTurn | Softirq::Preempted => "without PREEMPT_RT_NEEDS_BH_LOCK",
        }
    )]
    Realtime { release: String, softirq: Softirq },
    #[error(transparent)]
    Pins(#[from] PinError),
    #[error("the embedded BPF object cannot be parsed; build again")]
    Object(#[source] aya_obj::ParseError),
    #[error("map {map}: the BPF object has none of that name")]
    UnknownMap { map: String },
    /// A pinned array whose length is fixed by the build has another length under the same layout version.
    #[error(
        "map {map}: the pinned one has {pinned} entries, this build needs {needed}, under the same layout \
         version; it was pinned by a different build: run `guideway detach`, then start again"
    )]
    Length {
        map: String,
        /// Length of the pinned array.
        pinned: u32,
        /// Length that the object declares.
        needed: u32,
    },
    #[error(
        "map {map}: the pinned one is {pinned}, this build needs {needed}, under the same layout version; \
         it was pinned by a different build: run `guideway detach`, then start again"
    )]
    Layout {
        map: String,
        /// Layout of the pinned map.
        pinned: MapLayout,
        /// Layout that the object declares.
        needed: MapLayout,
    },
    #[error("{attempt}: {refusal}")]
    Refused {
        attempt: String,
        refusal: Refusal,
        #[source]
        source: io::Error,
    },
    #[error(
        "map {map}: no memory for {max_entries} entries; \
         ask for fewer, or raise the memory limit of the container or unit"
    )]
    Memory {
        map: String,
        max_entries: u32,
        #[source]
        source: io::Error,
    },
    #[error("map {map}: kernel {release} refuses to create it")]
    Map {
        map: String,
        release: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "the verifier of kernel {release} refused the program; please report it with this text:\n{}",
        tail(.log, LOG_LINES)
    )]
    Verifier {
        release: String,
        log: String,
        #[source]
        source: io::Error,
    },
    #[error("the kernel does not tell which CPUs this machine may have")]
    Cpus(#[source] io::Error),
    #[error("cannot load the BPF object on kernel {release}")]
    Other {
        release: String,
        #[source]
        source: Box<EbpfError>,
    },
}

/// Finds the cause of a failure in the loader's error.
pub(crate) fn explain(
    error: EbpfError,
    declared: &BTreeMap<String, aya_obj::Map>,
    release: &str,
) -> LoadError {
    let release = release.to_owned();
    match error {
        EbpfError::MapError(MapError::CreateError { name, io_error }) => {
            let max_entries = declared.get(&name).map_or(0, aya_obj::Map::max_entries);
            map_error(name, max_entries, release, io_error)
        }
        EbpfError::ProgramError(ProgramError::LoadError {
            io_error,
            verifier_log,
        }) => program_error(
            verifier_log.to_string(),
            release,
            io_error,
            Refusal::of_bpf(),
        ),
        source => LoadError::Other {
            release,
            source: Box::new(source),
        },
    }
}

fn map_error(map: String, max_entries: u32, release: String, source: io::Error) -> LoadError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => LoadError::Refused {
            attempt: format!("creating map {map}"),
            refusal: Refusal::of_bpf(),
            source,
        },
        Some(libc::ENOMEM | libc::E2BIG) => LoadError::Memory {
            map,
            max_entries,
            source,
        },
        _ => LoadError::Map {
            map,
            release,
            source,
        },
    }
}

fn program_error(log: String, release: String, source: io::Error, refusal: Refusal) -> LoadError {
    // The verifier always writes a log, so an empty one means that it was not asked. Without CAP_PERFMON it refuses
    // pointer arithmetic that it allows otherwise.
    let not_asked = log.trim().is_empty() || matches!(refusal, Refusal::Missing(_));
    if is_refusal(&source) && not_asked {
        return LoadError::Refused {
            attempt: "loading the programs".to_owned(),
            refusal,
            source,
        };
    }
    LoadError::Verifier {
        release,
        log,
        source,
    }
}

pub(super) fn pinned_map_error(name: &str, error: MapError) -> LoadError {
    match error {
        MapError::SyscallError(error) if is_refusal(&error.io_error) => LoadError::Refused {
            attempt: format!("opening pinned map {name}"),
            refusal: Refusal::of_bpf(),
            source: error.io_error,
        },
        error => LoadError::Other {
            release: facts::kernel().release,
            source: Box::new(error.into()),
        },
    }
}

fn tail(log: &str, lines: usize) -> String {
    let all: Vec<_> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    #[test]
    fn verifier_refusal_quotes_the_end_of_the_log_and_the_release() {
        let log = (0..40).map(|n| format!("line {n}\n")).collect::<String>();
        let error = program_error(log, "6.1.0".into(), os(libc::EACCES), Refusal::Unknown);
        let text = error.to_string();
        assert!(text.contains("kernel 6.1.0"), "{text}");
        assert!(text.ends_with("line 38\nline 39"), "{text}");
        assert!(!text.contains("line 27\n"), "{text}");
    }

    #[test]
    fn refusal_without_a_log_is_not_blamed_on_the_verifier() {
        let error = program_error(
            "\n".into(),
            "6.1.0".into(),
            os(libc::EPERM),
            Refusal::Unknown,
        );
        assert!(matches!(error, LoadError::Refused { .. }));
    }

    #[test]
    fn refusal_for_want_of_a_capability_names_it_whatever_the_verifier_says() {
        let error = program_error(
            "R1 pointer comparison prohibited".into(),
            "6.1.0".into(),
            os(libc::EACCES),
            Refusal::Missing(vec![facts::Capability::Perfmon]),
        );
        assert!(error.to_string().contains("CAP_PERFMON"), "{error}");
    }

    #[test]
    fn map_beyond_memory_names_its_size() {
        let error = map_error("LUT".into(), 1 << 24, "6.1.0".into(), os(libc::ENOMEM));
        assert!(
            error
                .to_string()
                .starts_with("map LUT: no memory for 16777216 entries")
        );
    }

    #[test]
    fn realtime_kernel_is_refused_by_name() {
        let error = |softirq| {
            let release = "6.18.5-rt".to_owned();
            LoadError::Realtime { release, softirq }.to_string()
        };
        for softirq in [Softirq::Preempted, Softirq::Unknown] {
            let error = error(softirq);
            assert!(
                error.starts_with("kernel 6.18.5-rt is PREEMPT_RT"),
                "{error}"
            );
            assert!(error.contains("PREEMPT_RT_NEEDS_BH_LOCK=y"), "{error}");
        }
        assert!(error(Softirq::Unknown).contains("does not tell"));
    }
}
