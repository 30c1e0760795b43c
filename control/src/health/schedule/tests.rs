use super::*;

const INTERVAL: Duration = Duration::from_secs(5);
const THRESHOLDS: CheckThresholds = CheckThresholds {
    interval: INTERVAL,
    rise: 2,
    fall: 3,
    first_decides: true,
    starting: Duration::ZERO,
};
#[test]
fn new_target_serves_and_is_checked_at_once() {
    let (mut schedule, now) = schedule(&["a"], THRESHOLDS);
    let target = schedule.get(&"a").unwrap();
    assert!(target.healthy && !target.decided);
    assert_eq!(schedule.next_due(), Some(now));
    assert_eq!(schedule.start(now).unwrap().key, "a");
}

#[test]
fn first_result_decides_alone() {
    let (mut schedule, now) = schedule(&["a"], THRESHOLDS);
    assert!(check(&mut schedule, now, Err("HTTP 503")));
    let target = schedule.get(&"a").unwrap();
    assert!(!target.healthy);
    assert_eq!(target.failure(), Some("HTTP 503"));
}

#[test]
fn where_the_first_result_does_not_decide_it_counts_like_any_other() {
    let thresholds = CheckThresholds {
        first_decides: false,
        ..THRESHOLDS
    };
    let (mut schedule, now) = schedule(&["a"], thresholds);
    assert!(!check(&mut schedule, now, Err("x")));
    assert!(!check(&mut schedule, now, Err("x")));
    assert!(check(&mut schedule, now, Err("x")));
}

#[test]
fn target_may_be_starting_until_it_has_passed_or_for_so_long() {
    const STARTING: Duration = Duration::from_secs(60);
    let thresholds = CheckThresholds {
        first_decides: false,
        starting: STARTING,
        ..THRESHOLDS
    };
    let start = Instant::now();
    let mut schedule = Schedule::new(1);
    schedule.set_targets(start, wanted(&["a"], "/old", thresholds));
    let next = |schedule: &mut Schedule<_, _>, now, outcome: Option<Result<(), String>>| {
        let begun = schedule.start(now).unwrap();
        schedule.finish(now, &begun.key, begun.ticket, outcome);
        begun.may_be_starting
    };
    let failure = || Some(Err("x".to_owned()));
    assert!(next(&mut schedule, start, failure()));
    let late = start + STARTING;
    assert!(next(&mut schedule, late - INTERVAL, failure()));
    assert!(!next(&mut schedule, late + INTERVAL, failure()));

    // So again where the check is new, until it is passed.
    let later = late + 3 * INTERVAL;
    schedule.set_targets(later, wanted(&["a"], "/new", thresholds));
    assert!(next(&mut schedule, later, Some(Ok(()))));
    assert!(!next(&mut schedule, later + 2 * INTERVAL, failure()));
}

#[test]
fn target_has_just_passed_after_a_success_until_a_failure() {
    let thresholds = CheckThresholds {
        rise: 1,
        ..THRESHOLDS
    };
    let (mut schedule, start) = schedule(&["a"], thresholds);
    let mut now = start;
    let mut next = |outcome: Result<(), &str>| {
        let begun = schedule.start(now).unwrap();
        let outcome = outcome.map_err(str::to_owned);
        schedule.finish(now, &begun.key, begun.ticket, Some(outcome));
        now += 2 * INTERVAL;
        begun.has_just_passed
    };
    assert!(!next(Ok(())), "nothing is known yet");
    assert!(next(Err("x")));
    assert!(!next(Ok(())));
    for failure in ["x", "y", "z"] {
        assert_eq!(next(Err(failure)), failure == "x", "{failure}");
    }
    assert!(!next(Ok(())), "it is unhealthy");
    assert!(next(Ok(())));
}

#[test]
fn check_that_says_nothing_changes_nothing() {
    let (mut schedule, now) = schedule(&["a"], THRESHOLDS);
    let start = schedule.start(now).unwrap();
    assert!(!schedule.finish(now, &start.key, start.ticket, None));
    let target = schedule.get(&"a").unwrap();
    assert!(target.healthy && !target.decided);
    assert!(schedule.next_due() > Some(now));
}

#[test]
fn check_that_says_nothing_ends_a_row_of_failures() {
    let (mut schedule, now) = schedule(
        &["a"],
        CheckThresholds {
            first_decides: false,
            ..THRESHOLDS
        },
    );
    for _ in 0..3 {
        for _ in 1..THRESHOLDS.fall {
            assert!(!check(&mut schedule, now, Err("x")));
        }
        let start = schedule.start(schedule.next_due().unwrap()).unwrap();
        assert!(!schedule.finish(now, &start.key, start.ticket, None));
    }
    assert_eq!(schedule.get(&"a").unwrap().against(), (0, THRESHOLDS.fall));
}

#[test]
fn falls_after_as_many_failures_in_a_row_and_rises_after_as_many_successes() {
    let (mut schedule, now) = schedule(&["a"], THRESHOLDS);
    let results = [
        (Ok(()), true),
        (Err("x"), true),
        (Err("x"), true),
        (Ok(()), true),
        (Err("x"), true),
        (Err("x"), true),
        (Err("x"), false),
        (Ok(()), false),
        (Err("x"), false),
        (Ok(()), false),
        (Ok(()), true),
    ];
    for (step, (outcome, healthy)) in results.into_iter().enumerate() {
        let before = schedule.get(&"a").unwrap().healthy;
        let turned = check(&mut schedule, now, outcome);
        assert_eq!(schedule.get(&"a").unwrap().healthy, healthy, "step {step}");
        assert_eq!(turned, before != healthy, "step {step}");
    }
}

#[test]
fn since_is_the_time_of_the_turn_and_the_failure_stays_until_it_serves_again() {
    let (mut schedule, start) = schedule(&["a"], THRESHOLDS);
    let fell = start + Duration::from_secs(1);
    check(&mut schedule, fell, Err("connection refused"));
    check(&mut schedule, fell + INTERVAL, Ok(()));
    let target = schedule.get(&"a").unwrap();
    assert_eq!(target.since, fell);
    assert_eq!(target.failure(), Some("connection refused"));
    assert_eq!(target.against(), (1, 2));
    let rose = fell + 2 * INTERVAL;
    check(&mut schedule, rose, Ok(()));
    let target = schedule.get(&"a").unwrap();
    assert_eq!((target.since, target.failure()), (rose, None));
}

#[test]
fn failure_of_a_target_that_still_serves_is_shown_and_forgotten() {
    let (mut schedule, now) = schedule(&["a"], THRESHOLDS);
    check(&mut schedule, now, Ok(()));
    check(&mut schedule, now, Err("timeout 2 s"));
    let target = schedule.get(&"a").unwrap();
    assert_eq!(
        (target.failure(), target.against()),
        (Some("timeout 2 s"), (1, 3))
    );
    check(&mut schedule, now, Ok(()));
    let target = schedule.get(&"a").unwrap();
    assert_eq!((target.failure(), target.against()), (None, (0, 3)));
}

#[test]
fn next_check_comes_an_interval_after_the_last_began_within_a_tenth() {
    let (mut schedule, mut now) = schedule(&["a"], THRESHOLDS);
    let mut pauses = Vec::new();
    for _ in 0..1_000 {
        let start = schedule.start(now).unwrap();
        assert_eq!(schedule.start(now), None);
        assert_eq!(schedule.next_due(), None);
        let took = Duration::from_millis(30);
        schedule.finish(now + took, &start.key, start.ticket, Some(Ok(())));
        let next = schedule.next_due().unwrap();
        assert_eq!(schedule.start(next - Duration::from_nanos(1)), None);
        pauses.push(next - now);
        now = next;
    }
    let (shortest, longest) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
    assert!(
        *shortest >= INTERVAL.mul_f64(0.9) && *shortest < INTERVAL.mul_f64(0.91),
        "{shortest:?}"
    );
    assert!(
        *longest <= INTERVAL.mul_f64(1.1) && *longest > INTERVAL.mul_f64(1.09),
        "{longest:?}"
    );
    let mean = pauses.iter().sum::<Duration>() / 1_000;
    assert!(mean.abs_diff(INTERVAL) < INTERVAL.mul_f64(0.01), "{mean:?}");
}

#[test]
fn check_that_took_longer_than_the_interval_is_followed_at_once_and_not_made_up_for() {
    let (mut schedule, now) = schedule(&["a"], THRESHOLDS);
    let start = schedule.start(now).unwrap();
    let late = now + 4 * INTERVAL;
    schedule.finish(late, &start.key, start.ticket, Some(Ok(())));
    assert_eq!(schedule.next_due(), Some(late));
    assert!(schedule.start(late).is_some());
    assert!(schedule.start(late).is_none());
}

#[test]
fn targets_that_became_due_together_drift_apart() {
    let names: Vec<String> = (0..100).map(|number| format!("b{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let now = Instant::now();
    let mut schedule = Schedule::new(7);
    schedule.set_targets(now, wanted(&names, (), THRESHOLDS));
    while let Some(start) = schedule.start(now) {
        schedule.finish(now, &start.key, start.ticket, Some(Ok(())));
    }
    // All were checked at once; the next round takes a fifth of the interval.
    let tenths: BTreeSet<u128> = schedule
        .due
        .iter()
        .map(|(at, _)| (*at - now).as_millis() / 100)
        .collect();
    assert!(tenths.len() >= 9, "{tenths:?}");
}

#[test]
fn seeds_differ_in_their_jitter_and_repeat_their_own() {
    let pauses = |seed: u64| {
        let mut jitter = Jitter(seed);
        [(); 4].map(|()| jitter.spread(INTERVAL))
    };
    assert_eq!(pauses(1), pauses(1));
    assert_ne!(pauses(1), pauses(2));
}

#[test]
fn due_longest_is_started_first() {
    let now = Instant::now();
    let mut schedule = Schedule::new(1);
    schedule.set_targets(now, wanted(&["b"], (), THRESHOLDS));
    let later = now + Duration::from_millis(1);
    schedule.set_targets(later, wanted(&["a", "b"], (), THRESHOLDS));
    assert_eq!(schedule.start(later).unwrap().key, "b");
    assert_eq!(schedule.start(later).unwrap().key, "a");
    assert_eq!(schedule.start(later), None);
}

#[test]
fn unchanged_target_survives_a_change_of_the_others() {
    let (mut schedule, now) = schedule(&["a", "gone"], THRESHOLDS);
    check(&mut schedule, now, Err("x"));
    let due = schedule.due.iter().find(|(_, key)| *key == "a").cloned();
    let later = now + Duration::from_secs(1);
    schedule.set_targets(later, wanted(&["a", "new"], (), THRESHOLDS));
    let target = schedule.get(&"a").unwrap();
    assert!(!target.healthy);
    assert_eq!((target.since, target.failure()), (now, Some("x")));
    assert!(schedule.due.contains(&due.unwrap()));
    assert!(schedule.get(&"gone").is_none());
    assert!(schedule.get(&"new").unwrap().healthy);
}

#[test]
fn check_under_way_counts_after_a_change_of_the_others() {
    let (mut schedule, now) = schedule(&["a"], THRESHOLDS);
    let start = schedule.start(now).unwrap();
    schedule.set_targets(now, wanted(&["a", "b"], (), THRESHOLDS));
    assert!(schedule.finish(now, &"a", start.ticket, Some(Err("x".to_owned()))));
}

#[test]
fn changed_check_keeps_the_verdict_and_lets_the_next_result_decide() {
    let now = Instant::now();
    let mut schedule = Schedule::new(1);
    schedule.set_targets(now, wanted(&["a"], "/old", THRESHOLDS));
    let start = schedule.start(now).unwrap();
    schedule.finish(now, &"a", start.ticket, Some(Err("HTTP 404".to_owned())));
    let stale = {
        let due = schedule.next_due().unwrap();
        schedule.start(due).unwrap()
    };
    schedule.set_targets(now, wanted(&["a"], "/new", THRESHOLDS));
    assert!(!schedule.get(&"a").unwrap().healthy);
    // What the old check found out by now is of no interest.
    assert!(!schedule.finish(now, &"a", stale.ticket, Some(Ok(()))));
    let start = schedule.start(now).unwrap();
    assert_eq!(start.check, "/new");
    assert!(schedule.finish(now, &"a", start.ticket, Some(Ok(()))));
    assert!(schedule.get(&"a").unwrap().healthy);
}

#[test]
fn result_of_a_target_that_is_gone_is_ignored() {
    let (mut schedule, now) = schedule(&["a"], THRESHOLDS);
    let start = schedule.start(now).unwrap();
    schedule.set_targets(now, BTreeMap::new());
    assert!(!schedule.finish(now, &"a", start.ticket, Some(Ok(()))));
    assert_eq!(schedule.next_due(), None);
    // One of the same name is another target.
    schedule.set_targets(now, wanted(&["a"], (), THRESHOLDS));
    assert!(!schedule.finish(now, &"a", start.ticket, Some(Err("x".to_owned()))));
    assert!(schedule.get(&"a").unwrap().healthy);
}

#[test]
fn every_target_is_waiting_or_under_check_whatever_happens() {
    let mut now = Instant::now();
    let mut schedule = Schedule::new(3);
    let mut random = Jitter(11);
    let mut under_way: Vec<BegunCheck<String, u32>> = Vec::new();
    for _ in 0..5_000 {
        now += Duration::from_millis(u64::from(random.next() % 400));
        match random.next() % 4 {
            0 => {
                let names = (0..random.next() % 6).map(|name| format!("t{name}"));
                let check = random.next() % 2;
                let wanted = names.map(|name| (name, (check, THRESHOLDS))).collect();
                schedule.set_targets(now, wanted);
            }
            1 => under_way.extend(schedule.start(now)),
            _ => {
                if let Some(start) = under_way.pop() {
                    let outcome = match random.next() % 3 {
                        0 => None,
                        1 => Some(Ok(())),
                        _ => Some(Err("x".to_owned())),
                    };
                    schedule.finish(now, &start.key, start.ticket, outcome);
                }
            }
        }
        let waiting = schedule.targets.values();
        let waiting = waiting.filter(|target| matches!(target.phase, Phase::Waiting { .. }));
        assert_eq!(waiting.count(), schedule.due.len());
        for target in schedule.targets.values() {
            let (against, limit) = target.against();
            assert!(against < limit, "{target:?}");
            assert!(target.healthy || target.failure.is_some(), "{target:?}");
        }
    }
}

fn schedule(
    names: &[&'static str],
    thresholds: CheckThresholds,
) -> (Schedule<&'static str, ()>, Instant) {
    let now = Instant::now();
    let mut schedule = Schedule::new(1);
    schedule.set_targets(now, wanted(names, (), thresholds));
    (schedule, now)
}

fn wanted<'n, C: Copy>(
    names: &[&'n str],
    check: C,
    thresholds: CheckThresholds,
) -> BTreeMap<&'n str, (C, CheckThresholds)> {
    names
        .iter()
        .map(|name| (*name, (check, thresholds)))
        .collect()
}

/// Makes the next check of a schedule, which comes to its result at the time `at`.
fn check(
    schedule: &mut Schedule<&'static str, ()>,
    at: Instant,
    outcome: Result<(), &str>,
) -> bool {
    let due = schedule.next_due().unwrap();
    let start = schedule.start(due).unwrap();
    schedule.finish(
        at,
        &start.key,
        start.ticket,
        Some(outcome.map_err(str::to_owned)),
    )
}
