//! What cards and devices may be, and how broken ones are refused.

use super::*;

const GOOD: &str = "\
name: one
wire: ports
systems: [direct, router]
loads: [{ rate: 100, flows: 4 }]
ports:
  client: { device: eth1, addresses: [192.0.2.10/24] }
  backend: { device: eth2, addresses: [198.51.100.10/24, 198.51.100.11/24] }
  networks: [203.0.113.0/24]
under_test:
  - { name: direct, to: [198.51.100.10] }
  - { name: router, up: ./up, down: ./down, via: [192.0.2.1], back: [198.51.100.1], to: [203.0.113.1:80] }
";

#[test]
fn cards_and_devices_are_read_with_their_defaults() {
    let scenario = Scenario::parse(GOOD).unwrap();
    assert_eq!(scenario.wire, WireKind::Ports);
    let ports = scenario.ports.as_ref().unwrap();
    assert!(!ports.client.given_up && ports.reflector.is_empty());
    let [direct, router] = scenario.systems[..] else {
        panic!("{:?}", scenario.systems);
    };
    assert_eq!(
        (direct, router.to_string()),
        (System::Direct, "router".to_owned())
    );
    assert_eq!(
        scenario.device_of(direct).unwrap().to,
        ["198.51.100.10:7000"]
    );
    let device = scenario.device_of(router).unwrap();
    assert_eq!(device.to, ["203.0.113.1:80"]);
    assert_eq!(device.commands.up.as_deref(), Some("./up"));
    assert_eq!(device.commands.check, None);
    // As a result has it.
    let json = serde_json::to_string(&scenario).unwrap();
    assert_eq!(serde_json::from_str::<Scenario>(&json).unwrap(), scenario);
}

#[test]
fn a_reflector_stands_in_place_of_the_backends_card() {
    let backend = "backend: { device: eth2, addresses: [198.51.100.10/24, 198.51.100.11/24] }";
    let text = GOOD
        .replace("wire: ports", "wire: reflector")
        .replace(backend, "reflector: [198.51.100.10]")
        .replace("203.0.113.0/24", "203.0.113.0/24, 198.51.100.0/24");
    let scenario = Scenario::parse(&text).unwrap();
    let streams = scenario.streams(&scenario.loads[0]);
    assert!(!streams.contains(&crate::result::Stream::Forward));
    let frames = text.replace("{ rate: 100,", "{ generator: live, rate: 100,");
    let refused = Scenario::parse(&frames).unwrap_err().to_string();
    assert!(
        refused.contains("load 1 makes frames, which are counted on this machine"),
        "{refused}"
    );
}

#[test]
fn each_broken_rule_has_its_place_and_a_remedy() {
    for (from, to, expected) in [
        (
            "203.0.113.1:80",
            "203.0.114.1:80",
            "line 11, column 90: 203.0.114.1 is in none of the scenario's networks; add its network to networks",
        ),
        (
            "wire: ports",
            "wire: lab",
            "the wire lab has no ports; leave them out, or write wire: ports",
        ),
        (
            "networks: [203.0.113.0/24]",
            "facts: ./facts\n  networks: [203.0.113.0/24]",
            "line 8, column 10: the backends of the wire ports are this machine's; leave facts out",
        ),
        (
            "wire: ports",
            "wire: reflector",
            "the wire reflector has other far ends; write a backend",
        ),
        (
            "device: eth1",
            "device: no/card",
            "line 6, column 21: device is \"no/card\"; write the name of an interface",
        ),
        (
            "192.0.2.10/24",
            "192.0.2.10",
            "\"192.0.2.10\" is something else; write an address and a length",
        ),
        (
            "device: eth2",
            "given_up: maybe, device: eth2",
            "given_up is \"maybe\"; write true or false",
        ),
        (
            "[direct, router]",
            "[direct, ours-ipip]",
            "unknown system \"ours-ipip\"; write one of under_test (direct, router)",
        ),
        (
            "name: router",
            "name: ours-ipip",
            "name is \"ours-ipip\"; write a name of your own",
        ),
        (
            "name: router",
            "name: direct",
            "direct is there twice; name it once",
        ),
        (
            "rate: 100",
            "rate: 100, family: ipv6",
            "load 1 is ipv6, and the client's card has no such address; add one to its addresses",
        ),
        (
            "rate: 100",
            "rate: 100, background: 1000",
            "load 1 has frames beside its requests; write wire: lab",
        ),
        (
            "loads:",
            "services: 2\nloads:",
            "the Services are those that `to` names; leave services out",
        ),
        (
            "loads:",
            "event: { what: agent-restart, at: 1 }\nloads:",
            "agent-restart happens to none of the systems",
        ),
    ] {
        let found = Scenario::parse(&GOOD.replacen(from, to, 1))
            .unwrap_err()
            .to_string();
        assert!(found.contains(expected), "{to}: {found}");
    }
    let given_up = GOOD.replace("203.0.113.1:80", "203.0.114.1:80");
    let given_up = given_up.replace("device: eth1,", "device: eth1, given_up: true,");
    Scenario::parse(&given_up).unwrap();
}
