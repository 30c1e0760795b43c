//! Reads what a Service requests: addresses and pools.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{AllocationError, Inventory};
use crate::controller::address_range::Family;
use crate::controller::objects::{Request, Service};

/// The request of a Service, decoded.
pub(super) struct AddressRequest<'a> {
    pub(super) addresses: BTreeMap<Family, IpAddr>,
    pub(super) pools: Vec<&'a str>,
}

impl<'a> AddressRequest<'a> {
    pub(super) fn of(service: &'a Service, inventory: &Inventory) -> Result<Self, AllocationError> {
        let Request {
            addresses,
            load_balancer_ip,
            pools,
            ..
        } = &service.request;
        let pools = pools.as_deref().map(listed).unwrap_or_default();
        let exists = |name: &&&str| inventory.pools.contains_key(**name);
        if let Some(unknown) = pools.iter().find(|name| !exists(name)) {
            return Err(AllocationError::NoSuchPool((*unknown).to_owned()));
        }
        let addresses = match (addresses.as_deref(), load_balancer_ip.as_deref()) {
            (Some(annotation), Some(field)) => {
                let asked = asked(annotation, &service.families)?;
                match field.parse::<IpAddr>() {
                    Ok(address) if asked.values().any(|asked| *asked == address) => asked,
                    _ => return Err(AllocationError::Contradiction),
                }
            }
            (Some(text), None) | (None, Some(text)) => asked(text, &service.families)?,
            (None, None) => BTreeMap::new(),
        };
        Ok(Self { addresses, pools })
    }
}

/// Reads the requested addresses, at most one of each family.
fn asked(text: &str, families: &[Family]) -> Result<BTreeMap<Family, IpAddr>, AllocationError> {
    let mut addresses = BTreeMap::new();
    for text in listed(text) {
        let address: IpAddr = text
            .parse()
            .map_err(|_| AllocationError::NoAddress(text.to_owned()))?;
        let family = Family::of(address);
        if !families.contains(&family) {
            return Err(AllocationError::FamilyNotWanted(family));
        }
        if addresses.insert(family, address).is_some() {
            return Err(AllocationError::OnePerFamily(family));
        }
    }
    Ok(addresses)
}

/// Splits an annotation at its commas.
fn listed(text: &str) -> Vec<&str> {
    let parts = text.split(',').map(str::trim);
    parts.filter(|part| !part.is_empty()).collect()
}
