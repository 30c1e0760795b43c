//! A device of pktgen: its values, written and read back, and what it says that it has sent.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use lab::wait_for;

use super::files::{PktgenError, READ_BACK, read, write};
use crate::scenario::FrameSize;

/// Bytes of a frame that pktgen leaves to the device.
const FCS: u32 = 4;
const NANOSECONDS: u64 = 1_000_000_000;

/// What a device sends.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Destination and source.
    pub(super) macs: [String; 2],
    /// The client, with the port of the first flow; the others' follow.
    pub(super) from: SocketAddr,
    pub(super) flows: u16,
    pub(super) to: SocketAddr,
    /// Whether each frame's flow is drawn, and they do not take turns.
    pub(super) draws_flows: bool,
    pub(super) sizes: Vec<FrameSize>,
    pub(super) vlan: Option<u16>,
    /// The transmit queue.
    pub(super) queue: u32,
}

impl Settings {
    /// Writes all values.
    ///
    /// # Errors
    ///
    /// The first that pktgen does not show afterwards.
    pub(super) fn write(&self, device: &Device) -> Result<(), PktgenError> {
        let [destination, source] = &self.macs;
        device.set("dst_mac", destination)?;
        device.set("src_mac", source)?;
        let [from, to] = [self.from, self.to].map(|end| end.ip().to_string());
        if self.to.is_ipv4() {
            for (keys, address) in [
                (["dst_min", "dst_max"], &to),
                (["src_min", "src_max"], &from),
            ] {
                keys.iter().try_for_each(|key| device.set(key, address))?;
            }
        } else {
            device.set_shown("dst6", &to, &[("daddr", &to)])?;
            device.set_shown("src6", &from, &[("saddr", &from)])?;
        }
        let first = self.from.port();
        // The port behind the last one, or the only one.
        let end = if self.flows > 1 {
            first.saturating_add(self.flows)
        } else {
            first
        };
        for (key, port) in [
            ("udp_src_min", first),
            ("udp_src_max", end),
            ("udp_dst_min", self.to.port()),
            ("udp_dst_max", self.to.port()),
        ] {
            device.set(key, &port.to_string())?;
        }
        if let [one] = self.sizes.as_slice() {
            let size = (one.bytes - FCS).to_string();
            device.set_shown(
                "pkt_size",
                &size,
                &[("min_pkt_size", &size), ("max_pkt_size", &size)],
            )?;
        } else {
            let weights = self.sizes.iter();
            let weights = weights.map(|size| format!("{},{}", size.bytes - FCS, size.weight));
            device.set("imix_weights", &weights.collect::<Vec<_>>().join(" "))?;
        }
        if let Some(vlan) = self.vlan {
            device.set("vlan_id", &vlan.to_string())?;
        }
        for key in ["queue_map_min", "queue_map_max"] {
            device.set(key, &self.queue.to_string())?;
        }
        // Checksums are right: connection tracking looks at them.
        device.set_flag("UDPCSUM")?;
        if self.draws_flows {
            device.set_flag("UDPSRC_RND")?;
        }
        Ok(())
    }
}

/// A device, by its file.
#[derive(Debug)]
pub(super) struct Device(PathBuf);

/// What a device says that it has sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Told {
    pub(super) frames: u64,
    pub(super) seconds: f64,
}

impl Device {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Has it send so many frames; 0 for no end.
    pub(super) fn set_count(&self, frames: u64) -> Result<(), PktgenError> {
        let shown = format!("count {frames}");
        self.set_shown("count", &frames.to_string(), &[("Params", &shown)])
    }

    /// Has it send so many frames a second. pktgen keeps the time between two, in whole nanoseconds.
    pub(super) fn set_rate(&self, rate: f64) -> Result<(), PktgenError> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate of a scenario"
        )]
        let rate = (rate.round() as u64).max(1);
        let delay = (NANOSECONDS / rate).to_string();
        self.set_shown("ratep", &rate.to_string(), &[("delay", &delay)])
    }

    /// Has it send as fast as it can.
    pub(super) fn set_no_delay(&self) -> Result<(), PktgenError> {
        self.set("delay", "0")
    }

    fn set(&self, key: &str, value: &str) -> Result<(), PktgenError> {
        self.set_shown(key, value, &[(key, value)])
    }

    fn set_flag(&self, flag: &str) -> Result<(), PktgenError> {
        let written = format!("flag {flag}");
        self.write_and(&written, |values| {
            let flags = values.get("Flags").map_or("", String::as_str);
            let is_set = flags.split(' ').any(|one| one == flag);
            is_set
                .then_some(())
                .ok_or_else(|| format!("the flags {flags:?}"))
        })
    }

    /// Writes a value, which must be shown under other names.
    fn set_shown(&self, key: &str, value: &str, shown: &[(&str, &str)]) -> Result<(), PktgenError> {
        self.write_and(&format!("{key} {value}"), |values| {
            let differs = shown
                .iter()
                .find(|(key, wanted)| values.get(*key).map(String::as_str) != Some(*wanted));
            differs.map_or(Ok(()), |(key, _)| {
                Err(format!("{key} {:?}", values.get(*key)))
            })
        })
    }

    fn write_and(
        &self,
        text: &str,
        is_taken: impl Fn(&BTreeMap<String, String>) -> Result<(), String>,
    ) -> Result<(), PktgenError> {
        write(&self.0, text)?;
        let look = || {
            let shown = read(&self.0).map_err(|error| error.to_string())?;
            is_taken(&values(&shown)).map_err(|other| format!("it shows {other}"))
        };
        let awaited = format!("{} shows {text:?}", self.0.display());
        let taken = wait_for(&awaited, READ_BACK, look);
        taken.map_err(|source| PktgenError::Refused {
            written: text.to_owned(),
            source,
        })
    }

    /// Returns what it has sent, once it has ended.
    pub(super) fn told(&self) -> Result<Told, PktgenError> {
        let look = || {
            let shown = read(&self.0).map_err(|error| error.to_string())?;
            told(&shown).ok_or(shown)
        };
        let awaited = format!("{} tells what it has sent", self.0.display());
        wait_for(&awaited, READ_BACK, look).map_err(|source| PktgenError::Refused {
            written: "start".to_owned(),
            source,
        })
    }
}

/// Reads the values of a device: words behind a name with a colon, up to `Current:`.
pub(super) fn values(shown: &str) -> BTreeMap<String, String> {
    // An address of IPv6 may end in a colon, too.
    let key = |word: &str| {
        let name = word.strip_suffix(':')?;
        (!name.is_empty() && !name.contains(':')).then(|| name.to_owned())
    };
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    let mut last = None;
    let words = shown
        .split_whitespace()
        .take_while(|word| *word != "Current:");
    for word in words {
        if let Some(name) = key(word) {
            values.insert(name.clone(), String::new());
            last = Some(name);
        } else if let Some(value) = last.as_ref().and_then(|name| values.get_mut(name)) {
            if !value.is_empty() {
                value.push(' ');
            }
            value.push_str(word);
        }
    }
    values
}

/// Reads `pkts-sofar: N` and, of `Result: OK: N(c..+d..) usec`, how long it took; `None` before it has ended.
fn told(shown: &str) -> Option<Told> {
    let after = |mark: &str| shown.split_once(mark).map(|(_, rest)| rest.trim_start());
    let frames = after("pkts-sofar:")?
        .split_whitespace()
        .next()?
        .parse()
        .ok()?;
    let (micros, rest) = after("Result: OK:")?.split_once('(')?;
    let micros: u64 = micros.trim().parse().ok()?;
    let seconds = micros as f64 / 1e6;
    rest.contains("usec").then_some(Told { frames, seconds })
}
