//! An observer without an agent: no loop runs here, so whatever is answered waits for none. Needs root.

use std::net::IpAddr;
use std::sync::mpsc;

use fastpath::load::{Loaded, Loader};
use fastpath::nexthop::Watcher;
use fastpath::tables::Tables;
use serde_json::Value;
use xdp_prog::abi::map;

use super::*;
use crate::api::ServiceFilter;
use crate::config;
use crate::desired::ServiceKey;
use crate::random::random;

const TWO_SERVICES: &str = "\
interfaces: [{name: eth0}]
vips: [10.99.0.1]
services:
  - {name: a, address: 10.99.0.1, port: 80, protocol: tcp, backends: [{address: 10.0.0.1}, {address: 10.0.0.2}]}
  - {name: b, address: 10.99.0.1, port: 81, protocol: tcp, backends: [{address: 10.0.0.1}]}
";

const WITH_NODE_PORT: &str = "\
interfaces: [{name: eth0}]
vips: [10.99.0.1]
services:
  - {name: a, address: 10.99.0.1, port: 80, node_port: 30080, protocol: tcp, mode: nat, backends: [{address: 10.0.0.1}]}
";

/// What an observer reads, and what an agent would.
struct World {
    loaded: Loaded,
    tables: Tables,
    views: watch::Sender<Arc<View>>,
    observer: Observer,
    _commands: mpsc::Receiver<Command>,
}

impl World {
    fn new() -> Self {
        let arrays = [map::SERVICE, map::SERVICE_TRAFFIC, map::BACKENDS];
        let loader = arrays.into_iter().fold(Loader::unpinned(), |loader, map| {
            loader.max_entries(map, 64)
        });
        // No packet comes here.
        let stubs = lab::stub_object(fastpath::object::bytes()).leak();
        let loader = loader.object(stubs).max_entries(map::BACKEND_TRAFFIC, 64);
        let loaded = loader.max_entries(map::LUT, 4096).load().unwrap();
        let tables = Tables::open(&loaded).unwrap();
        let views = watch::Sender::default();
        let (commands, received) = mpsc::channel();
        let waker = Watcher::new().unwrap().waker();
        let observer = Observer::new(ObserverInputs {
            views: views.subscribe(),
            reader: tables.reader(&loaded).unwrap(),
            health: Arc::new(Monitor::new(random())),
            feed: None,
            heartbeat: LoopHeartbeat::new(Instant::now()),
            agent: Handle::new(commands, waker),
            drains: None,
            peers: None,
            started: Instant::now(),
            started_at: 0,
            others: Mutex::default(),
        });
        Self {
            loaded,
            tables,
            views,
            observer,
            _commands: received,
        }
    }

    /// Puts the services of a configuration into the tables, and publishes them.
    fn serve(&mut self, config: &str) {
        let config = config::parse(config).unwrap();
        let desired = &config.desired;
        for (key, service) in &desired.services {
            self.tables.put_service(*key, &service.spec).unwrap();
        }
        let services = desired.services.iter();
        self.views.send_replace(Arc::new(View {
            tables: self.tables.publish(),
            wanted: services
                .map(|(key, service)| (*key, Arc::clone(&service.spec)))
                .collect(),
            services: desired.services.clone(),
            settings: Arc::new(config::effective::effective(&config)),
            ..View::default()
        }));
    }

    async fn ask(&self, request: Request) -> Value {
        let line = self.observer.answer(request).await;
        let mut answer: Value = serde_json::from_str(&line).unwrap();
        assert!(answer["error"].is_null(), "{line}");
        answer["ok"].take()
    }
}

#[tokio::test]
async fn answers_are_made_of_what_was_published_and_counted() {
    let mut world = World::new();
    world.serve(TWO_SERVICES);
    let key: ServiceKey = "10.99.0.1:80/tcp".parse().unwrap();
    // What has changed since is not shown before it is published.
    world.tables.remove_service(&key).unwrap();
    let next_hop: IpAddr = "10.0.0.1".parse().unwrap();
    let resolution = fastpath::nexthop::Resolution::Local;
    world.tables.set_next_hop(next_hop, resolution).unwrap();

    let status = world.ask(Request::Status {}).await;
    assert_eq!(status["services"], 2);
    assert_eq!(status["next_hops"]["local"], 0);
    let services = world.ask(Request::Services(ServiceFilter::default())).await;
    let names = services.as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"]);
    let backends = world.ask(Request::Backends(ServiceFilter::default())).await;
    let states = backends.as_array().unwrap().iter();
    let states: Vec<&str> = states
        .map(|row| row["next_hop"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["not looked up"; 3]);
    assert_ne!(world.ask(Request::Drops {}).await, Value::Array(Vec::new()));
    let settings = world.ask(Request::Config {}).await;
    assert_eq!(settings["interfaces"][0]["name"], "eth0");
    let metrics = world.observer.metrics().await.unwrap();
    assert!(metrics.contains("\nguideway_services 2\n"), "{metrics}");
    assert_eq!(world.observer.unattached().await, Some(Vec::new()));
    drop(world.loaded);
}

#[tokio::test]
async fn port_of_a_backend_is_that_of_the_virtual_address() {
    let mut world = World::new();
    world.serve(WITH_NODE_PORT);
    let metrics = world.observer.metrics().await.unwrap();
    let packets = "guideway_backend_packets_total{";
    let line = metrics.lines().find(|line| line.starts_with(packets));
    assert!(line.unwrap().contains("port=\"80\""), "{line:?}");
}

#[tokio::test(start_paused = true)]
async fn large_pages_that_nobody_reads_are_few() {
    let mut world = World::new();
    world.serve(TWO_SERVICES);
    let mut unread = Vec::new();
    for _ in 0..MAX_LARGE_PAGES {
        unread.push(world.observer.page("/backends").await);
    }
    let one_more = || tokio::time::timeout(2 * LIFE_TIMEOUT, world.observer.page("/services"));
    assert!(one_more().await.is_err());
    let others = ["/status", "/config", "/metrics"];
    for path in others {
        assert_eq!(world.observer.page(path).await.status(), 200, "{path}");
    }
    unread.pop();
    assert_eq!(one_more().await.unwrap().status(), 200);
}

#[tokio::test]
async fn asker_that_goes_ends_the_work_and_one_that_waits_begins_none() {
    let world = World::new();
    let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let (end, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let ask = || {
        let (observer, begin, end) = (world.observer.clone(), begin.clone(), end.clone());
        tokio::spawn(async move {
            let answer = observer.observe(move |seen| {
                begin.send(()).unwrap();
                while seen.go_on().is_ok() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                end.send(()).unwrap();
            });
            answer.await
        })
    };
    let working = [(); MAX_ANSWERS].map(|()| ask());
    for _ in &working {
        begun.recv().await.unwrap();
    }
    let waiting = ask();
    tokio::task::yield_now().await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert!(ended.try_recv().is_err(), "the others are still waited for");
    for asker in working {
        asker.abort();
        ended.recv().await.unwrap();
    }
    // All places are free again, and nobody took one meanwhile.
    let all = u32::try_from(MAX_ANSWERS).unwrap();
    let _places = world.observer.answers.acquire_many(all).await.unwrap();
    assert!(begun.try_recv().is_err());
}

#[tokio::test]
async fn agent_whose_loop_gives_no_sign_of_life_is_not_healthy() {
    let world = World::new();
    let mut inputs = Arc::into_inner(world.observer.inputs).unwrap();
    inputs.heartbeat = LoopHeartbeat::new(Instant::now() - 2 * LIFE_TIMEOUT);
    let observer = Observer::new(inputs);
    assert_eq!(observer.unattached().await, None);
}
