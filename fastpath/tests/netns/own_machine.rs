//! What tests do on a machine of their own: programs that fit it, commands, and threads that see another network.

use std::{fs::File, os::fd::AsFd as _, process::Command, thread, time::Duration};

use fastpath::load::Loader;
use lab::{Namespace, Veth};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use xdp_prog::abi::map;

use crate::STUBS;

/// Entries of the LUT arena in these tests, which need no 64 MiB.
pub(crate) const LUT_ENTRIES: u32 = 1024;

/// Loads programs that judge nothing, with small tables.
pub(crate) fn small(loader: Loader) -> Loader {
    loader
        .object(&STUBS)
        .max_entries(map::LUT, LUT_ENTRIES)
        .max_entries(map::BACKENDS, 256)
        .max_entries(map::BACKEND_TRAFFIC, 256)
        .max_entries(map::SERVICE_TRAFFIC, 256)
}

/// Runs a test on a machine with a cable between its interfaces `up0` and `up1`.
pub(crate) fn on_machine(name: &str, test: impl FnOnce() + Send) {
    let machine = Namespace::new(name).unwrap();
    Veth::between((&machine, "up0"), (&machine, "up1"))
        .create()
        .unwrap();
    machine.run(test);
}

pub(crate) fn ip(arguments: &str) {
    run("ip", arguments);
}

pub(crate) fn run(program: &str, arguments: &str) {
    finish(Command::new(program).args(arguments.split_whitespace()));
}

pub(crate) fn finish(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs `work` in another network, but with the files of this machine.
pub(crate) fn in_network_of<T: Send>(other: &Namespace, work: impl FnOnce() -> T + Send) -> T {
    let network = File::open(format!("/run/netns/{}", other.name())).unwrap();
    in_thread(|| {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        work()
    })
}

/// Runs `work` in a thread of its own, whose privileges and namespaces end with it.
pub(crate) fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().unwrap())
}

pub(crate) fn wait_until(awaited: &str, condition: impl FnMut() -> bool) {
    lab::wait_until(awaited, Duration::from_secs(60), condition).unwrap();
}
