use super::*;
use crate::consistency::broken::Reasons;

/// Half a day of a small service in seconds.
fn small() -> Scenario {
    Scenario {
        edges: 3,
        backends: 6,
        flows: 1500,
        minutes: 120,
        churn_percent: 5.0,
        roll_batch: 2,
        vanish_percent: 0.0,
        late_ms: 0,
        ..Scenario::default()
    }
}

#[test]
fn same_seed_gives_the_same_rows() {
    let scenario = Scenario {
        vanish_percent: 2.0,
        late_ms: 1000,
        coalescing: 1,
        reboots: 2,
        flows: 500,
        ..small()
    };
    for policy in [Policy::Guideway, Policy::MaglevLru] {
        let row = simulate(&scenario, policy);
        assert_eq!(row, simulate(&scenario, policy));
        let other = simulate(
            &Scenario {
                seed: 2,
                ..scenario
            },
            policy,
        );
        assert_ne!(
            (row.segments, row.look_ups),
            (other.segments, other.look_ups)
        );
    }
}

#[test]
fn guideway_breaks_nothing_where_all_others_break_some() {
    let rows = Policy::ALL.map(|policy| simulate(&small(), policy));
    let broken = |policy: Policy| {
        let row = rows.iter().find(|row| row.policy == policy).unwrap();
        println!("{row:?}");
        (row.broken, row.why)
    };
    assert_eq!(broken(Policy::Guideway), (0, Some(Reasons::default())));
    assert_eq!(broken(Policy::WithoutPins), (0, Some(Reasons::default())));
    let (lists1, why) = broken(Policy::Lists1);
    // What breaks leaves a socket behind, which can take the next connection of the same client port.
    let why = why.unwrap();
    let expected = Reasons {
        overflow: lists1 - why.half_open,
        half_open: why.half_open,
        ..Reasons::default()
    };
    assert!(why == expected && why.overflow > 100, "{why:?}");
    let (lists4, _) = broken(Policy::Lists4);
    let [maglev, lru, unbounded] =
        [Policy::Maglev, Policy::MaglevLru, Policy::MaglevUnbounded].map(|policy| broken(policy).0);
    assert!(lists1 > lists4 && lists4 > 0, "{lists1} {lists4}");
    assert!(maglev > lru.max(unbounded), "{maglev} {lru} {unbounded}");
    let (without_returns, _) = broken(Policy::WithoutReturns);
    assert!(without_returns < lru.min(unbounded), "{without_returns}");
    let mut returns = rows.iter().map(|row| (row.policy, row.returns));
    assert!(returns.any(|row| row == (Policy::WithoutReturns, 0)));
    assert!(lru.min(unbounded) > lists4, "{lru} {unbounded} {lists4}");
    // All had the same clients.
    assert!(
        rows.iter()
            .all(|row| (row.flows, row.changes) == (rows[0].flows, rows[0].changes))
    );
}

#[test]
fn edge_without_a_past_breaks_what_it_has_not_known() {
    let scenario = Scenario {
        reboots: 12,
        ..small()
    };
    let row = simulate(&scenario, Policy::Guideway);
    let why = row.why.unwrap();
    let expected = Reasons {
        no_past: row.broken - why.half_open,
        half_open: why.half_open,
        ..Reasons::default()
    };
    assert!(why == expected && why.no_past > 0, "{why:?}");
}

#[test]
fn half_open_sockets_of_ends_used_again_are_told_apart() {
    let scenario = Scenario {
        vanish_percent: 60.0,
        reuse_percent: 100.0,
        ..small()
    };
    let row = simulate(&scenario, Policy::Guideway);
    let half_open = Reasons {
        half_open: row.broken,
        ..Reasons::default()
    };
    assert!(row.broken > 0 && row.why == Some(half_open), "{row:?}");
}

#[test]
fn tables_of_other_lengths_carry_owners_over() {
    // 8 backends have 2048 slots, 4 have 256.
    let scenario = Scenario {
        backends: 8,
        scale_minutes: 7,
        scale_to: 4,
        roll_minutes: 0,
        ..small()
    };
    let maglev = simulate(&scenario, Policy::Maglev);
    let row = simulate(&scenario, Policy::Guideway);
    let why = row.why.unwrap();
    assert_eq!(
        (why.within_claim, why.no_past, why.old),
        (0, 0, 0),
        "{why:?}"
    );
    assert!(
        row.broken * 10 < maglev.broken,
        "{} {}",
        row.broken,
        maglev.broken
    );
}
