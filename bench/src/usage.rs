//! The memory and CPU time of processes and threads, from the kernel's counters.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};

/// The memory of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Resident bytes.
    pub(crate) resident: u64,
    /// The maximum of the resident bytes.
    pub(crate) peak: u64,
}

impl Memory {
    pub(crate) fn of(process: u32) -> Result<Self> {
        let path = format!("/proc/{process}/status");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let bytes = |field: &str| {
            field_of(&text, field).with_context(|| format!("{path} has no field {field}"))
        };
        Ok(Self {
            resident: bytes("VmRSS")?,
            peak: bytes("VmHWM")?,
        })
    }
}

fn field_of(status: &str, field: &str) -> Option<u64> {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(kibibytes << 10)
}

/// Returns the CPU time of all threads of a process.
pub(crate) fn cpu_time(process: u32) -> Result<Duration> {
    let tasks = format!("/proc/{process}/task");
    let mut total = 0;
    for task in fs::read_dir(&tasks).with_context(|| format!("reading {tasks}"))? {
        // A thread that has just ended has no file.
        total += on_cpu(&task?.path()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(total))
}

/// Returns the CPU time of this process's threads with a name.
///
/// # Errors
///
/// When there is none, or the kernel does not tell.
pub(crate) fn of_threads(name: &str) -> Result<Duration> {
    let mut total = None;
    for task in fs::read_dir("/proc/self/task").context("reading /proc/self/task")? {
        let task = task?.path();
        let is_named = fs::read_to_string(task.join("comm")).is_ok_and(|of| of.trim_end() == name);
        if is_named {
            let used = on_cpu(&task).with_context(|| format!("the CPU time of thread {name}"))?;
            total = Some(total.unwrap_or(0) + used);
        }
    }
    let total = total.with_context(|| format!("no thread has the name {name}"))?;
    Ok(Duration::from_nanos(total))
}

fn on_cpu(task: &Path) -> Option<u64> {
    let text = fs::read_to_string(task.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_status_are_in_kibibytes() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(field_of(status, "VmRSS"), Some(1 << 20));
        assert_eq!(field_of(status, "VmHWM"), Some(2 << 20));
        assert_eq!(field_of(status, "VmSwap"), None);
    }

    #[test]
    fn own_process_has_used_something() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.resident > 0 && memory.peak >= memory.resident);
        assert!(cpu_time(std::process::id()).unwrap() > Duration::ZERO);
    }
}
