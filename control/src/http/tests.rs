//! Listeners against peers of all kinds, and what tests of other pages are made with.

pub(crate) mod testing;

use std::future::ready;
use std::io::{Read, Write};
use std::net::TcpStream;

use tokio::sync::Semaphore;

use super::testing::{connect_from, get, send};
use super::*;
use crate::api::{Egress, Interface, Status, unattached};
use crate::metrics::{self, Snapshot};
use crate::observer::pages;

/// A node, whose programs are attached in this mode.
fn snapshot(mode: Option<&str>) -> Snapshot {
    node(mode, Some("tcx"))
}

fn node(mode: Option<&str>, egress: Option<&str>) -> Snapshot {
    Snapshot {
        status: Status {
            interfaces: vec![Interface {
                name: "eth0".to_owned(),
                mode: mode.map(str::to_owned),
                ..Interface::default()
            }],
            egress: vec![Egress {
                device: "veth7".to_owned(),
                mode: egress.map(str::to_owned),
                note: Some("noqueue".to_owned()),
            }],
            ..Status::default()
        },
        ..Snapshot::default()
    }
}

fn serving(snapshot: Option<Snapshot>) -> SocketAddr {
    let devices = snapshot.as_ref().map(|Snapshot { status, .. }| {
        let Status {
            interfaces, egress, ..
        } = status;
        unattached(interfaces, egress)
    });
    let text = snapshot.and_then(|snapshot| metrics::render(snapshot).ok());
    testing::serving(|listener| {
        let page = move |path: String| {
            let (text, devices) = (ready(text.clone()), ready(devices.clone()));
            async move { pages::page(&path, text, devices).await }
        };
        serve_pages(listener, page)
    })
}

#[test]
fn metrics_have_prometheus_content_type() {
    let response = get(serving(Some(snapshot(Some("native")))), "/metrics");
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert!(
        response.contains("content-type: application/openmetrics-text;"),
        "{response}"
    );
    assert!(
        response.contains("\nguideway_interface_attached{"),
        "{response}"
    );
}

/// Reads until the peer ends the connection.
fn read(mut stream: TcpStream) -> String {
    let mut said = String::new();
    let _ = stream.read_to_string(&mut said);
    said
}

#[test]
fn peers_that_never_finish_their_question_do_not_keep_a_probe_out() {
    const PLACES: usize = 3;
    let limits = Limits {
        connection_limits: vec![ConnectionLimit::new(PLACES)],
        source_limits: Vec::new(),
        // What gives way does so for the probe, not after a time.
        header_timeout: Duration::from_secs(60),
        timeout: Duration::from_secs(60),
    };
    let (begin, begun) = std::sync::mpsc::channel();
    let release = Arc::new(Semaphore::new(0));
    let released = Arc::clone(&release);
    let address = testing::serving(|listener| {
        serve(listener, limits, move |request| {
            let (begin, released) = (begin.clone(), Arc::clone(&released));
            async move {
                if request.uri().path() == "/metrics" {
                    begin.send(()).unwrap();
                    let _ = released.acquire().await;
                }
                text(StatusCode::OK, "ok\n")
            }
        })
    });
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let scrape = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    begun.recv().unwrap();
    let silent: Vec<TcpStream> = (1..PLACES).map(|_| ask("GET /hea")).collect();
    let said = read(ask("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"));
    assert!(said.starts_with("HTTP/1.1 200 "), "{said:?}");
    // The oldest gave way. The others and the one that had asked did not.
    let mut silent = silent.into_iter();
    assert_eq!(silent.next().map(read), Some(String::new()));
    for mut stream in silent {
        stream
            .write_all(b"lthz HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let said = read(stream);
        assert!(said.starts_with("HTTP/1.1 200 "), "{said:?}");
    }
    release.add_permits(1);
    let said = read(scrape);
    assert!(said.starts_with("HTTP/1.1 200 "), "{said:?}");
}

#[test]
fn scraper_that_goes_leaves_no_work() {
    let (begin, begun) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel();
    let address = testing::serving(|listener| {
        let page = move |_| {
            let (begin, dropped) = (begin.clone(), Dropped(end.clone()));
            async move {
                begin.send(()).unwrap();
                std::future::pending::<()>().await;
                drop(dropped);
                text(StatusCode::OK, "")
            }
        };
        serve_pages(listener, page)
    });
    let mut scraper = TcpStream::connect(address).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    scraper.write_all(request).unwrap();
    begun.recv().unwrap();
    assert!(ended.try_recv().is_err(), "it waits for its answer");
    drop(scraper);
    ended.recv().unwrap();
}

/// Tells when it is dropped.
struct Dropped(std::sync::mpsc::Sender<()>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[test]
fn one_source_does_not_take_the_connections_of_others() {
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let release = Arc::new(Semaphore::new(0));
    let released = Arc::clone(&release);
    let limits = Limits {
        timeout: Duration::from_secs(600),
        ..Limits::of_probes(
            vec![ConnectionLimit::new(4)],
            vec![SourceLimit::new(9), SourceLimit::new(2)],
        )
    };
    let address = testing::serving(|listener| {
        serve(listener, limits, move |_| {
            let released = Arc::clone(&released);
            async move {
                let _ = released.acquire().await;
                text(StatusCode::OK, "ok\n")
            }
        })
    });
    let ask = |source: [u8; 4]| {
        let mut stream = connect_from(source.into(), address);
        // One that is closed already may refuse it.
        let _ = stream.write_all(REQUEST);
        stream
    };
    let greedy = [127, 0, 0, 1];
    let kept = [ask(greedy), ask(greedy)];
    // Closed at once, while the others wait for their answers.
    for _ in 0..4 {
        assert_eq!(read(ask(greedy)), "");
    }
    let other = ask([127, 0, 0, 2]);
    release.add_permits(100);
    for stream in kept.into_iter().chain([other]) {
        let said = read(stream);
        assert!(said.starts_with("HTTP/1.1 200 "), "{said:?}");
    }
    // What has ended counts no more, once its end is noticed.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !read(ask(greedy)).starts_with("HTTP/1.1 200 ") {
        assert!(std::time::Instant::now() < deadline);
    }
}

#[test]
fn health_follows_both_programs() {
    let attached = get(serving(Some(snapshot(Some("generic")))), "/healthz");
    assert!(attached.starts_with("HTTP/1.1 200 "), "{attached}");
    let detached = get(serving(Some(snapshot(None))), "/healthz");
    assert!(detached.starts_with("HTTP/1.1 503 "), "{detached}");
    let named = "\nno XDP program on eth0: somebody removed it";
    assert!(detached.contains(named), "{detached}");
    assert!(!detached.contains("veth7"), "{detached}");
    let untranslated = get(serving(Some(node(Some("native"), None))), "/healthz");
    assert!(untranslated.starts_with("HTTP/1.1 503 "), "{untranslated}");
    let named = "\nno egress program on veth7: noqueue; the agent tries again";
    assert!(untranslated.contains(named), "{untranslated}");
    assert!(!untranslated.contains("eth0"), "{untranslated}");
    let stuck = get(serving(None), "/healthz");
    assert!(stuck.starts_with("HTTP/1.1 503 "), "{stuck}");
}

#[test]
fn other_requests_are_refused() {
    let address = serving(Some(snapshot(None)));
    assert!(get(address, "/").starts_with("HTTP/1.1 404 "));
    assert!(
        send(address, "POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 405 ")
    );
    assert!(send(address, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(64 << 10));
    let mut stream = TcpStream::connect(address).unwrap();
    let _ = stream.write_all(long.as_bytes());
    assert!(get(address, "/metrics").starts_with("HTTP/1.1 200 "));
}
