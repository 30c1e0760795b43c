//! Who announces an address, as a Service's condition and `guideway which --address` say it of real edges.

use std::collections::BTreeMap;
use std::time::Duration;

use lab::{Machine, output, wait_for};
use serde_json::json;

use crate::cluster::{Operator, run_controller};
use crate::controller::cluster::{condition_of, install_crd, pool};
use crate::objects;
use crate::support::guideway;
use crate::world::{self, World};

/// A handover, the writes of both edges, and the controller's pause.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Waits until every address of `web` is announced, by edges that will do. Returns the edge of each address.
fn announcers(
    world: &World<'_>,
    awaited: &str,
    will_do: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    wait_for(awaited, TIMEOUT, || {
        let web = world.control.get(&["service", "web"]);
        let web = web.map_err(|error| error.to_string())?;
        let told = condition_of("guideway.dev/Announced", &web);
        let told = told.filter(|told| told["status"] == "True");
        let told = told.ok_or_else(|| web["status"].to_string())?;
        let message = told["message"].as_str().unwrap();
        let parts = message
            .split(", ")
            .map(|part| part.split_once(" by ").unwrap());
        let edges: BTreeMap<String, String> = parts
            .map(|(address, edge)| (address.to_owned(), edge.to_owned()))
            .collect();
        let are_right = edges.values().all(|edge| will_do(edge));
        are_right.then_some(edges).ok_or(message.to_owned())
    })
    .unwrap()
}

#[test]
fn condition_and_commands_name_the_edge_that_announces_and_follow_the_address_to_another() {
    let net = world::two_edges();
    let world = World::announced_by_edges(&net, net.edges().iter().chain(net.nodes()));
    let operator = Operator::of(&world, &net);
    install_crd(&world.control);
    let _controller = run_controller(&net.nodes()[0]);
    let addresses = pool("public", &["192.0.2.1/32", "2001:db8::1/128"]);
    world.control.apply(&addresses).unwrap();
    world.apply(&objects::service("web", 30_080));
    let machine = |edge: &str| -> &Machine {
        let mut edges = net.edges().iter();
        edges.find(|one| one.label() == edge).unwrap()
    };
    // While edges start, an address may still move.
    let edges = wait_for("condition and commands agree", TIMEOUT, || {
        let edges = announcers(&world, "both addresses are announced", |_| true);
        for (address, edge) in &edges {
            let asked = ["which", "--address", address];
            for one in net.edges() {
                let at = guideway().ask(one.namespace(), &asked).unwrap();
                let is_here = at["announced_on"] == json!([Machine::INTERFACE]);
                if is_here != (one.label() == edge) {
                    return Err(format!("{address} by {edge}; {}: {at}", one.label()));
                }
            }
            let told = operator.run(&asked);
            let expected = format!(
                "{address} is announced by {edge}, on {}\n",
                Machine::INTERFACE
            );
            if told != (0, expected) {
                return Err(format!("{told:?}"));
            }
        }
        Ok(edges)
    })
    .unwrap();
    assert_eq!(edges.len(), 2);
    let (code, told) = operator.run(&["which", "--address", "192.0.2.99", "--json"]);
    assert_eq!(code, 1);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["announced_by"], json!([]));

    let drained = &edges["192.0.2.1"];
    output(&mut guideway().command(machine(drained).namespace(), &["drain-edge"])).unwrap();
    announcers(&world, "the other edge has the addresses", |edge| {
        edge != drained
    });
}
