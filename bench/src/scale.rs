//! Guideway with many Services against Guideway with one, by its rate of live frames, in one run.
//!
//! Both are up at the same time, in networks of their own. Trials are short and take turns, so that both have the same
//! machine. Packets leave by IPIP. Flows go to up to [`MOST_TRIED`](crate::scenario::MOST_TRIED) of the Services, from all
//! parts of their list: what a look-up among many costs shows, and not what misses caches where all have traffic. That is
//! what the row `services_10000` of [`crate::datapath`] is for.

use std::{fmt, path::Path};

use anyhow::{Context, Result};

use crate::{
    bars::{Limit, Outcome},
    compare::{in_turns, paired},
    load::live::Live,
    scenario::{AddressFamily, Load, Scenario, System},
    stats::{Estimate, median},
    wire::Lab,
};

/// What the rate with many Services must be of that with one.
pub const BAR: Limit = Limit::Least(0.97);

/// One load on both.
#[derive(Clone, Debug)]
pub struct Row {
    /// The load.
    pub load: Load,
    /// Frames a second with one Service and with many: medians.
    pub rates: [f64; 2],
    /// The rate with many to that with one.
    pub ratio: Estimate,
}

impl Row {
    /// Tells whether the bar holds.
    pub fn outcome(&self) -> Outcome {
        BAR.judge(&self.ratio)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Estimate { value, low, high } = self.ratio;
        let [one, many] = self.rates.map(|rate| rate / 1e6);
        let flows = match self.load.new_flow_share {
            0.0 => "known flows",
            _ => "new flows",
        };
        write!(
            f,
            "{} {} {flows:<12} {one:.3} {many:.3} million/s, {value:.3} [{low:.3} {high:.3}], {BAR}: {}",
            self.load.family,
            self.load.protocol,
            self.outcome()
        )
    }
}

/// Measures loads of both families and protocols, of known and of new flows, in so many rounds each. Each row is passed to `found` at once.
///
/// # Errors
///
/// When Guideway does not come up, or the kernel refuses something.
pub fn measure(
    services: u32,
    rounds: usize,
    guideway: &Path,
    progress: &(dyn Fn(&str) + Sync),
    found: &dyn Fn(&Row),
) -> Result<Vec<Row>> {
    let scenarios = [1, services].map(|number| scenario(number).context("the scenario"));
    let [one, many] = scenarios;
    let scenarios = [one?, many?];
    let start = |scenario| Lab::start(scenario, guideway, progress);
    let labs = [start(&scenarios[0])?, start(&scenarios[1])?];
    progress("");
    let row = |load: &Load| {
        let open = |lab| Lab::open_live(lab, System::OursIpip, load);
        let row = row(load, rounds, [open(&labs[0])?, open(&labs[1])?])?;
        found(&row);
        Ok(row)
    };
    scenarios[0].loads.iter().map(row).collect()
}

fn scenario(services: u32) -> Result<Scenario> {
    let families = [AddressFamily::Ipv4, AddressFamily::Ipv6];
    // A new flow of TCP begins with a SYN.
    let flows = [
        "protocol: udp, new_flow_share: 0",
        "protocol: udp, new_flow_share: 1",
        "protocol: tcp, new_flow_share: 0",
        "protocol: tcp, new_flow_share: 1, segment: syn",
    ];
    let load = |family: AddressFamily, flows: &str| {
        format!("- {{ generator: live, schedule: max, flows: 1000, family: {family}, {flows} }}\n")
    };
    let loads = families.map(|family| flows.map(|flows| load(family, flows)));
    let text = format!(
        "name: scale\nsystems: [ours-ipip]\nservices: {services}\nloads:\n{}",
        loads.as_flattened().concat()
    );
    Ok(Scenario::parse(&text)?)
}

fn row(load: &Load, rounds: usize, [one, many]: [Live<'_>; 2]) -> Result<Row> {
    let (mut one, mut many) = (one, many);
    let rates = one.keep_attached(|one| {
        many.keep_attached(|many| {
            let both = [one, many];
            let mut measure = |side: usize| both[side].rate_of_a_moment();
            // The first of each warms caches up, and is thrown away.
            in_turns(1, &mut measure)?;
            in_turns(rounds, measure)
        })
    })?;
    Ok(Row {
        load: load.clone(),
        rates: [median(&rates[0]), median(&rates[1])],
        ratio: paired(&rates[0], &rates[1]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{datapath::Protocol, scenario::Segment};

    #[test]
    fn loads_are_of_both_families_and_protocols_and_of_known_and_new_flows() {
        let scenario = scenario(10_000).unwrap();
        let (data, syn) = (Segment::Data, Segment::Syn);
        let flows = [
            (Protocol::Udp, 0.0, data),
            (Protocol::Udp, 1.0, data),
            (Protocol::Tcp, 0.0, data),
            (Protocol::Tcp, 1.0, syn),
        ];
        let families = AddressFamily::ALL.into_iter();
        let expected = families.flat_map(|family| flows.map(|flows| (family, flows)));
        let loads = scenario.loads.iter();
        let loads = loads.map(|load| {
            let flows = (load.protocol, load.new_flow_share, load.segment);
            (load.family, flows)
        });
        assert!(loads.eq(expected), "{:?}", scenario.loads);
        assert_eq!(scenario.services, 10_000);
    }

    #[test]
    fn a_row_tells_both_rates_their_ratio_and_whether_the_bar_holds() {
        let row = |low| Row {
            load: scenario(1).unwrap().loads.remove(1),
            rates: [2e6, 1.99e6],
            ratio: Estimate {
                value: 0.995,
                low,
                high: 1.01,
            },
        };
        let text = row(0.98).to_string();
        let expected =
            "ipv4 udp new flows    2.000 1.990 million/s, 0.995 [0.980 1.010], >= 0.97: holds";
        assert_eq!(text, expected);
        assert_eq!(row(0.96).outcome(), Outcome::Inconclusive);
    }
}
