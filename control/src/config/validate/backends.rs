//! The rules for the backends of a service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde_saphyr::Spanned;
use xdp_prog::maglev::{self, MAX_LOG2_LEN, MaglevError, Member};

use super::values::{self, Refusal, decimal, family, refusal};
use super::{Rules, entries, note, position, raw};
use crate::desired::{BackendSpec, ForwardMode, Protocol, ServiceSpec, TrafficPolicy};

/// Largest weight of a backend. Weights are relative, so larger numbers are not needed.
const MAX_WEIGHT: u32 = 65_535;

/// The properties of a service that restrict its backends. A property is `None` if it is absent or invalid.
pub(super) struct Shape<'a> {
    pub(super) address: Option<IpAddr>,
    pub(super) port: Option<u16>,
    pub(super) node_port: Option<u16>,
    pub(super) protocol: Option<Protocol>,
    pub(super) mode: Option<ForwardMode>,
    pub(super) traffic_policy: TrafficPolicy,
    /// Addresses of the machines that run Guideway.
    pub(super) nodes: &'a BTreeSet<IpAddr>,
}

impl Shape<'_> {
    /// Returns the VIP if its family differs from the backend's, with the names of the backend's family and the
    /// VIP's.
    fn vip_of_other_family(&self, backend: IpAddr) -> Option<(IpAddr, &str, &str)> {
        let vip = self
            .address
            .filter(|vip| vip.is_ipv4() != backend.is_ipv4())?;
        Some((vip, family(backend.is_ipv4()), family(vip.is_ipv4())))
    }
}

impl Rules {
    pub(super) fn backends(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        shape: &Shape<'_>,
    ) -> Vec<BackendSpec> {
        let listed = &entry.value.backends;
        if listed.is_none() {
            let remedy = "list the pods, nodes or NAT backends that serve it; an empty list [] rejects its traffic";
            self.missing(field, Some(position(entry)), remedy);
        }
        let mut backends = Vec::new();
        let mut seen = BTreeMap::new();
        for (field, backend) in entries(field, listed) {
            let at = |name: &str| format!("{field}.{name}");
            let text = backend.value.weight.as_ref();
            let weight = self.read(&at("weight"), text, weight);
            let weight = weight.or(text.is_none().then_some(1));
            let drain = self.read(&at("drain"), &backend.value.drain, truth);
            let weight = weight.map(|weight| if drain == Some(true) { 0 } else { weight });
            let Some(spec) = self.backend(&field, backend, shape) else {
                continue;
            };
            let Some(text) = &backend.value.address else {
                continue;
            };
            let identity = spec.pod.unwrap_or(SocketAddr::new(spec.address, 0));
            match note(&mut seen, identity, position(text)) {
                Ok(()) => backends.extend(weight.map(|weight| BackendSpec { weight, ..spec })),
                Err(first) => {
                    let reason = format!("this service already has this backend at {first}");
                    let remedy = "list each backend once and use weight for a larger share";
                    self.refuse(&at("address"), text, refusal(reason, remedy));
                }
            }
        }
        if !backends.is_empty() && !backends.iter().any(BackendSpec::is_sharing) {
            let reason = "all backends drain, so nobody takes new connections";
            let remedy = "leave one without drain; to reject new connections, list no backends: []";
            self.report(Some(position(entry)), field, "", refusal(reason, remedy));
        }
        // The order in the file must not affect the lookup table.
        backends.sort_unstable();
        backends
    }

    /// Reads one backend without its weight.
    fn backend(
        &mut self,
        field: &str,
        backend: &Spanned<raw::Backend>,
        shape: &Shape<'_>,
    ) -> Option<BackendSpec> {
        let at = |name: &str| format!("{field}.{name}");
        let raw::Backend {
            address,
            port,
            node,
            ..
        } = &backend.value;
        let own_port = self.read(&at("port"), port, values::traffic_port);
        if port.is_some() && own_port.is_none() {
            return None;
        }
        let remedy = "give the address of the pod, or of the node that has the VIP on lo";
        let address = self.required(&at("address"), backend, address, remedy, values::address)?;
        let text = backend.value.address.as_ref()?;
        if let Some(first) = self.origins.vips.get(&address) {
            let reason = format!("this address is the VIP at {first}");
            let remedy = "a backend is a node's own address; the VIP goes on the node's lo";
            self.refuse(&at("address"), text, refusal(reason, remedy));
            return None;
        }
        let by_nat = shape.mode == Some(ForwardMode::Nat);
        let of_pod = match node {
            Some(text) => Some(self.node_of(&at("node"), text, shape)?),
            None => None,
        };
        if !by_nat && of_pod.is_none() {
            return self.plain(field, &backend.value, address, shape);
        }
        let Some(port) = own_port.or(shape.port) else {
            // If the service has an invalid port, that is already reported.
            if shape.node_port.is_some() {
                let remedy = "give the port that the backend listens on";
                self.missing(&at("port"), Some(position(backend)), remedy);
            }
            return None;
        };
        if let Some((vip, own, wanted)) = shape.vip_of_other_family(address) {
            let reason = format!(
                "an {own} backend cannot serve the {wanted} VIP {vip}: addresses are translated within a family"
            );
            let refusal = refusal(reason, format!("give its {wanted} address"));
            self.refuse(&at("address"), text, refusal);
            return None;
        }
        let wanted = shape.node_port.or(shape.port);
        if shape.protocol == Some(Protocol::Sctp)
            && let Some(wanted) = wanted.filter(|wanted| *wanted != port)
        {
            let place = position(backend.value.port.as_ref().unwrap_or(text));
            let reason = format!("SCTP's ports are never translated and the service's is {wanted}");
            let remedy = "use one port for the service, its node_port and its backends";
            let refusal = refusal(reason, remedy);
            self.report(Some(place), &at("port"), &port.to_string(), refusal);
            return None;
        }
        let pod = SocketAddr::new(address, port);
        Some(match of_pod {
            Some(node) => BackendSpec::pod(node, pod, 1),
            None => BackendSpec::nat(pod, 1),
        })
    }

    fn node_of(
        &mut self,
        field: &str,
        text: &Spanned<String>,
        shape: &Shape<'_>,
    ) -> Option<IpAddr> {
        if shape.mode == Some(ForwardMode::Nat) {
            let remedy = "leave node out, or use mode ipip or l2dsr";
            let refusal = refusal("nat sends to the backend's own address", remedy);
            self.refuse(field, text, refusal);
            return None;
        }
        let node = self.read(field, text, values::address)?;
        if shape.nodes.contains(&node) {
            return Some(node);
        }
        let refusal = match self.origins.nodes.get(&node) {
            Some(first) => {
                let reason = format!(
                    "the node at {first} does not run Guideway, which hands packets to pods"
                );
                refusal(reason, "set mode: nat and leave node out")
            }
            None => {
                let remedy = format!("add {node} to nodes or use one of them");
                refusal("this address is not among nodes", remedy)
            }
        };
        self.refuse(field, text, refusal);
        None
    }

    /// Reads a backend that has the VIP on `lo`.
    fn plain(
        &mut self,
        field: &str,
        backend: &raw::Backend,
        address: IpAddr,
        shape: &Shape<'_>,
    ) -> Option<BackendSpec> {
        const REMEDY: &str = "give the node that the backend is a pod of, or set mode: nat";
        if let Some(port) = &backend.port {
            let reason =
                "a backend that has the VIP on lo takes packets as they are, on the service's port";
            self.refuse(&format!("{field}.port"), port, refusal(reason, REMEDY));
            return None;
        }
        let refusal = if shape.node_port.is_some() {
            let reason = "no other machine can take packets to a NodePort as they are";
            refusal(reason, REMEDY)
        } else if shape.traffic_policy == TrafficPolicy::Local {
            let reason = "with traffic_policy: local every backend is a pod";
            let remedy =
                "give the node that the backend is a pod of, or use traffic_policy: cluster";
            refusal(reason, remedy)
        } else if shape.mode == Some(ForwardMode::L2dsr)
            && let Some((vip, own, wanted)) = shape.vip_of_other_family(address)
        {
            let reason = format!(
                "an {own} backend cannot serve the {wanted} VIP {vip} by l2dsr, which keeps the packet"
            );
            let remedy = format!("give the node's {wanted} address or set mode: ipip");
            refusal(reason, remedy)
        } else {
            return Some(BackendSpec::node(address, 1));
        };
        self.refuse(
            &format!("{field}.address"),
            backend.address.as_ref()?,
            refusal,
        );
        None
    }

    /// Rejects a table in which some backend would have no slot.
    pub(super) fn backends_fit(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        spec: &ServiceSpec,
        seed: u64,
    ) {
        let sharing = || spec.sharing();
        let backends = sharing().count();
        let log2 = spec.log2_slots_for(backends).unwrap_or(MAX_LOG2_LEN);
        let slots = 1_usize << log2;
        let at = Some(position(entry));
        if backends > slots {
            let reason = format!("{backends} backends need a slot each and the table has {slots}");
            let remedy = "leave table_size out, choose a larger one, or split the service";
            let refusal = refusal(reason, remedy);
            match &entry.value.table_size {
                Some(text) => self.refuse(&format!("{field}.table_size"), text, refusal),
                None => self.report(at, &format!("{field}.backends"), "", refusal),
            }
            return;
        }
        let weights = sharing().map(|backend| u64::from(backend.weight));
        let total: u64 = weights.clone().sum();
        // Only a share of less than one slot can be rounded down to none. Then the table itself is computed to
        // find out.
        if !weights.into_iter().any(|weight| weight << log2 < total) {
            return;
        }
        let members: Vec<Member> = sharing().map(BackendSpec::member).collect();
        if let Err(MaglevError::NoSlot { member }) = maglev::table(seed, &members, log2)
            && let Some(backend) = sharing().nth(member)
        {
            let weight = backend.weight;
            let reason = format!(
                "weight {weight} of a total of {total} is too small for one of {slots} slots"
            );
            let remedy = "raise it, lower the others, or choose a larger table_size";
            let value = backend.key(spec.mode).to_string();
            let field = format!("{field}.backends");
            self.report(at, &field, &value, refusal(reason, remedy));
        }
    }
}

fn truth(text: &str) -> Result<bool, Refusal> {
    values::word(
        text,
        &[("true", true), ("false", false)],
        "neither true nor false",
    )
}

fn weight(text: &str) -> Result<u32, Refusal> {
    let remedy = format!("use a weight from 1 to {MAX_WEIGHT}");
    match decimal::<u128>(text) {
        Some(0) => Err(refusal(
            "weight 0 gives the backend no slot",
            format!("{remedy}; to stop its traffic, set drain: true or remove the backend"),
        )),
        Some(weight) => match u32::try_from(weight) {
            Ok(weight) if weight <= MAX_WEIGHT => Ok(weight),
            _ => Err(refusal("the weight is too large", remedy)),
        },
        None => Err(refusal("not a weight", remedy)),
    }
}
