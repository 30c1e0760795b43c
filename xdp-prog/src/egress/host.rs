//! A packet in memory, with plain code in place of the kernel's helpers; for tests.

extern crate alloc;

use alloc::vec::Vec;

use super::{ChecksumField, Covered, Skb};
use crate::{
    csum::{self, Sum},
    family::Family,
    frame::{Frame, Wire},
    reason::DropReason,
};

/// An outgoing packet in memory.
#[derive(Clone, Debug)]
pub struct HostSkb {
    bytes: Vec<u8>,
    linear: usize,
    is_partial: bool,
    is_writable: bool,
    is_merged: bool,
    mark: u32,
    is_translated: bool,
}

impl HostSkb {
    /// Copies a frame that is all linear and whose checksums are finished.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            linear: bytes.len(),
            is_partial: false,
            is_writable: true,
            is_merged: false,
            mark: 0,
            is_translated: false,
        }
    }

    /// Makes only the first `length` bytes linear.
    #[must_use]
    pub fn linear(mut self, length: usize) -> Self {
        self.linear = length.min(self.bytes.len());
        self
    }

    /// Declares that the transport checksum holds only the sum of the pseudo-header (`CHECKSUM_PARTIAL`).
    #[must_use]
    pub fn partial(mut self) -> Self {
        self.is_partial = true;
        self
    }

    /// Declares that the device or the kernel will cut the packet into segments.
    #[must_use]
    pub fn merged(mut self) -> Self {
        self.is_merged = true;
        self
    }

    /// Sets the packet's mark.
    #[must_use]
    pub fn marked(mut self, mark: u32) -> Self {
        self.mark = mark;
        self
    }

    /// Makes every change fail, as if the kernel had no memory for a copy of the headers.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.is_writable = false;
        self
    }

    /// Returns the frame's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Frame for HostSkb {
    fn view<T: Wire>(&self, offset: usize) -> Option<&T> {
        let linear = self.bytes.get(..self.linear)?;
        let (header, _) = T::ref_from_prefix(linear.get(offset..)?).ok()?;
        Some(header)
    }

    fn holds(&self, length: usize) -> bool {
        self.bytes.len() >= length
    }
}

impl Skb for HostSkb {
    fn length(&self) -> usize {
        self.bytes.len()
    }

    fn pull(&mut self, length: usize) {
        if length <= self.bytes.len() {
            self.linear = self.linear.max(length);
        }
    }

    fn view_mut<T: Wire>(&mut self, offset: usize) -> Option<&mut T> {
        if !self.is_writable {
            return None;
        }
        let linear = self.bytes.get_mut(..self.linear)?;
        let (header, _) = T::mut_from_prefix(linear.get_mut(offset..)?).ok()?;
        Some(header)
    }

    fn store(&mut self, offset: usize, bytes: [u64; 2], length: usize) -> Result<(), DropReason> {
        if !self.is_writable {
            return Err(DropReason::NotWritable);
        }
        let target = self.bytes.get_mut(offset..offset + length);
        let words = bytes.map(u64::to_ne_bytes);
        let source = words.as_flattened().get(..length);
        let (Some(target), Some(source)) = (target, source) else {
            return Err(DropReason::NotWritable);
        };
        target.copy_from_slice(source);
        Ok(())
    }

    fn is_merged(&self) -> bool {
        self.is_merged
    }

    fn mark(&self) -> u32 {
        self.mark
    }

    fn unmark(&mut self) {
        self.mark = 0;
    }

    fn is_translated(&self) -> bool {
        self.is_translated
    }

    fn mark_translated(&mut self) {
        self.is_translated = true;
    }

    /// Works as `bpf_skb_adjust_room` with `BPF_ADJ_ROOM_MAC`: the room is behind the Ethernet header.
    fn grow(&mut self, _: Family, length: usize) -> Result<(), DropReason> {
        let link = crate::parse::link(self).map_err(|_| DropReason::NotWritable)?;
        if !self.is_writable {
            return Err(DropReason::NotWritable);
        }
        let room = core::iter::repeat_n(0, length);
        self.bytes.splice(link.l3..link.l3, room);
        self.linear += length;
        Ok(())
    }

    /// Works as `bpf_l4_csum_replace` (`net/core/filter.c`, `inet_proto_csum_replace_by_diff`).
    fn replace_checksum(
        &mut self,
        field: ChecksumField,
        difference: Sum,
        covered: Covered,
    ) -> Result<(), DropReason> {
        let target = self
            .bytes
            .get_mut(field.offset..)
            .and_then(<[u8]>::first_chunk_mut::<2>)
            .ok_or(DropReason::NotWritable)?;
        let old = u16::from_be_bytes(*target);
        if field.zero_is_none && old == 0 {
            return Ok(());
        }
        let new = match (self.is_partial, covered) {
            (false, _) => csum::update(old, difference),
            (true, Covered::PseudoHeader) => difference.add_u16(old).fold(),
            (true, Covered::Segment) => old,
        };
        let is_mangled = field.zero_is_none && new == 0;
        *target = if is_mangled { 0xffff } else { new }.to_be_bytes();
        Ok(())
    }
}
