//! Writes the pcapng file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness};

/// Unit of timestamps (`if_tsresol`): ten to the power of minus nine seconds.
const NANOSECONDS: u8 = 9;

/// Direction of a packet in `epb_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Direction {
    Inbound = 1,
    Outbound = 2,
}

/// A packet in the file.
#[derive(Debug)]
pub(super) struct Record<'a> {
    pub(super) device: &'a str,
    /// Monotonic clock, in nanoseconds.
    pub(super) time_ns: u64,
    pub(super) length: u32,
    pub(super) bytes: &'a [u8],
    pub(super) direction: Direction,
    pub(super) comment: String,
}

/// A file to which packets are appended.
pub(super) struct PcapNg {
    writer: PcapNgWriter<BufWriter<Box<dyn Write>>>,
    devices: BTreeMap<String, u32>,
    snaplen: u32,
    boot: Duration,
}

impl PcapNg {
    /// Creates the file. The path `-` means standard output.
    pub(super) fn create(path: &Path, snaplen: u32, monotonic_ns: u64) -> Result<Self> {
        let output: Box<dyn Write> = if path.as_os_str() == "-" {
            if io::stdout().is_terminal() {
                bail!("standard output is a terminal; name a file, or pipe it to a program");
            }
            Box::new(io::stdout())
        } else {
            let file = File::create(path);
            Box::new(file.with_context(|| format!("cannot create {}", path.display()))?)
        };
        Self::begin(output, snaplen, monotonic_ns)
    }

    fn begin(output: Box<dyn Write>, snaplen: u32, monotonic_ns: u64) -> Result<Self> {
        let application = concat!("guideway ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            endianness: Endianness::native(),
            options: vec![SectionHeaderOption::UserApplication(Cow::Borrowed(
                application,
            ))],
            ..SectionHeaderBlock::default()
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let writer = PcapNgWriter::with_section_header(BufWriter::new(output), section);
        Ok(Self {
            writer: writer.context("cannot write the file")?,
            devices: BTreeMap::new(),
            snaplen,
            boot: now
                .context("the clock is before 1970")?
                .saturating_sub(Duration::from_nanos(monotonic_ns)),
        })
    }

    /// Adds a device to the file and returns its number there. A device may have no packets.
    pub(super) fn device(&mut self, name: &str) -> Result<u32> {
        if let Some(number) = self.devices.get(name) {
            return Ok(*number);
        }
        let number = u32::try_from(self.devices.len()).context("too many devices")?;
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: self.snaplen,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        self.writer
            .write_pcapng_block(block)
            .context("cannot write the file")?;
        self.devices.insert(name.to_owned(), number);
        Ok(number)
    }

    pub(super) fn write(&mut self, record: Record<'_>) -> Result<()> {
        let block = EnhancedPacketBlock {
            interface_id: self.device(record.device)?,
            timestamp: self.boot + Duration::from_nanos(record.time_ns),
            original_len: record.length,
            data: Cow::Borrowed(record.bytes),
            options: vec![
                EnhancedPacketOption::Comment(Cow::Owned(record.comment)),
                EnhancedPacketOption::Flags(record.direction as u32),
            ],
        };
        self.writer
            .write_pcapng_block(block)
            .map(drop)
            .context("cannot write the file")
    }

    /// Flushes the buffer, so that a reader sees what was written.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.writer
            .get_mut()
            .flush()
            .context("cannot write the file")
    }
}
