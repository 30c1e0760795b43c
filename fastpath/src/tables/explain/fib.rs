//! What the kernel's FIB says of a forwarded packet, asked by netlink in place of the program's helper.
//!
//! Two things can differ from what `bpf_fib_lookup` answers: policy rules that ask for the ingress device do
//! not match here, and of several paths (ECMP) it may take another.

use std::{cell::OnceCell, net::IpAddr};

use xdp_prog::abi::NextHop;

use super::super::{Settings, encode::next_hop_entry};
use crate::{
    facts,
    nexthop::{NetlinkError, Resolution, Resolver},
};

/// The questions that one packet leads to, each asked once.
#[derive(Debug)]
pub(super) struct Fib {
    ingress: u32,
    asked: OnceCell<Box<Asked>>,
}

/// A question, its answer, and the questions after it.
#[derive(Debug)]
struct Asked {
    target: IpAddr,
    /// The device that leads there, be the neighbour there known or not.
    device: Option<u32>,
    next_hop: Result<NextHop, String>,
    next: OnceCell<Box<Asked>>,
}

impl Fib {
    /// Prepares for questions about what came in on a device.
    pub(super) fn new(ingress: u32) -> Self {
        Self {
            ingress,
            asked: OnceCell::new(),
        }
    }

    /// Returns the way that the kernel would send a forwarded packet.
    pub(super) fn next_hop(&self, target: IpAddr) -> Option<&NextHop> {
        self.ask(target).next_hop.as_ref().ok()
    }

    /// Returns the device that it would send it by.
    pub(super) fn device(&self, target: IpAddr) -> Option<u32> {
        self.ask(target).device
    }

    fn ask(&self, target: IpAddr) -> &Asked {
        let mut link = &self.asked;
        loop {
            let asked = link.get_or_init(|| Box::new(Asked::new(self.ingress, target)));
            if asked.target == target {
                return asked;
            }
            link = &asked.next;
        }
    }

    /// Lists what was asked for, with the answer or the reason why there is none.
    pub(super) fn asked(&self) -> impl Iterator<Item = (IpAddr, Result<&NextHop, &str>)> {
        let first = self.asked.get();
        std::iter::successors(first, |asked| asked.next.get()).map(|asked| {
            (
                asked.target,
                asked.next_hop.as_ref().map_err(String::as_str),
            )
        })
    }
}

impl Asked {
    fn new(ingress: u32, target: IpAddr) -> Self {
        let (device, next_hop) = match route(ingress, target) {
            Ok((mut resolver, device)) => (device, next_hop(&mut resolver, target)),
            Err(reason) => (None, Err(reason)),
        };
        Self {
            target,
            device,
            next_hop,
            next: OnceCell::new(),
        }
    }
}

/// Looks for the device that leads to a target.
fn route(ingress: u32, target: IpAddr) -> Result<(Resolver, Option<u32>), String> {
    let came_in = facts::device_name(ingress).ok_or("it is not known where the packet came in")?;
    if !facts::forwards(&came_in, target.is_ipv4()) {
        return Err(format!("forwarding is off on {came_in}"));
    }
    let mut resolver = Resolver::new().map_err(told)?;
    let device = resolver.device(target).map_err(told)?;
    Ok((resolver, device))
}

fn next_hop(resolver: &mut Resolver, target: IpAddr) -> Result<NextHop, String> {
    match resolver.resolve(target).map_err(told)? {
        // The helper names no source.
        Resolution::Resolved(hop) => Ok(NextHop {
            source: [0; 16],
            own: [0; 16],
            ..next_hop_entry(target, &hop, &Settings::default())
        }),
        Resolution::Local => Err("an address of this machine".to_owned()),
        Resolution::Unresolved(reason) => Err(reason.to_string()),
    }
}

fn told(error: NetlinkError) -> String {
    error.to_string()
}
