use xdp_prog::{
    abi::AddressKey,
    capture::{Filter, INTERFACES, Network, Outcomes},
    frame::{FrameMut as _, HostFrame},
    reason::DropReason,
};

use super::*;
use crate::capture::Captured;

const DEVICE: u32 = 7;

/// A capture of everything.
pub(in super::super) fn settings() -> Settings {
    Settings {
        until_ns: 0,
        filter: Filter::default(),
        outcomes: Outcomes::ALL,
        sample: 1,
        snap: 64,
        owner: 42,
        interface_count: 0,
        interfaces: [0; INTERFACES],
    }
}

/// A copier that a capture with these settings has reached.
fn copier(settings: &Settings) -> (Arc<Shared>, FrameCopier) {
    let shared = Arc::default();
    let mut copier = FrameCopier::new(&shared);
    copier.begin();
    shared.follow(settings, monotonic_ns());
    copier.begin();
    (shared, copier)
}

/// What a process that captures is told and all of its events.
pub(in super::super) fn taken(shared: &Shared) -> (Vec<Captured>, u64) {
    let TakenEvents { events, lost } = shared.take(usize::MAX);
    let events = events.iter().map(|event| Captured::read(event).unwrap());
    (events.collect(), lost)
}

/// Has a frame of 100 bytes come, of which the first tells which one it is.
fn pass(copier: &mut FrameCopier, first: u8) -> bool {
    let mut bytes = [first; 100];
    let frame = HostFrame::behind(0, &mut bytes[..]);
    let is_wanted = copier.before(&frame, DEVICE);
    if is_wanted {
        copier.after(&frame, action::PASS, Reasons::default());
    }
    is_wanted
}

fn firsts(events: &[Captured]) -> Vec<u8> {
    events.iter().map(|event| event.before[0]).collect()
}

#[test]
fn event_has_the_frame_as_it_came_and_as_it_goes_on() {
    let (shared, mut copier) = copier(&settings());
    let mut bytes = [[0; 20].as_slice(), &[b'i'; 100]].concat();
    let mut frame = HostFrame::behind(20, &mut bytes[..]);
    assert!(copier.before(&frame, DEVICE));
    assert!(frame.move_start(-20));
    *frame.view_mut(0).unwrap() = *b"twenty bytes of head";
    let mut reasons = Reasons::default();
    reasons.insert(DropReason::NoBackend.index());
    copier.after(&frame, action::TRANSMIT, reasons);
    // What ends leaves no second copy.
    assert!(copier.before(&frame, DEVICE));
    copier.after(&frame, action::DROP, Reasons::default());

    let (events, lost) = taken(&shared);
    let [sent, dropped] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert_eq!(sent.before, [b'i'; 64]);
    assert_eq!(
        sent.after,
        [b"twenty bytes of head".as_slice(), &[b'i'; 44]].concat()
    );
    assert_eq!(
        (sent.event.before_length, sent.event.after_length),
        (100, 120)
    );
    assert_eq!(
        (sent.event.ifindex, sent.event.action),
        (DEVICE, action::TRANSMIT)
    );
    assert_eq!(sent.event.reasons, reasons);
    assert!(sent.event.before_ns > 0 && sent.event.after_ns >= sent.event.before_ns);
    assert_eq!(
        (dropped.event.before_length, dropped.event.after_length),
        (120, 0)
    );
    assert!(dropped.after.is_empty());
    assert_eq!(lost, 0);
}

#[test]
fn frames_and_outcomes_that_nobody_wants_leave_no_event() {
    let vip = AddressKey::v4([192, 0, 2, 1]);
    let is_taken = |settings: Settings| {
        let (shared, mut copier) = copier(&settings);
        pass(&mut copier, 1);
        !taken(&shared).0.is_empty()
    };
    let mut other_device = settings();
    other_device.interface_count = 1;
    other_device.interfaces[0] = DEVICE + 1;
    let mut this_device = other_device;
    this_device.interfaces[0] = DEVICE;
    let filter = Filter {
        networks: [Network::new(vip, 128), Network::default()],
        is_set: [1, 0],
        ..Filter::default()
    };
    assert!(is_taken(settings()));
    assert!(is_taken(this_device));
    assert!(!is_taken(other_device));
    assert!(!is_taken(Settings {
        filter,
        ..settings()
    }));
    assert!(!is_taken(Settings {
        outcomes: Outcomes::NONE,
        ..settings()
    }));
    assert!(!is_taken(Settings {
        owner: 0,
        ..settings()
    }));
}

#[test]
fn one_in_so_many_is_taken_by_chance() {
    let (_, mut copier) = copier(&Settings {
        sample: 4,
        ..settings()
    });
    let taken = (0..4000).filter(|_| pass(&mut copier, 1)).count();
    // Six standard deviations of a binomial distribution on either side.
    assert!((836..=1164).contains(&taken), "{taken}");
}

#[test]
fn queue_is_bounded_and_what_finds_no_room_is_counted_once() {
    let (shared, mut copier) = copier(&Settings {
        snap: SNAP_MAX,
        ..settings()
    });
    let room = shared
        .running
        .load()
        .as_ref()
        .unwrap()
        .waiting
        .events
        .capacity();
    assert!(room * (mem::size_of::<Event>() + 2 * SNAP_MAX as usize) <= RING);
    for _ in 0..room + 3 {
        pass(&mut copier, 1);
    }
    let (events, lost) = taken(&shared);
    assert_eq!((events.len(), lost), (room, 3));
    pass(&mut copier, 2);
    let (events, lost) = taken(&shared);
    assert_eq!((firsts(&events), lost), (vec![2], 0));
}

#[test]
fn capture_ends_as_its_owner_says_and_its_events_can_still_be_taken() {
    let (shared, mut copier) = copier(&settings());
    pass(&mut copier, 1);
    let over = Settings {
        owner: 0,
        ..settings()
    };
    shared.follow(&over, monotonic_ns());
    copier.begin();
    assert!(!pass(&mut copier, 2));
    shared.clear_away(monotonic_ns());
    assert_eq!(firsts(&taken(&shared).0), [1]);

    // The same process goes on, with another end of its lease.
    let later = Settings {
        until_ns: 1,
        ..settings()
    };
    shared.follow(&later, monotonic_ns());
    copier.begin();
    assert!(pass(&mut copier, 3));
    assert_eq!(firsts(&taken(&shared).0), [3]);
}

#[test]
fn capture_that_asks_no_more_ends_with_its_events() {
    let (shared, mut copier) = copier(&settings());
    pass(&mut copier, 1);
    // When the machine started.
    shared.follow(&settings(), 0);
    copier.begin();
    assert!(!pass(&mut copier, 2));
    shared.clear_away(monotonic_ns());
    copier.begin();
    assert!(copier.running.is_none());
    assert!(taken(&shared).0.is_empty());
}

#[test]
fn other_settings_of_one_process_keep_its_events_and_another_process_gets_none_of_them() {
    let (shared, mut copier) = copier(&settings());
    pass(&mut copier, 1);
    let other_outcomes = Settings {
        outcomes: Outcomes::NONE,
        ..settings()
    };
    shared.follow(&other_outcomes, monotonic_ns());
    copier.begin();
    pass(&mut copier, 2);
    assert_eq!(firsts(&taken(&shared).0), [1]);

    shared.follow(&settings(), monotonic_ns());
    copier.begin();
    pass(&mut copier, 3);
    shared.follow(
        &Settings {
            owner: 43,
            ..settings()
        },
        monotonic_ns(),
    );
    copier.begin();
    pass(&mut copier, 4);
    assert_eq!(firsts(&taken(&shared).0), [4]);
}
