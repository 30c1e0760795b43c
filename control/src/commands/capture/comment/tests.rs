use fastpath::capture::Reasons;
use fastpath::tables::Protocol;
use xdp_prog::reason::{DropReason, PassReason, PuntReason, ToClientReason};

use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];

fn names() -> Names {
    let row = |service: &str, backend: &str, node: &str| Backend {
        name: "web".to_owned(),
        service: service.to_owned(),
        backend: backend.to_owned(),
        node: node.to_owned(),
        mac: Some(Mac(MAC).to_string()),
        ..Backend::default()
    };
    Names::new(&[
        row("192.0.2.1:80/tcp", "10.1.0.5:8080", "10.0.0.11"),
        row("192.0.2.1:80/tcp", "10.1.0.6:8080", "10.0.0.11"),
        row("192.0.2.1:80/tcp", "10.1.1.5:8080", "10.0.0.12"),
        row("0.0.0.0:30080/tcp", "10.1.0.5:8080", "10.0.0.11"),
    ])
}

fn event(action: u32, reason: Option<u32>) -> Event {
    let mut reasons = Reasons::default();
    if let Some(index) = reason {
        reasons.insert(index);
    }
    Event {
        before_ns: 1,
        after_ns: 2,
        reasons,
        ifindex: 1,
        action,
        before_length: 60,
        before_copied: 60,
        after_length: 60,
        after_copied: 60,
    }
}

fn packet(source: &str, destination: &str) -> Packet {
    Packet {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        protocol: Some(Protocol::Tcp),
        is_outer: false,
        tag: 0,
    }
}

fn outer(destination: &str, tag: u16) -> Packet {
    Packet {
        protocol: None,
        is_outer: true,
        tag,
        ..packet("10.0.0.1:0", &format!("{destination}:0"))
    }
}

fn headers(packets: &[Packet]) -> Headers {
    Headers {
        destination_mac: MAC,
        source_mac: [2, 0, 0, 0, 0, 1],
        packets: packets.to_vec(),
    }
}

const CLIENT: &str = "198.51.100.7:40000";
const WEB: &str = "service web 192.0.2.1:80/tcp";

fn from_client() -> Packet {
    packet(CLIENT, "192.0.2.1:80")
}

#[test]
fn outer_header_names_node_and_pod() {
    let comment = |tag| {
        let after = headers(&[outer("10.0.0.11", tag), from_client()]);
        let event = event(action::TRANSMIT, None);
        names().comment(&event, &headers(&[from_client()]), Some(&after))
    };
    let pod = format!("forward (ipip), {WEB}, backend 10.1.0.6:8080 on 10.0.0.11");
    assert_eq!(comment(6), pod);
    let node = format!("forward (ipip), {WEB}, backend 10.0.0.11");
    assert_eq!(comment(77), node, "no pod there has this tag");
}

#[test]
fn finished_packet_for_the_agent_to_send_is_one_that_is_forwarded() {
    let after = headers(&[outer("10.0.0.11", 6), from_client()]);
    let event = event(action::REDIRECT, Some(PuntReason::Carry.index()));
    assert!(is_carried(&event) && !is_punted(&event));
    assert_eq!(
        names().comment(&event, &headers(&[from_client()]), Some(&after)),
        format!("forward (ipip) by the agent, {WEB}, backend 10.1.0.6:8080 on 10.0.0.11")
    );
}

#[test]
fn without_names_the_packet_still_tells() {
    let after = headers(&[outer("10.0.0.11", 6), from_client()]);
    let event = event(action::REDIRECT, None);
    let before = headers(&[from_client()]);
    assert_eq!(
        Names::default().comment(&event, &before, Some(&after)),
        "forward (ipip), service 192.0.2.1:80/tcp, backend 10.0.0.11"
    );
}

#[test]
fn l2dsr_names_the_node_by_its_mac_and_only_if_it_is_one() {
    let before = headers(&[from_client()]);
    let comment =
        |names: &Names| names.comment(&event(action::TRANSMIT, None), &before, Some(&before));
    let mut names = names();
    let several = format!("forward (l2dsr), {WEB}, backend 02:00:00:00:00:0b");
    assert_eq!(comment(&names), several);
    names
        .backends
        .retain(|backend| backend.node != IpAddr::from([10, 0, 0, 12]));
    let one = format!("forward (l2dsr), {WEB}, backend 10.0.0.11 (02:00:00:00:00:0b)");
    assert_eq!(comment(&names), one);
}

#[test]
fn nat_names_the_backend_both_ways() {
    let there = headers(&[packet("10.0.0.1:20000", "10.1.0.5:8080")]);
    let comment = names().comment(
        &event(action::TRANSMIT, None),
        &headers(&[from_client()]),
        Some(&there),
    );
    assert_eq!(
        comment,
        format!("forward (nat), {WEB}, backend 10.1.0.5:8080")
    );

    let back = headers(&[packet("10.1.0.5:8080", "10.0.0.1:20000")]);
    let left = headers(&[packet("192.0.2.1:80", CLIENT)]);
    let reason = ToClientReason::NatReply.index();
    let event = event(action::TRANSMIT, Some(reason));
    let comment = names().comment(&event, &back, Some(&left));
    assert_eq!(
        comment,
        format!("to_client nat_reply, {WEB}, backend 10.1.0.5:8080")
    );
}

#[test]
fn delivery_names_the_pod_and_node_ports_their_service() {
    let before = headers(&[outer("10.0.0.11", 5), packet(CLIENT, "10.0.0.11:30080")]);
    let after = headers(&[packet(CLIENT, "10.1.0.5:8080")]);
    let event = event(action::PASS, Some(PassReason::Delivered.index()));
    assert_eq!(
        names().comment(&event, &before, Some(&after)),
        "pass delivered, service web 10.0.0.11:30080/tcp, backend 10.1.0.5:8080"
    );
}

#[test]
fn what_does_not_go_on_has_no_backend() {
    let before = headers(&[from_client()]);
    let dropped = event(action::DROP, Some(DropReason::SourceRange.index()));
    let comment = names().comment(&dropped, &before, None);
    assert_eq!(comment, format!("drop source_range, {WEB}"));

    let decapsulated = event(action::PASS, Some(PassReason::Decapsulated.index()));
    let before = headers(&[outer("10.0.0.11", 0), from_client()]);
    let after = headers(&[from_client()]);
    let comment = names().comment(&decapsulated, &before, Some(&after));
    assert_eq!(comment, format!("pass decapsulated, {WEB}"));

    let not_ip = event(action::PASS, Some(PassReason::NotIp.index()));
    let comment = names().comment(&not_ip, &headers(&[]), Some(&headers(&[])));
    assert_eq!(comment, "pass not_ip");
}
