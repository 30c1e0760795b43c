//! The addresses of the lab's machines and Services, and the flows of a load: known before anything is made.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context, Result, bail};
use fastpath::tables::BackendSpec;
use lab::{client_addresses, edge_addresses, node_addresses, pod_addresses, vip_v4, vip_v6};
use xdp_prog::{
    flow::{Address, FlowKey, V4, V6},
    maglev::{self, Member, SLOTS_PER_BACKEND},
};

use super::{
    BACKENDS, FAMILIES, FIRST_NODE_PORT, FIRST_ROUTED, FIRST_SERVICE_PORT, HASH_SEED, PORT,
};
use crate::{
    datapath::Protocol,
    scenario::{AddressFamily, Background, EventKind, Load, MOST_TRIED, Scenario, System},
};

/// Most Services that change at once where no flow goes to.
const MOST_CHANGED: usize = 256;
/// The client's port of the first flow of the loads; the others follow.
pub(super) const FIRST_CLIENT_PORT: u16 = 10_000;
/// The client's port of the first flow by which a system proves itself; the others follow. The lab's systems have no address
/// in common, and each proves itself once: so no flow is used twice.
pub(super) const FIRST_PROOF_PORT: u16 = 8_000;

/// The Services of a balancer: an address of each family with a port for each Service. NodePorts are at the addresses
/// of the balancer's machine.
#[derive(Clone, Debug)]
pub(super) struct Listing {
    /// The balancer's addresses, IPv4 first.
    addresses: [IpAddr; 2],
    /// The port of the first Service; the others follow.
    first_port: u16,
    /// How many Services there are.
    pub(super) services: u32,
    /// The families that loads need.
    pub(super) families: Vec<AddressFamily>,
    /// The protocols that loads need.
    pub(super) protocols: Vec<Protocol>,
}

impl Listing {
    /// Lists the Services of a system; `None` if it has none.
    pub(super) fn of(scenario: &Scenario, system: System) -> Option<Self> {
        let mut systems = scenario
            .systems
            .iter()
            .filter(|one| **one != System::Direct);
        let place = systems.position(|one| *one == system)?;
        let loads = || scenario.loads.iter();
        let place = u8::try_from(place).ok()?;
        let (addresses, first_port) = match system {
            System::OursNodeport => (edge_addresses(place), FIRST_NODE_PORT),
            _ => {
                let vips = FAMILIES.map(|family| vip(family, 1 + place));
                (vips, FIRST_SERVICE_PORT)
            }
        };
        Some(Self {
            addresses,
            first_port,
            services: scenario.services,
            families: distinct(loads().map(|load| load.family)),
            protocols: distinct(loads().flat_map(protocols_of)),
        })
    }

    /// Returns the balancer's addresses.
    pub(super) fn vips(&self) -> impl Iterator<Item = IpAddr> {
        self.families.iter().map(|&family| self.vip(family))
    }

    fn vip(&self, family: AddressFamily) -> IpAddr {
        of_family(self.addresses, family)
    }

    /// Returns the port of a Service.
    pub(super) fn port(&self, number: u32) -> u16 {
        self.first_port + u16::try_from(number).expect("there are at most 10 000 Services")
    }

    /// Returns the ports of some Services.
    pub(super) fn ports(&self, numbers: &[u32]) -> BTreeSet<u16> {
        numbers.iter().map(|&number| self.port(number)).collect()
    }

    /// Returns all Services with each of their protocols.
    pub(super) fn all(&self) -> Vec<(SocketAddr, Protocol)> {
        let each = (0..self.services).flat_map(|number| {
            let port = self.port(number);
            self.vips().map(move |vip| SocketAddr::new(vip, port))
        });
        let protocols = &self.protocols;
        each.flat_map(|service| protocols.iter().map(move |&protocol| (service, protocol)))
            .collect()
    }

    /// Returns the Services that flows go to.
    pub(super) fn tried(&self, family: AddressFamily) -> impl Iterator<Item = SocketAddr> {
        let numbers = self.tried_numbers();
        numbers.map(move |number| SocketAddr::new(self.vip(family), self.port(number)))
    }

    /// Returns the numbers of the Services that flows go to: at equal distances, from the first on.
    fn tried_numbers(&self) -> impl Iterator<Item = u32> {
        let (services, tried) = (self.services, self.services.min(MOST_TRIED));
        (0..tried).map(move |place| place * services / tried)
    }

    /// Returns the numbers of the Services that an event takes the last backend from, in order.
    pub(super) fn changed_by(&self, event: EventKind) -> Vec<u32> {
        let tried: Vec<u32> = self.tried_numbers().collect();
        match event {
            EventKind::AgentRestart => Vec::new(),
            EventKind::BackendChange => tried,
            EventKind::OtherServices => {
                let others = (0..self.services).filter(|number| !tried.contains(number));
                others.take(MOST_CHANGED).collect()
            }
        }
    }
}

/// Returns the protocols of a load: its own, and that of frames beside it.
fn protocols_of(load: &Load) -> impl Iterator<Item = Protocol> {
    let frames = (load.background != Background::None).then_some(Protocol::Udp);
    [load.protocol].into_iter().chain(frames)
}

fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

fn vip(family: AddressFamily, number: u8) -> IpAddr {
    match family {
        AddressFamily::Ipv4 => vip_v4(number).into(),
        AddressFamily::Ipv6 => vip_v6(number).into(),
    }
}

fn of_family([v4, v6]: [IpAddr; 2], family: AddressFamily) -> IpAddr {
    match family {
        AddressFamily::Ipv4 => v4,
        AddressFamily::Ipv6 => v6,
    }
}

/// Returns the address of a backend that the system `routing` routes to it.
pub(super) fn routed(family: AddressFamily, number: u8) -> IpAddr {
    vip(family, FIRST_ROUTED + number)
}

/// A flow, before it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedFlow {
    /// The client.
    pub client: SocketAddr,
    /// Where it sends to.
    pub to: SocketAddr,
    /// The number of the backend that must answer; `None` where a system draws it.
    pub backend: Option<u16>,
}

/// Returns where flows go to, in turn. Live frames end at the first backend where there is no balancer: one sink counts
/// them.
///
/// # Errors
///
/// When the scenario has no such system.
pub(super) fn targets(scenario: &Scenario, system: System, load: &Load) -> Result<Vec<SocketAddr>> {
    let family = load.family;
    let reached = if load.generator.makes_frames() {
        1
    } else {
        BACKENDS
    };
    let addresses: Vec<IpAddr> = match system {
        System::Direct => backends(system, family)[..reached].to_vec(),
        System::Routing => (0..)
            .take(reached)
            .map(|number| routed(family, number))
            .collect(),
        _ => {
            let listing = Listing::of(scenario, system);
            let listing = listing.with_context(|| format!("{system} is not in use"))?;
            return Ok(listing.tried(family).collect());
        }
    };
    let at = |address| SocketAddr::new(address, PORT);
    Ok(addresses.into_iter().map(at).collect())
}

/// Returns flows of clients to a system.
///
/// # Errors
///
/// When the scenario has no such system.
pub(super) fn flows(
    scenario: &Scenario,
    system: System,
    load: &Load,
    clients: impl Iterator<Item = SocketAddr>,
) -> Result<Vec<PlannedFlow>> {
    let targets = targets(scenario, system, load)?;
    let backends = backends(system, load.family);
    let balance = system.is_ours().then(|| Balance::new(system, &backends));
    let balance = balance.transpose()?;
    let flow = |(number, client): (usize, SocketAddr)| {
        let turn = number % targets.len();
        let to = targets[turn];
        let owner = |balance: &Balance| balance.owner(load.protocol, client, to);
        let backend = match system {
            System::Direct | System::Routing => Some(turn),
            System::NullProgram => Some(0),
            _ => balance.as_ref().map(owner).transpose()?,
        };
        let backend = backend.map(u16::try_from).transpose()?;
        Ok(PlannedFlow {
            client,
            to,
            backend,
        })
    };
    clients.enumerate().map(flow).collect()
}

/// Returns so many clients with a socket each, the first at `first_port`.
///
/// # Errors
///
/// When the client has no more ports.
pub(super) fn clients(
    family: AddressFamily,
    first_port: u16,
    number: u32,
) -> Result<Vec<SocketAddr>> {
    let address = of_family(client_addresses(0), family);
    let number = u16::try_from(number).ok();
    let end = number.and_then(|number| first_port.checked_add(number));
    let end = end.context("the client has no port left for all flows of all loads and systems")?;
    let ports = first_port..end;
    Ok(ports.map(|port| SocketAddr::new(address, port)).collect())
}

/// Returns the first of a system's nodes. Only those of Guideway's own systems have its agents, and only those behind
/// NodePorts have pods.
pub(super) fn first_node(system: System) -> usize {
    match system {
        System::OursNodeport => 2 * BACKENDS,
        _ if system.is_ours() => 0,
        _ => BACKENDS,
    }
}

/// Returns the addresses of a system's backends.
pub(super) fn backends(system: System, family: AddressFamily) -> [IpAddr; BACKENDS] {
    let first = first_node(system);
    std::array::from_fn(|number| {
        let node = u8::try_from(first + number).expect("nodes are few");
        let both = match system {
            System::OursNodeport => pod_addresses(node, 0),
            _ => node_addresses(node),
        };
        of_family(both, family)
    })
}

/// How Guideway's edges balance: the lookup table that they all make of the same backends.
struct Balance {
    table: Vec<u32>,
    /// Base-2 logarithm of its length.
    slots: u8,
}

impl Balance {
    fn new(system: System, backends: &[IpAddr]) -> Result<Self> {
        let spec = |&address: &IpAddr| match system {
            System::OursNat => BackendSpec::nat(SocketAddr::new(address, PORT), 1),
            System::OursNodeport => BackendSpec::pod(address, SocketAddr::new(address, PORT), 1),
            _ => BackendSpec::node(address, 1),
        };
        let members: Vec<Member> = backends.iter().map(|one| spec(one).member()).collect();
        let slots = maglev::class_for(u32::try_from(members.len())?, SLOTS_PER_BACKEND);
        let slots = slots.context("there are no backends")?;
        let table = maglev::table(HASH_SEED, &members, slots)?;
        Ok(Self { table, slots })
    }

    /// Returns the number of the backend that a flow belongs to.
    fn owner(&self, protocol: Protocol, client: SocketAddr, service: SocketAddr) -> Result<usize> {
        let hash = match (client.ip(), service.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let ends = [V4(from.octets()), V4(to.octets())];
                hash(ends, protocol, [client, service])
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let ends = [V6(from.octets()), V6(to.octets())];
                hash(ends, protocol, [client, service])
            }
            _ => bail!("{client} and {service} are of two families"),
        };
        Ok(self.table[maglev::slot(hash, self.slots) as usize] as usize)
    }
}

fn hash<A: Address>(
    [source, destination]: [A; 2],
    protocol: Protocol,
    ends: [SocketAddr; 2],
) -> u32 {
    let [source_port, destination_port] = ends.map(|end| end.port().to_be_bytes());
    let flow = FlowKey {
        source,
        destination,
        source_port,
        destination_port,
        protocol: protocol.number(),
    };
    flow.hash(HASH_SEED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::load;

    fn scenario(services: u32) -> Scenario {
        let text = format!(
            "name: one\nsystems: [direct, routing, ours-ipip, kube-proxy-nftables]\nservices: {services}\n\
             loads: [{{ rate: 100 }}, {{ rate: 100, family: ipv6 }}]\n"
        );
        Scenario::parse(&text).unwrap()
    }

    #[test]
    fn flows_go_to_services_from_all_parts_of_the_list() {
        let tried = |services| {
            let listing = Listing::of(&scenario(services), System::OursIpip).unwrap();
            let ports = listing
                .tried(AddressFamily::Ipv4)
                .map(|service| service.port() - FIRST_SERVICE_PORT);
            ports.collect::<Vec<u16>>()
        };
        assert_eq!(tried(1), [0]);
        assert_eq!(tried(3), [0, 1, 2]);
        let many = tried(10_000);
        assert_eq!((many.len(), many[1], many[15]), (16, 625, 9_375));
    }

    #[test]
    fn events_change_the_services_of_flows_or_some_of_the_others() {
        let changed = |services, event| {
            let listing = Listing::of(&scenario(services), System::OursIpip).unwrap();
            listing.changed_by(event)
        };
        assert_eq!(changed(3, EventKind::BackendChange), [0, 1, 2]);
        assert_eq!(changed(18, EventKind::OtherServices), [8, 17]);
        assert_eq!(changed(1_000, EventKind::AgentRestart), [0; 0]);
        let others = changed(1_000, EventKind::OtherServices);
        assert_eq!((others.len(), others[0], others[62]), (256, 1, 64));
    }

    #[test]
    fn each_balancer_has_addresses_of_its_own_and_services_of_both_families() {
        let scenario = scenario(2);
        let listing = |system| Listing::of(&scenario, system);
        assert!(listing(System::Direct).is_none());
        let ours = listing(System::OursIpip).unwrap();
        let proxy = listing(System::KubeProxyNftables).unwrap();
        assert!(
            ours.vips()
                .all(|vip| proxy.vips().all(|other| other != vip))
        );
        let all = ours.all().into_iter();
        let all: Vec<String> = all
            .map(|(service, protocol)| format!("{service}/{protocol}"))
            .collect();
        assert_eq!(
            all,
            [
                "10.99.0.2:10000/udp",
                "[fd00:99::2]:10000/udp",
                "10.99.0.2:10001/udp",
                "[fd00:99::2]:10001/udp"
            ]
        );
    }

    #[test]
    fn the_backend_of_a_flow_is_told_beforehand_where_no_system_draws_it() {
        let scenario = scenario(2);
        let clients = |first, number| clients(AddressFamily::Ipv4, first, number);
        let of = |system| {
            let clients = clients(10_000, 300).unwrap().into_iter();
            flows(&scenario, system, &load(), clients)
        };
        let direct = of(System::Direct).unwrap();
        assert_eq!(direct[4].to.to_string(), "10.0.1.105:7000");
        assert_eq!(direct[4].client.to_string(), "10.0.0.2:10004");
        assert_eq!(direct[4].backend, Some(1));
        assert!(
            of(System::KubeProxyNftables)
                .unwrap()
                .iter()
                .all(|flow| flow.backend.is_none())
        );
        for backend in 0..3 {
            let own = of(System::OursIpip).unwrap();
            let share = own
                .iter()
                .filter(|flow| flow.backend == Some(backend))
                .count();
            assert!((60..150).contains(&share), "{backend}: {share}");
        }
        let error = of(System::OursNat).unwrap_err();
        assert!(
            error.to_string().contains("ours-nat is not in use"),
            "{error}"
        );
        let error = clients(65_500, 100).unwrap_err();
        assert!(error.to_string().contains("no port left"), "{error}");
    }
}
