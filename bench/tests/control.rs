//! A small run of `guideway-bench control`: the tables follow a cluster, and figures are plausible. How large
//! they are is the bench's matter. Needs root, and `guideway` as `cargo test --workspace` builds it.

use std::path::Path;
use std::time::Duration;

use bench::control::{self, Cluster, Options, Scenario, Source};

/// Bytes of memory that no agent goes below: the tables that it has mapped.
const LEAST_MIB: f64 = 4.0;

#[test]
fn tables_follow_a_cluster_of_500_services_with_20_endpoints() {
    let guideway = Path::new(env!("CARGO_BIN_EXE_guideway-bench")).with_file_name("guideway");
    let options = Options {
        guideway,
        scenarios: vec![Scenario {
            source: Source::Recorded,
            cluster: Cluster {
                services: 500,
                endpoints: 20,
                nodes: 50,
            },
            changes: 20,
            storm: Some((100, Duration::from_secs(2))),
            heartbeats: Some((50, Duration::from_secs(1))),
            idle: Duration::from_secs(1),
        }],
    };
    // Each packet that does not follow the cluster is an error.
    let report = control::run(&options, &|_| {}).expect("the agent follows the cluster");
    let [results] = report.scenarios.as_slice() else {
        panic!("one scenario gives one set of results: {report}");
    };
    let value = |name: &str| {
        let figure = results
            .figures
            .iter()
            .find(|figure| figure.quantity.starts_with(name));
        let figure = figure.unwrap_or_else(|| panic!("no figure {name}: {report}"));
        figure.value
    };
    let (tables, all) = (value("lists complete"), value("start of the program"));
    assert!(tables > 0.0 && tables < all, "{report}");
    let (p50, p99) = (
        value("one change to its first packet, p50"),
        value("one change to its first packet, p99"),
    );
    assert!(p50 > 0.0 && p50 <= p99, "{report}");
    assert!(value("storm: latest") > 0.0, "{report}");
    let unwritten = value("storm: changes not written");
    assert!((0.0..100.0).contains(&unwritten), "{report}");
    assert!(value("one heartbeat of a Node").is_finite(), "{report}");
    let (resident, peak) = (value("memory, resident"), value("memory, peak"));
    assert!(resident > LEAST_MIB && resident <= peak, "{report}");
    assert!(value("guideway services, all rows") > 0.0, "{report}");
    assert!(value("guideway backends, all rows") > 0.0, "{report}");
    assert!(value("guideway backends, memory") > 1.0, "{report}");
    let (p50, p99) = (
        value("one change while backends is asked, p50"),
        value("one change while backends is asked, p99"),
    );
    assert!(p50 > 0.0 && p50 <= p99, "{report}");
    let idle = value("CPU when nothing changes");
    assert!((0.0..=200.0).contains(&idle), "{report}");
}
