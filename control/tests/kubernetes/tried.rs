//! `guideway cluster test`: Services that are there, and one that it makes.

use lab::{Process, Signal, Topology, vip_v4, wait_for};
use serde_json::{Value, json};

use crate::cluster::{Operator, RIGHTS, run_controller};
use crate::controller::cluster::{install_crd, pool};
use crate::objects;
use crate::world::{self, PATIENCE, World, vips, ways};

/// What a test takes beside what `cluster status` does, where it makes a Service.
const MORE_RIGHTS: &str = "
- {apiGroups: [''], resources: [nodes], verbs: [list]}
- {apiGroups: ['', apps], resources: [services, deployments], verbs: [create, get, delete]}
";
/// What labels of the objects that it makes say.
const MADE: &str = "app.kubernetes.io/name=guideway-test";

/// Runs a test of the Services that there are, until its exit code is this one, and returns its findings.
fn wait_for_code(operator: &Operator<'_>, arguments: &[&str], expected: i32) -> Vec<Value> {
    let arguments = [&["test", "--json"][..], arguments].concat();
    wait_for(
        &format!("{arguments:?} ends with {expected}"),
        PATIENCE,
        || {
            let (code, printed) = operator.run(&arguments);
            let findings: Vec<Value> =
                serde_json::from_str(&printed).map_err(|_| printed.clone())?;
            (code == expected).then_some(findings).ok_or(printed)
        },
    )
    .unwrap()
}

/// Returns the subjects whose findings are of a severity.
fn subjects(findings: &[Value], severity: &str) -> Vec<String> {
    let of = findings.iter().filter(|one| one["severity"] == severity);
    of.map(|one| one["subject"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn edges_pass_or_fail_and_a_service_that_is_made_is_removed_even_after_a_signal() {
    let net = world::two_edges();
    let mut world = World::start(&net);
    let operator = Operator::at(&world, net.clients()[0].namespace());
    one_is_made_tried_and_removed(&net, &world, &operator);
    those_that_are_there_are_tried(&net, &mut world, &operator);
}

fn one_is_made_tried_and_removed(net: &Topology, world: &World<'_>, operator: &Operator<'_>) {
    let rights = format!("{RIGHTS}{MORE_RIGHTS}");
    world
        .control
        .make_service_account("operator", &rights)
        .unwrap();
    install_crd(&world.control);
    let _controller = run_controller(&net.nodes()[0]);
    let address = format!("{}/32", vip_v4(2));
    world.control.apply(&pool("public", &[&address])).unwrap();
    // As a kubelet would say it.
    let node = net.nodes()[0].label();
    let ready =
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}).to_string();
    let patch = ["patch", "node", node, "--subresource=status", "-p", &ready];
    world.control.kubectl(&patch).unwrap();

    let begin = || Process::spawn(&mut operator.command(&["test"])).unwrap();
    let made = |kind: &str| -> Vec<String> {
        let listed = world.control.get(&[kind, "-l", MADE]).unwrap();
        let names = listed["items"].as_array().unwrap().iter();
        names
            .map(|one| one["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let all_made = || ["services", "deployments"].map(made).concat();
    let wait_until_made = || {
        wait_for("both are made", PATIENCE, || match all_made().as_slice() {
            [service, deployment] if service == deployment => Ok(service.clone()),
            others => Err(others.join(" ")),
        })
        .unwrap()
    };
    let mut broken_off = begin();
    let first = wait_until_made();
    broken_off.signal(Signal::SIGINT).unwrap();
    let code = broken_off.wait(PATIENCE).unwrap().code();
    let told = broken_off.stderr();
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("its objects are removed"), "{told}");
    assert_eq!(all_made(), [""; 0]);

    let mut whole = begin();
    let second = wait_until_made();
    assert_ne!(first, second);
    let pod = net.pods().next().unwrap();
    let [mut slice, _] = objects::slices(net, &second, &[(pod, true)]);
    slice["ports"] = json!([{"name": "http", "protocol": "TCP", "port": objects::TARGET_PORT}]);
    world.apply(&slice);
    let code = whole.wait(PATIENCE).unwrap().code();
    let page = whole.stdout();
    eprintln!("{page}");
    assert_eq!(code, Some(0), "{page}{}", whole.stderr());
    assert!(page.contains("1 TCP ports answer"), "{page}");
    assert_eq!(all_made(), [""; 0]);
}

fn those_that_are_there_are_tried(net: &Topology, world: &mut World<'_>, operator: &Operator<'_>) {
    let nothing = wait_for_code(operator, &["--existing"], 0);
    assert_eq!(subjects(&nothing, "WARN"), ["cluster"]);
    let named = wait_for_code(operator, &["web"], 1);
    assert_eq!(subjects(&named, "FAIL"), ["cluster"]);

    world.balance(&vips(1));
    let without = wait_for_code(operator, &["web"], 1);
    for one in &without {
        assert_ne!(one["remedy"], "", "{one}");
    }
    let pod = net.pods().next().unwrap();
    world.endpoints(&[(pod, true)]);
    world.wait_for_pods(&ways(1), &[pod]);
    let all = wait_for_code(operator, &["--existing"], 0);
    assert_eq!(subjects(&all, "OK"), ["edge0", "edge1", "from here"]);
    let request = all.last().unwrap()["detail"].as_str().unwrap();
    assert_eq!(request, "2 TCP ports answer; 2 others were not tried");

    // An edge is silent, and the other one has no pod.
    world.agents[1].kill();
    world.endpoints(&[]);
    wait_for("both edges fail", PATIENCE, || {
        let fails = wait_for_code(operator, &["default/web"], 1);
        let subjects = subjects(&fails, "FAIL");
        let has = |check: &str| fails.iter().any(|one| one["check"] == check);
        let are_both = subjects.contains(&"edge0".to_owned()) && has("answer");
        are_both.then_some(()).ok_or(format!("{fails:?}"))
    })
    .unwrap();
    let (_, page) = operator.run(&["test", "default/web"]);
    eprintln!("{page}");
}
