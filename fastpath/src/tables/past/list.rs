//! What is in a list of past owners; changes nothing.

use std::{cmp::Reverse, ops::Range};

use xdp_prog::abi::{PAST_OWNER_SECONDS, PastOwner};

/// Returns the entry of an owner that ceases to own a slot in `second`, which has this list of past owners.
///
/// Where nodes return nothing, all connections that begin within `pinned_for` seconds after a change have pins. An owner of
/// that time alone has no others. So it is listed behind the owner before it, as one that ended so long before that one.
pub fn ended(owner: u32, list: &[PastOwner], second: u32, pinned_for: u16) -> PastOwner {
    let pinned_for = u32::from(pinned_for);
    let second = match list.first() {
        Some(before) if second < before.second() + pinned_for => {
            before.second().saturating_sub(pinned_for)
        }
        _ => second,
    };
    PastOwner::new(owner, second)
}

/// Returns the past owners that a slot has once it has changed hands to `owner`, the newest first.
///
/// `former` lists the slots whose flows the slot takes over, with the entries of their owners and their past owners: itself
/// or, in a table of another length, the same part of the former table. A past owner has its place by `may_keep`: NAT mode has a memory of its own.
pub fn past_owners<'l>(
    former: impl IntoIterator<Item = (PastOwner, &'l [PastOwner])>,
    owner: u32,
    may_keep: impl Fn(u32) -> bool,
) -> Vec<PastOwner> {
    let mut known = Vec::new();
    for (former, past) in former {
        known.push(former);
        known.extend_from_slice(past);
    }
    // Stable: of the same second, the order stays.
    known.sort_by_key(|owner| Reverse(owner.second()));
    let mut list: Vec<PastOwner> = Vec::with_capacity(known.len());
    for past in known {
        let is_there = |id| id == owner || list.iter().any(|listed| listed.backend() == id);
        if may_keep(past.backend()) && !is_there(past.backend()) {
            list.push(past);
        }
    }
    list
}

/// Shortens a list to at most `most` past owners: those that the service does not list any more go first, then the oldest.
pub fn newest_owners(
    list: Vec<PastOwner>,
    most: usize,
    is_listed: impl Fn(&PastOwner) -> bool,
) -> Vec<PastOwner> {
    let mut left = list.len().saturating_sub(most);
    let mut kept = list;
    // The oldest first.
    kept.reverse();
    kept.retain(|owner| {
        let goes = left > 0 && !is_listed(owner);
        left -= usize::from(goes);
        !goes
    });
    kept.reverse();
    kept.truncate(most);
    kept
}

/// Returns the slots of a former table of 2^`former` slots whose flows a slot of a table of 2^`log2` slots takes over: the
/// same part of the table.
#[must_use]
pub fn former_slots(slot: u32, log2: u8, former: u8) -> Range<u32> {
    let scale = |slot: u32| {
        if log2 >= former {
            slot >> (log2 - former)
        } else {
            slot << (former - log2)
        }
    };
    let first = scale(slot);
    first..scale(slot + 1).max(first + 1)
}

/// Returns the past owners of a list that are tried in this second: they ceased to own within the last day.
pub fn live_past_owners(list: &[PastOwner], second: u32) -> Vec<PastOwner> {
    let oldest = second.saturating_sub(PAST_OWNER_SECONDS);
    let live = list.iter().filter(|owner| owner.second() >= oldest);
    live.copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(list: &[(u32, u32)]) -> Vec<PastOwner> {
        let owners = list.iter();
        owners
            .map(|(id, second)| PastOwner::new(*id, *second))
            .collect()
    }

    const fn at_50(owner: u32) -> PastOwner {
        PastOwner::new(owner, 50)
    }

    #[test]
    fn owner_all_of_whose_connections_have_pins_is_listed_behind_the_one_before() {
        let list = owners(&[(3, 1000), (4, 20)]);
        let end = |second, pinned_for| ended(2, &list, second, pinned_for).second();
        assert_eq!((end(1599, 600), end(1600, 600)), (400, 1600));
        assert_eq!((end(1029, 30), end(1030, 30)), (970, 1030));
        assert_eq!(end(1000, 0), 1000);
        assert_eq!(ended(2, &[], 50, 600), at_50(2));
        // Before it has been up for so long, a machine has no earlier second.
        assert_eq!(ended(2, &owners(&[(3, 40)]), 50, 600), PastOwner::new(2, 0));
    }

    #[test]
    fn former_owner_comes_first_and_the_new_one_leaves_the_list() {
        let past = owners(&[(3, 30), (4, 20)]);
        let list = past_owners([(at_50(2), &past[..])], 3, |_| true);
        assert_eq!(list, owners(&[(2, 50), (4, 20)]));
    }

    #[test]
    fn list_leaves_out_what_may_not_be_kept() {
        let past = owners(&[(3, 30), (4, 20), (5, 10)]);
        let list = past_owners([(at_50(2), &past[..])], 9, |id| id != 3);
        assert_eq!(list, owners(&[(2, 50), (4, 20), (5, 10)]));
        assert!(past_owners([(at_50(0), &[][..])], 9, |id| id != 0).is_empty());
    }

    #[test]
    fn list_that_overflows_loses_who_is_no_longer_listed_and_then_the_oldest() {
        let all = owners(&[(2, 50), (3, 40), (4, 30), (5, 20)]);
        let kept = |most, listed: &[u32]| {
            newest_owners(all.clone(), most, |owner| listed.contains(&owner.backend()))
        };
        assert_eq!(kept(4, &[]), all);
        assert_eq!(kept(3, &[2, 4, 5]), owners(&[(2, 50), (4, 30), (5, 20)]));
        assert_eq!(kept(2, &[2, 4, 5]), owners(&[(2, 50), (4, 30)]));
        assert_eq!(kept(2, &[5]), owners(&[(2, 50), (5, 20)]));
        assert_eq!(kept(2, &[]), owners(&[(2, 50), (3, 40)]));
    }

    #[test]
    fn slots_that_become_one_share_their_owners_once() {
        let (one, other) = (owners(&[(5, 40), (6, 10)]), owners(&[(6, 45)]));
        let list = past_owners([(at_50(2), &one[..]), (at_50(2), &other[..])], 9, |_| true);
        assert_eq!(list, owners(&[(2, 50), (6, 45), (5, 40)]));
    }

    #[test]
    fn slot_takes_over_the_same_part_of_a_table_of_another_length() {
        assert_eq!(former_slots(5, 4, 4), 5..6);
        assert_eq!(former_slots(5, 4, 6), 20..24);
        assert_eq!((former_slots(4, 4, 1), former_slots(8, 4, 1)), (0..1, 1..2));
        assert_eq!(former_slots(15, 4, 0), 0..1);
    }

    #[test]
    fn owner_is_tried_for_a_day() {
        let second = 100 + PAST_OWNER_SECONDS;
        let list = owners(&[(2, 101), (3, 100), (4, 99)]);
        assert_eq!(
            live_past_owners(&list, second),
            owners(&[(2, 101), (3, 100)])
        );
    }
}
