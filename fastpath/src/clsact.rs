//! Filters on a device's way out, as kernels before tcx (6.6) have them: in its clsact qdisc.
//!
//! A filter has no link to hold it. It lives in the kernel until it is removed, and is found again
//! by its [`HANDLE`] and its name. It is alone at its priority, the first that nobody else has:
//! removing one priority, as `tc filter del` does, then never concerns two owners.

use std::os::fd::{AsRawFd, BorrowedFd};

use xdp_prog::abi::EGRESS_PROGRAM;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{
    facts::{
        RequestError,
        connection::{Connection, find, run, text},
    },
    netlink::{
        Attributes, NLA_F_NESTED, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request,
        read_string, read_u32,
    },
};

/// Number of our filters: `gw`.
const HANDLE: u32 = 0x6777;

/// Where clsact and its predecessor ingress hang at a device (`linux/pkt_sched.h`).
const TC_H_CLSACT: u32 = 0xffff_fff1;
/// The number that both have as a qdisc: a device has one or the other.
const CLSACT_HANDLE: u32 = 0xffff_0000;
/// The hook for packets that leave.
const EGRESS: u32 = 0xffff_fff3;

const TCA_CHAIN: u16 = 11;
const BPF_FD: u16 = 6;
const BPF_NAME: u16 = 7;
const BPF_FLAGS: u16 = 8;
const BPF_FLAGS_GEN: u16 = 9;
const BPF_ID: u16 = 11;
/// The program's answer is the action: no other follows.
const DIRECT_ACTION: u32 = 1;
/// Not for the NIC to run.
const SKIP_HARDWARE: u32 = 1;
const ETH_P_ALL: u16 = 3;

/// `struct tcmsg`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Fixed {
    family: u8,
    reserved: [u8; 3],
    ifindex: u32,
    handle: u32,
    parent: u32,
    info: u32,
}

/// A filter at a device's TC egress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Its place: the lower, the earlier it runs.
    pub priority: u16,
    /// Its number within the priority.
    pub handle: u32,
    /// The chain it belongs to; packets begin in chain 0.
    pub chain: u32,
    /// The classifier: `bpf`, `flower`, `matchall`.
    pub kind: String,
    /// The name that a BPF filter was given.
    pub name: Option<String>,
    /// The kernel's number for a BPF filter's program.
    pub program: Option<u32>,
    /// The Ethernet type it is for, in network order.
    protocol: u16,
}

impl Filter {
    /// Tells whether Guideway made it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.handle == HANDLE && self.kind == "bpf" && self.name.as_deref() == Some(EGRESS_PROGRAM)
    }
}

/// A filter that goes with its owner.
#[derive(Debug)]
pub(crate) struct OwnedFilter {
    pub(crate) ifindex: u32,
}

impl Drop for OwnedFilter {
    fn drop(&mut self) {
        // Nobody is left to be told; the filter ends with its device at the latest.
        let _ = remove(self.ifindex);
    }
}

/// Lists the filters at a device's egress in the order in which they run.
pub(crate) fn filters(ifindex: u32) -> Result<Vec<Filter>, RequestError> {
    filters_over(&mut Connection::route()?, ifindex)
}

/// Lists them over a connection that is there.
pub(crate) fn filters_over(
    route: &mut Connection,
    ifindex: u32,
) -> Result<Vec<Filter>, RequestError> {
    let fixed = Fixed {
        ifindex,
        parent: EGRESS,
        ..Fixed::default()
    };
    let request = Request::new(libc::RTM_GETTFILTER, NLM_F_ACK | NLM_F_DUMP, &fixed);
    route.list(&request, |message| parse(message.payload))
}

/// Finds our filter at a device's egress.
pub(crate) fn ours(ifindex: u32) -> Result<Option<Filter>, RequestError> {
    Ok(filters(ifindex)?.into_iter().find(Filter::is_ours))
}

/// Makes sure that the device has a clsact qdisc; false if it has an ingress qdisc, which excludes it.
///
/// The qdisc is never removed: others may count on it, and a filter that somebody adds at the same
/// moment would go with it.
pub(crate) fn prepare(ifindex: u32) -> Result<bool, RequestError> {
    let fixed = Fixed {
        ifindex,
        handle: CLSACT_HANDLE,
        parent: TC_H_CLSACT,
        ..Fixed::default()
    };
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let request =
        Request::new(libc::RTM_NEWQDISC, flags, &fixed).attribute(libc::TCA_KIND, &text("clsact"));
    let mut route = Connection::route()?;
    match route.ask(request) {
        Ok(_) => Ok(true),
        Err(error) if error.errno() == Some(libc::EEXIST) => {
            let fixed = Fixed {
                ifindex,
                ..Fixed::default()
            };
            let list = Request::new(libc::RTM_GETQDISC, NLM_F_ACK | NLM_F_DUMP, &fixed);
            let qdiscs = route.ask(list)?;
            let is_ingress = |(fixed, kind): &(Fixed, String)| {
                // Older kernels list every device's.
                fixed.ifindex == ifindex && fixed.handle == CLSACT_HANDLE && kind == "ingress"
            };
            Ok(!qdiscs
                .iter()
                .filter_map(|answer| kind(answer))
                .any(|qdisc| is_ingress(&qdisc)))
        }
        Err(error) => Err(error),
    }
}

/// Adds our filter at the first priority that is free.
pub(crate) fn add(ifindex: u32, program: BorrowedFd<'_>) -> Result<(), RequestError> {
    let taken: Vec<u16> = filters(ifindex)?
        .iter()
        .map(|filter| filter.priority)
        .collect();
    let priority = (1..=u16::MAX)
        .find(|priority| !taken.contains(priority))
        .unwrap_or(u16::MAX);
    put(ifindex, priority, NLM_F_CREATE | NLM_F_EXCL, program)
}

/// Puts another program into our filter, in one step.
pub(crate) fn replace(
    ifindex: u32,
    filter: &Filter,
    program: BorrowedFd<'_>,
) -> Result<(), RequestError> {
    put(ifindex, filter.priority, 0, program)
}

/// Removes our filters from a device; false if there are none, or there is no such device.
pub(crate) fn remove(ifindex: u32) -> Result<bool, RequestError> {
    let filters = match filters(ifindex) {
        Err(error) if is_gone(&error) => return Ok(false),
        filters => filters?,
    };
    let mut removed = false;
    for filter in filters.iter().filter(|filter| filter.is_ours()) {
        let fixed = Fixed {
            handle: HANDLE,
            ..place(ifindex, filter.priority, filter.protocol)
        };
        let request = Request::new(libc::RTM_DELTFILTER, NLM_F_ACK, &fixed)
            .attribute(libc::TCA_KIND, &text("bpf"));
        match Connection::route()?.ask(request) {
            Ok(_) => removed = true,
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}

fn is_gone(error: &RequestError) -> bool {
    matches!(error.errno(), Some(libc::ENODEV | libc::ENOENT))
}

fn put(
    ifindex: u32,
    priority: u16,
    flags: u16,
    program: BorrowedFd<'_>,
) -> Result<(), RequestError> {
    let fixed = Fixed {
        handle: HANDLE,
        ..place(ifindex, priority, ETH_P_ALL.to_be())
    };
    let options = run(&[
        (BPF_FD, &program.as_raw_fd().to_ne_bytes()),
        (BPF_NAME, &text(EGRESS_PROGRAM)),
        (BPF_FLAGS, &DIRECT_ACTION.to_ne_bytes()),
        (BPF_FLAGS_GEN, &SKIP_HARDWARE.to_ne_bytes()),
    ]);
    let request = Request::new(libc::RTM_NEWTFILTER, NLM_F_ACK | flags, &fixed)
        .attribute(libc::TCA_KIND, &text("bpf"))
        .attribute(libc::TCA_OPTIONS | NLA_F_NESTED, &options);
    Connection::route()?.ask(request).map(drop)
}

fn place(ifindex: u32, priority: u16, protocol: u16) -> Fixed {
    Fixed {
        ifindex,
        parent: EGRESS,
        info: u32::from(priority) << 16 | u32::from(protocol),
        ..Fixed::default()
    }
}

fn parse(answer: &[u8]) -> Option<Filter> {
    let (fixed, kind) = kind(answer)?;
    let attributes = answer.get(size_of::<Fixed>()..)?;
    // A priority as such is listed as well, as a filter without options.
    let options = find(attributes, libc::TCA_OPTIONS)?;
    let (priority, protocol) = halves(fixed.info);
    Some(Filter {
        priority,
        handle: fixed.handle,
        chain: find(attributes, TCA_CHAIN).and_then(read_u32).unwrap_or(0),
        name: find(options, BPF_NAME)
            .filter(|_| kind == "bpf")
            .and_then(read_string),
        program: find(options, BPF_ID)
            .filter(|_| kind == "bpf")
            .and_then(read_u32),
        kind,
        protocol,
    })
}

/// Reads the fixed header and the kind of a filter or qdisc.
fn kind(answer: &[u8]) -> Option<(Fixed, String)> {
    let (fixed, attributes) = Fixed::read_from_prefix(answer).ok()?;
    let (_, value) = Attributes(attributes).find(|(kind, _)| *kind == libc::TCA_KIND)?;
    Some((fixed, read_string(value)?))
}

#[expect(clippy::cast_possible_truncation, reason = "takes the halves")]
const fn halves(word: u32) -> (u16, u16) {
    ((word >> 16) as u16, word as u16)
}
