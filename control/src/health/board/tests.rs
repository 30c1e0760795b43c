use super::*;

const INTERVAL: Duration = Duration::from_secs(5);
const RULE: Rule = Rule {
    interval: INTERVAL,
    rise: 2,
    fall: 3,
    first_decides: true,
    starting: Duration::ZERO,
};
#[test]
fn new_target_serves_and_is_checked_at_once() {
    let (mut board, now) = board(&["a"], RULE);
    let target = board.get(&"a").unwrap();
    assert!(target.is_healthy() && !target.is_decided());
    assert_eq!(board.next_due(), Some(now));
    assert_eq!(board.start(now).unwrap().key, "a");
}

#[test]
fn first_result_decides_alone() {
    let (mut board, now) = board(&["a"], RULE);
    assert!(check(&mut board, now, Err("HTTP 503")));
    let target = board.get(&"a").unwrap();
    assert!(!target.is_healthy());
    assert_eq!(target.failure(), Some("HTTP 503"));
}

#[test]
fn where_the_first_result_does_not_decide_it_counts_like_any_other() {
    let rule = Rule {
        first_decides: false,
        ..RULE
    };
    let (mut board, now) = board(&["a"], rule);
    assert!(!check(&mut board, now, Err("x")));
    assert!(!check(&mut board, now, Err("x")));
    assert!(check(&mut board, now, Err("x")));
}

#[test]
fn target_may_be_starting_until_it_has_passed_or_for_so_long() {
    const STARTING: Duration = Duration::from_secs(60);
    let rule = Rule {
        first_decides: false,
        starting: STARTING,
        ..RULE
    };
    let start = Instant::now();
    let mut board = Board::new(1);
    board.set_targets(start, wanted(&["a"], "/old", rule));
    let next = |board: &mut Board<_, _>, now, outcome: Option<Result<(), String>>| {
        let begun = board.start(now).unwrap();
        board.finish(now, &begun.key, begun.ticket, outcome);
        begun.may_be_starting
    };
    let failure = || Some(Err("x".to_owned()));
    assert!(next(&mut board, start, failure()));
    let late = start + STARTING;
    assert!(next(&mut board, late - INTERVAL, failure()));
    assert!(!next(&mut board, late + INTERVAL, failure()));

    // So again where the check is new, until it is passed.
    let later = late + 3 * INTERVAL;
    board.set_targets(later, wanted(&["a"], "/new", rule));
    assert!(next(&mut board, later, Some(Ok(()))));
    assert!(!next(&mut board, later + 2 * INTERVAL, failure()));
}

#[test]
fn target_has_just_passed_after_a_success_until_a_failure() {
    let rule = Rule { rise: 1, ..RULE };
    let (mut board, start) = board(&["a"], rule);
    let mut now = start;
    let mut next = |outcome: Result<(), &str>| {
        let begun = board.start(now).unwrap();
        let outcome = outcome.map_err(str::to_owned);
        board.finish(now, &begun.key, begun.ticket, Some(outcome));
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
    let (mut board, now) = board(&["a"], RULE);
    let start = board.start(now).unwrap();
    assert!(!board.finish(now, &start.key, start.ticket, None));
    let target = board.get(&"a").unwrap();
    assert!(target.is_healthy() && !target.is_decided());
    assert!(board.next_due() > Some(now));
}

#[test]
fn check_that_says_nothing_ends_a_row_of_failures() {
    let (mut board, now) = board(
        &["a"],
        Rule {
            first_decides: false,
            ..RULE
        },
    );
    for _ in 0..3 {
        for _ in 1..RULE.fall {
            assert!(!check(&mut board, now, Err("x")));
        }
        let start = board.start(board.next_due().unwrap()).unwrap();
        assert!(!board.finish(now, &start.key, start.ticket, None));
    }
    assert_eq!(board.get(&"a").unwrap().against(), (0, RULE.fall));
}

#[test]
fn falls_after_as_many_failures_in_a_row_and_rises_after_as_many_successes() {
    let (mut board, now) = board(&["a"], RULE);
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
        let before = board.get(&"a").unwrap().is_healthy();
        let turned = check(&mut board, now, outcome);
        assert_eq!(
            board.get(&"a").unwrap().is_healthy(),
            healthy,
            "step {step}"
        );
        assert_eq!(turned, before != healthy, "step {step}");
    }
}

#[test]
fn since_is_the_time_of_the_turn_and_the_failure_stays_until_it_serves_again() {
    let (mut board, start) = board(&["a"], RULE);
    let fell = start + Duration::from_secs(1);
    check(&mut board, fell, Err("connection refused"));
    check(&mut board, fell + INTERVAL, Ok(()));
    let target = board.get(&"a").unwrap();
    assert_eq!(target.since(), fell);
    assert_eq!(target.failure(), Some("connection refused"));
    assert_eq!(target.against(), (1, 2));
    let rose = fell + 2 * INTERVAL;
    check(&mut board, rose, Ok(()));
    let target = board.get(&"a").unwrap();
    assert_eq!((target.since(), target.failure()), (rose, None));
}

#[test]
fn failure_of_a_target_that_still_serves_is_shown_and_forgotten() {
    let (mut board, now) = board(&["a"], RULE);
    check(&mut board, now, Ok(()));
    check(&mut board, now, Err("timeout 2 s"));
    let target = board.get(&"a").unwrap();
    assert_eq!(
        (target.failure(), target.against()),
        (Some("timeout 2 s"), (1, 3))
    );
    check(&mut board, now, Ok(()));
    let target = board.get(&"a").unwrap();
    assert_eq!((target.failure(), target.against()), (None, (0, 3)));
}

#[test]
fn next_check_comes_an_interval_after_the_last_began_within_a_tenth() {
    let (mut board, mut now) = board(&["a"], RULE);
    let mut pauses = Vec::new();
    for _ in 0..1_000 {
        let start = board.start(now).unwrap();
        assert_eq!(board.start(now), None);
        assert_eq!(board.next_due(), None);
        let took = Duration::from_millis(30);
        board.finish(now + took, &start.key, start.ticket, Some(Ok(())));
        let next = board.next_due().unwrap();
        assert_eq!(board.start(next - Duration::from_nanos(1)), None);
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
    let (mut board, now) = board(&["a"], RULE);
    let start = board.start(now).unwrap();
    let late = now + 4 * INTERVAL;
    board.finish(late, &start.key, start.ticket, Some(Ok(())));
    assert_eq!(board.next_due(), Some(late));
    assert!(board.start(late).is_some());
    assert!(board.start(late).is_none());
}

#[test]
fn targets_that_became_due_together_drift_apart() {
    let names: Vec<String> = (0..100).map(|number| format!("b{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let now = Instant::now();
    let mut board = Board::new(7);
    board.set_targets(now, wanted(&names, (), RULE));
    while let Some(start) = board.start(now) {
        board.finish(now, &start.key, start.ticket, Some(Ok(())));
    }
    // All were checked at once; the next round takes a fifth of the interval.
    let tenths: BTreeSet<u128> = board
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
    let mut board = Board::new(1);
    board.set_targets(now, wanted(&["b"], (), RULE));
    let later = now + Duration::from_millis(1);
    board.set_targets(later, wanted(&["a", "b"], (), RULE));
    assert_eq!(board.start(later).unwrap().key, "b");
    assert_eq!(board.start(later).unwrap().key, "a");
    assert_eq!(board.start(later), None);
}

#[test]
fn unchanged_target_survives_a_change_of_the_others() {
    let (mut board, now) = board(&["a", "gone"], RULE);
    check(&mut board, now, Err("x"));
    let due = board.due.iter().find(|(_, key)| *key == "a").cloned();
    let later = now + Duration::from_secs(1);
    board.set_targets(later, wanted(&["a", "new"], (), RULE));
    let target = board.get(&"a").unwrap();
    assert!(!target.is_healthy());
    assert_eq!((target.since(), target.failure()), (now, Some("x")));
    assert!(board.due.contains(&due.unwrap()));
    assert!(board.get(&"gone").is_none());
    assert!(board.get(&"new").unwrap().is_healthy());
}

#[test]
fn check_under_way_counts_after_a_change_of_the_others() {
    let (mut board, now) = board(&["a"], RULE);
    let start = board.start(now).unwrap();
    board.set_targets(now, wanted(&["a", "b"], (), RULE));
    assert!(board.finish(now, &"a", start.ticket, Some(Err("x".to_owned()))));
}

#[test]
fn changed_check_keeps_the_verdict_and_lets_the_next_result_decide() {
    let now = Instant::now();
    let mut board = Board::new(1);
    board.set_targets(now, wanted(&["a"], "/old", RULE));
    let start = board.start(now).unwrap();
    board.finish(now, &"a", start.ticket, Some(Err("HTTP 404".to_owned())));
    let stale = {
        let due = board.next_due().unwrap();
        board.start(due).unwrap()
    };
    board.set_targets(now, wanted(&["a"], "/new", RULE));
    assert!(!board.get(&"a").unwrap().is_healthy());
    // What the old check found out by now is of no interest.
    assert!(!board.finish(now, &"a", stale.ticket, Some(Ok(()))));
    let start = board.start(now).unwrap();
    assert_eq!(start.check, "/new");
    assert!(board.finish(now, &"a", start.ticket, Some(Ok(()))));
    assert!(board.get(&"a").unwrap().is_healthy());
}

#[test]
fn result_of_a_target_that_is_gone_is_ignored() {
    let (mut board, now) = board(&["a"], RULE);
    let start = board.start(now).unwrap();
    board.set_targets(now, BTreeMap::new());
    assert!(!board.finish(now, &"a", start.ticket, Some(Ok(()))));
    assert_eq!(board.next_due(), None);
    // One of the same name is another target.
    board.set_targets(now, wanted(&["a"], (), RULE));
    assert!(!board.finish(now, &"a", start.ticket, Some(Err("x".to_owned()))));
    assert!(board.get(&"a").unwrap().is_healthy());
}

#[test]
fn every_target_is_waiting_or_under_check_whatever_happens() {
    let mut now = Instant::now();
    let mut board = Board::new(3);
    let mut random = Jitter(11);
    let mut under_way: Vec<Start<String, u32>> = Vec::new();
    for _ in 0..5_000 {
        now += Duration::from_millis(u64::from(random.next() % 400));
        match random.next() % 4 {
            0 => {
                let names = (0..random.next() % 6).map(|name| format!("t{name}"));
                let check = random.next() % 2;
                let wanted = names.map(|name| (name, (check, RULE))).collect();
                board.set_targets(now, wanted);
            }
            1 => under_way.extend(board.start(now)),
            _ => {
                if let Some(start) = under_way.pop() {
                    let outcome = match random.next() % 3 {
                        0 => None,
                        1 => Some(Ok(())),
                        _ => Some(Err("x".to_owned())),
                    };
                    board.finish(now, &start.key, start.ticket, outcome);
                }
            }
        }
        let waiting = board.targets.values();
        let waiting = waiting.filter(|target| matches!(target.phase, Phase::Waiting { .. }));
        assert_eq!(waiting.count(), board.due.len());
        for target in board.targets.values() {
            let (against, limit) = target.against();
            assert!(against < limit, "{target:?}");
            assert!(target.healthy || target.failure.is_some(), "{target:?}");
        }
    }
}

fn board(names: &[&'static str], rule: Rule) -> (Board<&'static str, ()>, Instant) {
    let now = Instant::now();
    let mut board = Board::new(1);
    board.set_targets(now, wanted(names, (), rule));
    (board, now)
}

fn wanted<'n, C: Copy>(names: &[&'n str], check: C, rule: Rule) -> BTreeMap<&'n str, (C, Rule)> {
    names.iter().map(|name| (*name, (check, rule))).collect()
}

/// Makes the next check of a board, which comes to its result at the time `at`.
fn check(board: &mut Board<&'static str, ()>, at: Instant, outcome: Result<(), &str>) -> bool {
    let due = board.next_due().unwrap();
    let start = board.start(due).unwrap();
    board.finish(
        at,
        &start.key,
        start.ticket,
        Some(outcome.map_err(str::to_owned)),
    )
}
