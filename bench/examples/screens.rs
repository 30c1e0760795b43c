//! Times `guideway services` and `guideway backends` with as many rows as a large cluster has, and tells how much memory
//! each takes. A socket of this process answers in the place of an agent: `screens GUIDEWAY`.

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixListener,
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use serde_json::{Value, json};

const SERVICES: u32 = 10_000;
const ENDPOINTS: u32 = 250_000;

fn main() -> io::Result<()> {
    let guideway = env::args_os().nth(1).expect("the path of `guideway`");
    let socket = env::temp_dir().join(format!("guideway-screens-{}", std::process::id()));
    // From the smaller one to the larger one: what is told is the most of any so far.
    for (command, rows) in [
        ("services", (0..SERVICES).map(service).collect::<Vec<_>>()),
        ("backends", (0..ENDPOINTS).map(backend).collect()),
    ] {
        let listener = UnixListener::bind(&socket)?;
        let answer = format!("{}\n", json!({"ok": rows}));
        let number = rows.len();
        drop(rows);
        let (took, status) = thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept()?;
                BufReader::new(&stream).read_line(&mut String::new())?;
                stream.write_all(answer.as_bytes())
            });
            let begin = Instant::now();
            let mut asked = Command::new(&guideway);
            asked.arg(command).arg("--socket").arg(&socket);
            let status = asked.stdout(Stdio::null()).status();
            (begin.elapsed(), status)
        });
        std::fs::remove_file(&socket)?;
        println!(
            "{command}: {number} rows in {:.2} s, {} MiB, {}",
            took.as_secs_f64(),
            most_memory()? >> 10,
            status?
        );
    }
    Ok(())
}

fn service(number: u32) -> Value {
    json!({
        "name": format!("shop-{}/service-{number}:http", number % 100),
        "service": address(number, 443), "mode": "ipip", "traffic_policy": "cluster", "backends": 25, "slots": 2048,
        "packets": u64::from(number) * 7_000, "bytes": u64::from(number) * 900_000,
    })
}

fn backend(number: u32) -> Value {
    let service = number / 25;
    json!({
        "name": format!("shop-{}/service-{service}:http", service % 100),
        "service": address(service, 443),
        "backend": format!("10.{}.{}.{}:8443", number >> 16, number >> 8 & 255, number & 255),
        "node": format!("10.0.{}.{}", number % 2, number % 250),
        "weight": 1, "slots": 80, "table_size": 2048, "state": "resolved", "next_hop": "eth0",
        "mac": "52:54:00:12:34:56", "health": "healthy", "packets": u64::from(number) * 7, "bytes": number,
    })
}

fn address(service: u32, port: u16) -> String {
    format!("192.0.{}.{}:{port}/tcp", service / 250, service % 250)
}

/// The largest resident size of any child so far, in KiB.
fn most_memory() -> io::Result<i64> {
    // SAFETY: all-zero bytes are a valid value of this struct of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a struct of this type, which the call fills.
    match unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) } {
        0 => Ok(usage.ru_maxrss),
        _ => Err(io::Error::last_os_error()),
    }
}
