//! The programs at a device's egress: tcx programs run first, then the filters of the clsact qdisc.

use super::{InterfaceError, RequestError, link};
pub use crate::clsact::Filter;
use crate::{
    clsact::filters,
    sys::{self, bpf},
};

const BPF_TCX_EGRESS: u32 = 47;

/// Number of programs that are read of a device; the kernel allows no more (`BPF_MPROG_MAX`).
const MOST: u32 = 64;

/// A tcx program at a device's egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcxProgram {
    /// The kernel's id of the program.
    pub program: u32,
    /// The kernel's id of the program's link; 0 if it has none.
    pub link: u32,
}

/// The programs at a device's egress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// The tcx programs in the order in which they run; `None` if the kernel has no tcx (before 6.6).
    pub tcx: Option<Vec<TcxProgram>>,
    /// The filters of the clsact qdisc in the order in which they run, after the tcx programs.
    pub filters: Vec<Filter>,
}

/// Reads the programs at an interface's egress.
///
/// # Errors
///
/// Fails if there is no such interface, or if the kernel does not answer.
pub fn egress(name: &str) -> Result<Egress, InterfaceError> {
    let index = link(name)?.index;
    let unreadable = |source| InterfaceError::Unreadable {
        name: name.to_owned(),
        source,
    };
    Ok(Egress {
        tcx: tcx_programs(index).map_err(unreadable)?,
        filters: filters(index).map_err(unreadable)?,
    })
}

/// The attributes of `BPF_PROG_QUERY`.
#[derive(Default)]
#[repr(C)]
struct Query {
    ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    reserved: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

/// Lists the tcx programs at a device's egress; `None` if the kernel has no tcx.
///
/// The query uses program ids. Aya's query opens every program, which needs `CAP_SYS_ADMIN`, and the agent does not
/// have that.
pub(crate) fn tcx_programs(ifindex: u32) -> Result<Option<Vec<TcxProgram>>, RequestError> {
    let mut programs = [0u32; MOST as usize];
    let mut links = [0u32; MOST as usize];
    let mut query = Query {
        ifindex,
        attach_type: BPF_TCX_EGRESS,
        programs: sys::address(programs.as_mut_ptr()),
        links: sys::address(links.as_mut_ptr()),
        count: MOST,
        ..Query::default()
    };
    // SAFETY: the kernel writes up to `count` numbers to each of the two arrays.
    match unsafe { bpf(sys::QUERY_PROGRAMS, &mut query) } {
        Ok(_) => {
            let found = programs.iter().zip(&links).take(query.count as usize);
            let found = found.map(|(&program, &link)| TcxProgram { program, link });
            Ok(Some(found.collect()))
        }
        Err(error) => match error.raw_os_error() {
            // The kernel does not know this attach type, or it is older and does not know these fields.
            Some(libc::EINVAL | libc::E2BIG) => Ok(None),
            Some(libc::ENOENT) => Ok(Some(Vec::new())),
            _ => Err(RequestError::Refused {
                message: None,
                source: error,
            }),
        },
    }
}
