//! Attaches the egress program to the loopback device, takes it over, and removes it, in each way
//! that this kernel has.
//!
//! The kernel matrix runs it on every supported kernel: those before 6.6 have no tcx.

use std::net::UdpSocket;

use anyhow::{Context, Result, ensure};
use fastpath::{
    attach::{EgressAttachment, EgressHook, EgressMode},
    facts,
    load::Loader,
    pins::Pins,
};
use xdp_prog::abi::map;

const DEVICE: &str = "lo";

fn main() -> Result<()> {
    let pins = Pins::new("/sys/fs/bpf/guideway-example");
    // What the program does is of no matter here, and the kernel would verify all of it each time.
    let stubs = lab::stub_object(fastpath::object::bytes()).leak();
    let loader = Loader::pinned(pins.clone())
        .object(stubs)
        .max_entries(map::LUT, 1024);
    for hook in [EgressHook::TcxOrClsact, EgressHook::Clsact] {
        let first = attach(&loader, hook)?;
        let second = attach(&loader, hook)?;
        ensure!(
            second.mode == first.mode,
            "{} after {}",
            second.mode,
            first.mode
        );
        ensure!(
            second.replaced == Some(first.program),
            "{:?} was replaced, not {}",
            second.replaced,
            first.program
        );
        carry_a_packet()?;
        ensure!(second.ahead.is_empty(), "{:?} runs first", second.ahead);

        let removed = pins.remove_all().context("removing it")?;
        ensure!(removed == [DEVICE], "removed from {removed:?}");
        let left = facts::egress(DEVICE)?;
        ensure!(
            left.tcx.is_none_or(|programs| programs.is_empty()),
            "a tcx program is left"
        );
        ensure!(left.filters.is_empty(), "{:?} are left", left.filters);
        println!("{hook:?}: attached by {}, taken over, removed", first.mode);
    }
    Ok(())
}

/// Attaches as an agent does that ends at once, and sees that nothing else is there.
fn attach(loader: &Loader, hook: EgressHook) -> Result<EgressAttachment> {
    let mut loaded = loader.load()?;
    let attachment = loaded.attach_egress(DEVICE, hook)?;
    drop(loaded);
    let egress = facts::egress(DEVICE)?;
    let links = egress.tcx.iter().flatten().count();
    let expected = match attachment.mode {
        EgressMode::Tcx => (1, 0),
        EgressMode::Clsact => (0, 1),
    };
    let found = (links, egress.filters.len());
    ensure!(found == expected, "{found:?} programs and filters");
    Ok(attachment)
}

fn carry_a_packet() -> Result<()> {
    let inbox = UdpSocket::bind("127.0.0.1:0")?;
    inbox.set_read_timeout(Some(std::time::Duration::from_secs(10)))?;
    let outbox = UdpSocket::bind("127.0.0.1:0")?;
    outbox.send_to(b"packet", inbox.local_addr()?)?;
    let mut datagram = [0; 16];
    let length = inbox
        .recv(&mut datagram)
        .context("no packet came through")?;
    ensure!(
        datagram.get(..length) == Some(&b"packet"[..]),
        "another packet came"
    );
    Ok(())
}
