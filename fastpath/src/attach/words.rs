//! The kernel's words about a refused attachment.
//!
//! A refused `bpf_link` returns only an error number; drivers explain themselves only to netlink. So the refused
//! request is made once more over netlink to get the explanation.

use std::os::fd::{AsFd, AsRawFd};

use aya::programs::Xdp;

use crate::{
    facts::{
        RequestError, XdpMode,
        connection::{Connection, run},
    },
    netlink::{NLA_F_NESTED, NLM_F_ACK, Request},
};

const LINK_HEADER: usize = 16;
const IFINDEX_AT: usize = 4;

const XDP_FD: u16 = 1;
const XDP_FLAGS: u16 = 3;
const XDP_EXPECTED_FD: u16 = 8;

const FLAG_UPDATE_IF_NOEXIST: u32 = 1 << 0;
const FLAG_SKB_MODE: u32 = 1 << 1;
const FLAG_DRV_MODE: u32 = 1 << 2;
const FLAG_HW_MODE: u32 = 1 << 3;
const FLAG_REPLACE: u32 = 1 << 4;

/// Asks why the interface refuses the program; `None` if the kernel gives no explanation.
pub(super) fn of_refusal(program: &Xdp, ifindex: u32, mode: XdpMode) -> Option<String> {
    let fd = program.fd().ok()?.as_fd().as_raw_fd();
    let flag = match mode {
        XdpMode::Native => FLAG_DRV_MODE,
        XdpMode::Generic => FLAG_SKB_MODE,
        XdpMode::Offloaded => FLAG_HW_MODE,
    };
    match set(ifindex, fd, flag | FLAG_UPDATE_IF_NOEXIST, None) {
        Err(RequestError::Refused { message, .. }) => message,
        Err(_) => None,
        Ok(()) => {
            // The obstacle has just gone. The attachment is undone, because only a link can be pinned.
            let _ = set(ifindex, -1, flag | FLAG_REPLACE, Some(fd));
            None
        }
    }
}

fn set(ifindex: u32, fd: i32, flags: u32, expected: Option<i32>) -> Result<(), RequestError> {
    let (fd, flags) = (fd.to_ne_bytes(), flags.to_ne_bytes());
    let expected = expected.map(i32::to_ne_bytes);
    let mut xdp: Vec<(u16, &[u8])> = vec![(XDP_FD, &fd), (XDP_FLAGS, &flags)];
    if let Some(expected) = &expected {
        xdp.push((XDP_EXPECTED_FD, expected));
    }
    let mut header = [0u8; LINK_HEADER];
    header[IFINDEX_AT..IFINDEX_AT + 4].copy_from_slice(&ifindex.to_ne_bytes());
    let request = Request::new(libc::RTM_SETLINK, NLM_F_ACK, &header)
        .attribute(libc::IFLA_XDP | NLA_F_NESTED, &run(&xdp));
    Connection::route()?.ask(request).map(drop)
}
