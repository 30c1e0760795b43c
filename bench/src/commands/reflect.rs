//! The far end of the wire `reflector`.

use std::{process::ExitCode, thread};

use anyhow::Result;
use bench::{
    exit::Exit,
    host,
    scenario::Port,
    wire::{Reflector, reasons_against},
};
use lab::Cidr;

/// Answers the probes of another machine's `guideway-bench run`, whose scenario has the wire reflector.
///
/// Takes a network card for itself, until it is interrupted; needs root. Each address is a backend, at port 7000. Only round
/// trips are timed: each machine has a clock of its own.
#[derive(Debug, clap::Args)]
#[command(after_help = Exit::help(&[Exit::Failed, Exit::Usage, Exit::Settings, Exit::NoRights]))]
pub(crate) struct Reflect {
    /// The network card.
    #[arg(long, value_name = "INTERFACE")]
    device: String,
    /// An address with the length of its network; once for each backend.
    #[arg(long, value_name = "ADDRESS/LENGTH", required = true)]
    address: Vec<Cidr>,
    /// The next hop of answers, one of each family at most [default: straight to the client].
    #[arg(long, value_name = "ADDRESS")]
    via: Vec<std::net::IpAddr>,
    /// The card is there for tests alone: it may have the default route, or the address of this login.
    #[arg(long)]
    given_up: bool,
}

impl Reflect {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        host::preflight()?;
        let port = Port {
            device: self.device.clone(),
            addresses: self.address.iter().map(ToString::to_string).collect(),
            given_up: self.given_up,
        };
        let reasons = reasons_against(&port);
        if !reasons.is_empty() {
            eprintln!("guideway-bench: {}", reasons.join("\n"));
            return Ok(Exit::Usage.into());
        }
        let via: Vec<String> = self.via.iter().map(ToString::to_string).collect();
        let _reflector = Reflector::start(&port, &via)?;
        println!("Answering at {}.", port.addresses.join(", "));
        loop {
            // A signal ends it, and gives the card back.
            thread::park();
        }
    }
}
