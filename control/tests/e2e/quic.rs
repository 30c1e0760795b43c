//! A QUIC server and client, which find out for themselves what a path carries.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
};

use lab::{Machine, Topology, vip_v4, vip_v6};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime,
    TransportConfig,
    rustls::{RootCertStore, pki_types::PrivatePkcs8KeyDer},
};
use tokio::{runtime, time::timeout};

use crate::support::{
    Agent, Capture, Cluster, Mode, PodService, Protocol, Service, TIMEOUT, cluster_config,
    nat_config, without,
};

const PORT: u16 = 443;
const NAME: &str = "pods.example";
/// Echoed on each connection, hence many packets of the largest size.
const LENGTH: usize = 300_000;
const CONNECTIONS: usize = 5;

/// The two sides' configurations, with a certificate made for this run. A busy machine ends no idle connection.
fn configurations() -> (ServerConfig, ClientConfig) {
    let certified = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let certificate = certified.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let mut trusted = RootCertStore::empty();
    trusted.add(certificate.clone()).unwrap();
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(None);
    let transport = Arc::new(transport);
    let mut server = ServerConfig::with_single_cert(vec![certificate], key.into()).unwrap();
    server.transport_config(Arc::clone(&transport));
    let mut client = ClientConfig::with_root_certificates(Arc::new(trusted)).unwrap();
    client.transport_config(transport);
    (server, client)
}

fn endpoint(machine: &Machine, address: SocketAddr, server: Option<ServerConfig>) -> Endpoint {
    let socket = machine
        .namespace()
        .run(|| UdpSocket::bind(address))
        .unwrap();
    let (config, runtime) = (EndpointConfig::default(), Arc::new(TokioRuntime));
    Endpoint::new(config, server, socket, runtime).unwrap()
}

/// Echoes every stream of every connection.
async fn serve(server: Endpoint) {
    while let Some(incoming) = server.accept().await {
        tokio::spawn(async move {
            let connection = incoming.await.unwrap();
            while let Ok((mut send, mut receive)) = connection.accept_bi().await {
                let bytes = receive.read_to_end(LENGTH).await.unwrap();
                send.write_all(&bytes).await.unwrap();
                send.finish().unwrap();
            }
        });
    }
}

async fn echo(client: &Endpoint, vip: SocketAddr) {
    let connection = client.connect(vip, NAME).unwrap().await.unwrap();
    echo_on(&connection).await;
    connection.close(0_u8.into(), b"done");
}

async fn echo_on(connection: &Connection) {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(LENGTH).collect();
    send.write_all(&bytes).await.unwrap();
    send.finish().unwrap();
    assert!(receive.read_to_end(LENGTH).await.unwrap() == bytes);
}

/// Opens connections to VIPs from a client; each carries a stream to one of the servers and back.
fn streams_pass(client: &Machine, servers: &[&Machine], vips: &[SocketAddr]) {
    let (server, trusting) = configurations();
    let capture = Capture::start(client);
    let tokio = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio.block_on(async {
        for machine in servers {
            for address in [machine.v4(), machine.v6()] {
                let address = SocketAddr::new(address, PORT);
                tokio::spawn(serve(endpoint(machine, address, Some(server.clone()))));
            }
        }
        // One port that talks to a pod by two VIPs would be a conflict.
        let mut ports = 20_000..;
        for &vip in vips {
            for _ in 0..CONNECTIONS {
                let from = client.address_like(vip.ip());
                let from = SocketAddr::new(from, ports.next().unwrap());
                let mut endpoint = endpoint(client, from, None);
                endpoint.set_default_client_config(trusting.clone());
                timeout(TIMEOUT, echo(&endpoint, vip)).await.unwrap();
            }
        }
    });
    assert!(capture.assert_good_checksums() > 1000);
}

/// QUIC services of these modes over all pods.
fn quic_over_pods(modes: &[Mode]) -> Vec<PodService<'static>> {
    Service::all(modes)
        .into_iter()
        .filter(|service| service.protocol == Protocol::Udp)
        .map(|service| PodService {
            target_port: PORT,
            ..PodService::over_all(service)
        })
        .collect()
}

#[test]
fn quic_connections_to_pods_carry_streams() {
    let net = Topology::builder().pods(1).build().unwrap();
    let services = quic_over_pods(&[Mode::IpipV4, Mode::IpipV6, Mode::L2dsr]);
    let _cluster = Cluster::start(&net, &services);
    let pods: Vec<&Machine> = net.pods().collect();
    let vips: Vec<SocketAddr> = services
        .iter()
        .map(|service| service.service.address)
        .collect();
    streams_pass(&net.clients()[0], &pods, &vips);
}

/// Connections to each service that are held.
const HELD: usize = 8;

#[test]
fn quic_connections_go_on_when_their_pod_leaves_and_comes_back() {
    let net = Topology::builder().pods(2).build().unwrap();
    let services = quic_over_pods(&[Mode::IpipV4, Mode::IpipV6]);
    let config = cluster_config(&net, &services);
    let agents = Agent::start_all(net.edges().iter().chain(net.nodes()), &config);
    let change = |config: &str, reloads| {
        for agent in &agents {
            agent.write_config(config);
        }
        for agent in &agents {
            agent.wait_for_reloads(reloads);
        }
    };
    let client = &net.clients()[0];
    let leaving = net.pods().next().unwrap();
    let (server, trusting) = configurations();
    let tokio = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio.block_on(async {
        let mut at_leaving = Vec::new();
        for pod in net.pods() {
            for address in [pod.v4(), pod.v6()] {
                let endpoint = endpoint(pod, SocketAddr::new(address, PORT), Some(server.clone()));
                if pod.label() == leaving.label() {
                    at_leaving.push(endpoint.clone());
                }
                tokio::spawn(serve(endpoint));
            }
        }
        let mut held = Vec::new();
        for service in &services {
            for _ in 0..HELD {
                let vip = service.service.address;
                let from = SocketAddr::new(client.address_like(vip.ip()), client.fresh_port());
                let mut endpoint = endpoint(client, from, None);
                endpoint.set_default_client_config(trusting.clone());
                let connecting = endpoint.connect(vip, NAME).unwrap();
                held.push((
                    endpoint,
                    timeout(TIMEOUT, connecting).await.unwrap().unwrap(),
                ));
            }
        }
        let at_leaving = || -> usize { at_leaving.iter().map(Endpoint::open_connections).sum() };
        let there = at_leaving();
        assert!(there > 0, "no connection is at the pod that leaves");
        for (reloads, config) in [(2, without(&config, leaving)), (3, config.clone())] {
            change(&config, reloads);
            for (_, connection) in &held {
                timeout(TIMEOUT, echo_on(connection)).await.unwrap();
            }
            assert_eq!(at_leaving(), there);
        }
    });
}

#[test]
fn quic_connections_by_nat_carry_streams() {
    let net = Topology::builder()
        .nodes(0)
        .routed_nodes(1)
        .build()
        .unwrap();
    let host = &net.nodes()[0];
    let vips: [IpAddr; 2] = [vip_v4(1).into(), vip_v6(1).into()];
    let vips = vips.map(|vip| SocketAddr::new(vip, PORT));
    let services = vips.map(|vip| (vip, SocketAddr::new(host.address_like(vip.ip()), PORT)));
    let config = nat_config(&[Protocol::Udp], services);
    let edge = Agent::start(&net.edges()[0], &config);
    streams_pass(&net.clients()[0], &[host], &vips);
    assert!(Cluster::packets(&edge, "to_client", "nat_reply") > 1000);
}
