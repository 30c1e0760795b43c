//! Device settings that `ethtool` shows: offload features and queues.

use std::collections::BTreeSet;

use super::connection::{Connection, RequestError, find, generic, generic_attributes, run, text};
use crate::netlink::{Attributes, NLA_F_NESTED, put_attribute, read_string, read_u32};

const FAMILY: &str = "ethtool";
const MSG_FEATURES_GET: u8 = 11;
const MSG_FEATURES_SET: u8 = 12;
const MSG_CHANNELS_GET: u8 = 17;

const HEADER: u16 = 1;
const HEADER_DEV_INDEX: u16 = 1;

const FEATURES_WANTED: u16 = 3;
const FEATURES_ACTIVE: u16 = 4;

const BITSET_BITS: u16 = 3;
const BITSET_BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

const CHANNELS_RX_MAX: u16 = 2;
const CHANNELS_COMBINED_MAX: u16 = 5;
const CHANNELS_RX: u16 = 6;
const CHANNELS_TX: u16 = 7;
const CHANNELS_COMBINED: u16 = 9;

/// The active offload features of a device, by the kernel's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Names as the kernel and `ethtool --show-features` spell them: `rx-gro`, `rx-lro`.
    pub active: BTreeSet<String>,
}

impl Features {
    /// Features that merge packets before a generic-mode XDP program sees them.
    pub const MERGING: [&str; 5] = [
        "rx-gro",
        "rx-gro-hw",
        "rx-gro-list",
        "rx-lro",
        "rx-udp-gro-forwarding",
    ];

    /// Tells whether a feature is on.
    #[must_use]
    pub fn is_active(&self, name: &str) -> bool {
        self.active.contains(name)
    }

    /// Lists the active features that merge packets.
    #[must_use]
    pub fn merging(&self) -> Vec<String> {
        Self::MERGING
            .iter()
            .filter(|name| self.is_active(name))
            .map(ToString::to_string)
            .collect()
    }
}

/// The queue counts of a device, as its driver reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Receive-only queues in use.
    pub rx: u32,
    /// Transmit-only queues in use.
    pub tx: u32,
    /// Queue pairs in use.
    pub combined: u32,
    /// Largest number of receive-only queues.
    pub rx_max: u32,
    /// Largest number of queue pairs.
    pub combined_max: u32,
}

impl Channels {
    /// Returns the number of queues that receive packets.
    #[must_use]
    pub const fn receive(&self) -> u32 {
        self.rx + self.combined
    }
}

/// Switches features on or off and returns those that did not change as asked.
///
/// # Errors
///
/// Fails if the kernel refuses the request as a whole.
pub fn set_features(ifindex: u32, names: &[String], on: bool) -> Result<Vec<String>, RequestError> {
    let mut bits = Vec::new();
    for name in names {
        let name = text(name);
        let mut bit: Vec<(u16, &[u8])> = vec![(BIT_NAME, &name)];
        // The value is a flag: without it, the request clears the bit.
        if on {
            bit.push((BIT_VALUE, &[]));
        }
        put_attribute(&mut bits, BITSET_BIT | NLA_F_NESTED, &run(&bit));
    }
    let wanted = run(&[(BITSET_BITS | NLA_F_NESTED, &bits)]);
    ask(
        MSG_FEATURES_SET,
        ifindex,
        &[(FEATURES_WANTED | NLA_F_NESTED, &wanted)],
    )?;

    let after = features(ifindex)?.unwrap_or_default();
    Ok(names
        .iter()
        .filter(|name| after.is_active(name) != on)
        .cloned()
        .collect())
}

/// Reads the active features; `None` if the kernel has no ethtool netlink.
pub(super) fn features(ifindex: u32) -> Result<Option<Features>, RequestError> {
    let Some(answers) = ask(MSG_FEATURES_GET, ifindex, &[])? else {
        return Ok(None);
    };
    let active = answers
        .iter()
        .flat_map(|answer| generic_attributes(answer))
        .filter(|(kind, _)| *kind == FEATURES_ACTIVE)
        .filter_map(|(_, bitset)| find(bitset, BITSET_BITS))
        .flat_map(Attributes)
        .filter_map(|(_, bit)| find(bit, BIT_NAME).and_then(read_string))
        .collect();
    Ok(Some(Features { active }))
}

/// Reads the queue counts; `None` if the kernel or the driver does not report them.
pub(super) fn channels(ifindex: u32) -> Result<Option<Channels>, RequestError> {
    let answers = match ask(MSG_CHANNELS_GET, ifindex, &[]) {
        Ok(answers) => answers,
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => None,
        Err(error) => return Err(error),
    };
    let Some(answer) = answers.and_then(|answers| answers.into_iter().next()) else {
        return Ok(None);
    };
    let mut channels = Channels::default();
    for (kind, value) in generic_attributes(&answer) {
        let field = match kind {
            CHANNELS_RX => &mut channels.rx,
            CHANNELS_TX => &mut channels.tx,
            CHANNELS_COMBINED => &mut channels.combined,
            CHANNELS_RX_MAX => &mut channels.rx_max,
            CHANNELS_COMBINED_MAX => &mut channels.combined_max,
            _ => continue,
        };
        *field = read_u32(value).unwrap_or(0);
    }
    Ok(Some(channels))
}

fn ask(
    command: u8,
    ifindex: u32,
    attributes: &[(u16, &[u8])],
) -> Result<Option<Vec<Vec<u8>>>, RequestError> {
    let mut connection = Connection::generic()?;
    let Some(family) = connection.family(FAMILY)? else {
        return Ok(None);
    };
    let device = run(&[(HEADER_DEV_INDEX, &ifindex.to_ne_bytes())]);
    let mut request = generic(family, command).attribute(HEADER | NLA_F_NESTED, &device);
    for (kind, value) in attributes {
        request = request.attribute(*kind, value);
    }
    connection.ask(request).map(Some)
}
