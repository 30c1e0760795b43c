//! Deletion of pools while Services have their addresses.
//!
//! ```text
//! an address is found -> the pool counts it -> the pool has the finalizer -> the Service gets the address
//! the last is freed   -> the pool counts none -> the finalizer is taken away
//! ```
//!
//! The API server keeps a deleted pool that has a finalizer, so that deleting the wrong pool takes no Service
//! off the network. Such a pool gives no new addresses. It goes when no Service would lose an address: the
//! Services are gone or have other addresses, or another pool has the same addresses for them. A pool that is
//! not in use has no finalizer and can be deleted without a controller.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::allocate::{self, Inventory};
use super::crd::Condition;
use super::pending_event::PendingEvent;
use crate::first_few::first_few;
use crate::index::objects::ObjectName;

/// The finalizer of pools in use.
pub(super) const FINALIZER: &str = "guideway.dev/in-use";
/// Reason of the condition of a pool that is being deleted.
pub(super) const TERMINATING: &str = "Terminating";

/// Lists the pairs of `held` (Service and address) that would be lost if the pools that are being deleted were gone.
///
/// `guarded` are the pools with the finalizer. Only these can take over addresses, because they cannot vanish
/// in turn.
pub(super) fn at_stake<'a>(
    inventory: &Inventory,
    guarded: &BTreeSet<&str>,
    held: &[(&'a ObjectName, IpAddr)],
) -> Vec<(&'a ObjectName, IpAddr)> {
    if !inventory.pools.values().any(|pool| pool.terminating) {
        return Vec::new();
    }
    let mut remaining = inventory.clone();
    remaining
        .pools
        .retain(|name, pool| !pool.terminating && guarded.contains(name.as_str()));
    let remaining = allocate::allocate(&remaining);
    let keeps = |name: &ObjectName, address: &IpAddr| {
        let decision = remaining.get(name);
        decision.is_some_and(|decision| decision.addresses.contains(address))
    };
    let lost = held.iter().filter(|(name, address)| !keeps(name, address));
    lost.copied().collect()
}

/// Returns whether our finalizer is among the finalizers of a pool.
pub(super) fn is_guarded(present: &[String]) -> bool {
    present.iter().any(|one| one == FINALIZER)
}

/// Returns the finalizers that a pool must have; `None` if `present` is right. Finalizers of others are kept.
pub(super) fn finalizers(
    present: &[String],
    wanted: bool,
    terminating: bool,
) -> Option<Vec<String>> {
    // The API server rejects new finalizers on an object that is being deleted.
    if is_guarded(present) == wanted || (wanted && terminating) {
        return None;
    }
    let others = present.iter().filter(|one| *one != FINALIZER).cloned();
    let ours = wanted.then(|| FINALIZER.to_owned());
    Some(others.chain(ours).collect())
}

/// Returns the text that explains why a pool still exists, and what to do about it.
pub(super) fn message(users: &BTreeSet<&ObjectName>) -> String {
    if users.is_empty() {
        return "being deleted; no Service needs an address of it".to_owned();
    }
    format!(
        "being deleted; gives no addresses, and stays while Services have some of it: {}; delete them, have \
         them name another pool by the annotation guideway.dev/pool, or create a pool of another name with \
         these addresses, which takes them over",
        first_few(users)
    )
}

/// Returns an Event when a pool starts to wait for its deletion, once.
pub(super) fn event(
    before: Option<&Condition>,
    now: &Condition,
    users: &BTreeSet<&ObjectName>,
) -> Option<PendingEvent> {
    let told = before.is_some_and(|before| before.reason == TERMINATING);
    let due = now.reason == TERMINATING && !told && !users.is_empty();
    due.then(|| PendingEvent::warning("PoolInUse", now.message.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finalizers_of_others_stay() {
        let texts = |texts: &[&str]| -> Vec<String> {
            texts.iter().map(|text| (*text).to_owned()).collect()
        };
        for (present, wanted, terminating, expected) in [
            (&[][..], false, false, None),
            (&[], true, false, Some(&[FINALIZER][..])),
            (&[FINALIZER], true, false, None),
            (&[FINALIZER], true, true, None),
            (&[FINALIZER], false, true, Some(&[])),
            (&["a/b"], true, false, Some(&["a/b", FINALIZER])),
            (&["a/b"], true, true, None),
            (&[FINALIZER, "a/b"], false, false, Some(&["a/b"])),
        ] {
            let expected = expected.map(texts);
            assert_eq!(finalizers(&texts(present), wanted, terminating), expected);
        }
    }

    #[test]
    fn few_of_many_services_are_named() {
        let names: Vec<ObjectName> = (0..9)
            .map(|number| ObjectName::new("test", format!("web{number}")))
            .collect();
        let text = message(&names.iter().collect());
        assert!(text.contains("test/web0, test/web1, test/web2, test/web3, test/web4 and 4 more;"));
        let text = message(&names[..2].iter().collect());
        assert!(text.contains(": test/web0, test/web1; delete"), "{text}");
    }
}
