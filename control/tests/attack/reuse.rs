//! One client that uses each of its ports for all VIPs of a pod, while earlier connections of the port are still in
//! TIME_WAIT there.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::PoisonError,
    thread,
};

use lab::{Machine, output, vip_v4};

use crate::{
    ALONE,
    held::connect,
    network::{self, Network, OTHER_VIPS},
    support::TIMEOUT,
};

const CONNECTIONS: usize = 100_000;
const PORTS: u16 = 2000;
const FIRST_PORT: u16 = 20_000;
/// Many, because most of a connection's time is that until somebody is woken.
const THREADS: u16 = 40;

#[test]
fn a_port_talks_to_one_pod_by_many_vips() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let net = network::topology();
    let network = Network::start(&net);
    let (client, pod) = (&net.clients()[0], &net.nodes()[0].pods()[0]);
    for machine in [client, pod] {
        resend_after_a_second(machine);
    }
    let server = serve(network.listen_in_pod());
    let vips: Vec<u8> = [1].into_iter().chain(OTHER_VIPS).collect();
    let rounds = CONNECTIONS / usize::from(PORTS) / vips.len() + 1;
    thread::scope(|scope| {
        for part in 0..THREADS {
            let vips = &vips;
            let work = move || {
                for _ in 0..rounds {
                    for port in (FIRST_PORT..)
                        .take(PORTS.into())
                        .skip(part.into())
                        .step_by(THREADS.into())
                    {
                        for &vip in vips {
                            let to = SocketAddr::new(vip_v4(vip).into(), 80);
                            let from = SocketAddr::new(client.v4(), port);
                            use_once(from, to)
                                .unwrap_or_else(|error| panic!("port {port} to {to}: {error}"));
                        }
                    }
                }
            };
            scope.spawn(move || client.namespace().run(work));
        }
    });
    assert_eq!(pod.namespace().tcp_counter("TCPChallengeACK").unwrap(), 0);
    for machine in [client, pod] {
        for counter in ["TCPSynRetrans", "TCPTimeouts"] {
            let sent_again = machine.namespace().tcp_counter(counter).unwrap();
            assert_eq!(sent_again, 0, "{counter} of {}", machine.label());
        }
    }
    drop(server);
}

/// Gives data and FINs of a machine as much time as SYNs have (RFC 6298 section 2.1), so that only what is lost is sent
/// again, and not what waits for a core of a busy machine.
fn resend_after_a_second(machine: &Machine) {
    const SET_SHORTEST: &str = "ip route change $(ip route show default) rto_min 1s";
    let namespace = machine.namespace();
    let mut shell = namespace.command("sh");
    output(shell.args(["-c", SET_SHORTEST])).unwrap();
    // No probe of the last segment comes before that (RFC 8985 section 7): it would mend a loss that is to be counted.
    namespace
        .set_sysctl("net/ipv4/tcp_early_retrans", "0")
        .unwrap();
}

/// Connects, reads until the server closes, and closes: TIME_WAIT is the server's.
fn use_once(from: SocketAddr, to: SocketAddr) -> io::Result<()> {
    let mut stream = connect(from, to)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut word = Vec::new();
    stream.read_to_end(&mut word)?;
    if word == b"hello" {
        Ok(())
    } else {
        Err(io::Error::other(format!("{} bytes", word.len())))
    }
}

/// Says a word to whoever connects, and closes; ends with the process.
fn serve(listener: TcpListener) -> impl Drop {
    struct Server(TcpListener);
    impl Drop for Server {
        fn drop(&mut self) {
            use std::os::fd::AsRawFd;
            // Linux: wakes the threads in accept().
            let _ =
                nix::sys::socket::shutdown(self.0.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        }
    }
    let handle = listener.try_clone().unwrap();
    for _ in 0..THREADS {
        let listener = listener.try_clone().unwrap();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                // A client that is gone is the client's matter.
                let _: io::Result<()> = TcpStream::write_all(&mut stream, b"hello");
            }
        });
    }
    Server(handle)
}
