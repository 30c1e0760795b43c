//! Decides which services get the room in full tables: the oldest ones.
//!
//! A service has the same age on all machines. So all machines refuse the same services, whatever arrived first
//! at each. An older service that comes late or grows takes the room of younger ones. A refused service is not
//! tried again before something was freed that may help it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fastpath::tables::{Change, Freed, InstalledService, ServiceKey, ServiceSpec, TableError};
use xdp_prog::abi::map;

use crate::api::NameParts;
use crate::chain::chain;
use crate::desired::Services;
use crate::index::objects::ObjectName;
use crate::index::{BrokenRule, Object, Problem, TableEntries};
use crate::target_state::service_at;

/// Most refused ports of Services that are told by Events.
const MOST_TOLD: usize = 20;

/// Age of a service: creation time, then name; then address and port within one service. Lesser is older.
pub(super) type Age<'a> = (i64, &'a str, ServiceKey);

/// Returns the age of the service at a key. A service that is no longer desired counts as the youngest.
pub(super) fn age<'a>(services: &'a Services, key: &ServiceKey) -> Age<'a> {
    let service = service_at(services, key);
    let service = service.map(|(_, service)| (service.created, service.name.as_str()));
    let (created, name) = service.unwrap_or((i64::MAX, ""));
    (created, name, *key)
}

/// Services that were refused for lack of room.
#[derive(Debug, Default)]
pub(super) struct RefusedServices {
    known: BTreeMap<ServiceKey, Refusal>,
    /// Services that did not fit in the current attempt.
    crowded: Vec<(ServiceKey, TableError)>,
}

#[derive(Debug)]
struct Refusal {
    spec: Arc<ServiceSpec>,
    freed: Freed,
    reason: String,
    /// Whether the arena of lookup tables was full, not another table.
    is_arena: bool,
}

impl RefusedServices {
    /// Returns why a service was refused, if nothing was freed since that may help it.
    pub(super) fn reason(
        &self,
        key: &ServiceKey,
        spec: &Arc<ServiceSpec>,
        freed: Freed,
    ) -> Option<&str> {
        let refusal = self.known.get(key)?;
        let has_room = if refusal.is_arena {
            refusal.freed.runs != freed.runs
        } else {
            refusal.freed != freed
        };
        (!has_room && Arc::ptr_eq(&refusal.spec, spec)).then_some(refusal.reason.as_str())
    }

    /// Records the outcome of an attempt to put a service.
    pub(super) fn note(
        &mut self,
        key: ServiceKey,
        spec: &Arc<ServiceSpec>,
        outcome: &Result<Change, TableError>,
        freed: Freed,
    ) {
        match outcome {
            Err(error) if error.is_full() => {
                let refusal = Refusal {
                    spec: Arc::clone(spec),
                    freed,
                    reason: chain(error),
                    is_arena: matches!(error, TableError::ArenaFull { .. }),
                };
                self.known.insert(key, refusal);
            }
            Ok(_) | Err(_) => drop(self.known.remove(&key)),
        }
    }

    /// Returns the Services that lack room, a few of them. The text is the same on all machines, which refuse the same
    /// Services: it becomes one Event.
    pub(super) fn problems(&self, services: &Services) -> Vec<Problem> {
        let keys = self.known.keys().take(MOST_TOLD);
        let names = keys.filter_map(|key| Some(NameParts::of(&service_at(services, key)?.1.name)));
        let names: BTreeSet<ObjectName> = names
            .map(|name| ObjectName::new(name.namespace, name.name))
            .collect();
        let problem = |name| Problem {
            object: Object::Service(name),
            rule: BrokenRule::TableFull,
            text: "not all of it is served: a table is full, and older Services have its room"
                .to_owned(),
            remedy: "raise the table that `guideway status` names, or remove Services".to_owned(),
            only_here: false,
        };
        names.into_iter().map(problem).collect()
    }

    /// Forgets services that are no longer wanted.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(&ServiceKey) -> bool) {
        self.known.retain(|key, _| is_wanted(key));
    }

    /// Records that a service did not fit in the current attempt.
    pub(super) fn crowd(&mut self, key: ServiceKey, error: TableError) {
        self.crowded.push((key, error));
    }

    /// Returns the services that did not fit in the current attempt, in their order, and ends the attempt.
    pub(super) fn take_crowded(&mut self) -> Vec<(ServiceKey, TableError)> {
        std::mem::take(&mut self.crowded)
    }
}

/// Returns how many entries an installed service takes.
pub(super) fn taken_by(service: &InstalledService) -> TableEntries {
    TableEntries {
        slots: service.slots(),
        services: 1,
        backends: service.backends() as u64,
        pods: service.local_pods() as u64,
        source_ranges: service.source_ranges() as u64,
    }
}

/// Returns how many of the youngest services (the last of `installed`) must go to make room for an older one.
/// Returns 0 if removing all younger ones would not suffice.
pub(super) fn to_make_room(
    installed: &[(Age<'_>, TableEntries)],
    own: &Age<'_>,
    spec: &ServiceSpec,
    error: &TableError,
) -> usize {
    let Some((lacking, part)) = lacking(installed, spec, error) else {
        return 0;
    };
    let younger = installed.iter().rev().take_while(|(age, _)| age > own);
    let mut room = 0;
    for (count, (_, taken)) in younger.enumerate() {
        room += part(taken);
        if room >= lacking {
            return count + 1;
        }
    }
    0
}

/// Selects the number of entries in one table.
type Part = fn(&TableEntries) -> u64;

/// Returns how many entries a service lacks in the full table, at least 1; `None` if removing services would
/// not help.
///
/// Two numbers are known only when the service is tried again: which backends are pods of this machine, and
/// which entries exist already. They count as one and none, so a second round may be needed.
fn lacking(
    installed: &[(Age<'_>, TableEntries)],
    spec: &ServiceSpec,
    error: &TableError,
) -> Option<(u64, Part)> {
    let (lacking, part): (u64, Part) = match error {
        TableError::ArenaFull { wanted, free, .. } => {
            (wanted.saturating_sub(*free).into(), |taken| taken.slots)
        }
        TableError::TableFull { map, entries } => {
            let (wanted, part): (usize, Part) = match *map {
                map::SERVICE => (1, |taken| taken.services),
                map::BACKENDS => (spec.backends.len(), |taken| taken.backends),
                map::PODS => (1, |taken| taken.pods),
                map::SOURCE_RANGES => (spec.source_ranges.len(), |taken| taken.source_ranges),
                _ => return None,
            };
            let used: u64 = installed.iter().map(|(_, taken)| part(taken)).sum();
            let free = (*entries as u64).saturating_sub(used);
            ((wanted as u64).saturating_sub(free), part)
        }
        _ => return None,
    };
    Some((lacking.max(1), part))
}

#[cfg(test)]
mod tests {
    use fastpath::tables::BackendSpec;

    use super::*;

    const KEY: &str = "192.0.2.1:80/tcp";

    fn full(is_arena: bool) -> Result<Change, TableError> {
        Err(if is_arena {
            TableError::ArenaFull {
                service: KEY.parse().unwrap(),
                wanted: 256,
                largest: 16,
                free: 20,
            }
        } else {
            TableError::TableFull {
                map: "BACKENDS",
                entries: 7,
            }
        })
    }

    #[test]
    fn only_younger_services_make_room_and_only_if_that_suffices() {
        let key: ServiceKey = KEY.parse().unwrap();
        let own: Age<'_> = (5, "b", key);
        let slots = |slots| TableEntries {
            slots,
            ..TableEntries::default()
        };
        let spec = ServiceSpec::default();
        let error = full(true).unwrap_err();
        // 236 are lacking.
        for (installed, expected) in [
            (&[][..], 0),
            (&[((4, "z", key), slots(4096))], 0),
            (&[((5, "a", key), slots(4096))], 0),
            (&[((5, "c", key), slots(256))], 1),
            (
                &[((5, "c", key), slots(256)), ((6, "a", key), slots(256))],
                1,
            ),
            (
                &[
                    ((5, "c", key), slots(256)),
                    ((6, "a", key), slots(1)),
                    ((7, "a", key), slots(16)),
                ],
                3,
            ),
            (
                &[
                    ((4, "c", key), slots(256)),
                    ((6, "a", key), slots(1)),
                    ((7, "a", key), slots(16)),
                ],
                0,
            ),
        ] {
            assert_eq!(
                to_make_room(installed, &own, &spec, &error),
                expected,
                "{installed:?}"
            );
        }
    }

    #[test]
    fn room_is_made_in_the_table_that_is_full() {
        let key: ServiceKey = KEY.parse().unwrap();
        let own: Age<'_> = (5, "b", key);
        let spec = ServiceSpec {
            backends: vec![BackendSpec::node(key.address, 1); 3],
            ..ServiceSpec::default()
        };
        let takes = |slots, backends| TableEntries {
            slots,
            services: 1,
            backends,
            ..TableEntries::default()
        };
        // Of seven backends, three are wanted.
        let error = full(false).unwrap_err();
        for (older, younger, expected) in [
            (takes(1, 4), takes(4096, 3), 1),
            (takes(1, 5), takes(4096, 2), 2),
            (takes(1, 7), takes(4096, 0), 0),
            (takes(1, 2), takes(4096, 2), 1),
        ] {
            let installed = [
                ((4, "a", key), older),
                ((6, "a", key), takes(1, 1)),
                ((7, "a", key), younger),
            ];
            assert_eq!(
                to_make_room(&installed, &own, &spec, &error),
                expected,
                "{younger:?}"
            );
        }
        let installed = [((7, "a", key), takes(1, 0))];
        for (map, expected) in [(map::SERVICE, 1), (map::PODS, 0), (map::NEXTHOPS, 0)] {
            let error = TableError::TableFull { map, entries: 1 };
            assert_eq!(to_make_room(&installed, &own, &spec, &error), expected);
        }
    }

    #[test]
    fn refused_service_waits_for_what_it_lacks() {
        let key: ServiceKey = KEY.parse().unwrap();
        let spec = Arc::new(ServiceSpec::default());
        for (is_arena, runs, entries, waits) in [
            (true, 3, 5, true),
            (true, 3, 6, true),
            (true, 4, 5, false),
            (false, 3, 5, true),
            (false, 3, 6, false),
        ] {
            let mut refused = RefusedServices::default();
            let before = Freed {
                runs: 3,
                entries: 5,
            };
            refused.note(key, &spec, &full(is_arena), before);
            let reason = refused.reason(&key, &spec, Freed { runs, entries });
            assert_eq!(reason.is_some(), waits, "{is_arena} {runs} {entries}");
            // Another specification may be smaller.
            let other = Arc::new(ServiceSpec::default());
            assert_eq!(refused.reason(&key, &other, before), None);
            refused.note(key, &spec, &Ok(Change::default()), before);
            assert_eq!(refused.reason(&key, &spec, before), None);
        }
    }
}
