//! Nothing stays behind, however a lab ends. Needs root.
//!
//! Where a whole process must end, the test starts its own binary once more,
//! running the same test with `GUIDEWAY_LAB_CHILD` set.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

use std::{
    env, fs, panic,
    path::Path,
    process::{Command, ExitStatus},
    thread,
    time::Duration,
};

use lab::{Namespace, Process, Signal, Topology};

const CHILD: &str = "GUIDEWAY_LAB_CHILD";
const TIMEOUT: Duration = Duration::from_secs(60);

fn names_with(part: &str) -> Vec<String> {
    fs::read_dir("/run/netns")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(part))
        .collect()
}

/// In the child: makes a lab with a program in it, tells the program's pid, and waits for the end.
fn hold_a_lab() -> ! {
    let net = Topology::builder().build().unwrap();
    let mut command = net.nodes()[0].namespace().command("sleep");
    let program = Process::spawn(command.arg("1000")).unwrap();
    println!("\nholding {}", program.id());
    loop {
        thread::park();
    }
}

/// In the parent: starts the child, sends it a signal once it holds its lab,
/// and returns its pid, the program's pid and how it ended.
fn end_a_holder(test: &str, signal: Signal) -> (u32, String, ExitStatus) {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, "1");
    let mut holder = Process::spawn(&mut command).unwrap();
    let line = holder.wait_for_line("holding", TIMEOUT).unwrap();
    let program = line.strip_prefix("holding ").unwrap().to_owned();
    let pid = holder.id();
    assert_eq!(names_with(&format!("gw-{pid}-")).len(), 6);
    assert!(Path::new("/proc").join(&program).join("ns/net").exists());
    holder.signal(signal).unwrap();
    (pid, program, holder.wait(TIMEOUT).unwrap())
}

fn assert_gone(pid: u32, program: &str) {
    assert_eq!(names_with(&format!("gw-{pid}-")), [""; 0]);
    assert!(!Path::new("/proc").join(program).join("ns/net").exists());
}

#[test]
fn a_panic_removes_the_namespaces() {
    let mut name = String::new();
    let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        let namespace = Namespace::new("panics").unwrap();
        name = namespace.name().to_owned();
        namespace.run(|| panic!("on purpose"));
    }));
    assert_eq!(
        outcome.unwrap_err().downcast_ref(),
        Some(&"on purpose"),
        "the closure's panic arrives"
    );
    assert!(!name.is_empty());
    assert_eq!(names_with(&name), [""; 0]);
}

#[test]
fn sigint_removes_the_namespaces_and_ends_their_programs() {
    if env::var_os(CHILD).is_some() {
        hold_a_lab();
    }
    let test = "sigint_removes_the_namespaces_and_ends_their_programs";
    let (pid, program, status) = end_a_holder(test, Signal::SIGINT);
    assert_gone(pid, &program);
    assert!(
        status.to_string().contains("SIGINT"),
        "ended by {status}, a shell sees the signal"
    );
}

#[test]
fn what_a_killed_process_left_is_removed_by_the_next() {
    if env::var_os(CHILD).is_some() {
        hold_a_lab();
    }
    let test = "what_a_killed_process_left_is_removed_by_the_next";
    let (pid, program, _) = end_a_holder(test, Signal::SIGKILL);
    lab::sweep();
    assert_gone(pid, &program);
}

#[test]
fn what_is_to_be_done_at_the_end_is_done_once_and_on_a_signal_too() {
    if let Some(file) = env::var_os(CHILD) {
        let note = move |word: &'static str| {
            let file = file.clone();
            lab::at_end(move || {
                let before = fs::read_to_string(&file).unwrap_or_default();
                fs::write(&file, before + word).unwrap();
            })
        };
        drop(note("dropped "));
        let _guards = [note("first"), note("last ")];
        println!("\nholding on");
        loop {
            thread::park();
        }
    }
    let test = "what_is_to_be_done_at_the_end_is_done_once_and_on_a_signal_too";
    let file = env::temp_dir().join(format!("guideway-lab-{}-end", std::process::id()));
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, &file);
    let mut holder = Process::spawn(&mut command).unwrap();
    holder.wait_for_line("holding on", TIMEOUT).unwrap();
    holder.signal(Signal::SIGINT).unwrap();
    holder.wait(TIMEOUT).unwrap();
    let noted = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(noted, "dropped last first");
}
