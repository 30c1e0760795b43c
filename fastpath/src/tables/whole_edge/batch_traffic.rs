//! What the packets of a batch are counted as: once for all packets of an id. Each addition to counters that other threads
//! may add to, too, is dear.

use std::cell::Cell;

use xdp_prog::abi::Traffic;

/// Ids whose packets of one batch are counted together.
const IDS: u32 = 64;

/// Packets and bytes of one id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) id: u32,
    pub(super) traffic: Traffic,
}

impl Counted {
    const fn none_of(id: u32) -> Self {
        Self {
            id,
            traffic: Traffic {
                packets: 0,
                bytes: 0,
            },
        }
    }

    const fn is_some(&self) -> bool {
        self.traffic.packets > 0
    }
}

/// The traffic of services, or of backends, that is still to be counted.
pub(super) struct BatchTraffic {
    /// Each id has one place, which it shares with others.
    places: [Cell<Counted>; IDS as usize],
}

impl BatchTraffic {
    pub(super) fn new() -> Self {
        Self {
            places: [const { Cell::new(Counted::none_of(0)) }; IDS as usize],
        }
    }

    /// Adds a packet. Returns what is to be counted now, because this id takes its place.
    pub(super) fn add(&self, id: u32, bytes: u64) -> Option<Counted> {
        let place = &self.places[(id % IDS) as usize];
        let known = place.get();
        let (mut counted, former) = if known.id == id {
            (known, None)
        } else {
            (Counted::none_of(id), Some(known))
        };
        counted.traffic.packets += 1;
        counted.traffic.bytes += bytes;
        place.set(counted);
        former.filter(Counted::is_some)
    }

    /// Removes all that is to be counted.
    pub(super) fn take(&self) -> impl Iterator<Item = Counted> {
        let places = self.places.iter();
        let all = places.map(|place| place.replace(Counted::none_of(0)));
        all.filter(Counted::is_some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(counted: impl IntoIterator<Item = Counted>) -> Vec<(u32, u64, u64)> {
        let counted = counted.into_iter();
        let figures = counted.map(|one| (one.id, one.traffic.packets, one.traffic.bytes));
        figures.collect()
    }

    #[test]
    fn packets_of_an_id_are_counted_together_and_once() {
        let traffic = BatchTraffic::new();
        for (id, bytes) in [(0, 60), (5, 100), (0, 61), (5, 200), (5, 300)] {
            assert!(traffic.add(id, bytes).is_none());
        }
        assert_eq!(figures(traffic.take()), [(0, 2, 121), (5, 3, 600)]);
        assert!(figures(traffic.take()).is_empty());
    }

    #[test]
    fn id_whose_place_another_one_takes_is_counted_at_once() {
        const SAME_PLACE: u32 = 5 + IDS;
        let traffic = BatchTraffic::new();
        assert!(traffic.add(5, 100).is_none());
        assert_eq!(figures(traffic.add(SAME_PLACE, 40)), [(5, 1, 100)]);
        assert_eq!(figures(traffic.add(5, 200)), [(SAME_PLACE, 1, 40)]);
        assert_eq!(figures(traffic.take()), [(5, 1, 200)]);
    }
}
