//! One machine of a test network: a network namespace with a mount namespace.
//!
//! The mount namespace is created once and kept, not created for each process. So a restarted agent finds the
//! pins of its predecessor in this machine's bpffs, and agents of other machines do not. Its `/sys` is mounted
//! from inside, so that `/sys/class/net` shows this machine's interfaces.

use std::{
    ffi::{CStr, OsStr},
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    panic,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    thread,
};

use nix::{
    fcntl::{Flock, FlockArg},
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
    unistd::chdir,
};

use crate::{
    Error, Result, ioctl,
    registry::{self, NAMES},
    rtnl::Rtnl,
};

/// A network namespace with its own `/sys`, bpffs and [`Namespace::FILES`]. It is removed on drop, and
/// processes that still run in it are killed.
///
/// `ip netns` knows it as [`Namespace::name`].
#[derive(Debug)]
pub struct Namespace {
    name: String,
    label: String,
    handles: Arc<Handles>,
    rtnl: Mutex<Rtnl>,
    ioctl: OwnedFd,
}

/// The namespaces that a thread or child process enters.
#[derive(Debug)]
struct Handles {
    net: OwnedFd,
    mounts: OwnedFd,
}

impl Namespace {
    /// A directory for configurations, sockets and logs. Only processes on this machine see it, and it is
    /// removed with the machine.
    pub const FILES: &str = "/run/gw-lab";

    /// Creates a namespace named `gw-<pid>-<n>-<label>`. Its loopback is up; duplicate address detection and
    /// reverse path filters are off.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], usually because the caller is not root.
    pub fn new(label: &str) -> Result<Self> {
        let namespace = Self::create(label)?;
        for family in ["ipv4", "ipv6"] {
            for scope in ["all", "default"] {
                let (key, value) = match family {
                    "ipv4" => ("rp_filter", "0"),
                    _ => ("accept_dad", "0"),
                };
                namespace.set_sysctl(&format!("net/{family}/conf/{scope}/{key}"), value)?;
            }
        }
        namespace.link("lo")?.set_up()?;
        Ok(namespace)
    }

    /// Returns the name under which `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the label that it was created with.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Runs `work` in a thread inside the namespace and returns its result.
    ///
    /// Threads, processes and sockets that `work` creates stay in the namespace after it returns. `work` must
    /// not create another namespace: the mounts of that would stay in this one.
    ///
    /// # Panics
    ///
    /// When `work` panics, with the same payload.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        in_thread(|| {
            self.handles
                .enter()
                .expect("whoever could make the namespace can enter it");
            work()
        })
    }

    /// Prepares a command whose process runs inside the namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let handles = Arc::clone(&self.handles);
        let mut command = Command::new(program);
        let enter = move || handles.enter();
        // SAFETY: between fork and exec only async-signal-safe calls are
        // allowed; `enter` makes system calls alone and allocates nothing.
        unsafe { command.pre_exec(enter) };
        command
    }

    /// Writes a file in [`Namespace::FILES`] and returns its path. A concurrent reader sees either the old or
    /// the new content.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], for example when `name` contains a slash.
    pub fn write_file(&self, name: &str, content: impl AsRef<[u8]> + Send) -> Result<PathBuf> {
        let path = Path::new(Self::FILES).join(name);
        let draft = Path::new(Self::FILES).join(format!(".{name}.draft"));
        self.run(|| fs::write(&draft, content).and_then(|()| fs::rename(&draft, &path)))
            .map_err(|source| self.error(format!("write {}", path.display()), source))?;
        Ok(path)
    }

    /// Writes a value below `/proc/sys`. `key` is a path such as `net/ipv4/ip_forward`.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] when there is no such key or the value is refused.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.run(|| fs::write(Path::new("/proc/sys").join(key), value))
            .map_err(|source| self.error(format!("set {key} to {value}"), source))
    }

    /// Reads a value below `/proc/sys`, without the final newline.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] when there is no such key.
    pub fn sysctl(&self, key: &str) -> Result<String> {
        self.run(|| fs::read_to_string(Path::new("/proc/sys").join(key)))
            .map(|value| value.trim_end().to_owned())
            .map_err(|source| self.error(format!("read {key}"), source))
    }

    /// Reads a TCP counter of the machine by its name in `/proc/net/netstat`, such as `TCPChallengeACK`.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] when there is no such counter.
    pub fn tcp_counter(&self, name: &str) -> Result<u64> {
        self.run(|| fs::read_to_string("/proc/thread-self/net/netstat"))
            .and_then(|text| {
                let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
                let (names, values) = (lines.next(), lines.next());
                names
                    .and_then(|names| names.split(' ').position(|other| other == name))
                    .and_then(|place| values?.split(' ').nth(place)?.parse().ok())
                    .ok_or_else(|| io::ErrorKind::NotFound.into())
            })
            .map_err(|source| self.error(format!("read the counter {name}"), source))
    }

    /// Makes the machine forward packets of both families between its interfaces.
    ///
    /// # Errors
    ///
    /// As for [`Namespace::set_sysctl`].
    pub fn enable_forwarding(&self) -> Result<()> {
        self.set_sysctl("net/ipv4/ip_forward", "1")?;
        self.set_sysctl("net/ipv6/conf/all/forwarding", "1")
    }

    pub(crate) fn rtnl(&self) -> &Mutex<Rtnl> {
        &self.rtnl
    }

    /// Returns a socket of this namespace for interface ioctls.
    pub(crate) fn ioctl(&self) -> BorrowedFd<'_> {
        self.ioctl.as_fd()
    }

    pub(crate) fn net(&self) -> BorrowedFd<'_> {
        self.handles.net.as_fd()
    }

    pub(crate) fn error(&self, action: String, source: io::Error) -> Error {
        Error::Kernel {
            namespace: self.name.clone(),
            action,
            source,
        }
    }

    fn create(label: &str) -> Result<Self> {
        let mut registry = registry::lock();
        let name = registry.add(label);
        let made = in_thread(|| {
            let handles = Handles::new(&Path::new(NAMES).join(&name))?;
            Ok((handles, Rtnl::open()?, ioctl::ioctl_socket()?))
        });
        match made {
            Ok((handles, rtnl, ioctl)) => Ok(Self {
                name,
                label: label.to_owned(),
                handles: Arc::new(handles),
                rtnl: Mutex::new(rtnl),
                ioctl,
            }),
            Err(source) => {
                // The first error is the one to report.
                let _ = registry.remove(&name);
                Err(Error::Kernel {
                    namespace: name,
                    action: "create it".to_owned(),
                    source,
                })
            }
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = registry::lock().remove(&self.name) {
            eprintln!("lab: cannot remove the namespace {}: {error}", self.name);
        }
    }
}

impl Handles {
    /// Moves the calling thread into new namespaces, and names the network namespace by the file `name`. The
    /// thread must end afterwards.
    fn new(name: &Path) -> io::Result<Self> {
        share_names()?;
        fs::create_dir_all(Namespace::FILES)?;
        unshare(CloneFlags::CLONE_NEWNET)?;
        File::create_new(name)?;
        let own = "/proc/thread-self/ns/net";
        mount_at(Some(own), name, None, MsFlags::MS_BIND)?;

        unshare(CloneFlags::CLONE_NEWNS)?;
        // Mounts made here must not reach the host. And what the host unmounts, such as names of other
        // namespaces, must not stay mounted here.
        mount_at(
            None,
            Path::new("/"),
            None,
            MsFlags::MS_SLAVE | MsFlags::MS_REC,
        )?;
        mount_at(
            Some("sysfs"),
            Path::new("/sys"),
            Some("sysfs"),
            MsFlags::empty(),
        )?;
        mount_at(
            Some("bpf"),
            Path::new("/sys/fs/bpf"),
            Some("bpf"),
            MsFlags::empty(),
        )?;
        mount_at(
            Some("tmpfs"),
            Path::new(Namespace::FILES),
            Some("tmpfs"),
            MsFlags::empty(),
        )?;
        Ok(Self {
            net: File::open(own)?.into(),
            mounts: File::open("/proc/thread-self/ns/mnt")?.into(),
        })
    }

    /// Moves the calling thread into the namespaces. It keeps its working directory.
    fn enter(&self) -> io::Result<()> {
        const PATH_MAX: usize = libc::PATH_MAX.cast_unsigned() as usize;
        let mut directory = [0_u8; PATH_MAX];
        // SAFETY: the buffer is writable for the length given with it.
        let found = unsafe { libc::getcwd(directory.as_mut_ptr().cast(), directory.len()) };
        // A thread can change its mount namespace only if it shares its working directory with no other thread.
        unshare(CloneFlags::CLONE_FS)?;
        setns(&self.mounts, CloneFlags::CLONE_NEWNS)?;
        setns(&self.net, CloneFlags::CLONE_NEWNET)?;
        if !found.is_null()
            && let Ok(directory) = CStr::from_bytes_until_nul(&directory)
        {
            chdir(directory)?;
        }
        Ok(())
    }
}

/// Makes `/run/netns` a shared mount point, as `ip netns add` does. If `ip` did it later, its bind mount would
/// hide our names.
fn share_names() -> io::Result<()> {
    fs::create_dir_all(NAMES)?;
    let names = Path::new(NAMES);
    let _lock =
        Flock::lock(File::open(names)?, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    let share = || mount_at(None, names, None, MsFlags::MS_SHARED | MsFlags::MS_REC);
    share().or_else(|_| {
        mount_at(Some(NAMES), names, None, MsFlags::MS_BIND | MsFlags::MS_REC)?;
        share()
    })
}

fn mount_at(
    source: Option<&str>,
    target: &Path,
    kind: Option<&str>,
    flags: MsFlags,
) -> io::Result<()> {
    mount(source, target, kind, flags, None::<&str>).map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("mount {}: {error}", target.display()))
    })
}

/// Runs `work` in a new thread, which may change its namespaces because it ends here.
fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|payload| panic::resume_unwind(payload))
}
