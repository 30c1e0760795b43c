//! Edges that exchange owners agree on the past of all slots, whatever each of them saw of it.

use std::fmt::Write as _;

use lab::{Machine, Route, Signal, Topology, wait_for};
use serde_json::Value;

use crate::support::{
    Agent, Flow, Mode, PodService, Service, TIMEOUT, cluster_config, serve_on_pods, without,
};

const PORT: u16 = 9754;
pub(crate) const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Two edges before two nodes with three pods each.
fn network() -> Topology {
    Topology::builder().edges(2).pods(3).build().unwrap()
}

fn services() -> Vec<PodService<'static>> {
    let all = Service::all(&[Mode::IpipV4, Mode::IpipV6]).into_iter();
    all.map(PodService::over_all).collect()
}

/// The file of an edge, which asks all edges, itself included.
pub(crate) fn with_peers(config: &str, edge: &Machine, net: &Topology, key: &str) -> String {
    let path = edge.namespace().write_file("peers.key", key).unwrap();
    let all = net.edges().iter();
    let all: Vec<String> = all
        .map(|edge| format!("\"{}:{PORT}\"", edge.v4()))
        .collect();
    let mut text = config.to_owned();
    writeln!(
        text,
        "peers: {{ listen: \"{}:{PORT}\", addresses: [{}], key_file: {} }}",
        edge.v4(),
        all.join(", "),
        path.display()
    )
    .unwrap();
    text
}

/// Lists the backends of each service from the last to the first.
fn reversed(config: &str) -> String {
    let (mut text, mut backends) = (String::new(), Vec::new());
    for line in config.lines() {
        if line.starts_with("      - { address:") {
            backends.push(line);
            continue;
        }
        for backend in backends.drain(..).rev() {
            writeln!(text, "{backend}").unwrap();
        }
        writeln!(text, "{line}").unwrap();
    }
    for backend in backends.drain(..).rev() {
        writeln!(text, "{backend}").unwrap();
    }
    text
}

/// What an edge says of the owners of each service.
fn owners(edge: &Agent<'_>) -> Vec<(String, String)> {
    let services = edge.json(&["services"]);
    let rows = services.as_array().unwrap().iter();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let mut all: Vec<_> = rows
        .map(|row| (text(row, "service"), text(row, "owners")))
        .collect();
    all.sort();
    assert!(all.iter().all(|(_, owners)| owners.len() == 16), "{all:?}");
    all
}

fn wait_until_begun(edge: &Agent<'_>, how: &str) {
    edge.wait_for_answer("the edge has begun", &["status"], |status| {
        let begun = &status["peers"]["begun"];
        assert!(begun == "waits" || begun == how, "{status}");
        begun == how
    });
}

/// Waits until an edge without tables has begun with the past of the other one. It waits for that for some seconds: where
/// the machine stops for as long, it starts once more.
pub(crate) fn begin_from_peer(edge: &mut Agent<'_>) {
    wait_for("the edge begins with the past of a peer", TIMEOUT, || {
        let status = edge.wait_for_answer("the edge has begun", &["status"], |status| {
            status["peers"]["begun"] != "waits"
        });
        let begun = &status["peers"]["begun"];
        if begun == "from_peer" {
            return Ok(());
        }
        start_over(edge);
        Err(begun.to_string())
    })
    .unwrap();
}

/// Starts an edge again without what it knew, as after a reboot.
fn start_over(edge: &mut Agent<'_>) {
    edge.json(&["detach"]);
    edge.wait_for_end();
    edge.start_again();
}

pub(crate) fn wait_until_agreed(edges: [&Agent<'_>; 2]) {
    for edge in edges {
        edge.wait_for_answer("the edges agree", &["status"], |status| {
            status["peers"]["peers"][0]["agrees"] == true && owners(edges[0]) == owners(edges[1])
        });
    }
}

#[test]
fn edges_that_saw_other_changes_agree_on_length_and_members_of_every_list() {
    let net = network();
    let services = services();
    let _echoes = serve_on_pods(&net, &services);
    let config = cluster_config(&net, &services);
    let [one, other] = [&net.edges()[0], &net.edges()[1]];
    let file = |edge, config: &str| with_peers(config, edge, &net, KEY);
    let _nodes = Agent::start_all(net.nodes(), &config);
    let mut edges = [
        Agent::start(one, &file(one, &config)),
        Agent::start(other, &file(other, &reversed(&config))),
    ];
    begin_from_peer(&mut edges[1]);
    wait_until_agreed(edges.each_ref());

    // One edge sees two changes, and the other one of them.
    let pods: Vec<&Machine> = net.pods().collect();
    let client = &net.clients()[0];
    let kept: Vec<Service> = services.iter().map(|service| service.service).collect();
    edges[0].write_config(&file(one, &without(&config, pods[0])));
    edges[0].wait_for_reloads(2);
    let mut flows = Flow::open_many(client, &kept, 24);
    let last = without(&config, pods[1]);
    edges[0].write_config(&file(one, &last));
    edges[1].write_config(&file(other, &reversed(&last)));
    edges[0].wait_for_reloads(3);
    edges[1].wait_for_reloads(2);
    wait_until_agreed(edges.each_ref());
    let taken = |edge: &Agent<'_>| {
        let status = edge.json(&["status"]);
        status["peers"]["slots_taken"].as_u64().unwrap()
    };
    assert!(taken(&edges[1]) > 0, "it lacks what the other one saw");

    // The other edge gets the connections, and knows where they are.
    for (vips, next) in Topology::vips().into_iter().zip([other.v4(), other.v6()]) {
        let route = Route::to(vips).via(next);
        net.router().replace_route(&route).unwrap();
    }
    for flow in &mut flows {
        let of = format!("{} to {} on {}", flow.client, flow.service, flow.node);
        let answered = flow.ask().unwrap_or_else(|error| panic!("{of}: {error}"));
        assert_eq!(answered, flow.node);
    }

    // Other weights are other owners.
    let before = owners(&edges[0]);
    let of_pod = format!("- {{ address: \"{}\",", pods[2].v4());
    let reweighted = last.replace(&of_pod, &format!("{of_pod} weight: 3,"));
    edges[0].write_config(&file(one, &reweighted));
    edges[0].wait_for_answer("the owners are others", &["status"], |_| {
        owners(&edges[0]) != before
    });
    edges[1].write_config(&file(other, &reversed(&reweighted)));
    edges[1].wait_for_reloads(3);
    wait_until_agreed(edges.each_ref());

    // An agent that starts again has its own past.
    let before = owners(&edges[1]);
    edges[0].signal(Signal::SIGKILL);
    edges[0].wait_for_end();
    edges[0].start_again();
    wait_until_begun(&edges[0], "own_past");
    assert_eq!(owners(&edges[0]), before);

    // An edge that was rebooted has the past from the other one.
    let [mut one_again, still] = edges;
    start_over(&mut one_again);
    begin_from_peer(&mut one_again);
    let page = one_again.page(&["status"]);
    assert!(page.contains("began with the past of a peer"), "{page}");
    assert_eq!(owners(&still), before);
    wait_until_agreed([&one_again, &still]);
}

#[test]
fn edge_with_another_key_is_refused_by_name_and_begins_alone() {
    let net = network();
    let services = services();
    let config = cluster_config(&net, &services);
    let [one, other] = [&net.edges()[0], &net.edges()[1]];
    let mut first = Agent::start(one, &with_peers(&config, one, &net, KEY));
    let other_key = KEY.to_uppercase();
    let mut second = Agent::start(other, &with_peers(&config, other, &net, &other_key));
    wait_until_begun(&second, "without");
    let log = second.process().stderr();
    assert!(log.contains("no peer tells the past of slots"), "{log}");
    let refused = first.wait_for_answer("the request is refused", &["status"], |status| {
        status["peers"]["refused"]["not_authentic"].as_u64() > Some(0)
    });
    assert_eq!(refused["peers"]["slots_taken"], 0);
    let log = first.process().stderr();
    let name = format!("peer=\"{}\"", other.v4());
    assert!(
        log.contains(&name) && log.contains("not authentic"),
        "{log}"
    );
}
