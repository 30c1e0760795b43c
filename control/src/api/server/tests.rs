//! The socket against peers of all kinds, and against a second agent.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream as Peer;

use super::super::client::{AskError, ask};
use super::super::{Detached, Status};
use super::*;

/// A socket in a directory of its own, served by a thread until the end of the process.
fn serving(answer: fn(Request) -> String) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sub/agent.sock");
    let (ready, is_ready) = std::sync::mpsc::channel();
    let bound = path.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let socket = Socket::bind(&bound).unwrap();
            ready.send(()).unwrap();
            socket
                .serve(
                    move |request| async move { answer(request) },
                    std::future::pending(),
                )
                .await;
        });
    });
    is_ready.recv().unwrap();
    (directory, path)
}

fn echo(request: Request) -> String {
    match request {
        Request::Status {} => line(&Reply::Ok(Status {
            pid: 42,
            ..Status::default()
        })),
        other => error_line(format!("{other:?}")),
    }
}

fn send(path: &Path, bytes: &[u8]) -> String {
    let mut peer = Peer::connect(path).unwrap();
    // The agent may answer and close before it has read all of a long line.
    let _ = peer.write_all(bytes);
    let _ = peer.shutdown(std::net::Shutdown::Write);
    let mut answer = String::new();
    let _ = peer.read_to_string(&mut answer);
    answer
}

#[test]
fn answers_come_back_typed() {
    let (_directory, path) = serving(echo);
    let status: Status = ask(&path, &Request::Status {}).unwrap();
    assert_eq!(status.pid, 42);
    let error = ask::<Detached>(&path, &Request::Detach {}).unwrap_err();
    assert_eq!(error.to_string(), "Detach");
}

#[test]
fn socket_is_the_owners_alone() {
    let (_directory, path) = serving(echo);
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn hostile_requests_get_an_error_and_harm_nobody() {
    let (_directory, path) = serving(echo);
    let deep = "[".repeat(4_000);
    let long = vec![b'a'; 1 << 20];
    let cases: [&[u8]; 9] = [
        b"",
        b"\n",
        b"\xff\xfe\n",
        b"{}\n",
        b"{\"request\":\"reboot\"}\n",
        b"{\"request\":\"status\",\"x\":1}\n",
        b"null\n",
        deep.as_bytes(),
        &long,
    ];
    for case in cases {
        let answer = send(&path, case);
        // A peer that sends too much may be cut off before it reads the answer.
        if case.len() <= MAX_REQUEST_BYTES {
            assert!(answer.starts_with("{\"error\":"), "{answer:?}");
        }
    }
    let status: Status = ask(&path, &Request::Status {}).unwrap();
    assert_eq!(status.pid, 42);
}

#[test]
fn silent_peers_do_not_keep_others_waiting() {
    let (_directory, path) = serving(echo);
    let silent: Vec<Peer> = (1..MAX_CONNECTIONS)
        .map(|_| Peer::connect(&path).unwrap())
        .collect();
    let status: Status = ask(&path, &Request::Status {}).unwrap();
    assert_eq!(status.pid, 42);
    drop(silent);
}

#[tokio::test]
async fn peer_that_goes_leaves_no_work_and_one_that_has_said_all_gets_its_answer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let socket = Socket::bind(&path).unwrap();
    let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let go_on = Arc::new(Semaphore::new(0));
    let until = Arc::clone(&go_on);
    let serving = tokio::spawn(socket.serve(
        move |_| {
            // Held for as long as somebody works on the answer.
            let (begin, until, work) = (begin.clone(), Arc::clone(&until), Arc::new(()));
            async move {
                begin.send(Arc::downgrade(&work)).unwrap();
                let _ = until.acquire().await;
                drop(work);
                line(&Reply::Ok(Status::default()))
            }
        },
        std::future::pending(),
    ));
    let request = b"{\"request\":\"status\"}\n";
    let mut gone = UnixStream::connect(&path).await.unwrap();
    gone.write_all(request).await.unwrap();
    let work_for_gone = begun.recv().await.unwrap();
    let mut waiting = UnixStream::connect(&path).await.unwrap();
    waiting.write_all(request).await.unwrap();
    waiting.shutdown().await.unwrap();
    let work_for_waiting = begun.recv().await.unwrap();

    drop(gone);
    while work_for_gone.strong_count() > 0 {
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    // It has been looked at as often as the other one.
    tokio::time::sleep(2 * LOOK_PAUSE).await;
    assert_eq!(work_for_waiting.strong_count(), 1);
    go_on.add_permits(1);
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("{\"ok\":"), "{answer}");
    serving.abort();
}

#[tokio::test]
async fn second_agent_is_refused_and_told_the_pid() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let _first = Socket::bind(&path).unwrap();
    let error = Socket::bind(&path).unwrap_err().to_string();
    assert!(
        error.contains(&format!("(pid {})", std::process::id())),
        "{error}"
    );
}

#[tokio::test]
async fn stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let foreign = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let error = Socket::bind(&path).unwrap_err();
    assert!(matches!(error, ListenError::Taken { .. }), "{error}");
    drop(foreign);
    drop(Socket::bind(&path).unwrap());
    assert!(!path.exists());
}

#[tokio::test]
async fn file_in_the_way_is_named_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    fs::write(&path, "mine").unwrap();
    let error = Socket::bind(&path).unwrap_err();
    assert!(matches!(error, ListenError::InTheWay { .. }), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
}

#[tokio::test]
async fn lock_that_is_a_link_is_refused_and_its_target_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let target = directory.path().join("theirs");
    fs::write(&target, "theirs").unwrap();
    std::os::unix::fs::symlink(&target, lock_path(&path)).unwrap();
    let error = Socket::bind(&path).unwrap_err();
    assert!(matches!(error, ListenError::Io { .. }), "{error}");
    assert_eq!(fs::read_to_string(&target).unwrap(), "theirs");
}

#[test]
fn absent_agent_is_named_with_the_remedy() {
    let error = ask::<Status>(Path::new("/nonexistent/agent.sock"), &Request::Status {});
    let error = error.unwrap_err();
    assert!(matches!(error, AskError::NotRunning { .. }));
    assert!(
        error.to_string().contains("guideway run --config FILE"),
        "{error}"
    );
}
