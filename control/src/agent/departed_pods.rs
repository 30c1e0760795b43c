//! Pods of this machine that left a service, but not the machine.
//!
//! A pod that no slice lists any more, because a selector changed or the pod is about to end, keeps its connections.
//! Edges hear of its departure later than this machine, and go on to send it what belongs to it for a day. So it is
//! delivered to, without a share of new connections, for as long as a network namespace here has its address, by a device
//! that the pod had: another pod may get the address within seconds.
//!
//! The address of a pod on the host's network is the machine's and stays. The kernel has ended the connections of a program
//! that has ended, and the node asks it for each. Of datagrams nobody could tell, so their socket has to be there. Pods by SCTP,
//! whose sockets nobody lists, are not kept.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use fastpath::facts::{self, PodAddresses};
use fastpath::tables::{BackendKey, Tables};

use crate::chain::chain;
use crate::desired::{
    BackendSpec, ForwardMode, Protocol, Service, ServiceKey, ServiceSpec, Services,
};
use crate::versions::sides;

/// How long a pod that left a service is delivered to: as long as edges try past owners.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The index of the loopback device, by which pods on the host's network are reached.
const LOOPBACK: u32 = 1;

/// The pods that have left, by service.
#[derive(Debug, Default)]
pub(super) struct DepartedPods {
    /// The services at the last look; `None` before the first one.
    seen: Option<Services>,
    pods: BTreeMap<ServiceKey, BTreeMap<BackendKey, Departed>>,
    /// Whether pods may have gone since the addresses were last listed.
    is_due: bool,
    /// What was found last, until it is used.
    found: Option<PresentPods>,
}

/// What shows which pods are here.
#[derive(Debug, Default)]
struct PresentPods {
    addresses: PodAddresses,
    /// This machine's own addresses.
    own: BTreeSet<IpAddr>,
    /// Where the machine's own programs take datagrams from anybody.
    datagram_sockets: BTreeSet<SocketAddr>,
}

/// A pod that has left.
#[derive(Clone, Debug)]
struct Departed {
    /// When it was first missed.
    since: Instant,
    /// The indices of the devices that led to it; `None` until they are known.
    devices: Option<BTreeSet<u32>>,
}

impl DepartedPods {
    /// Returns the services with the pods that left them but still exist. `tables` tells which pods this machine
    /// delivers to; those of an earlier agent count too. `own` are this machine's addresses.
    pub(super) fn keep(
        &mut self,
        services: &Services,
        tables: &Tables,
        own: &BTreeSet<IpAddr>,
        now: Instant,
    ) -> Services {
        let own_pods = |key: &ServiceKey| tables.own_pods(key);
        self.follow(services, own_pods, now);
        // To list all addresses takes a request for each pod here.
        if (self.is_due || self.any(|_, _, departed| departed.devices.is_none()))
            && let Some(there) = self.found.take().or_else(|| self.find_present(own))
        {
            self.retain_there(&there, now);
            self.is_due = false;
        }
        self.added_to(services)
    }

    /// Returns whether any of the pods has gone, so that its service has to be changed.
    pub(super) fn has_gone(&mut self, own: &BTreeSet<IpAddr>, now: Instant) -> bool {
        if self.pods.is_empty() {
            return false;
        }
        let Some(there) = self.find_present(own) else {
            return false;
        };
        self.is_due |= self.any(|service, pod, departed| {
            let present = there.devices(service, pod);
            !departed.is_kept(present.as_ref(), now)
        });
        self.found = self.is_due.then_some(there);
        self.is_due
    }

    /// Returns whether the device of any of the pods has gone, which asks the kernel for less than
    /// [`Self::has_gone`].
    pub(super) fn has_lost_device(&mut self) -> bool {
        let departed = self.pods.values().flat_map(BTreeMap::values);
        let devices: BTreeSet<u32> = departed
            .flat_map(|departed| departed.devices.iter().flatten().copied())
            .filter(|index| *index != LOOPBACK)
            .collect();
        self.is_due |= devices.iter().any(|index| !facts::has_device(*index));
        self.is_due
    }

    /// Asks the kernel which pods are here; `None` if it does not tell.
    fn find_present(&self, own: &BTreeSet<IpAddr>) -> Option<PresentPods> {
        let asks_sockets = self.any(|service, pod, _| {
            let is_own = pod.pod.is_some_and(|pod| own.contains(&pod.ip()));
            is_own && service.protocol == Protocol::Udp
        });
        let datagram_sockets = if asks_sockets {
            datagram_sockets()?
        } else {
            BTreeSet::new()
        };
        match facts::pod_addresses() {
            Ok(addresses) => Some(PresentPods {
                addresses,
                own: own.clone(),
                datagram_sockets,
            }),
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    "cannot find out which pods are still here"
                );
                None
            }
        }
    }

    fn any(&self, is: impl Fn(&ServiceKey, &BackendKey, &Departed) -> bool) -> bool {
        let mut services = self.pods.iter();
        services.any(|(service, departed)| {
            let mut departed = departed.iter();
            departed.any(|(pod, departed)| is(service, pod, departed))
        })
    }

    fn follow(
        &mut self,
        services: &Services,
        own_pods: impl Fn(&ServiceKey) -> Vec<BackendKey>,
        now: Instant,
    ) {
        let before = self.seen.replace(services.clone()).unwrap_or_default();
        for change in before.diff(services) {
            let (old, new) = sides(change);
            let Some((key, _)) = new.or(old) else {
                continue;
            };
            let Some((_, service)) = new.filter(|(_, service)| asks_pods(&service.spec)) else {
                self.pods.remove(key);
                continue;
            };
            let spec = &service.spec;
            let listed: BTreeSet<BackendKey> =
                spec.backends.iter().map(|one| one.key(spec.mode)).collect();
            let departed = self.pods.entry(*key).or_default();
            departed.retain(|pod, _| !listed.contains(pod));
            for pod in own_pods(key) {
                if !listed.contains(&pod) {
                    departed.entry(pod).or_insert(Departed {
                        since: now,
                        devices: None,
                    });
                }
            }
        }
        self.pods.retain(|_, departed| !departed.is_empty());
    }

    /// Drops the pods that are not there, and notes the devices of the others.
    fn retain_there(&mut self, there: &PresentPods, now: Instant) {
        for (service, departed) in &mut self.pods {
            departed.retain(|pod, departed| {
                let present = there.devices(service, pod);
                let is_kept = departed.is_kept(present.as_ref(), now);
                departed.note_devices(present.as_ref());
                is_kept
            });
        }
        self.pods.retain(|_, departed| !departed.is_empty());
    }

    fn added_to(&self, services: &Services) -> Services {
        let mut all = services.clone();
        for (key, departed) in &self.pods {
            let Some(service) = services.get(key) else {
                continue;
            };
            let pods = departed.keys().map(|pod| BackendSpec {
                address: pod.address,
                pod: pod.pod,
                weight: 0,
            });
            let spec = &service.spec;
            let spec = ServiceSpec {
                backends: spec.backends.iter().copied().chain(pods).collect(),
                ..ServiceSpec::clone(spec)
            };
            let service = Service {
                spec: Arc::new(spec),
                ..Service::clone(service)
            };
            all.insert(*key, Arc::new(service));
        }
        all
    }
}

/// Returns whether past owners of a service's slots are asked about connections: in NAT mode, edges remember these.
fn asks_pods(spec: &ServiceSpec) -> bool {
    spec.mode != ForwardMode::Nat
}

impl Departed {
    /// Notes the devices that lead to the pod; later ones may be another pod's.
    fn note_devices(&mut self, present: Option<&BTreeSet<u32>>) {
        match (&mut self.devices, present) {
            (Some(known), Some(present)) => known.retain(|index| present.contains(index)),
            (None, Some(present)) => self.devices = Some(present.clone()),
            (_, None) => {}
        }
    }

    /// Tells whether the pod is still delivered to, by the devices that lead to its address now.
    fn is_kept(&self, present: Option<&BTreeSet<u32>>, now: Instant) -> bool {
        let is_same = |devices: &BTreeSet<u32>| {
            let known = self.devices.as_ref();
            known.is_none_or(|known| !known.is_disjoint(devices))
        };
        present.is_some_and(is_same) && now.saturating_duration_since(self.since) < KEPT
    }
}

impl PresentPods {
    /// Returns the devices that lead to a pod of a service; `None` if it is not here.
    fn devices(&self, service: &ServiceKey, pod: &BackendKey) -> Option<BTreeSet<u32>> {
        let pod = pod.pod?;
        if self.own.contains(&pod.ip()) {
            let may_answer = match service.protocol {
                Protocol::Tcp => true,
                Protocol::Udp => self.takes_datagrams(pod),
                Protocol::Sctp => false,
            };
            return may_answer.then_some([LOOPBACK].into());
        }
        let namespaces = self.addresses.get(&pod.ip())?;
        Some(namespaces.values().flatten().copied().collect())
    }

    /// Tells whether a socket takes datagrams to a pod's address, by its own or by any.
    fn takes_datagrams(&self, pod: SocketAddr) -> bool {
        let any_v4 = pod.is_ipv4().then_some(Ipv4Addr::UNSPECIFIED.into());
        let addresses = [Some(pod.ip()), any_v4, Some(Ipv6Addr::UNSPECIFIED.into())];
        addresses.into_iter().flatten().any(|address| {
            let socket = SocketAddr::new(address, pod.port());
            self.datagram_sockets.contains(&socket)
        })
    }
}

/// Lists this machine's sockets that take datagrams from anybody; `None` if the kernel does not tell.
fn datagram_sockets() -> Option<BTreeSet<SocketAddr>> {
    let mut sockets = BTreeSet::new();
    // The kernel writes the table in parts, and one line may be missing between two of them.
    for table in ["udp", "udp6"].repeat(2) {
        match fs::read_to_string(format!("/proc/net/{table}")) {
            Ok(table) => sockets.extend(table.lines().filter_map(unconnected)),
            // There is no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound && table == "udp6" => {}
            Err(error) => {
                tracing::warn!(%error, table, "cannot list the sockets of pods on the host's network");
                return None;
            }
        }
    }
    Some(sockets)
}

/// Returns the local end in a line of `/proc/net/udp`, if the socket has no peer: ` 12: 0100007F:1F90 00000000:0000 07 ...`.
/// Addresses are words in the machine's byte order.
fn unconnected(line: &str) -> Option<SocketAddr> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, peer) = (fields.next()?, fields.next()?);
    if !peer.ends_with(":0000") {
        return None;
    }
    let (words, port) = local.split_once(':')?;
    let words = words.as_bytes().chunks(8).map(|word| {
        let word = u32::from_str_radix(str::from_utf8(word).ok()?, 16).ok()?;
        Some(word.to_ne_bytes())
    });
    let words: Vec<[u8; 4]> = words.collect::<Option<_>>()?;
    let address = match *words.as_slice() {
        [address] => IpAddr::from(address),
        [..] => IpAddr::from(<[u8; 16]>::try_from(words.as_flattened()).ok()?),
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(SocketAddr::new(address.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::config;

    const SERVICES: &str = "\
interfaces: [{name: eth0}]
vips: [10.99.0.1]
nodes: [{address: 10.0.0.1}, {address: 10.0.0.2}]
services:
  - name: web
    address: 10.99.0.1
    port: 80
    protocol: tcp
    backends:
      - {address: 10.244.1.5, node: 10.0.0.1}
      - {address: 10.244.1.6, node: 10.0.0.1}
  - name: dns
    address: 10.99.0.1
    port: 53
    protocol: udp
    backends: [{address: 10.244.1.5, node: 10.0.0.1}]
";

    fn services(text: &str) -> Services {
        config::parse(text).unwrap().desired.services
    }

    fn pods_of(services: &Services) -> Vec<String> {
        let pods = services.values().flat_map(|service| &service.spec.backends);
        let text = |one: &BackendSpec| format!("{} {}", one.pod.unwrap().ip(), one.weight);
        pods.map(text).collect()
    }

    /// Pods' addresses, each with the index of a device, and a namespace of its own.
    fn present(pods: &[([u8; 4], u32)]) -> PresentPods {
        let mut there = PresentPods::default();
        for (address, device) in pods {
            let namespaces = there.addresses.entry((*address).into()).or_default();
            namespaces.insert(*device, [*device].into());
        }
        there
    }

    /// The services with and without a pod, and what is noted of that pod once it has left.
    fn one_left(start: Instant) -> (Services, Services, DepartedPods) {
        let without = "      - {address: 10.244.1.6, node: 10.0.0.1}\n";
        let all = services(SERVICES);
        let fewer = services(&SERVICES.replace(without, ""));
        let mut departed = DepartedPods::default();
        departed.follow(&all, delivered(&all), start);
        assert_eq!(departed.added_to(&all), all);
        departed.follow(&fewer, delivered(&all), start);
        (all, fewer, departed)
    }

    /// What the tables have: the pods of all services.
    fn delivered(all: &Services) -> impl Fn(&ServiceKey) -> Vec<BackendKey> {
        let all = all.clone();
        move |key| {
            let backends = &all[key].spec.backends;
            backends
                .iter()
                .map(|one| one.key(ForwardMode::Ipip))
                .collect()
        }
    }

    #[test]
    fn pod_that_left_is_delivered_to_until_it_has_gone_or_a_day_is_over() {
        let there = present(&[([10, 244, 1, 5], 7), ([10, 244, 1, 6], 8)]);
        let start = Instant::now();
        let (all, fewer, mut departed) = one_left(start);
        departed.retain_there(&there, start);
        let kept = departed.added_to(&fewer);
        assert_eq!(
            pods_of(&kept),
            ["10.244.1.5 1", "10.244.1.5 1", "10.244.1.6 0"]
        );

        departed.retain_there(&there, start + KEPT - Duration::from_secs(1));
        assert_eq!(departed.added_to(&fewer), kept);
        departed.retain_there(&there, start + KEPT);
        assert_eq!(departed.added_to(&fewer), fewer);

        departed.follow(&all, delivered(&all), start);
        departed.follow(&fewer, delivered(&all), start);
        departed.retain_there(&present(&[([10, 244, 1, 5], 7)]), start);
        assert_eq!(departed.added_to(&fewer), fewer, "it has gone");
    }

    #[test]
    fn another_pod_that_gets_the_address_is_not_delivered_to() {
        let start = Instant::now();
        let (_, fewer, mut departed) = one_left(start);
        departed.retain_there(&present(&[([10, 244, 1, 6], 8)]), start);
        let kept = departed.added_to(&fewer);
        assert_ne!(kept, fewer);
        let second = [([10, 244, 1, 6], 8), ([10, 244, 1, 6], 9)];
        departed.retain_there(&present(&second), start);
        assert_eq!(departed.added_to(&fewer), kept);
        departed.retain_there(&present(&[([10, 244, 1, 6], 9)]), start);
        assert_eq!(
            departed.added_to(&fewer),
            fewer,
            "it is another's, or as good as that"
        );
    }

    #[test]
    fn pod_of_the_hosts_network_is_delivered_to_while_its_address_is_here() {
        let start = Instant::now();
        let keeps = |there: PresentPods, now| {
            let (_, fewer, mut departed) = one_left(start);
            departed.retain_there(&there, now);
            departed.added_to(&fewer) != fewer
        };
        let own = || PresentPods {
            own: [[10, 244, 1, 6].into()].into(),
            ..PresentPods::default()
        };
        assert!(keeps(own(), start));
        assert!(!keeps(own(), start + KEPT));
        assert!(!keeps(PresentPods::default(), start));
    }

    #[test]
    fn datagrams_go_on_at_the_hosts_network_while_a_socket_takes_them() {
        let there = |sockets: &[&str]| PresentPods {
            own: [[10, 244, 1, 5].into()].into(),
            datagram_sockets: sockets
                .iter()
                .map(|socket| socket.parse().unwrap())
                .collect(),
            ..PresentPods::default()
        };
        let services = services(SERVICES);
        let (dns, service) = services.iter().find(|(key, _)| key.port == 53).unwrap();
        let pod = service.spec.backends[0].key(ForwardMode::Ipip);
        for socket in ["10.244.1.5:53", "0.0.0.0:53", "[::]:53"] {
            let devices = there(&[socket]).devices(dns, &pod);
            assert_eq!(devices, Some([LOOPBACK].into()), "{socket}");
        }
        let others = ["127.0.0.53:53", "10.244.1.5:54", "[::1]:53"];
        assert_eq!(there(&others).devices(dns, &pod), None);
        let by_sctp = ServiceKey {
            protocol: Protocol::Sctp,
            ..*dns
        };
        assert_eq!(there(&["0.0.0.0:53"]).devices(&by_sctp, &pod), None);
    }

    #[test]
    fn sockets_for_datagrams_are_those_without_a_peer() {
        let bound = UdpSocket::bind("127.0.0.1:0").unwrap();
        let connected = UdpSocket::bind("127.0.0.1:0").unwrap();
        connected.connect(bound.local_addr().unwrap()).unwrap();
        let sockets = datagram_sockets().unwrap();
        assert!(sockets.contains(&bound.local_addr().unwrap()));
        assert!(!sockets.contains(&connected.local_addr().unwrap()));
        let line = "  12: 0000000000000000FFFF00000100007F:1F90 \
                    00000000000000000000000000000000:0000 07 00000000:00000000";
        assert_eq!(unconnected(line), Some("127.0.0.1:8080".parse().unwrap()));
        assert_eq!(
            unconnected("  sl  local_address rem_address   st tx_queue"),
            None
        );
    }

    #[test]
    fn addresses_are_listed_when_a_pod_has_left_and_when_a_device_has_gone() {
        let start = Instant::now();
        let (all, fewer, mut departed) = one_left(start);
        assert!(departed.any(|_, _, pod| pod.devices.is_none()));
        // The loopback device has the first index of every namespace.
        departed.retain_there(&present(&[([10, 244, 1, 6], 1)]), start);
        assert!(!departed.any(|_, _, pod| pod.devices.is_none()));
        assert!(!departed.has_lost_device());
        let lost = present(&[([10, 244, 1, 6], i32::MAX.unsigned_abs())]);
        departed.pods.clear();
        departed.seen = Some(all.clone());
        departed.follow(&fewer, delivered(&all), start);
        departed.retain_there(&lost, start);
        assert!(departed.has_lost_device());
    }

    #[test]
    fn pod_that_comes_back_has_its_own_weight() {
        let all = services(SERVICES);
        let none = services(&SERVICES.replace(
            "\n      - {address: 10.244.1.5, node: 10.0.0.1}\n      - {address: 10.244.1.6, node: 10.0.0.1}\n",
            " []\n",
        ));
        let mut departed = DepartedPods::default();
        // Those of an earlier agent are known by the tables alone.
        departed.follow(&none, delivered(&all), Instant::now());
        let kept = pods_of(&departed.added_to(&none));
        assert_eq!(kept, ["10.244.1.5 1", "10.244.1.5 0", "10.244.1.6 0"]);
        departed.follow(&all, delivered(&all), Instant::now());
        assert_eq!(departed.added_to(&all), all);
    }

    #[test]
    fn services_by_nat_and_those_that_have_gone_keep_no_pods() {
        let all = services(SERVICES);
        let no_dns = |mode: &str| {
            services(&SERVICES.replace(
                "protocol: udp\n    backends: [{address: 10.244.1.5, node: 10.0.0.1}]",
                &format!("protocol: udp\n    mode: {mode}\n    backends: []"),
            ))
        };
        let mut departed = DepartedPods::default();
        for mode in ["ipip", "l2dsr"] {
            let asked = no_dns(mode);
            departed.follow(&asked, delivered(&all), Instant::now());
            let kept = pods_of(&departed.added_to(&asked));
            assert_eq!(kept, ["10.244.1.5 0", "10.244.1.5 1", "10.244.1.6 1"]);
        }
        let by_nat = no_dns("nat");
        departed.follow(&by_nat, delivered(&all), Instant::now());
        assert_eq!(departed.added_to(&by_nat), by_nat);
        departed.follow(&Services::new(), |_| Vec::new(), Instant::now());
        assert!(departed.pods.is_empty());
    }
}
