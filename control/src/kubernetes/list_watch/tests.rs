//! Pauses after errors, and objects and lists that are broken.

use std::iter;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::super::backoff::tests::overloaded;
use super::super::schema::Service;
use super::*;

const NO_PAUSE: fn() -> iter::Repeat<Duration> = || iter::repeat(Duration::ZERO);

/// Returns how long after the event before it each of these is told.
async fn told_after<P>(heard: Vec<Watched<()>>, pauses: fn() -> P) -> Vec<Duration>
where
    P: Iterator<Item = Duration> + Send + 'static,
{
    let mut last = Instant::now();
    let told = with_pauses(futures_util::stream::iter(heard), pauses);
    told.map(|_| {
        let before = std::mem::replace(&mut last, Instant::now());
        before.elapsed()
    })
    .collect()
    .await
}

fn expired() -> WatchError {
    let status = Status::failure("too old resource version", "Expired").with_code(410);
    WatchError::Ended(status.boxed())
}

fn away() -> WatchError {
    WatchError::NoVersion
}

#[tokio::test(start_paused = true)]
async fn server_is_left_alone_for_as_long_as_it_asks() {
    let error = WatchError::List(kube::Error::Api(overloaded(7)));
    let heard = vec![
        Err(error),
        Ok(Event::Init),
        Ok(Event::InitDone(BTreeSet::new())),
    ];
    let after = told_after(heard, NO_PAUSE).await;
    assert_eq!(after, [0, 7, 0].map(Duration::from_secs));
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_whatever_was_heard_between() {
    let mut heard: Vec<_> = (0..8)
        .flat_map(|_| [Err(away()), Ok(Event::Init)])
        .collect();
    heard.push(Err(away()));
    heard.push(Ok(Event::Init));
    let after = told_after(heard, DefaultBackoff::default).await;
    let last = after.last().unwrap();
    assert!(*last >= Duration::from_secs(30), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn server_that_is_back_is_asked_soon_for_what_was_missed() {
    let mut heard: Vec<_> = (0..8).map(|_| Err(away())).collect();
    heard.push(Err(expired()));
    heard.push(Ok(Event::Init));
    let after = told_after(heard, DefaultBackoff::default).await;
    let [.., back, listed] = after[..] else {
        panic!("{after:?}");
    };
    assert!(back >= Duration::from_secs(30), "{after:?}");
    assert!(listed < Duration::from_secs(2), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn server_whose_versions_expire_again_and_again_is_asked_less_and_less() {
    let heard = (0..8).map(|_| Err(expired())).collect();
    let after = told_after(heard, DefaultBackoff::default).await;
    let last = after.last().unwrap();
    assert!(*last >= Duration::from_secs(30), "{after:?}");
}

fn service(name: &str, ports: Value) -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": name, "resourceVersion": "9",
            "managedFields": [{"time": "-001-12-31T23:00:00Z"}],
        },
        "spec": {"ports": ports},
    })
}

/// Answers a request; a watch stays open.
async fn answer(mut stream: TcpStream, list: &str, lines: &str) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await.unwrap());
    }
    let request = String::from_utf8(request).unwrap();
    let is_watch = request.contains("watch=true");
    let body = if is_watch { lines } else { list };
    let end = if is_watch {
        String::new()
    } else {
        format!("Content-Length: {}\r\n", body.len())
    };
    let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{end}\r\n");
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .await
        .unwrap();
    if is_watch {
        std::future::pending::<()>().await;
    }
}

/// Returns a client of a server with these lists, one after the other, and then these lines of watches.
async fn client(lists: Vec<String>, lines: String) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let mut lists = lists.into_iter();
    tokio::spawn(async move {
        let mut list = String::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            list = lists.next().unwrap_or(list);
            let (list, lines) = (list.clone(), lines.clone());
            tokio::spawn(async move { answer(stream, &list, &lines).await });
        }
    });
    Client::try_from(kube::Config::new(server.parse().unwrap())).unwrap()
}

#[tokio::test]
async fn list_that_broke_off_counts_for_nothing() {
    let list = |names: &[&str]| {
        let items = names.iter().map(|name| service(name, json!([])));
        let items: Vec<Value> = items.collect();
        json!({"metadata": {"resourceVersion": "7"}, "items": items}).to_string()
    };
    let mut broken = list(&["a", "b"]);
    broken.truncate(broken.len() - 2);
    let client = client(vec![broken, list(&["c"])], String::new()).await;
    let events = list_watch_with::<Service, _>(Api::all(client), ListParams::default(), NO_PAUSE);
    let ends = events.filter_map(async |event| match event {
        Ok(Event::InitDone(names)) => Some(names),
        _ => None,
    });
    let names = pin!(ends).next().await.unwrap();
    assert_eq!(names, [ObjectName::new("shop", "c")].into());
}

#[tokio::test]
async fn object_that_cannot_be_read_is_told_as_such_among_the_others() {
    let (good, bad) = (json!([{"port": 80}]), json!("x"));
    let items = [
        service("a", good.clone()),
        service("b", bad.clone()),
        service("c", good.clone()),
    ];
    let list = json!({"metadata": {"resourceVersion": "7"}, "items": items}).to_string();
    let events = [
        json!({"type": "MODIFIED", "object": service("b", bad)}),
        json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}}),
        json!({"type": "ADDED", "object": service("d", good.clone())}),
        json!({"type": "DELETED", "object": service("a", good)}),
    ];
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    let client = client(vec![list], lines).await;
    let told = list_watch::<Service>(Api::all(client), ListParams::default()).take(9);
    let told = told.map(|heard| {
        let (what, shown) = match heard.unwrap() {
            Event::Init => return "init".to_owned(),
            Event::InitDone(names) => return format!("listed {}", names.len()),
            Event::Watching => return "watching".to_owned(),
            Event::InitApply(shown) => ("list", shown),
            Event::Apply(shown) => ("apply", shown),
            Event::Delete(name) => return format!("delete {name}"),
        };
        match shown {
            Ok(object) => format!("{what} {}", object.metadata.name.unwrap()),
            Err(bad) => format!("{what} {} bad: {}", bad.name, bad.reason),
        }
    });
    let told: Vec<String> = told.collect().await;
    let wrong = "spec.ports: invalid type: string \"x\", expected a sequence";
    let expected = [
        "init",
        "list a",
        &format!("list shop/b bad: {wrong}"),
        "list c",
        "listed 3",
        "watching",
        &format!("apply shop/b bad: {wrong}"),
        "apply d",
        "delete shop/a",
    ];
    assert_eq!(told, expected);
}
