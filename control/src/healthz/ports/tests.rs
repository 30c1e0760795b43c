//! Health check ports as load balancers ask them, and as others take them.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::super::machine_health::HEALTH_TIMEOUT;
use super::*;
use crate::http::testing::{body_of, connect_from, free_port, get, own_loopback, runs, send};

const TIMEOUT: Duration = Duration::from_secs(60);

/// HealthCheckPorts at this process's address: a Service named after its port for each pair of port and count.
fn check_ports(pairs: &[(u16, usize)]) -> HealthCheckPorts {
    let check = |(port, local_endpoints): &(u16, usize)| {
        let check = HealthCheck {
            port: *port,
            local_endpoints: *local_endpoints,
        };
        (ObjectName::new("shop", format!("web-{port}")), check)
    };
    HealthCheckPorts {
        services: pairs.iter().map(check).collect(),
        addresses: [own_loopback().into()].into(),
    }
}

fn started(mode: HealthCheckNodePorts, check_ports: HealthCheckPorts) -> Reports {
    let reports = Reports::new(Instant::now());
    reports.set_check_ports(check_ports);
    let served = reports.clone();
    runs(serve(mode, served));
    reports
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn at(port: u16) -> SocketAddr {
    (own_loopback(), port).into()
}

fn wait_until_open(port: u16) {
    wait_for("the port is open", || TcpStream::connect(at(port)).is_ok());
}

fn wait_until_closed(port: u16) {
    wait_for("the port is closed", || {
        TcpStream::connect(at(port)).is_err()
    });
}

#[test]
fn ready_pod_answers_200_with_kube_proxys_body_and_headers() {
    let port = free_port();
    let _reports = started(HealthCheckNodePorts::On, check_ports(&[(port, 2)]));
    wait_until_open(port);
    let response = get(at(port), "/");
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    for header in [
        "content-type: application/json\r\n",
        "x-content-type-options: nosniff\r\n",
        "x-load-balancing-endpoint-weight: 2\r\n",
    ] {
        assert!(response.contains(header), "{response}");
    }
    let expected = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web-{port}\"\n\t}},\n\
         \t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}}"
    );
    assert_eq!(body_of(&response), expected);
}

#[test]
fn every_path_and_method_is_answered() {
    let port = free_port();
    let _reports = started(HealthCheckNodePorts::On, check_ports(&[(port, 1)]));
    wait_until_open(port);
    for request in [
        "GET /healthz?x=1 HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /any HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab",
        "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
    ] {
        let response = send(at(port), request);
        assert!(response.contains(" 200 OK\r\n"), "{request}: {response}");
    }
}

#[test]
fn no_ready_pod_answers_503() {
    let port = free_port();
    let reports = started(HealthCheckNodePorts::On, check_ports(&[(port, 1)]));
    wait_until_open(port);
    reports.set_check_ports(check_ports(&[(port, 0)]));
    wait_for("no pods are told", || {
        let response = get(at(port), "/");
        response.starts_with("HTTP/1.1 503 ")
            && response.contains("x-load-balancing-endpoint-weight: 0\r\n")
            && response.contains("\"localEndpoints\": 0,")
            && response.contains("\"serviceProxyHealthy\": true")
    });
}

#[test]
fn unhealthy_proxy_answers_503_and_node_about_to_go_does_not() {
    let port = free_port();
    let reports = started(HealthCheckNodePorts::On, check_ports(&[(port, 1)]));
    wait_until_open(port);
    reports.machine_health().set_leaving(Some(true));
    assert!(get(at(port), "/").starts_with("HTTP/1.1 200 "));
    let late = Instant::now().checked_sub(2 * HEALTH_TIMEOUT).unwrap();
    reports.machine_health().pass(late, late);
    let response = get(at(port), "/");
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    assert!(
        response.contains("\"serviceProxyHealthy\": false"),
        "{response}"
    );
    assert!(response.contains("\"localEndpoints\": 1,"), "{response}");
}

#[test]
fn change_opens_and_closes_ports_without_touching_the_others() {
    let [kept, closed, opened] = [free_port(), free_port(), free_port()];
    let reports = started(
        HealthCheckNodePorts::On,
        check_ports(&[(kept, 1), (closed, 1)]),
    );
    wait_until_open(kept);
    wait_until_open(closed);
    // A listener that were closed would reset a connection that it has not answered.
    let mut under_way = TcpStream::connect(at(kept)).unwrap();
    under_way.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    reports.set_check_ports(check_ports(&[(kept, 3), (opened, 1)]));
    wait_until_open(opened);
    wait_until_closed(closed);
    under_way.write_all(b"Host: x\r\n\r\n").unwrap();
    let mut response = String::new();
    under_way.read_to_string(&mut response).unwrap();
    assert!(response.contains("\"localEndpoints\": 3,"), "{response}");
}

#[test]
fn port_of_another_is_left_to_it_and_taken_once_it_is_free() {
    let [taken, port] = [free_port(), free_port()];
    let other = std::net::TcpListener::bind(at(taken)).unwrap();
    let reports = started(
        HealthCheckNodePorts::Auto,
        check_ports(&[(taken, 1), (port, 1)]),
    );
    wait_until_open(port);
    assert_eq!(reports.problems(), []);
    drop(other);
    wait_until_open(taken);
    assert!(get(at(taken), "/").starts_with("HTTP/1.1 200 "));
}

#[test]
fn port_of_another_is_a_problem_where_all_are_asked_for() {
    let port = free_port();
    let other = std::net::TcpListener::bind(at(port)).unwrap();
    let reports = started(HealthCheckNodePorts::On, check_ports(&[(port, 1)]));
    wait_for("a problem is told", || !reports.problems().is_empty());
    let problem = &reports.problems()[0];
    assert_eq!(problem.rule.name(), "FailedToStartServiceHealthcheck");
    let text = problem.to_string();
    let expected = format!(
        "Service shop/web-{port}: cannot listen at the health check port {} (",
        at(port)
    );
    assert!(text.starts_with(&expected), "{text}");
    drop(other);
    wait_until_open(port);
    wait_for("the problem is over", || reports.problems().is_empty());
}

#[test]
fn nothing_listens_where_it_is_switched_off() {
    let port = free_port();
    let reports = Reports::new(Instant::now());
    reports.set_check_ports(check_ports(&[(port, 1)]));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(serve(HealthCheckNodePorts::Off, reports));
    TcpStream::connect(at(port)).unwrap_err();
}

#[test]
fn all_addresses_of_both_families_are_listened_at() {
    let port = free_port();
    let all = HealthCheckPorts {
        addresses: [std::net::Ipv6Addr::UNSPECIFIED.into()].into(),
        ..check_ports(&[(port, 1)])
    };
    let _reports = started(HealthCheckNodePorts::On, all);
    wait_until_open(port);
    assert!(get(at(port), "/").starts_with("HTTP/1.1 200 "));
    let six = (std::net::Ipv6Addr::LOCALHOST, port).into();
    assert!(get(six, "/").starts_with("HTTP/1.1 200 "));
}

#[test]
fn silent_peers_do_not_keep_a_load_balancer_out() {
    let [port, other] = [free_port(), free_port()];
    let _reports = started(
        HealthCheckNodePorts::On,
        check_ports(&[(port, 1), (other, 1)]),
    );
    wait_until_open(other);
    wait_until_open(port);
    let silent: Vec<TcpStream> = (0..2 * MAX_CONNECTIONS)
        .map(|_| TcpStream::connect(at(port)).unwrap())
        .collect();
    for port in [other, port] {
        let mut stream = connect_from([127, 0, 0, 2].into(), at(port));
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    }
    drop(silent);
}

#[test]
fn pauses_between_attempts_double_to_a_minute() {
    let seconds = [0, 1, 5, 6, 40].map(|failures| pause(failures).as_secs());
    assert_eq!(seconds, [1, 2, 32, 60, 60]);
}
