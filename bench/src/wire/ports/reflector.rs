//! Backends at a card: of this run, or of the one on another machine.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use lab::Cidr;

use super::{Card, set_default};
use crate::{
    load::{Arrivals, sockets::Backends},
    probe::Key,
    scenario::{AddressFamily, BACKEND_PORT, Port, hop_of},
    wire::Responder,
};

/// Answers at a card of this machine, until it is dropped: the far end of the wire `reflector`.
#[derive(Debug)]
pub struct Reflector {
    _responders: Vec<Responder>,
    _card: Card,
}

impl Reflector {
    /// Takes a card, each of whose addresses is a backend. Answers leave by the next hops, one of each family at most.
    ///
    /// # Errors
    ///
    /// When the card cannot be taken.
    pub fn start(port: &Port, via: &[String]) -> Result<Self> {
        let card = Card::take(port, "reflector")?;
        let addresses = AddressFamily::ALL.map(|family| -> Vec<IpAddr> {
            let all = port.prefixes().map(|prefix| prefix.address);
            all.filter(|address| family.has(*address)).collect()
        });
        for (family, own) in AddressFamily::ALL.into_iter().zip(&addresses) {
            if !own.is_empty() {
                set_default(&card, family, hop_of(via, family))?;
            }
        }
        let backends = Backends {
            marks: Key::KNOWN,
            number: addresses.iter().map(Vec::len).max().unwrap_or(0),
            arrivals: Arrivals::ignored(),
        };
        let responders = start_responders(&card, &addresses, &[], &backends)?;
        Ok(Self {
            _responders: responders,
            _card: card,
        })
    }
}

/// Starts a backend for each address, by family. It answers for targets at its address, too, and the first one for those
/// at addresses that no backend has: a device that does not translate sends them on as they are.
pub(super) fn start_responders(
    card: &Card,
    addresses: &[Vec<IpAddr>; 2],
    targets: &[SocketAddr],
    backends: &Backends,
) -> Result<Vec<Responder>> {
    let is_backend = |address: IpAddr| addresses.iter().any(|family| family.contains(&address));
    let services = || targets.iter().filter(|target| !is_backend(target.ip()));
    let mut own: Vec<IpAddr> = services().map(SocketAddr::ip).collect();
    own.dedup();
    let loopback = card.namespace().link("lo")?;
    for address in own {
        loopback.add_address(Cidr::host(address))?;
    }
    let start = |number: usize| {
        let own = addresses.iter().filter_map(|family| family.get(number));
        let own: Vec<IpAddr> = own.copied().collect();
        let at_home = targets.iter().filter(|target| own.contains(&target.ip()));
        let mut at: Vec<SocketAddr> = at_home.copied().collect();
        at.extend(
            own.iter()
                .map(|&address| SocketAddr::new(address, BACKEND_PORT)),
        );
        if number == 0 {
            at.extend(services());
        }
        at.sort_unstable();
        at.dedup();
        let (machine, mark) = (card.namespace(), u16::try_from(number)?);
        Responder::start(machine, &at, mark, backends.marks, &backends.arrivals)
    };
    (0..backends.number).map(start).collect()
}
