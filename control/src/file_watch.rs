//! Notices when the content of the configuration file changes.
//!
//! Editors replace the file, and config maps change a symbolic link on the path to it. So the directories on
//! that path are watched, not the file. Any event leads to a comparison of the content after a moment of quiet.
//! A slow timer does the same for file systems that send no events.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use tokio::time::{Instant, sleep, timeout_at};

use crate::config;

/// The file is read after this time without an event.
const QUIET: Duration = Duration::from_millis(200);
/// Longest wait for a quiet moment.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// Time between two comparisons without an event.
const TIMER: Duration = Duration::from_secs(30);
/// Most symbolic links followed; the kernel has the same limit.
const MAX_LINKS: usize = 40;

/// Calls `changed` whenever the content of the file differs from the last one. `content` is what the caller has
/// read; `None` if it could not.
pub async fn changes(path: PathBuf, mut content: Option<Vec<u8>>, changed: impl Fn()) {
    loop {
        // The watches come before the comparison, so that a change between the two is an event.
        let watched = match Watched::new(&path) {
            Ok(watched) => Some(watched),
            Err(error) => {
                tracing::debug!(%error, path = %path.display(), "cannot watch the configuration file");
                None
            }
        };
        let found = config::read(&path).ok();
        if found != content {
            content = found;
            changed();
        }
        match watched {
            Some(mut watched) => watched.rest_after_event().await,
            None => sleep(TIMER).await,
        }
    }
}

struct Watched {
    events: EventStream<Vec<u8>>,
}

impl Watched {
    fn new(path: &Path) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let mask = WatchMask::CREATE
            | WatchMask::CLOSE_WRITE
            | WatchMask::MODIFY
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        for directory in directories(path) {
            // A missing directory is noticed by its parent or by the timer.
            if let Err(error) = inotify.watches().add(&directory, mask) {
                tracing::debug!(%error, directory = %directory.display(), "cannot watch");
            }
        }
        Ok(Self {
            events: inotify.into_event_stream(vec![0; 4096])?,
        })
    }

    /// Waits for an event and then for a quiet moment, or for the timer.
    async fn rest_after_event(&mut self) {
        if !self.event_before(Instant::now() + TIMER).await {
            return;
        }
        let end = Instant::now() + LONGEST_WAIT;
        while self.event_before(end.min(Instant::now() + QUIET)).await && Instant::now() < end {}
    }

    async fn event_before(&mut self, deadline: Instant) -> bool {
        matches!(
            timeout_at(deadline, self.events.next()).await,
            Ok(Some(Ok(_)))
        )
    }
}

/// Lists the directories in which a change may change the content: those of the path and of every symbolic link
/// on it.
fn directories(path: &Path) -> BTreeSet<PathBuf> {
    let mut directories = BTreeSet::new();
    let mut waiting = vec![std::path::absolute(path).unwrap_or_else(|_| path.to_owned())];
    let mut links = 0;
    while let Some(path) = waiting.pop() {
        if let Some(parent) = path.parent() {
            directories.insert(parent.to_owned());
        }
        for prefix in path.ancestors() {
            let (Ok(target), Some(parent)) = (fs::read_link(prefix), prefix.parent()) else {
                continue;
            };
            directories.insert(parent.to_owned());
            links += 1;
            if links <= MAX_LINKS
                && let Ok(rest) = path.strip_prefix(prefix)
            {
                let target = parent.join(target);
                waiting.push(if rest.as_os_str().is_empty() {
                    target
                } else {
                    target.join(rest)
                });
            }
            // The rest of the path continues from the link's target.
            break;
        }
    }
    directories
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::mpsc;

    use super::*;

    /// Watches in a thread until the end of the process; returns the changes.
    fn watching(path: &Path) -> mpsc::Receiver<()> {
        let (tell, told) = mpsc::channel();
        let path = path.to_owned();
        let content = fs::read(&path).ok();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(changes(path, content, move || {
                let _ = tell.send(());
            }));
        });
        told
    }

    fn assert_changed(changes: &mpsc::Receiver<()>) {
        changes
            .recv_timeout(Duration::from_secs(10))
            .expect("a change is noticed");
    }

    #[test]
    fn rewritten_and_replaced_files_are_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("edge.yaml");
        fs::write(&path, "a").unwrap();
        let changes = watching(&path);
        fs::write(&path, "b").unwrap();
        assert_changed(&changes);
        let other = directory.path().join("edge.yaml~");
        fs::write(&other, "c").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_changed(&changes);
        fs::remove_file(&path).unwrap();
        assert_changed(&changes);
        fs::write(&path, "d").unwrap();
        assert_changed(&changes);
    }

    #[test]
    fn config_map_that_turns_its_link_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (version, content) in [("v1", "a"), ("v2", "b")] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("edge.yaml"), content).unwrap();
        }
        symlink("v1", at("..data")).unwrap();
        symlink("..data/edge.yaml", at("edge.yaml")).unwrap();
        let changes = watching(&at("edge.yaml"));
        symlink("v2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert_changed(&changes);
    }

    #[test]
    fn same_content_is_no_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("edge.yaml");
        fs::write(&path, "a").unwrap();
        let changes = watching(&path);
        let other = directory.path().join("other");
        fs::write(&other, "a").unwrap();
        fs::rename(&other, &path).unwrap();
        fs::write(directory.path().join("unrelated"), "x").unwrap();
        assert_eq!(
            changes.recv_timeout(2 * QUIET),
            Err(mpsc::RecvTimeoutError::Timeout)
        );
        fs::write(&path, "b").unwrap();
        assert_changed(&changes);
    }

    #[test]
    fn links_to_directories_are_followed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("real/sub")).unwrap();
        symlink("real", root.join("link")).unwrap();
        let found = directories(&root.join("link/sub/edge.yaml"));
        assert!(found.contains(&root), "{found:?}");
        assert!(found.contains(&root.join("real/sub")), "{found:?}");
    }

    #[test]
    fn links_in_a_circle_end() {
        let directory = tempfile::tempdir().unwrap();
        symlink("b", directory.path().join("a")).unwrap();
        symlink("a", directory.path().join("b")).unwrap();
        assert!(!directories(&directory.path().join("a")).is_empty());
    }
}
