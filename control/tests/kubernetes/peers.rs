//! Edges that exchange owners by the cluster's Secret and headless Service.

use lab::{Machine, Topology, wait_for};
use serde_json::Value;

use crate::cluster::run_controller;
use crate::support::{Flow, Protocol, Service, guideway};
use crate::world::{Agent, PATIENCE, World, vips, ways};

/// What the chart gives all machines.
const PEERS: &str = "peers: { listen: \"0.0.0.0:10793\" }\n";

/// What an edge says of the owners of each service.
fn owners(edge: &Agent<'_>) -> Vec<(String, String)> {
    let services = guideway().ask(edge.machine().namespace(), &["services"]);
    let services = services.unwrap();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let rows = services.as_array().unwrap().iter();
    let rows = rows.map(|row| (text(row, "service"), text(row, "owners")));
    let mut shared: Vec<_> = rows.filter(|(_, owners)| !owners.is_empty()).collect();
    shared.sort();
    shared
}

#[test]
fn edge_with_an_empty_disk_takes_the_past_by_the_clusters_secret_and_service() {
    let net = Topology::builder().edges(2).nodes(1).pods(3);
    let net = net.build().unwrap();
    let (first, second) = (&net.edges()[0], &net.edges()[1]);
    let pods: Vec<&Machine> = net.pods().collect();
    let mut world = World::new(&net);
    world.write_seed();
    world.show_presence();
    world.launch_on([first, &net.nodes()[0]], PEERS);
    for agent in &mut world.agents {
        // Without the key an agent serves all the same.
        agent.wait_for_status("the key is missing", |status| {
            let missing = status["peers"]["missing_key"].as_str();
            missing.is_some_and(|why| why.contains("guideway-system/guideway-peers"))
        });
        agent.wait_until_in_step();
    }
    let _controller = run_controller(&net.nodes()[0]);
    for agent in &mut world.agents {
        agent.wait_for_status("the key is there, and the other agent agrees", |status| {
            let peers = status["peers"]["peers"].as_array().unwrap();
            status["peers"]["missing_key"].is_null()
                && peers.iter().any(|peer| peer["agrees"] == true)
        });
    }

    world.balance(&vips(1));
    let tcp: Vec<Service> = ways(1)
        .into_iter()
        .filter(|way| way.protocol == Protocol::Tcp)
        .collect();
    world.endpoints(&[(pods[0], true), (pods[1], true)]);
    world.wait_for_pods(&tcp, &pods[..2]);
    let client = &net.clients()[0];
    let mut flows = Flow::open_many(client, &tcp, 24);
    world.endpoints(&[(pods[1], true), (pods[2], true)]);
    world.wait_for_pods(&tcp, &pods[1..]);
    let left = flows.iter().filter(|flow| flow.node == pods[0].label());
    assert!(left.count() > 0, "the pod that has left has connections");

    world.launch_on([second], PEERS);
    let new = world.agents.last_mut().unwrap();
    // It waits for some seconds for that. Where the machine stops for as long, it starts once more.
    wait_for("the new edge has the past of another", PATIENCE, || {
        new.wait_for_status("the new edge has begun", |status| {
            let begun = &status["peers"]["begun"];
            begun.is_string() && begun != "waits"
        });
        let begun = new.status()["peers"]["begun"].take();
        if begun != "from_peer" {
            new.start_over();
            return Err(begun.to_string());
        }
        Ok(())
    })
    .unwrap();
    let [one, node, other] = &world.agents[..] else {
        panic!("three agents");
    };
    assert_eq!(owners(one).len(), ways(1).len());
    for agent in [node, other] {
        assert_eq!(owners(agent), owners(one));
    }
    net.route_vips(&[1]).unwrap();
    for flow in &mut flows {
        let of = format!("{} to {} on {}", flow.client, flow.service, flow.node);
        let answered = flow.ask().unwrap_or_else(|error| panic!("{of}: {error}"));
        assert_eq!(answered, flow.node);
    }
}
