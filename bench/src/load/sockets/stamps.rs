//! Stamps on datagrams by the kernel or the network card, in place of this program's readings of the clock (`SO_TIMESTAMPING`,
//! the kernel's networking/timestamping.rst). Those of the card are by the card's clock, those of the kernel by
//! `CLOCK_REALTIME`.

use std::{
    io::{self, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd,
};

use nix::{
    cmsg_space,
    sys::{
        socket::{
            ControlMessageOwned, MsgFlags, TimestampingFlag, Timestamps, recvmsg, setsockopt,
            sockopt::Timestamping,
        },
        time::TimeSpec,
    },
};

use super::exchange::BUFFER;
use crate::{probe::PROBE_LENGTH, scenario::Stamps};

/// Asks for stamps on all that a socket sends and receives.
///
/// # Errors
///
/// When the kernel refuses it.
pub fn ask_for(socket: &UdpSocket, stamps: Stamps) -> io::Result<()> {
    let flags = match stamps {
        Stamps::None => return Ok(()),
        Stamps::Kernel => {
            TimestampingFlag::SOF_TIMESTAMPING_TX_SOFTWARE
                | TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE
                | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE
        }
        Stamps::Card => {
            TimestampingFlag::SOF_TIMESTAMPING_TX_HARDWARE
                | TimestampingFlag::SOF_TIMESTAMPING_RX_HARDWARE
                | TimestampingFlag::SOF_TIMESTAMPING_RAW_HARDWARE
        }
    };
    Ok(setsockopt(socket, Timestamping, &flags)?)
}

/// Receives a datagram. Returns its length and its stamp, in nanoseconds.
///
/// # Errors
///
/// As for [`UdpSocket::recv`].
pub(super) fn receive(
    socket: &UdpSocket,
    stamps: Stamps,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<u64>)> {
    match stamps {
        Stamps::None => Ok((socket.recv(buffer)?, None)),
        Stamps::Kernel | Stamps::Card => receive_stamped(socket, stamps, MsgFlags::empty(), buffer),
    }
}

/// Takes the probes that a socket has sent since the last call, with their stamps in nanoseconds. The kernel hands back the
/// frames that they left in, from the Ethernet header on.
pub(super) fn departures(
    socket: &UdpSocket,
    stamps: Stamps,
    departures: &mut Vec<([u8; PROBE_LENGTH], u64)>,
) {
    if stamps == Stamps::None {
        return;
    }
    let mut buffer = [0; BUFFER];
    let headers = match socket.local_addr() {
        Ok(SocketAddr::V4(_)) => 14 + 20 + 8,
        _ => 14 + 40 + 8,
    };
    while let Ok((length, stamp)) =
        receive_stamped(socket, stamps, MsgFlags::MSG_ERRQUEUE, &mut buffer)
    {
        let payload = buffer[..length].get(headers..);
        let probe = payload.and_then(|payload| payload.first_chunk());
        departures.extend(probe.copied().zip(stamp));
    }
}

fn receive_stamped(
    socket: &UdpSocket,
    stamps: Stamps,
    flags: MsgFlags,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<u64>)> {
    // The error that comes with a frame of the error queue takes room, too.
    let mut control = cmsg_space!(Timestamps, [u8; 128]);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = flags | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let stamp = message.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::ScmTimestampsns(all) => stamp_of(all, stamps),
        _ => None,
    });
    Ok((message.bytes, stamp))
}

/// Returns the stamp that was asked for. One that is not there is 0.
fn stamp_of(all: Timestamps, stamps: Stamps) -> Option<u64> {
    let stamp: TimeSpec = match stamps {
        Stamps::None => return None,
        Stamps::Kernel => all.system,
        Stamps::Card => all.hw_raw,
    };
    let ns = stamp.tv_sec().checked_mul(1_000_000_000)? + stamp.tv_nsec();
    u64::try_from(ns).ok().filter(|&ns| ns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_has_a_stamp_of_its_own_and_zero_is_none() {
        let all = Timestamps {
            system: TimeSpec::new(7, 5),
            hw_trans: TimeSpec::new(0, 0),
            hw_raw: TimeSpec::new(0, 9),
        };
        assert_eq!(stamp_of(all, Stamps::Kernel), Some(7_000_000_005));
        assert_eq!(stamp_of(all, Stamps::Card), Some(9));
        assert_eq!(stamp_of(all, Stamps::None), None);
        let none = Timestamps {
            system: TimeSpec::new(0, 0),
            ..all
        };
        assert_eq!(stamp_of(none, Stamps::Kernel), None);
    }
}
