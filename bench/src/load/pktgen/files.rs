//! pktgen's files: threads and their devices, start and stop.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use lab::{wait_for, wait_until};

use super::device::{Device, Settings};

/// How the names of our devices end, behind the interface's.
pub(super) const MARK: &str = "@guideway";
/// How long pktgen may take to show what was written. A thread removes its devices when it has run once more; a device's
/// values are there at once.
pub(super) const READ_BACK: Duration = Duration::from_secs(5);

/// Why pktgen cannot send.
#[derive(Debug, thiserror::Error)]
pub enum PktgenError {
    /// The kernel has none.
    #[error(
        "this kernel has no pktgen: load its module (modprobe pktgen), or write generator: live"
    )]
    Missing,
    /// It has fewer threads than the load asks for.
    #[error("pktgen has {found} threads, one for each CPU, and not {wanted}: write fewer threads")]
    FewThreads {
        /// Threads that there are.
        found: usize,
        /// Threads that the load asks for.
        wanted: u32,
    },
    /// It has devices that are not ours.
    #[error(
        "others use pktgen: {thread} has the device {device}; end that, or write generator: live"
    )]
    InUse {
        /// The thread's file.
        thread: String,
        /// The device.
        device: String,
    },
    /// A file cannot be read or written.
    #[error("pktgen: cannot {action} {}", path.display())]
    File {
        /// What was attempted.
        action: String,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It does not show what was written.
    #[error("pktgen has not taken {written:?}")]
    Refused {
        /// What was written.
        written: String,
        /// What it shows.
        #[source]
        source: lab::Error,
    },
}

impl PktgenError {
    /// Tells whether this machine cannot have pktgen send at all.
    pub fn is_of_machine(&self) -> bool {
        match self {
            Self::Missing | Self::FewThreads { .. } | Self::InUse { .. } => true,
            Self::File { .. } | Self::Refused { .. } => false,
        }
    }
}

/// pktgen, by the directory of its files. Its devices have no one else.
#[derive(Debug)]
pub struct Pktgen {
    root: PathBuf,
    /// Names of the threads' files, by CPU.
    threads: Vec<String>,
}

impl Pktgen {
    /// Finds pktgen, and removes devices that a run has left which was killed.
    ///
    /// # Errors
    ///
    /// [`PktgenError::Missing`] if the kernel has none, [`PktgenError::InUse`] if it has devices of others.
    pub fn open(root: &Path) -> Result<Self, PktgenError> {
        if !root.join("pgctrl").exists() {
            return Err(PktgenError::Missing);
        }
        let entries = fs::read_dir(root).map_err(|source| file_error("list", root, source))?;
        let names = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        let of_cpu = |name: &String| name.strip_prefix("kpktgend_")?.parse::<u32>().ok();
        let mut threads: Vec<String> = names.filter(|name| of_cpu(name).is_some()).collect();
        threads.sort_by_key(of_cpu);
        let found = Self {
            root: root.to_owned(),
            threads,
        };
        found.remove_left()?;
        Ok(found)
    }

    /// Removes what a run has left which was killed.
    fn remove_left(&self) -> Result<(), PktgenError> {
        let mut left = Vec::new();
        for thread in &self.threads {
            let devices = self.devices_of(thread)?;
            if let Some(device) = devices.iter().find(|device| !device.contains(MARK)) {
                return Err(PktgenError::InUse {
                    thread: thread.clone(),
                    device: device.clone(),
                });
            }
            if !devices.is_empty() {
                left.push(thread.as_str());
            }
        }
        if !left.is_empty() {
            self.write("pgctrl", "stop")?;
        }
        left.iter().try_for_each(|thread| self.empty(thread))
    }

    /// Removes all devices of a thread.
    fn empty(&self, thread: &str) -> Result<(), PktgenError> {
        self.write(thread, "rem_device_all")?;
        let is_empty = || {
            self.devices_of(thread)
                .is_ok_and(|devices| devices.is_empty())
        };
        let awaited = format!("{thread} has no device");
        wait_until(&awaited, READ_BACK, is_empty).map_err(|source| PktgenError::Refused {
            written: "rem_device_all".to_owned(),
            source,
        })
    }

    /// Gives threads devices with settings.
    ///
    /// # Errors
    ///
    /// When pktgen does not take them. Then none is left.
    pub(super) fn configure(
        &self,
        interface: &str,
        settings: &[(u32, Settings)],
    ) -> Result<Configured<'_>, PktgenError> {
        let mut configured = Configured {
            pktgen: self,
            threads: Vec::new(),
            devices: Vec::new(),
        };
        for (number, (thread, of_device)) in settings.iter().enumerate() {
            let wanted = *thread as usize;
            let file = self.threads.get(wanted).ok_or(PktgenError::FewThreads {
                found: self.threads.len(),
                wanted: thread + 1,
            })?;
            let name = format!("{interface}{MARK}{number}");
            if !configured.threads.contains(&wanted) {
                configured.threads.push(wanted);
            }
            let written = format!("add_device {name}");
            self.write(file, &written)?;
            let is_there = || match self.devices_of(file) {
                Ok(devices) if devices.contains(&name) => Ok(()),
                Ok(devices) => Err(format!("{file} has the devices {devices:?}")),
                Err(error) => Err(error.to_string()),
            };
            wait_for(&format!("{file} has {name}"), READ_BACK, is_there)
                .map_err(|source| PktgenError::Refused { written, source })?;
            let device = Device::new(self.root.join(&name));
            of_device.write(&device)?;
            configured.devices.push(device);
        }
        Ok(configured)
    }

    /// Returns the devices of a thread: the names behind `Running:` and `Stopped:`.
    fn devices_of(&self, thread: &str) -> Result<Vec<String>, PktgenError> {
        let text = read(&self.root.join(thread))?;
        let lists = text.lines().filter_map(|line| {
            line.strip_prefix("Running:")
                .or_else(|| line.strip_prefix("Stopped:"))
        });
        let names = lists.flat_map(str::split_whitespace);
        Ok(names.map(str::to_owned).collect())
    }

    fn write(&self, file: &str, text: &str) -> Result<(), PktgenError> {
        write(&self.root.join(file), text)
    }
}

/// Devices that are configured. They are removed on drop.
#[derive(Debug)]
pub(super) struct Configured<'a> {
    pktgen: &'a Pktgen,
    threads: Vec<usize>,
    devices: Vec<Device>,
}

impl Configured<'_> {
    pub(super) fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Starts all devices; returns when all have stopped.
    ///
    /// # Errors
    ///
    /// When pktgen does not take it.
    pub(super) fn start(&self) -> Result<(), PktgenError> {
        self.pktgen.write("pgctrl", "start")
    }

    /// Stops all devices.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub(super) fn stop(&self) -> Result<(), PktgenError> {
        self.pktgen.write("pgctrl", "stop")
    }

    /// Removes the devices.
    ///
    /// # Errors
    ///
    /// When one stays.
    pub(super) fn remove(mut self) -> Result<(), PktgenError> {
        self.remove_all()
    }

    fn remove_all(&mut self) -> Result<(), PktgenError> {
        let threads = std::mem::take(&mut self.threads);
        let removed = threads
            .iter()
            .map(|&thread| self.pktgen.empty(&self.pktgen.threads[thread]));
        // All of them, whatever became of the first.
        removed.fold(Ok(()), Result::and)
    }
}

impl Drop for Configured<'_> {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            let _ = self.stop();
        }
        if let Err(error) = self.remove_all() {
            eprintln!("guideway-bench: {error}");
        }
    }
}

pub(super) fn read(path: &Path) -> Result<String, PktgenError> {
    fs::read_to_string(path).map_err(|source| file_error("read", path, source))
}

/// Writes a command. Nothing is truncated: these files have no length.
pub(super) fn write(path: &Path, text: &str) -> Result<(), PktgenError> {
    let opened = OpenOptions::new().append(true).open(path);
    // In one call: the kernel takes each for a command.
    let written = opened.and_then(|mut file| file.write_all(format!("{text}\n").as_bytes()));
    written.map_err(|source| file_error(&format!("write {text:?} into"), path, source))
}

fn file_error(action: &str, path: &Path, source: io::Error) -> PktgenError {
    PktgenError::File {
        action: action.to_owned(),
        path: path.to_owned(),
        source,
    }
}
