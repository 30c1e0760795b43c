//! NAT mode: backends that know nothing of it, on machines without an agent.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use lab::{Machine, Topology, output, serve_page, vip_v4, vip_v6};
use serde_json::Value;

use crate::support::{
    Agent, Capture, Cluster, Echo, Flow, Mode, Protocol, Service, TIMEOUT, nat_config,
};

const PAGE: usize = 200_000;
const SHORT: Duration = Duration::from_millis(500);
const MASQUERADE: &str = "table inet t {
  chain c {
    type nat hook postrouting priority srcnat;
    oifname eth0 masquerade random
  }
}
";

/// The VIPs of both families with the host that is behind them.
fn services(host: &Machine) -> [(SocketAddr, SocketAddr); 2] {
    let vips: [IpAddr; 2] = [vip_v4(1).into(), vip_v6(1).into()];
    vips.map(|vip| {
        (
            SocketAddr::new(vip, 80),
            SocketAddr::new(host.address_like(vip), 8080),
        )
    })
}

/// A client, an edge, and a host in a network of its own behind the router.
fn net() -> Topology {
    Topology::builder()
        .nodes(0)
        .routed_nodes(1)
        .build()
        .unwrap()
}

#[test]
fn edge_takes_on_nat_by_a_reload() {
    let net = net();
    let (client, edge, host) = (&net.clients()[0], &net.edges()[0], &net.nodes()[0]);
    let services = services(host);
    let _server = serve_page(host, &services.map(|(_, host)| host), "by NAT").unwrap();
    let config = nat_config(&[Protocol::Tcp], services);
    let (machine, _) = config.split_once("\nservices:").unwrap();
    let agent = Agent::start(edge, &format!("{machine}\nservices: []\n"));
    agent.write_config(&config);
    agent.wait_for_reloads(2);
    for (vip, _) in services {
        let mut curl = client.namespace().command("curl");
        let page = output(curl.args(["-sSf", "-m", "60", &format!("http://{vip}/")]));
        assert_eq!(page.unwrap(), "by NAT", "{vip}");
    }
}

#[test]
fn curl_gets_pages_from_an_unmodified_host_on_another_segment() {
    let net = net();
    let (client, edge, host) = (&net.clients()[0], &net.edges()[0], &net.nodes()[0]);
    let services = services(host);
    let _server = serve_page(host, &services.map(|(_, host)| host), &"x".repeat(PAGE)).unwrap();
    let agent = Agent::start(edge, &nat_config(&[Protocol::Tcp], services));
    assert_kernel_does_nothing(edge);

    let capture = Capture::start(client);
    let mut at_host = Capture::start(host);
    for (vip, _) in services {
        let url = format!("http://{vip}/");
        for _ in 0..10 {
            let mut curl = client.namespace().command("curl");
            let page = output(curl.args(["-sSf", "-m", "60", &url])).unwrap();
            assert!(page == "x".repeat(PAGE), "{} bytes", page.len());
        }
    }
    assert!(capture.assert_good_checksums() > 1000);
    at_host.stop();
    for of_clients in [
        format!("ip.addr == {} || ip.addr == {}", client.v4(), vip_v4(1)),
        format!("ipv6.addr == {} || ipv6.addr == {}", client.v6(), vip_v6(1)),
    ] {
        let seen = at_host.packets(&of_clients);
        assert!(
            seen.is_empty(),
            "the host is asked by the edge:\n{}",
            seen.join("\n")
        );
    }
    let client_address = client.v4().to_string();
    let known = agent.json(&["flows", "--client", &client_address, "--limit", "1"]);
    assert_eq!(known["flows"][0]["table"], "nat", "{known}");
    assert!(known["more"].as_u64().unwrap() > 0, "{known}");
    assert!(Cluster::packets(&agent, "to_client", "nat_reply") > 100);
    for lost in ["nat_unknown_flow", "nat_ports_exhausted", "nat_table_full"] {
        assert_eq!(Cluster::packets(&agent, "drop", lost), 0, "{lost}");
    }
    assert_kernel_does_nothing(edge);
}

#[test]
fn which_trace_and_flows_tell_the_ends_that_a_flow_has_at_the_host() {
    let net = net();
    let (client, edge, host) = (&net.clients()[0], &net.edges()[0], &net.nodes()[0]);
    let services = services(host);
    let config = nat_config(&[Protocol::Tcp], services);
    let agent = Agent::start(edge, &config.replace("name: s", "name: shop/s"));
    for (number, (vip, backend)) in services.into_iter().enumerate() {
        let listener = host.namespace().run(|| TcpListener::bind(backend).unwrap());
        let stream = client.namespace().run(|| TcpStream::connect(vip).unwrap());
        let (_accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), edge.address_like(vip.ip()));
        assert!(peer.port() > 61_000, "{peer}");

        let service = format!("{vip}/tcp");
        let ask = |command, from: SocketAddr| {
            let from = from.to_string();
            agent.json(&[command, "--service", &service, "--from", &from])
        };
        let from = stream.local_addr().unwrap();
        let which = ask("which", from);
        assert_eq!(
            which["translated"],
            format!("{peer} -> {backend}"),
            "{which}"
        );
        assert_eq!(
            step(&ask("trace", from), "nat"),
            format!("{peer} -> {backend}")
        );

        assert_flow_is_found(&agent, &format!("s{number}"), &service, from, backend);

        let new = SocketAddr::new(from.ip(), 1);
        let which = ask("which", new);
        let ends = which["translated"].as_str().unwrap();
        assert!(
            ends.contains(&format!(" -> {backend}, a new flow")),
            "{which}"
        );
        assert!(
            !ends.starts_with(&peer.to_string()),
            "its port is taken: {which}"
        );
    }
}

/// Filters of every kind find the only flow to a service, and no others.
fn assert_flow_is_found(
    agent: &Agent<'_>,
    name: &str,
    service: &str,
    client: SocketAddr,
    backend: SocketAddr,
) {
    let (from, to) = (client.ip().to_string(), backend.ip().to_string());
    let (address, full) = (service.trim_end_matches("/tcp"), format!("shop/{name}"));
    for words in [
        &[name][..],
        &[name, "-n", "shop"],
        &[full.as_str()],
        &[service],
        &[address],
        &["--client", &from],
        &["--backend", &to],
        &["--client", &from, "--backend", &to],
    ] {
        let [flow] = &agent.flows(words)[..] else {
            panic!("{words:?}: {:?}", agent.flows(words));
        };
        assert_eq!(flow["client"], client.to_string(), "{words:?}");
        assert_eq!(flow["service"], service, "{words:?}");
        assert_eq!(flow["backend"], backend.to_string(), "{words:?}");
        assert_eq!(flow["table"], "nat", "{words:?}");
    }
    for words in [
        &[name, "-n", "other"][..],
        &["other/web"],
        &["--client", &to],
        &["--backend", &from],
    ] {
        let flows = agent.flows(words);
        assert!(flows.is_empty(), "{words:?}: {flows:?}");
    }
    let at = client.to_string();
    let named = ["which", "-n", "shop", "--service", name, "--from", &at];
    assert_eq!(agent.json(&named)["service"], service);
    let other = ["trace", "-n", "other", "--service", name, "--from", &at];
    let refused = agent.command(&other).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

#[test]
fn datagrams_in_pieces_and_errors_about_datagrams_get_through() {
    const ROUNDS: usize = 20;
    let net = Topology::builder()
        .nodes(0)
        .routed_nodes(1)
        .fabric_mtu(1500)
        .build()
        .unwrap();
    let (client, edge, host) = (&net.clients()[0], &net.edges()[0], &net.nodes()[0]);
    let services = services(host);
    let config = nat_config(&[Protocol::Udp], services);
    let agent = Agent::start(edge, &config);
    let capture = Capture::start(client);
    for (refused, (vip, backend)) in (1..).zip(services) {
        let ask = |question: &[u8]| {
            client.namespace().run(|| {
                let any = (client.address_like(vip.ip()), 0);
                let socket = UdpSocket::bind(any).unwrap();
                socket.set_read_timeout(Some(TIMEOUT)).unwrap();
                socket.connect(vip).unwrap();
                socket.send(question).unwrap();
                let mut answer = vec![0; 65_536];
                let length = socket.recv(&mut answer)?;
                answer.truncate(length);
                Ok::<_, std::io::Error>(answer)
            })
        };
        assert_eq!(
            ask(b"anyone?").unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        assert_eq!(Cluster::packets(&agent, "to_client", "nat_error"), refused);

        let server = host.namespace().run(|| UdpSocket::bind(backend).unwrap());
        let question: Vec<u8> = (0..=250).cycle().take(4000).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut bytes = [0; 65_536];
                server.set_read_timeout(Some(TIMEOUT)).unwrap();
                for _ in 0..ROUNDS {
                    let (length, peer) = server.recv_from(&mut bytes).unwrap();
                    server.send_to(&bytes[..length], peer).unwrap();
                }
            });
            for _ in 0..ROUNDS {
                assert!(ask(&question).unwrap() == question);
            }
        });
    }
    assert!(capture.assert_good_checksums() > 4 * ROUNDS);
}

#[test]
fn jumbo_frames_reach_the_host_whole() {
    const JUMBO: u32 = 9000;
    /// A datagram that fills a frame, less the longer of the headers.
    const DATAGRAM: usize = JUMBO as usize - 40 - 8;
    let net = Topology::builder()
        .nodes(0)
        .routed_nodes(1)
        .client_mtu(JUMBO)
        .fabric_mtu(JUMBO)
        .build()
        .unwrap();
    let (client, edge, host) = (&net.clients()[0], &net.edges()[0], &net.nodes()[0]);
    let services = services(host);
    let protocols = [Protocol::Tcp, Protocol::Udp];
    let agent = Agent::start(edge, &nat_config(&protocols, services));
    let ends = services.map(|(_, backend)| (backend, Protocol::Udp));
    let pages = services.map(|(_, backend)| backend);
    let _server = serve_page(host, &pages, &"x".repeat(PAGE)).unwrap();
    let _echo = Echo::serve(host, ends);
    let mut capture = Capture::start(client);
    for (vip, _) in services {
        let mut curl = client.namespace().command("curl");
        let page = output(curl.args(["-sSf", "-m", "60", &format!("http://{vip}/")])).unwrap();
        assert_eq!(page.len(), PAGE);
        let udp = Service {
            address: vip,
            protocol: Protocol::Udp,
            mode: Mode::L2dsr,
        };
        let mut flow = Flow::open(client, &udp).unwrap();
        // The number of the question, and the host's name before the answer.
        let room = DATAGRAM - 16;
        assert_eq!(flow.ask_with(&"x".repeat(room)).unwrap(), host.label());
    }
    capture.stop();
    assert!(capture.assert_none_bad() > 8);
    let large = |protocol: &str| {
        let filter = format!("{protocol} && frame.len > 8900");
        capture.packets(&filter).len()
    };
    assert!(
        // What a window ends in the middle of is shorter.
        large("tcp") > services.len() * PAGE / 20_000,
        "{}",
        large("tcp")
    );
    assert_eq!(large("udp"), 2 * services.len());
    let pieces = "ip.flags.mf == 1 || ip.frag_offset > 0 || ipv6.fraghdr";
    assert_eq!(capture.packets(pieces), Vec::<String>::new());
    assert_eq!(Cluster::packets(&agent, "reply", "packet_too_big"), 0);
}

#[test]
fn exhausted_ports_are_visible() {
    let net = net();
    let (client, edge, host) = (&net.clients()[0], &net.edges()[0], &net.nodes()[0]);
    let services = services(host);
    let config = format!(
        "nat: {{ports: 61001-61001}}\n{}",
        nat_config(&[Protocol::Tcp], services)
    );
    let agent = Agent::start(edge, &config);
    for (refused, (vip, backend)) in (1..).zip(services) {
        let listener = host.namespace().run(|| TcpListener::bind(backend).unwrap());
        let connect = |within| {
            client
                .namespace()
                .run(|| TcpStream::connect_timeout(&vip, within))
        };
        let _first = connect(TIMEOUT).unwrap();
        let (_accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer, SocketAddr::new(edge.address_like(vip.ip()), 61_001));
        assert_eq!(connect(SHORT).unwrap_err().kind(), ErrorKind::TimedOut);
        Cluster::wait_for_more(&agent, "drop", "nat_ports_exhausted", refused - 1);
    }
    assert!(agent.page(&["drops"]).contains("nat_ports_exhausted"));
}

fn step<'a>(trace: &'a Value, name: &str) -> &'a str {
    let steps = trace["steps"].as_array().unwrap();
    let step = steps.iter().find(|step| step["name"] == name);
    step.unwrap_or_else(|| panic!("no {name}: {trace}"))["text"]
        .as_str()
        .unwrap()
}

#[test]
fn check_warns_of_ports_that_the_kernel_gives_out_too() {
    let net = net();
    let (edge, host) = (&net.edges()[0], &net.nodes()[0]);
    let own = nat_config(&[Protocol::Tcp], services(host));
    let severities = |config: &str| {
        let path = edge.namespace().write_file("check.yaml", config).unwrap();
        let mut check = edge.namespace().command(env!("CARGO_BIN_EXE_guideway"));
        check.args(["check", "--json", "--config"]).arg(path);
        let findings: Value = serde_json::from_slice(&check.output().unwrap().stdout).unwrap();
        ["NAT ports", "masquerade"].map(|name| {
            let mut findings = findings.as_array().unwrap().iter();
            let finding = findings.find(|finding| finding["check"] == name);
            finding.map(|finding| finding["severity"].as_str().unwrap().to_owned())
        })
    };
    let severity = |text: &str| Some(text.to_owned());
    assert_eq!(severities(&own), [severity("OK"), severity("OK")]);

    edge.namespace().nft(MASQUERADE).unwrap();
    assert_eq!(severities(&own), [severity("OK"), severity("WARN")]);
    let among_them = format!("nat: {{ports: 40000-50000}}\n{own}");
    assert_eq!(
        severities(&among_them),
        [severity("WARN"), severity("WARN")]
    );
}

#[test]
fn agent_warns_while_the_kernel_masquerades_by_the_same_address() {
    let net = net();
    let (edge, host) = (&net.edges()[0], &net.nodes()[0]);
    edge.namespace().nft(MASQUERADE).unwrap();
    let config = nat_config(&[Protocol::Tcp], services(host));
    let agent = Agent::start(edge, &config);
    let warnings = |status: &Value| status["warnings"].as_array().unwrap().clone();
    let status = agent.wait_for_answer("a warning", &["status"], |status| {
        !warnings(status).is_empty()
    });
    let warning = warnings(&status)[0].as_str().unwrap().to_owned();
    let address = edge.v4().to_string();
    assert!(
        warning.contains(&address) && warning.contains("set nat.ipv4"),
        "{warning}"
    );
    assert!(agent.page(&["status"]).contains("WARNINGS"));
    assert_eq!(status["problems"].as_array().unwrap().len(), 0, "{status}");

    let mut nft = edge.namespace().command("nft");
    output(nft.args(["flush", "ruleset"])).unwrap();
    agent.write_config(&format!("{config}# as before\n"));
    agent.wait_for_answer("no warning", &["status"], |status| {
        warnings(status).is_empty()
    });
}

/// Neither forwarding nor a netfilter rule.
fn assert_kernel_does_nothing(edge: &Machine) {
    let machine = edge.namespace();
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        assert_eq!(machine.sysctl(key).unwrap().trim(), "0", "{key}");
    }
    let rules = output(machine.command("nft").args(["list", "ruleset"])).unwrap();
    assert_eq!(rules, "");
}
