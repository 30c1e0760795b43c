//! The output of the demo before the results: the network, and the steps of the preparation.

use std::{fmt::Write as _, time::Instant};

use lab::{Machine, Topology};

/// Returns the first lines.
pub(crate) fn title() -> String {
    "\nGuideway demo: HTTP from a client through an edge to pods on three nodes\n\n".to_owned()
}

/// Returns a drawing of the machines with their addresses. `weights` has one for each node.
pub(crate) fn network(net: &Topology, weights: &[u32]) -> String {
    let machine = |machine: &Machine| {
        let [v4, v6] = [machine.v4(), machine.v6()].map(|address| address.to_string());
        format!("{}  {v4:<10}  {v6:<11}", machine.label())
    };
    let mut page = String::new();
    let mut line = |left: &str, right: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "  {left:<40}+-- {right}");
    };
    let (client, edge) = (&net.clients()[0], &net.edges()[0]);
    line(
        &format!(
            "{}  {}  {}  -- router --",
            client.label(),
            client.v4(),
            client.v6()
        ),
        format!("{}  balances", machine(edge)),
    );
    for (node, weight) in net.nodes().iter().zip(weights) {
        line("", machine(node));
        for pod in node.pods() {
            line(
                "",
                format!("  pod  {:<10}  {:<11}  weight {weight}", pod.v4(), pod.v6()),
            );
        }
    }
    page.push('\n');
    page
}

/// Prints a step of the preparation and how long it took.
pub(crate) fn step(name: &str, what: &str, began: Instant) {
    let seconds = began.elapsed().as_secs_f64();
    println!("  {name:<10}{what:<64}{seconds:>6.1} s");
}
