//! The kernel's FIB for a forwarded packet, by netlink in place of the program's helper.
//!
//! The answer can differ from that of `bpf_fib_lookup` in two ways. Policy rules that match the ingress device do not
//! match here. Of several paths (ECMP), it may name another one.

use std::{cell::OnceCell, net::IpAddr};

use xdp_prog::abi::NextHop;

use super::super::{Settings, encode::next_hop_entry};
use crate::{
    facts,
    nexthop::{NetlinkError, Resolution, Resolver},
};

/// The FIB questions of one packet; each is asked once.
#[derive(Debug)]
pub(super) struct Fib {
    ingress: u32,
    asked: OnceCell<Box<Asked>>,
}

/// A question, its answer, and the questions that follow it.
#[derive(Debug)]
struct Asked {
    target: IpAddr,
    /// Index of the device that leads to the target, even if the neighbour is not known.
    device: Option<u32>,
    next_hop: Result<NextHop, String>,
    next: OnceCell<Box<Asked>>,
}

impl Fib {
    /// Prepares for the questions of a packet that came in by a device.
    pub(super) fn new(ingress: u32) -> Self {
        Self {
            ingress,
            asked: OnceCell::new(),
        }
    }

    /// Returns the next hop by which the kernel would forward a packet.
    pub(super) fn next_hop(&self, target: IpAddr) -> Option<&NextHop> {
        self.ask(target).next_hop.as_ref().ok()
    }

    /// Returns the index of the device by which the kernel would forward a packet.
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

    /// Lists the targets that were asked for, each with its answer or the reason why there is none.
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

/// Finds the device that leads to a target.
fn route(ingress: u32, target: IpAddr) -> Result<(Resolver, Option<u32>), String> {
    let came_in = facts::device_name(ingress).ok_or("it is not known where the packet came in")?;
    if !facts::forwards(&came_in, target.is_ipv4()) {
        return Err(format!("forwarding is off on {came_in}"));
    }
    let mut resolver = Resolver::new().map_err(error_text)?;
    let device = resolver.device(target).map_err(error_text)?;
    Ok((resolver, device))
}

fn next_hop(resolver: &mut Resolver, target: IpAddr) -> Result<NextHop, String> {
    match resolver.resolve(target).map_err(error_text)? {
        // The helper returns no source address.
        Resolution::Resolved(hop) => Ok(NextHop {
            source: [0; 16],
            own: [0; 16],
            ..next_hop_entry(target, &hop, &Settings::default())
        }),
        Resolution::Local => Err("an address of this machine".to_owned()),
        Resolution::Unresolved(reason) => Err(reason.to_string()),
    }
}

fn error_text(error: NetlinkError) -> String {
    error.to_string()
}
