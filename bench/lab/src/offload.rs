//! Switches an interface's offloads by the ethtool ioctl.
//!
//! It uses the legacy commands with one value, each of which switches a group of features as `ethtool -K DEV
//! tx|tso|gso|gro` does.

use std::io;

use crate::{Link, Result, ioctl::request};

/// A group of offload features, named as `ethtool -K` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// The sender leaves checksums to the device.
    Tx,
    /// The sender leaves TCP segmentation to the device.
    Tso,
    /// The sender segments late, in software.
    Gso,
    /// The receiver merges segments.
    Gro,
    /// The sender leaves VLAN tags to the device.
    TxVlan,
}

// linux/ethtool.h; libc has none of these for glibc.
impl Offload {
    fn get_command(self) -> u32 {
        match self {
            Self::Tx => 0x16,
            Self::Tso => 0x1e,
            Self::Gso => 0x23,
            Self::TxVlan => 0x25,
            Self::Gro => 0x2b,
        }
    }

    fn set_command(self) -> u32 {
        self.get_command() + 1
    }

    /// Returns the bit of the offload in the value. The other bits belong to other features.
    fn mask(self) -> u32 {
        match self {
            Self::TxVlan => 1 << 7,
            _ => 1,
        }
    }
}

/// `struct ethtool_value` of linux/ethtool.h.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

impl Link<'_> {
    /// Returns whether an offload is on.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Kernel`] when the interface is gone.
    pub fn offload(&self, offload: Offload) -> Result<bool> {
        self.ethtool(offload.get_command(), 0)
            .map(|data| data & offload.mask() != 0)
            .map_err(|source| self.error(format!("read {offload:?}"), source))
    }

    /// Switches an offload on or off.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Kernel`] when the device does not allow the change.
    pub fn set_offload(&self, offload: Offload, on: bool) -> Result<()> {
        let mask = offload.mask();
        self.ethtool(offload.get_command(), 0)
            .map(|data| if on { data | mask } else { data & !mask })
            .and_then(|data| self.ethtool(offload.set_command(), data))
            .map(drop)
            .map_err(|source| self.error(format!("set {offload:?} to {on}"), source))
    }

    /// Makes sent frames look as on a wire: with complete checksums and VLAN tags, and no longer than the MTU.
    ///
    /// # Errors
    ///
    /// As for [`Link::set_offload`].
    pub fn disable_tx_offloads(&self) -> Result<()> {
        // Segmentation depends on checksums, so it is switched off first.
        [Offload::Tso, Offload::Gso, Offload::Tx, Offload::TxVlan]
            .into_iter()
            .try_for_each(|offload| self.set_offload(offload, false))
    }

    fn ethtool(&self, command: u32, data: u32) -> io::Result<u32> {
        let mut value = Value { command, data };
        // SAFETY: SIOCETHTOOL takes a structure of the size its command says.
        unsafe {
            request(
                self.namespace().ioctl(),
                self.name(),
                libc::SIOCETHTOOL,
                &mut value,
            )
        }?;
        Ok(value.data)
    }
}
