//! Parses the words that select what is captured.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Result;
use fastpath::capture::{Filter, Network, Outcomes};
use fastpath::tables::ServiceKey;
use ipnet::IpNet;
use xdp_prog::abi::AddressKey;
use xdp_prog::reason::{self, PuntReason, ReasonKind};
use xdp_prog::wire::protocol;

use crate::cli::one_service;
use crate::commands::listed;

/// Number of bits before an IPv4 address that is mapped into IPv6.
const MAPPED: u32 = 96;

/// Why a filter is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// An unknown word.
    #[error("filter: {0:?} is no word of it; see `guideway capture --help`")]
    Word(String),
    /// A word that needs a value has none.
    #[error("filter: something has to follow {0:?}")]
    Nothing(String),
    /// The value of a word is invalid.
    #[error("filter: {word} takes {takes}, not {value:?}")]
    Value {
        /// The word.
        word: &'static str,
        /// The values that it takes.
        takes: &'static str,
        /// The given value.
        value: String,
    },
    /// More values than a filter can hold.
    #[error("filter: at most two of {0}")]
    TooMany(&'static str),
    /// Two protocols; a packet has only one.
    #[error("filter: one protocol only")]
    Protocols,
    /// A name that stands for services that a filter cannot hold together.
    #[error(
        "filter: this name stands for several addresses or too many protocols; name one of {0}"
    )]
    Services(String),
}

/// The words of a filter, while they are read.
#[derive(Debug, Default)]
struct Words {
    networks: Vec<Network>,
    ports: Vec<u16>,
    protocols: Option<[u8; 2]>,
    outcomes: Option<Outcomes>,
}

/// Parses a filter: which frames, and which outcomes. `by_name` finds the services that a name stands for.
///
/// # Errors
///
/// When a word is unknown, or its value is missing or invalid, or there is no such service.
pub fn parse(
    words: &[String],
    by_name: impl Fn(&str) -> Result<Vec<ServiceKey>>,
) -> Result<(Filter, Outcomes)> {
    let mut read = Words::default();
    // As with tcpdump, the filter may be quoted or not.
    let mut words = words.iter().flat_map(|text| text.split_whitespace());
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .ok_or_else(|| FilterError::Nothing(word.to_owned()))
        };
        match word {
            "and" => {}
            "host" => read.host(value()?)?,
            "net" => read.net(value()?)?,
            "port" => read.port(value()?)?,
            "service" => {
                let name = service(value()?)?;
                match name.parse() {
                    Ok(key) => read.services(&[key])?,
                    Err(_) => read.services(&by_name(&name)?)?,
                }
            }
            "reason" => read.reason(value()?)?,
            "tcp" => read.protocol([protocol::TCP; 2])?,
            "udp" => read.protocol([protocol::UDP; 2])?,
            "sctp" => read.protocol([protocol::SCTP; 2])?,
            "icmp" => read.protocol([protocol::ICMP, protocol::ICMPV6])?,
            "forward" => {
                let outcomes = read.outcomes();
                outcomes.forwarded = 1;
                // The agent sends it, and it is forwarded all the same.
                outcomes.reasons.insert(PuntReason::Carry.index());
            }
            other => match ReasonKind::ALL.iter().find(|kind| kind.label() == other) {
                Some(kind) => read.kind(*kind),
                None => return Err(FilterError::Word(other.to_owned()).into()),
            },
        }
    }
    Ok(read.finish()?)
}

/// Reads the address or name of a service.
fn service(value: &str) -> Result<String, FilterError> {
    one_service(value).map_err(|_| FilterError::Value {
        word: "service",
        takes: "one such as 192.0.2.10:80/tcp or default/web:http",
        value: value.to_owned(),
    })
}

impl Words {
    fn host(&mut self, value: &str) -> Result<(), FilterError> {
        let address: IpAddr = read("host", "an address", value)?;
        self.network(IpNet::from(address));
        Ok(())
    }

    fn net(&mut self, value: &str) -> Result<(), FilterError> {
        self.network(read("net", "a prefix such as 192.0.2.0/24", value)?);
        Ok(())
    }

    fn network(&mut self, network: IpNet) {
        let length = u32::from(network.prefix_len());
        self.networks.push(match network.network() {
            IpAddr::V4(address) => Network::new(AddressKey::v4(address.octets()), MAPPED + length),
            IpAddr::V6(address) => Network::new(AddressKey::v6(address.octets()), length),
        });
    }

    fn port(&mut self, value: &str) -> Result<(), FilterError> {
        let port = read("port", "a number from 1 to 65535", value)?;
        self.ports.push(std::num::NonZeroU16::get(port));
        Ok(())
    }

    /// Adds what these services have in common: the address, the port unless there are several, and the protocols.
    fn services(&mut self, services: &[ServiceKey]) -> Result<(), FilterError> {
        let addresses = distinct(services, |service| service.address);
        let protocols = distinct(services, |service| service.protocol.number());
        let (address, protocols) = match (addresses.as_slice(), protocols.as_slice()) {
            (&[address], &[one]) => (address, [one; 2]),
            (&[address], &[one, other]) => (address, [one, other]),
            _ => return Err(FilterError::Services(listed(services))),
        };
        self.network(IpNet::from(address));
        if let [port] = distinct(services, |service| service.port)[..] {
            self.ports.push(port);
        }
        self.protocol(protocols)
    }

    fn reason(&mut self, value: &str) -> Result<(), FilterError> {
        let outcomes = self.outcomes();
        let mut is_known = false;
        for (index, (_, label)) in (0..).zip(reason::all()) {
            if label == value {
                outcomes.reasons.insert(index);
                is_known = true;
            }
        }
        let takes = "a name as `guideway drops --all` lists them, but none of `fail`";
        is_known.then_some(()).ok_or_else(|| FilterError::Value {
            word: "reason",
            takes,
            value: value.to_owned(),
        })
    }

    fn kind(&mut self, wanted: ReasonKind) {
        let outcomes = self.outcomes();
        for (index, (kind, _)) in (0..).zip(reason::all()) {
            if kind == wanted {
                outcomes.reasons.insert(index);
            }
        }
    }

    fn outcomes(&mut self) -> &mut Outcomes {
        self.outcomes.get_or_insert(Outcomes::NONE)
    }

    fn protocol(&mut self, protocols: [u8; 2]) -> Result<(), FilterError> {
        match self.protocols.replace(protocols) {
            Some(before) if before != protocols => Err(FilterError::Protocols),
            _ => Ok(()),
        }
    }

    fn finish(self) -> Result<(Filter, Outcomes), FilterError> {
        let mut filter = Filter::default();
        if self.networks.len() > filter.networks.len() {
            return Err(FilterError::TooMany("host, net and service"));
        }
        if self.ports.len() > filter.ports.len() {
            return Err(FilterError::TooMany("port and service"));
        }
        let is_set = !self.networks.is_empty() || !self.ports.is_empty();
        filter.is_set[0] = u8::from(is_set || self.protocols.is_some());
        for (place, network) in filter.networks.iter_mut().zip(self.networks) {
            *place = network;
        }
        for (place, port) in filter.ports.iter_mut().zip(self.ports) {
            *place = port.to_be_bytes();
        }
        filter.protocols = self.protocols.unwrap_or_default();
        Ok((filter, self.outcomes.unwrap_or(Outcomes::ALL)))
    }
}

/// Returns each value that a part of these services has.
fn distinct<T: Ord>(services: &[ServiceKey], part: fn(&ServiceKey) -> T) -> Vec<T> {
    let values: BTreeSet<T> = services.iter().map(part).collect();
    values.into_iter().collect()
}

fn read<T: std::str::FromStr>(
    word: &'static str,
    takes: &'static str,
    value: &str,
) -> Result<T, FilterError> {
    value.parse().map_err(|_| FilterError::Value {
        word,
        takes,
        value: value.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use xdp_prog::reason::{DropReason, PassReason};

    use super::*;

    fn filter(text: &str) -> Result<(Filter, Outcomes)> {
        parse(&[text.to_owned()], by_name)
    }

    fn by_name(name: &str) -> Result<Vec<ServiceKey>> {
        let keys: &[&str] = match name {
            "default/web" => &["192.0.2.1:80/tcp"],
            "default/dns" => &["192.0.2.1:53/tcp", "192.0.2.1:53/udp"],
            "default/site" => &["192.0.2.1:80/tcp", "192.0.2.1:443/tcp"],
            "default/both" => &["192.0.2.1:80/tcp", "[2001:db8::1]:80/tcp"],
            _ => anyhow::bail!("no service {name}"),
        };
        keys.iter()
            .map(|key| Ok(key.parse::<ServiceKey>()?))
            .collect()
    }

    #[test]
    fn no_words_want_everything() {
        assert_eq!(filter("").unwrap(), (Filter::default(), Outcomes::ALL));
    }

    #[test]
    fn quoted_and_single_words_say_the_same() {
        let single: Vec<String> = ["host", "192.0.2.1", "port", "80", "tcp"]
            .map(str::to_owned)
            .into();
        let quoted = filter("host 192.0.2.1 and port 80 and tcp").unwrap();
        assert_eq!(parse(&single, by_name).unwrap(), quoted);
        for service in ["192.0.2.1:80/tcp", "default/web"] {
            assert_eq!(filter(&format!("service {service}")).unwrap(), quoted);
        }
        let address = AddressKey::v4([192, 0, 2, 1]);
        assert_eq!(quoted.0.networks[0], Network::new(address, 128));
        assert_eq!(quoted.0.ports, [[0, 80], [0, 0]]);
        assert_eq!(quoted.0.protocols, [6, 6]);
    }

    #[test]
    fn name_of_several_ports_means_what_they_have_in_common() {
        let site = filter("service default/site").unwrap();
        assert_eq!(site, filter("host 192.0.2.1 tcp").unwrap());
        let (dns, _) = filter("service default/dns").unwrap();
        assert_eq!(dns.ports, [[0, 53], [0, 0]]);
        assert_eq!(dns.protocols, [6, 17]);
        let error = filter("service default/both").unwrap_err().to_string();
        assert!(
            error.ends_with("name one of 192.0.2.1:80/tcp, [2001:db8::1]:80/tcp"),
            "{error}"
        );
    }

    #[test]
    fn prefixes_count_from_the_front_of_their_family() {
        let network = |text: &str| filter(&format!("net {text}")).unwrap().0.networks[0];
        let key = AddressKey::v4([10, 0, 0, 0]);
        assert_eq!(network("10.0.0.0/8"), Network::new(key, 104));
        let key = AddressKey::v6([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(network("fd00::/16"), Network::new(key, 16));
    }

    #[test]
    fn outcomes_are_joined() {
        let (_, outcomes) = filter("forward reason no_service drop").unwrap();
        assert_ne!(outcomes.forwarded, 0);
        assert!(outcomes.reasons.holds(PuntReason::Carry.index()));
        assert!(outcomes.reasons.holds(PassReason::NoService.index()));
        assert!(!outcomes.reasons.holds(PassReason::NotIp.index()));
        for reason in DropReason::ALL {
            assert!(outcomes.reasons.holds(reason.index()), "{reason:?}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, named) in [
            ("hots 192.0.2.1", "hots"),
            ("host", "host"),
            ("host example.com", "example.com"),
            ("port 0", "1 to 65535"),
            ("port 80 port 81 port 82", "port"),
            ("host 1.1.1.1 host 2.2.2.2 net 3.0.0.0/8", "host"),
            ("tcp udp", "protocol"),
            ("reason bad_luck", "bad_luck"),
            ("service 192.0.2.1:80", "192.0.2.1:80"),
            ("service default/nosuch", "no service default/nosuch"),
        ] {
            let error = filter(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
