//! Pools that the API server does not let the controller write, for example for lack of a right.
//!
//! A pool must count an address and have the finalizer before a Service gets the address. So Services wait for
//! such a pool and are told why. Their addresses stay reserved. The write stays due, so the end of the refusal
//! is noticed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::allocate::{AllocationError, Decision};
use super::convert::ObservedPool;
use super::objects::Service;
use super::service_status::CurrentStatus;
use crate::index::objects::ObjectName;

/// The reasons of refused writes, by pool.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<ObjectName, String>);

impl Refusals {
    /// Records why a pool cannot be written. Returns whether the reason is new.
    pub(super) fn note(&mut self, pool: ObjectName, why: String) -> bool {
        self.0.insert(pool, why.clone()) != Some(why)
    }

    /// Forgets a pool that was written.
    pub(super) fn end(&mut self, pool: &ObjectName) {
        self.0.remove(pool);
    }

    /// Forgets the other pools.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(&ObjectName) -> bool) {
        self.0.retain(|pool, _| is_wanted(pool));
    }

    /// Returns the decision without the addresses of refused pools; `None` if the Service can get all its addresses.
    pub(super) fn withhold(
        &self,
        pools: &BTreeMap<ObjectName, ObservedPool>,
        service: &Service,
        observed: &CurrentStatus,
        decision: &Decision,
    ) -> Option<Decision> {
        if self.0.is_empty() {
            return None;
        }
        let having = |name, address| {
            let seen: Option<&ObservedPool> = pools.get(name);
            seen.is_some_and(|seen| seen.source.pool.contains(address))
        };
        let had: Vec<IpAddr> = observed.addresses().collect();
        let refusal = |address: &IpAddr| {
            let mut refusals = self.0.iter();
            let is_new = !had.contains(address);
            refusals.find(|(name, _)| is_new && having(name, *address))
        };
        let (pool, why) = decision.addresses.iter().find_map(refusal)?;
        let given = decision.addresses.iter().copied();
        let mut given: Vec<IpAddr> = given.filter(|address| refusal(address).is_none()).collect();
        // As in allocation: without the other family, the Service keeps an address only if it is served by it
        // already.
        if service.dual_stack_required && !given.iter().any(|address| had.contains(address)) {
            given.clear();
        }
        Some(Decision {
            addresses: given,
            problem: Some(AllocationError::PoolNotWritable {
                pool: pool.name.to_string(),
                why: why.clone(),
            }),
            lost: decision.lost.clone(),
        })
    }
}
