//! Objects that nobody should write, through the real API server: whatever it stores, the good ones are served.

use std::path::Path;
use std::thread;

use futures_util::{StreamExt, stream};
use hyper::{Method, Request};
use kube::config::AuthInfo;
use kube::{Client, Config};
use lab::kubernetes::ControlPlane;
use lab::{Machine, Namespace, Process, Topology, wait_for};
use serde_json::{Value, json};

use crate::objects;
use crate::support::number;
use crate::world::{PATIENCE, World, addresses};

/// Variable with the number of objects; `make soak` asks for 10 000.
const NUMBER: &str = "GUIDEWAY_HOSTILE_OBJECTS";
/// As many as every run of the tests has time for.
const BY_DEFAULT: u64 = 600;
/// Requests under way at a time.
const CONCURRENT: usize = 32;
/// One in so many objects is large; a prime number, so that some of each kind are.
const LARGE_EVERY: u32 = 101;
/// Bytes of annotations of a large object: the API server takes 256 KiB of them and no more.
const ANNOTATION: usize = 250 << 10;
/// Bytes of its managed fields, which nothing bounds but the 1.5 MiB that etcd takes of a request.
const MANAGED: usize = 1 << 20;
/// A time that is stored, and that a decoder of times cannot read.
const YEAR_ZERO: &str = "0000-01-01T00:00:00+01:00";
/// Namespace of the tenant.
const TENANT: &str = "tenant";
/// Label of the objects.
const HOSTILE: &str = "hostile";

#[test]
fn hostile_objects_take_nothing_from_good_ones_and_leave_no_ghost() {
    let number = number(NUMBER).unwrap_or(BY_DEFAULT);
    let number = u32::try_from(number).unwrap();
    let net = Topology::builder().nodes(1).pods(2).build().unwrap();
    let mut world = World::without_servers(&net);
    let controller = begin(&mut world);
    let pods: Vec<&Machine> = net.pods().collect();
    good(&world, 0, &pods[..1]);
    // It is served, has an address, and then becomes as bad as the others.
    let mut ghost = objects::service("ghost", 30_099);
    ghost["metadata"]["namespace"] = TENANT.into();
    world.apply(&ghost);
    for mut slice in objects::slices(&net, "ghost", &[(pods[1], true)]) {
        slice["metadata"]["namespace"] = TENANT.into();
        world.apply(&slice);
    }
    wait_for_table(&world, "good-0", &pods[..1]);
    wait_for_table(&world, "ghost", &pods[1..]);

    let half = number / 2;
    write(&world.control, 0..half);
    write_requests(
        &world.control,
        vec![SERVICES.year_zero("ghost", &json!({"f:z": {}}))],
    );
    good(&world, 1, &pods[..1]);
    wait_for_table(&world, "good-1", &pods[..1]);

    // Who begins now lists what is there, and is told of the rest.
    let (control, agents) = (&world.control, &mut world.agents);
    let _controller = thread::scope(|scope| {
        scope.spawn(|| write(control, half..number));
        drop(controller);
        let controller = start_controller(control);
        for agent in agents {
            agent.restart();
        }
        controller
    });
    good(&world, 2, &pods);
    wait_for_table(&world, "good-2", &pods);
    for name in ["good-0", "good-1"] {
        wait_for_table(&world, name, &pods[..1]);
    }
    wait_for_table(&world, "ghost", &pods[1..]);
    wait_for_used(&world, 4);

    // What is deleted is gone, with its address.
    let mut deletes = KINDS.map(|kind| kind.delete_all()).to_vec();
    deletes.push(SERVICES.delete("ghost"));
    deletes.extend(["ghost-ipv4", "ghost-ipv6"].map(|slice| SLICES.delete(slice)));
    write_requests(&world.control, deletes);
    wait_for_table(&world, "ghost", &[]);
    wait_for_used(&world, 3);
    for (name, pods) in [
        ("good-0", &pods[..1]),
        ("good-1", &pods[..1]),
        ("good-2", &pods[..]),
    ] {
        wait_for_table(&world, name, pods);
    }
    for agent in &mut world.agents {
        agent.wait_for_status(
            "knows the good ones alone, all of them readable",
            |status| {
                let objects = &status["kubernetes"]["objects"];
                // One Service more is the API server's own, which has no slices here.
                objects["services"] == 4
                    && objects["endpointslices"] == 6
                    && objects["nodes"] == 1
                    && status["problems"] == json!([])
            },
        );
    }
}

/// Begins with a pool and a namespace; starts the agents and a controller.
fn begin(world: &mut World<'_>) -> Controller {
    world.write_seed();
    world.show_presence();
    let mut crds = std::process::Command::new(env!("CARGO_BIN_EXE_guideway"));
    let crds = lab::output(crds.args(["controller", "--print-crds"])).unwrap();
    world.control.apply(&crds).unwrap();
    let kind = "loadbalancerpools.guideway.dev";
    world.control.wait_for_kind(kind).unwrap();
    world.apply(&json!({
        "apiVersion": "guideway.dev/v1alpha1", "kind": "LoadBalancerPool",
        "metadata": {"name": "all"}, "spec": {"addresses": ["192.0.2.0/28", "2001:db8::/124"]},
    }));
    world.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANT}}));
    world.launch();
    start_controller(&world.control)
}

/// A controller. When a test panics, its log is shown.
struct Controller(Process);

impl Drop for Controller {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- controller\n{}{}", self.0.stdout(), self.0.stderr());
        }
    }
}

fn start_controller(control: &ControlPlane) -> Controller {
    let mut command = control.machine().command(env!("CARGO_BIN_EXE_guideway"));
    let kubeconfig = Path::new(Namespace::FILES).join("kubeconfig");
    command.args(["controller", "--namespace", objects::SYSTEM]);
    command.args(["--lease-duration", "6"]);
    Controller(Process::spawn(command.env("KUBECONFIG", kubeconfig)).unwrap())
}

/// Writes a Service that asks for addresses, and its slices.
fn good(world: &World<'_>, number: u16, pods: &[&Machine]) {
    let name = format!("good-{number}");
    world.apply(&objects::service(&name, 30_080 + number));
    let pods: Vec<_> = pods.iter().map(|pod| (*pod, true)).collect();
    world.endpoints_of(&name, &pods);
}

/// Waits until the tables of all agents have exactly these pods for a Service, at its node port and at addresses.
fn wait_for_table(world: &World<'_>, service: &str, pods: &[&Machine]) {
    let expected = addresses(pods);
    for agent in &world.agents {
        wait_for(
            &format!("{service} on {}", agent.machine().label()),
            PATIENCE,
            || {
                let rows = agent.backends_of(service);
                let at_address =
                    |row: &Value| !row["service"].as_str().unwrap_or_default().contains(":30");
                let is_assigned = rows.iter().any(at_address);
                let found = agent.pods_of(service);
                if found == expected && is_assigned != expected.is_empty() {
                    Ok(())
                } else {
                    Err(format!("{rows:?}"))
                }
            },
        )
        .unwrap();
    }
}

/// Waits until Services have so many addresses of each family.
fn wait_for_used(world: &World<'_>, services: u64) {
    wait_for("the pool counts the addresses in use", PATIENCE, || {
        let pool = world
            .control
            .get(&["lbpool", "all"])
            .map_err(|error| error.to_string())?;
        let used = &pool["status"]["used"];
        if *used == 2 * services {
            Ok(())
        } else {
            Err(pool["status"].to_string())
        }
    })
    .unwrap();
}

/// A kind of objects, as requests name it.
#[derive(Clone, Copy)]
struct Kind {
    version: &'static str,
    /// The path of its objects.
    path: &'static str,
}

const SERVICES: Kind = Kind {
    version: "v1",
    path: "/api/v1/namespaces/tenant/services",
};
const SLICES: Kind = Kind {
    version: "discovery.k8s.io/v1",
    path: "/apis/discovery.k8s.io/v1/namespaces/tenant/endpointslices",
};
const NODES: Kind = Kind {
    version: "v1",
    path: "/api/v1/nodes",
};
const KINDS: [Kind; 3] = [SERVICES, SLICES, NODES];

/// A write of an object, or of all.
#[derive(Clone)]
struct Write {
    method: Method,
    path: String,
    body: Value,
}

impl Kind {
    fn create(self, body: Value) -> Write {
        let (method, path) = (Method::POST, self.path.to_owned());
        Write { method, path, body }
    }

    fn change(self, name: &str, body: Value) -> Write {
        let (method, path) = (Method::PATCH, format!("{}/{name}", self.path));
        Write { method, path, body }
    }

    fn delete(self, name: &str) -> Write {
        let (method, path) = (Method::DELETE, format!("{}/{name}", self.path));
        let body = Value::Null;
        Write { method, path, body }
    }

    fn delete_all(self) -> Write {
        let mut write = self.delete("");
        write.path = format!("{}?labelSelector={HOSTILE}", self.path);
        write
    }

    /// Gives an object a time of the year 0, with another change, without which it would not be stored.
    fn year_zero(self, name: &str, annotations: &Value) -> Write {
        let fields = json!({"f:metadata": {"f:annotations": annotations}});
        self.change(name, json!({"metadata": {"annotations": {"z": "1"}, "managedFields": [{
            "manager": "x", "operation": "Update", "apiVersion": self.version, "time": YEAR_ZERO,
            "fieldsType": "FieldsV1", "fieldsV1": fields,
        }]}}))
    }
}

/// Writes the hostile objects of these numbers: each is made, and then given what a decoder of all fields cannot read.
fn write(control: &ControlPlane, numbers: std::ops::Range<u32>) {
    let objects = || numbers.clone().map(|number| (number, hostile(number)));
    let made = objects().map(|(_, (kind, object))| kind.create(object));
    write_requests(control, made.collect());
    let spoilt = objects().map(|(number, (kind, object))| spoilt(number, kind, &object));
    write_requests(control, spoilt.collect());
}

fn write_requests(control: &ControlPlane, writes: Vec<Write>) {
    let mut config = Config::new(control.url().parse().unwrap());
    config.accept_invalid_certs = true;
    config.auth_info = AuthInfo {
        token: Some(ControlPlane::ADMIN.to_owned().into()),
        ..AuthInfo::default()
    };
    let send = async |client: &Client, write: Write| {
        let kind = if write.method == Method::PATCH {
            "merge-patch+json"
        } else {
            "json"
        };
        let request = Request::builder().method(write.method).uri(&write.path);
        let request = request.header("Content-Type", format!("application/{kind}"));
        let body = match write.body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let outcome = client.request_text(request.body(body).unwrap()).await;
        outcome.unwrap_or_else(|error| panic!("{}: {error}", write.path));
    };
    control.machine().run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let client = Client::try_from(config).unwrap();
            stream::iter(writes)
                .for_each_concurrent(CONCURRENT, |write| send(&client, write))
                .await;
        });
    });
}

/// Makes an object of a kind that follows from its number.
fn hostile(number: u32) -> (Kind, Value) {
    let (kind, mut object) = match number % 6 {
        0 => (
            SERVICES,
            json!({"spec": {
                "type": "LoadBalancer", "loadBalancerClass": "other.example/x", "allocateLoadBalancerNodePorts": false,
                "ports": [{"port": 65535, "targetPort": "a-name", "appProtocol": "example.com/Unheard_of"}],
            }}),
        ),
        // Ours, and not to be had: it asks for what is no address.
        1 => (
            SERVICES,
            json!({"spec": {
                "type": "LoadBalancer", "loadBalancerClass": "guideway.dev/guideway", "allocateLoadBalancerNodePorts": false,
                "loadBalancerIP": "999.0.2.1", "ports": [{"port": 1, "protocol": "SCTP"}],
            }}),
        ),
        2 => (
            SERVICES,
            json!({"spec": {
                "clusterIP": "None", "publishNotReadyAddresses": true,
                "ports": [{"port": 1, "targetPort": 65535, "protocol": "SCTP"}],
            }}),
        ),
        3 => (
            SLICES,
            json!({
                "addressType": "FQDN", "ports": [{"name": "x", "port": i32::MAX}],
                "endpoints": [{"addresses": ["x.example"], "conditions": {}, "nodeName": "nowhere"}],
            }),
        ),
        4 => (
            SLICES,
            json!({
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["203.0.113.7"], "hints": {"forZones": [{"name": "z"}]}}],
            }),
        ),
        _ => (
            NODES,
            json!({
                "spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]},
                "status": {
                    "phase": "?", "addresses": [{"type": "?", "address": "x"}, {"type": "InternalIP", "address": "0.0.0.0"}],
                    "images": [{"names": ["x"], "sizeBytes": i64::MIN}], "conditions": [{"type": "?", "status": "?"}],
                },
            }),
        ),
    };
    let large = number.is_multiple_of(LARGE_EVERY);
    object["metadata"] = json!({
        "name": format!("hostile-{number}"),
        "labels": {HOSTILE: "", "kubernetes.io/service-name": "kubernetes"},
        "annotations": {
            "x": "y".repeat(if large { ANNOTATION } else { 1 }),
            "guideway.dev/table-size": "99999999999999999999", "guideway.dev/mode": "\u{0}\u{202e}",
            "guideway.dev/addresses": "999.0.2.1,:::", "guideway.dev/pool": ",,",
            "endpoints.kubernetes.io/last-change-trigger-time": YEAR_ZERO,
        },
    });
    (kind, object)
}

/// Gives an object what decoders of all fields cannot read, in one write: not even the API server's own can read it
/// afterwards, and it takes no second patch.
fn spoilt(number: u32, kind: Kind, object: &Value) -> Write {
    let name = object["metadata"]["name"].as_str().unwrap();
    let fields = if number.is_multiple_of(LARGE_EVERY) {
        let fields = (0..MANAGED / 64).map(|field| (format!("f:{field:054}"), json!({})));
        Value::Object(fields.collect())
    } else {
        json!({"f:z": {}})
    };
    let mut write = kind.year_zero(name, &fields);
    if object["spec"]["type"] == "LoadBalancer" {
        write.path.push_str("/status");
        write.body["status"] = json!({
            "conditions": [{
                "type": "guideway.dev/AddressAssigned", "status": "Unknown", "reason": "X", "message": "",
                "lastTransitionTime": YEAR_ZERO, "observedGeneration": i64::MAX,
            }],
            "loadBalancer": {"ingress": [{"ip": "203.0.113.9", "ipMode": "Proxy"}, {"hostname": "x.example"}]},
        });
    }
    write
}
