//! The length of a table: as long as the largest set of backends of the last day needs.
//!
//! Another length gives nearly every slot another owner. So a set that shrinks and grows again keeps its length, and edges
//! that tell each other their needs have the same lengths, although some of them never had the largest set.

use std::{collections::BTreeMap, sync::Arc};

use xdp_prog::abi::PAST_OWNER_SECONDS;

use super::{ForwardMode, ServiceKey, ServiceSpec, Tables, TrafficPolicy, past::second_now};

/// Needs of another edge that end within so many seconds are not taken. Here they end at about that time too, and a table
/// would become longer for nothing.
pub(super) const LAST_SECONDS: u32 = 600;

/// The lengths that a service needs, as base-2 logarithms of the number of slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    /// For the present set.
    present: u8,
    /// For larger sets, each with the second in which the last set ended that needed it.
    ended: BTreeMap<u8, u32>,
}

impl Need {
    fn of(present: u8) -> Self {
        Self {
            present,
            ended: BTreeMap::new(),
        }
    }

    /// Records that the set needs another length from a second on.
    fn follow(&mut self, present: u8, second: u32) {
        let before = std::mem::replace(&mut self.present, present);
        if present < before {
            self.ended.insert(before, second);
        }
        let is_live = |ended: u32| second.saturating_sub(ended) < PAST_OWNER_SECONDS;
        self.ended
            .retain(|length, ended| *length > present && is_live(*ended));
    }

    /// Takes the need of another edge that ended at a second.
    fn take(&mut self, length: u8, second: u32) {
        if length > self.present {
            let ended = self.ended.entry(length).or_insert(second);
            *ended = (*ended).max(second);
        }
    }

    /// Returns the length that all sets of the last day have room in.
    fn length(&self) -> u8 {
        self.ended
            .last_key_value()
            .map_or(self.present, |(length, _)| *length)
    }
}

/// Tells whether the length of a service's table follows its sets of the last day.
fn is_by_need(spec: &ServiceSpec) -> bool {
    let is_whole = spec.traffic_policy == TrafficPolicy::Cluster;
    spec.mode == ForwardMode::Ipip && is_whole && spec.log2_slots.is_none()
}

impl Tables {
    /// Notes what the set of a service needs that is about to be put, and returns the length that its table gets at least.
    pub(super) fn follow_need(&mut self, key: &ServiceKey, spec: &ServiceSpec) -> u8 {
        let backends = spec.sharing().count();
        let present = spec.log2_slots_for(backends).unwrap_or_default();
        if !is_by_need(spec) {
            self.needs.remove(key);
            return 0;
        }
        let adopted = self.service(key).map(|service| service.run.log2);
        let need = self
            .needs
            .entry(*key)
            .or_insert_with(|| Need::of(adopted.unwrap_or(present)));
        need.follow(present, second_now());
        need.length()
    }

    /// Returns the lengths that a service needs, each with the seconds since it was needed last.
    pub(super) fn told_needs(&self, key: &ServiceKey, second: u32) -> Vec<(u8, u32)> {
        let need = self.needs.get(key);
        let ended = need.into_iter().flat_map(|need| &need.ended);
        let ended = ended.map(|(length, ended)| (*length, second.saturating_sub(*ended) + 1));
        let present = need.map(|need| (need.present, 0));
        present.into_iter().chain(ended).collect()
    }

    /// Takes the needs that another edge has told; its clock shows `second`. If the table must be longer and there is room
    /// for that, it becomes so.
    pub(super) fn take_needs(&mut self, key: &ServiceKey, told: &[(u8, u32)], second: u32) {
        let spec = self.contents.specs.get(key).cloned();
        let Some(spec) = spec.filter(|spec| is_by_need(spec)) else {
            return;
        };
        let Some(run) = self.service(key).map(|service| service.run) else {
            return;
        };
        let before = self.needs.get(key).cloned();
        let need = self.needs.entry(*key).or_insert_with(|| Need::of(run.log2));
        for (length, ago) in told {
            if *ago < PAST_OWNER_SECONDS - LAST_SECONDS {
                need.take(*length, second.saturating_sub(*ago));
            }
        }
        let length = need.length();
        if length <= run.log2 {
            return;
        }
        let has_room = self.arena.fill().largest_free >= 1 << length;
        if !has_room || self.put_shared_service(*key, Arc::clone(&spec)).is_err() {
            match before {
                Some(before) => self.needs.insert(*key, before),
                None => self.needs.remove(key),
            };
        }
    }

    /// Shortens the tables whose length no set of the last day needs.
    pub fn expire_needs(&mut self) {
        self.expire_needs_at(second_now());
    }

    pub(super) fn expire_needs_at(&mut self, second: u32) {
        let has_ended = |ended: &u32| second.saturating_sub(*ended) >= PAST_OWNER_SECONDS;
        let mut due = Vec::new();
        for (key, need) in &mut self.needs {
            let before = need.length();
            need.ended.retain(|_, ended| !has_ended(ended));
            if need.length() < before {
                due.push(*key);
            }
        }
        let specs = due.into_iter().filter_map(|key| {
            let spec = self.contents.specs.get(&key)?;
            Some((key, Arc::clone(spec)))
        });
        self.put_again(specs.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_that_of_the_largest_set_of_a_day() {
        let mut need = Need::of(8);
        need.follow(11, 100);
        assert_eq!(need.length(), 11);
        need.follow(8, 200);
        need.follow(0, 300);
        assert_eq!((need.present, need.length()), (0, 11));
        need.follow(0, 199 + PAST_OWNER_SECONDS);
        assert_eq!(need.length(), 11);
        need.follow(0, 200 + PAST_OWNER_SECONDS);
        assert_eq!(need.length(), 8, "the second largest is younger");
        need.follow(0, 300 + PAST_OWNER_SECONDS);
        assert_eq!(need, Need::of(0));
    }

    #[test]
    fn needs_of_others_count_from_their_own_moment() {
        let mut need = Need::of(8);
        need.take(8, 500);
        assert_eq!(need, Need::of(8));
        need.take(11, 100);
        need.take(11, 50);
        assert_eq!(need.length(), 11);
        need.follow(8, 100 + PAST_OWNER_SECONDS);
        assert_eq!(need, Need::of(8));
    }
}
