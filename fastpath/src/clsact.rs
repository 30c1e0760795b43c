//! Filters at a device's egress, in its clsact qdisc: for kernels before tcx (6.6).
//!
//! No link holds a filter. It stays in the kernel until it is removed, and an agent finds it again by its [`HANDLE`]
//! and its name. Our filter is alone at its priority, the first that nobody else uses. So the removal of a priority,
//! as `tc filter del` does it, never affects two owners.

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

/// Handle of our filters: `gw`.
const HANDLE: u32 = 0x6777;

/// Parent under which clsact and its predecessor ingress are attached to a device (`linux/pkt_sched.h`).
const TC_H_CLSACT: u32 = 0xffff_fff1;
/// Handle of both qdiscs: a device has one or the other.
const CLSACT_HANDLE: u32 = 0xffff_0000;
/// The hook for outgoing packets.
const EGRESS: u32 = 0xffff_fff3;

const TCA_CHAIN: u16 = 11;
const BPF_FD: u16 = 6;
const BPF_NAME: u16 = 7;
const BPF_FLAGS: u16 = 8;
const BPF_FLAGS_GEN: u16 = 9;
const BPF_ID: u16 = 11;
/// The program's return code is the action; no other action follows.
const DIRECT_ACTION: u32 = 1;
/// The filter is not offloaded to the NIC.
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
    /// Priority: the lower it is, the earlier the filter runs.
    pub priority: u16,
    /// Number of the filter within the priority.
    pub handle: u32,
    /// The filter's chain; packets begin in chain 0.
    pub chain: u32,
    /// The classifier: `bpf`, `flower`, `matchall`.
    pub kind: String,
    /// The name of a BPF filter.
    pub name: Option<String>,
    /// The kernel's id of a BPF filter's program.
    pub program: Option<u32>,
    /// The EtherType that the filter is for, in network order.
    protocol: u16,
}

impl Filter {
    /// Tells whether Guideway made the filter.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.handle == HANDLE && self.kind == "bpf" && self.name.as_deref() == Some(EGRESS_PROGRAM)
    }
}

/// A filter that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct OwnedFilter {
    pub(crate) ifindex: u32,
}

impl Drop for OwnedFilter {
    fn drop(&mut self) {
        // Nobody can handle an error here; the filter ends with its device at the latest.
        let _ = remove(self.ifindex);
    }
}

/// Lists the filters at a device's egress in the order in which they run.
pub(crate) fn filters(ifindex: u32) -> Result<Vec<Filter>, RequestError> {
    filters_over(&mut Connection::route()?, ifindex)
}

/// Lists the filters at a device's egress over an open connection.
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

/// Ensures that the device has a clsact qdisc; returns false if it has an ingress qdisc, which excludes clsact.
///
/// The qdisc is never removed: others may depend on it, and a filter that somebody adds at the same moment would be
/// lost with it.
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
                // Older kernels list the qdiscs of all devices.
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

/// Adds our filter at the first free priority.
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

/// Replaces the program in our filter, in one step.
pub(crate) fn replace(
    ifindex: u32,
    filter: &Filter,
    program: BorrowedFd<'_>,
) -> Result<(), RequestError> {
    put(ifindex, filter.priority, 0, program)
}

/// Removes our filters from a device; returns false if there are none, or if the device does not exist.
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
    // The kernel also lists each priority itself, as a filter without options.
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

/// Reads the fixed header and the kind (`bpf`, `clsact`) of a filter or qdisc.
fn kind(answer: &[u8]) -> Option<(Fixed, String)> {
    let (fixed, attributes) = Fixed::read_from_prefix(answer).ok()?;
    let (_, value) = Attributes(attributes).find(|(kind, _)| *kind == libc::TCA_KIND)?;
    Some((fixed, read_string(value)?))
}

#[expect(clippy::cast_possible_truncation, reason = "takes the halves")]
const fn halves(word: u32) -> (u16, u16) {
    ((word >> 16) as u16, word as u16)
}
