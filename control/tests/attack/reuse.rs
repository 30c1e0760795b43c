//! One client that uses each of its ports for all VIPs of a pod, while earlier connections of the port are still in
//! TIME_WAIT there.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
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
/// Where one thread is stopped for so long, another may be for the second after which something is sent again that was
/// not lost.
const STOP: Duration = Duration::from_millis(100);
/// Trials until the machine does not stop.
const TRIALS: usize = 10;

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
    for trial in 1.. {
        let before = counted(client, pod);
        let stop = longest_stop_during(|| use_all_ports(client));
        let after = counted(client, pod);
        if after == before {
            break;
        }
        // What is lost is lost again. What waited while the machine stopped was sent again, and had not been lost.
        assert!(
            stop >= STOP && trial < TRIALS,
            "{before:?} before, {after:?}; the machine stopped for {stop:?}"
        );
    }
    drop(server);
}

/// Counts what was sent again, and what the pod has taken for a part of an earlier connection.
fn counted(client: &Machine, pod: &Machine) -> Vec<(String, u64)> {
    let of_both = ["TCPSynRetrans", "TCPTimeouts"];
    let of_both = of_both.map(|counter| [(client, counter), (pod, counter)]);
    let all = of_both.into_iter().flatten();
    let count = |(machine, counter): (&Machine, &str)| {
        let counted = machine.namespace().tcp_counter(counter).unwrap();
        (format!("{counter} of {}", machine.label()), counted)
    };
    all.chain([(pod, "TCPChallengeACK")]).map(count).collect()
}

/// Does something. Returns for how long the machine stopped meanwhile, at the most, as one more thread finds.
fn longest_stop_during(work: impl FnOnce()) -> Duration {
    const PAUSE: Duration = Duration::from_millis(10);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let (mut longest, mut last) = (Duration::ZERO, Instant::now());
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(PAUSE);
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            longest
        });
        let end = EndOnDrop(&is_over);
        work();
        drop(end);
        watch.join().unwrap()
    })
}

/// Lets a test that panics end.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Connects from each port to each VIP, one after the other, again and again.
fn use_all_ports(client: &Machine) {
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
