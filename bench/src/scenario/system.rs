//! The systems that a scenario can name: those that a run sets up itself, and those that commands bring up.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fmt,
    sync::{Mutex, PoisonError},
};

use lab::kubernetes::ProxyMode;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Named;

/// A system to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Nothing between client and backend but the router; with ports, nothing but cables and switches.
    Direct,
    /// One machine more, which only routes.
    Routing,
    /// An XDP program that looks at nothing, and sends what comes on to one node.
    NullProgram,
    /// Guideway: an edge with IPIP, nodes that decapsulate, replies straight to the client.
    OursIpip,
    /// Guideway: an edge that rewrites MAC addresses, replies straight to the client.
    OursL2dsr,
    /// Guideway: an edge with NAT, through which replies go too.
    OursNat,
    /// Guideway: NodePorts of an edge, IPIP to nodes, which hand packets to their pods; replies straight to the client.
    OursNodeport,
    /// The real kube-proxy in nftables mode.
    KubeProxyNftables,
    /// The real kube-proxy in iptables mode.
    KubeProxyIptables,
    /// A device under test that is not ours, and that the commands of the scenario bring up.
    Device(DeviceName),
}

/// The name of a device under test: up to 64 letters, digits, dashes, dots and underscores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceName(&'static str);

impl DeviceName {
    /// Returns the name; `None` if it is none.
    pub fn of(text: &str) -> Option<Self> {
        /// All names so far: scenarios have few.
        static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        if !is_name(text) {
            return None;
        }
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names.get(text).copied();
        Some(Self(known.unwrap_or_else(|| {
            let name: &'static str = Box::leak(text.into());
            names.insert(name);
            name
        })))
    }
}

/// Tells whether a text can name a scenario or a device, and files.
pub(super) fn is_name(text: &str) -> bool {
    let is_of_word = |one: char| one.is_ascii_alphanumeric() || "-_.".contains(one);
    !text.is_empty() && text.len() <= 64 && text.chars().all(is_of_word)
}

impl System {
    /// Tells whether the system is Guideway.
    pub fn is_ours(self) -> bool {
        matches!(
            self,
            Self::OursIpip | Self::OursL2dsr | Self::OursNat | Self::OursNodeport
        )
    }

    /// Tells whether events happen to the system: to those that a run sets up itself.
    pub fn has_events(self) -> bool {
        self.is_ours() || self.proxy_mode().is_some()
    }

    /// Tells whether the system balances: that it chooses one of several backends.
    pub fn balances(self) -> bool {
        !matches!(self, Self::Direct | Self::Routing | Self::NullProgram)
    }

    /// Tells whether the system sends frames on by XDP, before the stack sees them.
    pub fn is_xdp(self) -> bool {
        self.is_ours() || self == Self::NullProgram
    }

    /// Tells whether the system passes frames with a VLAN tag, which a machine's stack takes for a VLAN's alone. Of others'
    /// devices, nothing is known.
    pub fn takes_tags(self) -> bool {
        self.is_xdp() || matches!(self, Self::Direct | Self::Device(_))
    }

    /// Returns the mode of the system's kube-proxy; `None` if it has none.
    pub fn proxy_mode(self) -> Option<ProxyMode> {
        match self {
            Self::KubeProxyNftables => Some(ProxyMode::Nftables),
            Self::KubeProxyIptables => Some(ProxyMode::Iptables),
            Self::Direct
            | Self::Routing
            | Self::NullProgram
            | Self::OursIpip
            | Self::OursL2dsr
            | Self::OursNat
            | Self::OursNodeport
            | Self::Device(_) => None,
        }
    }
}

/// Those that a run sets up itself.
impl Named for System {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("direct", Self::Direct),
        ("routing", Self::Routing),
        ("null-program", Self::NullProgram),
        ("ours-ipip", Self::OursIpip),
        ("ours-l2dsr", Self::OursL2dsr),
        ("ours-nat", Self::OursNat),
        ("ours-nodeport", Self::OursNodeport),
        ("kube-proxy-nftables", Self::KubeProxyNftables),
        ("kube-proxy-iptables", Self::KubeProxyIptables),
    ];
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Device(DeviceName(name)) = self {
            return f.write_str(name);
        }
        let name = Self::NAMES.iter().find(|(_, value)| value == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl Serialize for System {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for System {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let own = Self::NAMES.iter().find(|(name, _)| *name == text);
        let device = || DeviceName::of(&text).map(Self::Device);
        let found = own.map(|(_, system)| *system).or_else(device);
        found.ok_or_else(|| de::Error::custom(format!("{text:?} is no name of a system")))
    }
}

impl JsonSchema for System {
    fn schema_name() -> Cow<'static, str> {
        "System".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let own: Vec<&str> = Self::NAMES.iter().map(|(name, _)| *name).collect();
        json_schema!({
            "description": format!(
                "A system to measure: {}, or the name of a device under test.",
                own.join(", ")
            ),
            "type": "string",
            "pattern": "^[-A-Za-z0-9_.]{1,64}$",
        })
    }
}
