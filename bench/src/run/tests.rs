//! Rates that frames beside requests have a share of: with systems that are made up, without a network and a clock.

use std::sync::Mutex;

use super::*;
use crate::{probe::Tally, scenario::EventKind, wire::Counts};

const SCENARIO: &str = "\
name: shares
systems: [direct, ours-ipip]
loads:
  - { rate: 100, background: 10% 50% 90% of pdr }
  - { rate: 200, background: 20% of pdr }
  - { rate: 200, background: 50% of ours-ipip }
  - { rate: 200, background: 5000 }
  - { rate: 200 }
seconds: 1
rounds: 6
";

/// What a system bears when its frames are opened for the first time, in frames a second.
const CAPACITY: f64 = 4e6;
/// What the generator can send.
const MOST: f64 = 8e6;

/// Systems that bear less each time that frames are opened: a rate that is found twice is another one.
#[derive(Debug, Default)]
struct Made {
    /// The systems whose frames were opened.
    opened: Mutex<Vec<System>>,
    /// The frames a second beside the requests of each system.
    beside: Mutex<Vec<(System, Option<f64>)>>,
}

impl Wire for Made {
    fn open(
        &self,
        system: System,
        load: &Load,
        beside: Option<f64>,
    ) -> Result<Box<dyn Generator + '_>> {
        if !load.generator.makes_frames() {
            self.beside.lock().unwrap().push((system, beside));
            return Ok(Box::new(Frames { capacity: MOST }));
        }
        let mut opened = self.opened.lock().unwrap();
        opened.push(system);
        let capacity = CAPACITY / opened.len() as f64;
        Ok(Box::new(Frames { capacity }))
    }

    fn backend_names(&self, _: System) -> Vec<String> {
        Vec::new()
    }

    fn queues(&self, _: System) -> Result<Counts> {
        Ok(Counts::new())
    }

    fn cause(&self, _: System, _: EventKind) -> Result<()> {
        Ok(())
    }

    fn undo(&self, _: System, _: EventKind) -> Result<()> {
        Ok(())
    }

    fn describe(&self, _: System) -> String {
        String::new()
    }

    fn drops(&self, _: System) -> Result<Counts> {
        Ok(Counts::new())
    }

    fn carriers(&self, _: System) -> Result<Counts> {
        Ok(Counts::new())
    }

    fn expect_running(&self, _: System) -> Result<()> {
        Ok(())
    }
}

/// Frames of which so many pass in a second.
#[derive(Debug)]
struct Frames {
    capacity: f64,
}

impl Generator for Frames {
    fn run(&mut self, asked: Asked) -> Result<load::Trial> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the rates of the test"
        )]
        let frames = |rate: f64| (rate * asked.seconds) as u64;
        let sent = frames(asked.rate.unwrap_or(MOST));
        let received = sent.min(frames(self.capacity));
        Ok(load::Trial {
            start: 0,
            seconds: asked.seconds,
            requests: Vec::new(),
            under_way_ns: None,
            tally: Tally {
                offered: sent,
                sent,
                received,
                lost: sent - received,
                ..Tally::default()
            },
            shares: Vec::new(),
            background: None,
            losses: Vec::new(),
        })
    }
}

/// Takes a run up after so many rounds.
fn session(run: Run, measured: u32) -> Session {
    Session {
        run,
        streams: BTreeMap::new(),
        watch: Watch::default(),
        measured,
        began: 0,
        before: Duration::ZERO,
        started: 0.0,
    }
}

fn new_session() -> Session {
    let options = Options {
        scenario: SCENARIO.to_owned(),
        guideway: PathBuf::new(),
        out: PathBuf::new(),
        interrupted: None,
        most_noise: 1.0,
        command: String::new(),
    };
    session(new_run(&options, Scenario::parse(SCENARIO).unwrap()), 0)
}

#[test]
fn all_shares_of_a_rate_are_of_the_one_that_was_found_once() {
    let (wire, mut session) = (Made::default(), new_session());
    session.open_series(&wire, &|_| ()).unwrap();
    let [direct, ours] = [System::Direct, System::OursIpip];
    // Two searches, and what one system takes.
    assert_eq!(*wire.opened.lock().unwrap(), [direct, ours, ours]);
    let rates = session.run.series.iter().map(|one| one.reference_rate);
    let rates: Vec<Option<f64>> = rates.collect();
    let (of_direct, of_ours) = (rates[0].unwrap(), rates[1].unwrap());
    for (found, capacity) in [(of_direct, CAPACITY), (of_ours, CAPACITY / 2.0)] {
        let borne = capacity / (1.0 - 0.005);
        let bounds = borne * (1.0 - search::WIDTH) - 1.0..=borne + 1.0;
        assert!(bounds.contains(&found), "{found} of {capacity}");
    }
    for of_load in rates[..8].chunks(2) {
        assert_eq!(of_load, [Some(of_direct), Some(of_ours)]);
    }
    let taken = (CAPACITY / 3.0).round();
    assert_eq!(
        rates[8..],
        [Some(taken), Some(taken), None, None, None, None]
    );
    let share = |system, share: f64| {
        let found = if system == direct { of_direct } else { of_ours };
        (system, Some((share * found).round()))
    };
    let mut expected = Vec::new();
    for of_load in [0.1, 0.5, 0.9, 0.2] {
        expected.extend([direct, ours].map(|system| share(system, of_load)));
    }
    for rate in [Some((taken / 2.0).round()), Some(5_000.0), None] {
        expected.extend([direct, ours].map(|system| (system, rate)));
    }
    assert_eq!(*wire.beside.lock().unwrap(), expected);
    let told = session.run.series.iter().map(Series::background_rate);
    assert!(told.eq(expected.into_iter().map(|(_, rate)| rate)));
}

#[test]
fn a_run_that_goes_on_keeps_the_rates_that_were_found() {
    let (first, mut begun) = (Made::default(), new_session());
    begun.open_series(&first, &|_| ()).unwrap();
    let (second, mut goes_on) = (Made::default(), session(begun.run, 1));
    goes_on.open_series(&second, &|_| ()).unwrap();
    assert_eq!(*second.opened.lock().unwrap(), []);
    let [before, after] = [&first, &second].map(|wire| wire.beside.lock().unwrap().clone());
    assert_eq!(before, after);
}

#[test]
fn the_time_of_a_run_has_each_search_once() {
    let seconds = |background: &str| {
        let text = format!("name: one\nsystems: [direct]\nloads: [{{ rate: 100{background} }}]\n");
        Scenario::parse(&text).unwrap().trial_seconds()
    };
    let [alone, one, three] = [
        "",
        ", background: 10% of pdr",
        ", background: 10% 50% 90% of pdr",
    ]
    .map(seconds);
    let search = one - alone;
    assert!(search > 0.0);
    assert!(
        (three - (3.0 * alone + search)).abs() < 1e-6,
        "{alone} {one} {three}"
    );
}
