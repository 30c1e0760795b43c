//! Pools that the API server does not let the controller write, as for want of a right.
//!
//! A pool counts an address and has the finalizer before a Service gets the address. So Services wait for
//! such a pool, and are told why. Their addresses stay reserved, and the pool stays to be written: that is how
//! the end of the refusal is noticed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::allocate::{AllocationError, Decision};
use super::convert::ObservedPool;
use super::objects::Service;
use super::service_status::CurrentStatus;
use crate::index::objects::ObjectName;

/// Why pools could not be written, by their names.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<ObjectName, String>);

impl Refusals {
    /// Notes why a pool cannot be written; tells whether that is news.
    pub(super) fn note(&mut self, pool: ObjectName, why: String) -> bool {
        self.0.insert(pool, why.clone()) != Some(why)
    }

    /// Notes that a pool was written.
    pub(super) fn end(&mut self, pool: &ObjectName) {
        self.0.remove(pool);
    }

    /// Keeps what is known of these pools only.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(&ObjectName) -> bool) {
        self.0.retain(|pool, _| is_wanted(pool));
    }

    /// Leaves out the addresses that a Service cannot get yet; nothing if it can get all of them.
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
        // As in allocation: one of two only if it serves by that one already.
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
