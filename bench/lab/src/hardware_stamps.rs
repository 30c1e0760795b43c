//! Stamps that network cards put on frames by their own clocks (the kernel's networking/timestamping.rst). The interface is one
//! of the calling thread's namespace.

use std::{io, os::fd::AsFd};

use crate::ioctl::{ioctl_socket, request};

/// Which frames a card stamps: `struct hwtstamp_config` of linux/net_tstamp.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardwareStamps {
    flags: i32,
    sent: i32,
    received: i32,
}

/// `struct ethtool_ts_info` of linux/ethtool.h.
#[repr(C)]
#[derive(Default)]
struct Abilities {
    command: u32,
    stamps: u32,
    clock: i32,
    sent: u32,
    reserved_sent: [u32; 3],
    received: u32,
    reserved_received: [u32; 3],
}

const ETHTOOL_GET_TS_INFO: u32 = 0x41;
/// Stamps of sent and received frames, as the card's clock has them.
const OF_CARD: u32 = libc::SOF_TIMESTAMPING_TX_HARDWARE
    | libc::SOF_TIMESTAMPING_RX_HARDWARE
    | libc::SOF_TIMESTAMPING_RAW_HARDWARE;

impl HardwareStamps {
    /// Stamps on all frames that ask for one, and on all that come: `HWTSTAMP_TX_ON` and `HWTSTAMP_FILTER_ALL`.
    pub const ALL: Self = Self {
        flags: 0,
        sent: 1,
        received: 1,
    };

    /// Tells whether a card can stamp all frames.
    ///
    /// # Errors
    ///
    /// When the interface is gone.
    pub fn are_supported(interface: &str) -> io::Result<bool> {
        let mut abilities = Abilities {
            command: ETHTOOL_GET_TS_INFO,
            ..Abilities::default()
        };
        let socket = ioctl_socket()?;
        // SAFETY: this command of SIOCETHTOOL takes such a structure.
        unsafe { request(socket.as_fd(), interface, libc::SIOCETHTOOL, &mut abilities) }?;
        let has = |all: u32, bit: i32| all & 1 << bit != 0;
        let of_card = abilities.stamps & OF_CARD == OF_CARD;
        Ok(of_card
            && has(abilities.sent, Self::ALL.sent)
            && has(abilities.received, Self::ALL.received))
    }

    /// Reads which frames a card stamps.
    ///
    /// # Errors
    ///
    /// When it stamps none ever, or the interface is gone.
    pub fn of(interface: &str) -> io::Result<Self> {
        let mut own = Self {
            flags: 0,
            sent: 0,
            received: 0,
        };
        own.ask(interface, libc::SIOCGHWTSTAMP)?;
        Ok(own)
    }

    /// Has a card stamp these frames.
    ///
    /// # Errors
    ///
    /// When it cannot.
    pub fn set(mut self, interface: &str) -> io::Result<()> {
        self.ask(interface, libc::SIOCSHWTSTAMP)
    }

    fn ask(&mut self, interface: &str, number: libc::Ioctl) -> io::Result<()> {
        let socket = ioctl_socket()?;
        // SAFETY: both requests take such a structure.
        unsafe { request(socket.as_fd(), interface, number, self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_no_card_that_stamps() {
        assert!(!HardwareStamps::are_supported("lo").unwrap());
        HardwareStamps::of("lo").unwrap_err();
        HardwareStamps::ALL.set("lo").unwrap_err();
        HardwareStamps::are_supported("none-such").unwrap_err();
    }
}
