//! Pools that are deleted while Services have addresses of them.
//!
//! ```text
//! an address is found -> the pool counts it -> the pool has the finalizer -> the Service gets the address
//! the last is freed   -> the pool counts none -> the finalizer is taken away
//! ```
//!
//! The API server keeps a deleted pool that has a finalizer, so that deleting the wrong one takes nobody off the
//! network. Such a pool gives nothing more, and goes when no Service would lose an address by it: when they are gone,
//! or have moved, or when another pool has the same addresses for them. A pool without use has no finalizer,
//! and needs no controller to be deleted.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::allocate::{self, Inventory};
use super::crd::Condition;
use super::notice::Notice;
use crate::first_few::first_few;
use crate::index::objects::ObjectName;

/// The finalizer of pools in use.
pub(super) const FINALIZER: &str = "guideway.dev/in-use";
/// Why a pool that is being deleted is not ready, in a word.
pub(super) const TERMINATING: &str = "Terminating";

/// Lists who of `held` would lose which address if the pools that are being deleted were gone.
///
/// `guarded` are the pools with the finalizer; only one of these takes over from another, since it cannot
/// vanish in turn.
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

/// Tells whether the finalizer is among those of a pool.
pub(super) fn is_guarded(present: &[String]) -> bool {
    present.iter().any(|one| one == FINALIZER)
}

/// Returns the finalizers that a pool has to have, if they are not those that are `present`: those of others stay.
pub(super) fn finalizers(
    present: &[String],
    wanted: bool,
    terminating: bool,
) -> Option<Vec<String>> {
    // The API server takes no finalizer for an object that is being deleted.
    if is_guarded(present) == wanted || (wanted && terminating) {
        return None;
    }
    let others = present.iter().filter(|one| *one != FINALIZER).cloned();
    let ours = wanted.then(|| FINALIZER.to_owned());
    Some(others.chain(ours).collect())
}

/// Says why a pool that is being deleted is still there, and what to do about it.
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

/// Tells, once, that a pool is not deleted yet: when its condition becomes that.
pub(super) fn notice(
    before: Option<&Condition>,
    now: &Condition,
    users: &BTreeSet<&ObjectName>,
) -> Option<Notice> {
    let told = before.is_some_and(|before| before.reason == TERMINATING);
    let due = now.reason == TERMINATING && !told && !users.is_empty();
    due.then(|| Notice::warning("PoolInUse", now.message.clone()))
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
