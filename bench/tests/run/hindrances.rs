//! What hinders a run has an exit code of its own, and the remedy is told before anything is made.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Output},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use bench::exit::Exit;

use super::{SCENARIO, Scratch, text};

/// The user without rights.
const NOBODY: u32 = 65_534;

fn expect(output: &Output, exit: Exit, remedy: &str) {
    let said = text(output);
    assert_eq!(output.status.code(), Some(exit.code().into()), "{said}");
    assert!(said.contains(remedy), "{said}");
}

#[test]
fn a_user_without_rights_is_told_to_be_root() {
    let scratch = Scratch::new("rights");
    let [scenario, out, program] =
        ["own.yaml", "result", "guideway-bench"].map(|name| scratch.path(name));
    fs::write(&scenario, SCENARIO.replace(", ours-ipip", "")).unwrap();
    // Others may not read the directory that it was built in.
    fs::copy(env!("CARGO_BIN_EXE_guideway-bench"), &program).unwrap();
    for arguments in [
        &["preflight", &scenario][..],
        &["run", &scenario, "--out", &out],
    ] {
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .current_dir("/")
            .uid(NOBODY)
            .gid(NOBODY);
        expect(&command.output().unwrap(), Exit::NoRights, "run it as root");
    }
    assert!(!Path::new(&out).exists());
}

#[test]
fn a_machine_that_is_noisier_than_allowed_is_refused() {
    let scratch = Scratch::new("noisy");
    let [scenario, out] = ["own.yaml", "result"].map(|name| scratch.path(name));
    fs::write(&scenario, SCENARIO.replace(", ours-ipip", "")).unwrap();
    let is_done = AtomicBool::new(false);
    let spin = || {
        while !is_done.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_guideway-bench"));
        command
            .args(arguments)
            .args(["--max-noise", "0"])
            .output()
            .unwrap()
    };
    let outputs = thread::scope(|scope| {
        // Each core has something else to do.
        let cores = thread::available_parallelism().unwrap().get();
        for _ in 0..2 * cores {
            scope.spawn(spin);
        }
        let outputs = [
            run(&["preflight", &scenario]),
            run(&["run", &scenario, "--out", &out]),
        ];
        is_done.store(true, Ordering::Relaxed);
        outputs
    });
    for output in &outputs {
        expect(output, Exit::Noisy, "allow more with --max-noise");
    }
    assert!(!Path::new(&out).exists());
}
