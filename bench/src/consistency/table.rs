//! The table of the simulated rows in the documentation.

use super::{Policy, Row, Scenario};

/// Formats rows as tables in Markdown, one for each scenario, and what becomes of the bar.
pub fn table(rows: &[Row]) -> String {
    let mut scenarios: Vec<Scenario> = Vec::new();
    for row in rows {
        if !scenarios.contains(&row.scenario) {
            scenarios.push(row.scenario);
        }
    }
    let of = |scenario: Scenario| {
        let rows = rows.iter().filter(move |row| row.scenario == scenario);
        of_scenario(&scenario, &rows.collect::<Vec<_>>())
    };
    let tables: String = scenarios.into_iter().map(of).collect();
    let judged = rows.iter().filter_map(|row| row.why);
    let (count, claimed) = judged.fold((0, 0), |(count, claimed), why| {
        (count + 1, claimed + why.within_claim)
    });
    let verdict = if claimed == 0 { "kept" } else { "not kept" };
    format!(
        "{tables}- Connections that broke within the claim, in {count} rows: {claimed} (bar: 0, {verdict}).\n\n"
    )
}

fn of_scenario(scenario: &Scenario, rows: &[&Row]) -> String {
    let (changes, segments) = rows
        .first()
        .map_or((0, 0), |row| (row.changes, row.segments));
    let mut lines = String::new();
    for policy in Policy::ALL {
        let rows = rows.iter().filter(|row| row.policy == policy);
        lines.extend(rows.map(|row| line(row)));
    }
    format!(
        "{}. {changes} changes of the set, some {segments} segments:\n\n\
         | | broken | overflow | older than a day | half-open | no past | within the claim | connections or pins at an edge | \
         past owners at an edge | look-ups per segment | returns per segment |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n{lines}\n",
        command(scenario)
    )
}

/// Returns the command of a scenario.
fn command(scenario: &Scenario) -> String {
    let base = Scenario::default();
    let mut words = String::new();
    for (option, value, default) in [
        ("edges", scenario.edges, base.edges),
        ("backends", scenario.backends, base.backends),
        ("flows", scenario.flows, base.flows),
        ("minutes", scenario.minutes, base.minutes),
        ("roll-minutes", scenario.roll_minutes, base.roll_minutes),
        ("roll-batch", scenario.roll_batch, base.roll_batch),
        ("scale-minutes", scenario.scale_minutes, base.scale_minutes),
        ("scale-to", scenario.scale_to, base.scale_to),
        ("drain-minutes", scenario.drain_minutes, base.drain_minutes),
        (
            "reshuffle-minutes",
            scenario.reshuffle_minutes,
            base.reshuffle_minutes,
        ),
        ("late-ms", scenario.late_ms, base.late_ms),
        ("coalescing", scenario.coalescing, base.coalescing),
        (
            "coalesce-seconds",
            scenario.coalesce_seconds,
            base.coalesce_seconds,
        ),
        ("reboots", scenario.reboots, base.reboots),
        ("lru", scenario.lru, base.lru),
    ] {
        if value != default {
            words += &format!(" --{option} {value}");
        }
    }
    for (option, value, default) in [
        ("churn-percent", scenario.churn_percent, base.churn_percent),
        (
            "vanish-percent",
            scenario.vanish_percent,
            base.vanish_percent,
        ),
        ("reuse-percent", scenario.reuse_percent, base.reuse_percent),
    ] {
        if value.to_bits() != default.to_bits() {
            words += &format!(" --{option} {value}");
        }
    }
    if scenario.seed != base.seed {
        words += &format!(" --seed {}", scenario.seed);
    }
    format!("`guideway-bench consistency{words}`")
}

fn line(row: &Row) -> String {
    let has_lists = row.policy.longest_list().is_some();
    let of_lists = |text: String| if has_lists { text } else { String::new() };
    format!(
        "| `{}` | {} | {} | {} | {} | {:.3} | {} |\n",
        row.policy.name(),
        row.broken,
        row.reasons().join(" | "),
        row.entries,
        of_lists(row.history.to_string()),
        row.look_ups_per_segment(),
        of_lists(format!("{:.4}", row.returns_per_segment())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages;

    #[test]
    fn each_scenario_has_a_table_and_the_command_that_repeats_it() {
        let base = Scenario::default();
        let other = Scenario {
            reboots: 3,
            vanish_percent: 0.5,
            seed: 9,
            ..base
        };
        let mut rows = vec![
            Row::new(&base, Policy::Guideway),
            Row::new(&base, Policy::Maglev),
            Row::new(&other, Policy::Guideway),
        ];
        rows[1].broken = 17;
        let text = table(&rows);
        for expected in [
            "`guideway-bench consistency`. 0 changes",
            "`guideway-bench consistency --reboots 3 --vanish-percent 0.5 --seed 9`. 0 changes",
            "| `maglev` | 17 |  |  |  |  |  | 0 |  | 0.000 |  |\n| `guideway` | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0.000 | 0.0000 |\n",
            "in 2 rows: 0 (bar: 0, kept)",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        rows[0].why.get_or_insert_default().within_claim = 2;
        assert!(table(&rows).contains("in 2 rows: 2 (bar: 0, not kept)"));
    }

    #[test]
    fn page_of_the_documentation_has_the_table_of_the_simulated_rows() {
        const BEGIN: &str = "<!-- simulated policies: `make reference` writes this table from consistency.jsonl -->\n";
        let rows: Vec<Row> = pages::rows("consistency.jsonl");
        pages::expect_part("README.md", BEGIN, &table(&rows));
    }
}
