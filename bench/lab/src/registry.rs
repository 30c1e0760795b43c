//! Remembers the namespaces of this process, so that each is removed: on drop, on a signal, or at the latest
//! when another process creates a lab.
//!
//! A namespace's name contains the pid of its maker. To remove it, the registry ends the processes in it, then
//! unmounts and unlinks the name. Its interfaces are gone with the last reference.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process,
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread,
    time::Duration,
};

use nix::{
    mount::{MntFlags, umount2},
    sys::signal::{self, Signal},
    unistd::Pid,
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
    low_level::emulate_default_handler,
};

use crate::wait_until;

/// Directory where `ip netns` looks for names.
pub(crate) const NAMES: &str = "/run/netns";
const PREFIX: &str = "gw-";
const RESIDENTS_TIMEOUT: Duration = Duration::from_secs(30);

/// The names of this process's namespaces, and what else is to be done in the end.
pub(crate) struct Registry {
    created: u32,
    names: Vec<String>,
    /// By number, in the order in which they were asked for.
    tasks: Vec<(u32, Task)>,
}

type Task = Box<dyn FnOnce() + Send>;

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    created: 0,
    names: Vec::new(),
    tasks: Vec::new(),
});
static PREPARED: Once = Once::new();

/// Locks the registry. The first call removes leftovers and starts to watch for signals.
///
/// The lock is held while a namespace is created or a program started, so that a signal finds either absent or complete.
pub(crate) fn lock() -> MutexGuard<'static, Registry> {
    PREPARED.call_once(|| {
        sweep();
        if let Err(error) = watch_signals() {
            eprintln!("lab: signals will leave namespaces behind: {error}");
        }
    });
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// Registers a name for a namespace that is about to be created.
    pub(crate) fn add(&mut self, label: &str) -> String {
        self.created += 1;
        let name = format!("{PREFIX}{}-{}-{label}", process::id(), self.created);
        self.names.push(name.clone());
        name
    }

    /// Removes a namespace and forgets its name.
    pub(crate) fn remove(&mut self, name: &str) -> io::Result<()> {
        self.names.retain(|known| known != name);
        remove_namespace(name)
    }
}

/// Something that is done once: on drop, or when a signal ends this process. After SIGKILL nobody does it.
#[derive(Debug)]
#[must_use = "it is done at once without a guard"]
pub struct AtEnd(u32);

/// Has something done at the end, before this process's namespaces are removed; what was asked for last is done first. It
/// must not make or remove a namespace, nor start a [`crate::Process`].
pub fn at_end(task: impl FnOnce() + Send + 'static) -> AtEnd {
    let mut registry = lock();
    registry.created += 1;
    let number = registry.created;
    registry.tasks.push((number, Box::new(task)));
    AtEnd(number)
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        let mut registry = lock();
        let place = registry
            .tasks
            .iter()
            .position(|(number, _)| *number == self.0);
        let task = place.map(|place| registry.tasks.remove(place));
        // A signal waits until it is done.
        if let Some((_, task)) = task {
            task();
        }
    }
}

/// Removes the namespaces of processes that no longer exist, and ends everything that still runs in them.
///
/// A process that creates its first namespace calls this. It is public for a clean-up command.
pub fn sweep() {
    let Ok(entries) = fs::read_dir(NAMES) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if let Some(name) = name.to_str()
            && maker(name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
            && let Err(error) = remove_namespace(name)
        {
            eprintln!("lab: cannot remove the leftover namespace {name}: {error}");
        }
    }
}

/// Returns the pid in a namespace's name, if the name is one of ours.
fn maker(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

fn watch_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::Builder::new()
        .name("lab-signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                // The lock is kept until the process ends, so that no thread creates another namespace.
                let mut registry = lock();
                while let Some((_, task)) = registry.tasks.pop() {
                    task();
                }
                for name in &registry.names {
                    if let Err(error) = remove_namespace(name) {
                        eprintln!("lab: cannot remove the namespace {name}: {error}");
                    }
                }
                if emulate_default_handler(signal).is_err() {
                    process::exit(128 + signal);
                }
            }
        })?;
    Ok(())
}

fn remove_namespace(name: &str) -> io::Result<()> {
    let path = Path::new(NAMES).join(name);
    let ended = end_residents(&path);
    match umount2(&path, MntFlags::MNT_DETACH) {
        // EINVAL: the name exists but nothing is mounted on it, because its creation was interrupted.
        Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => {}
        Err(error) => return Err(error.into()),
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => ended,
    }
}

/// Kills every process whose network namespace is the one at `path`.
fn end_residents(path: &Path) -> io::Result<()> {
    let Ok(namespace) = fs::metadata(path) else {
        return Ok(());
    };
    let identity = (namespace.dev(), namespace.ino());
    wait_until("the namespace is empty", RESIDENTS_TIMEOUT, || {
        let residents = residents(identity);
        for &pid in &residents {
            // The process may have ended since it was listed.
            let _ = signal::kill(pid, Signal::SIGKILL);
        }
        residents.is_empty()
    })
    .map_err(io::Error::other)
}

fn residents(namespace: (u64, u64)) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|entry| Some((entry.path(), entry.file_name().to_str()?.parse().ok()?)))
        .filter(|(path, pid): &(PathBuf, i32)| {
            *pid != process::id().cast_signed()
                // A zombie has no namespaces, so it does not count.
                && fs::metadata(path.join("ns/net"))
                    .is_ok_and(|other| (other.dev(), other.ino()) == namespace)
        })
        .map(|(_, pid)| Pid::from_raw(pid))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_lab_have_a_maker() {
        assert_eq!(maker("gw-4711-2-edge0"), Some(4711));
        assert_eq!(maker("gw-edge"), None);
        assert_eq!(maker("gw-x-1-edge"), None);
        assert_eq!(maker("other-4711-2-edge0"), None);
    }
}
