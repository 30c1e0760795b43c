//! Runs nginx, a real web server, with one page on a machine.

use std::{fmt::Write as _, net::SocketAddr, time::Duration};

use crate::{Machine, Namespace, Process, Result, output, wait_for};

const READY_TIMEOUT: Duration = Duration::from_secs(120);
const PAGE: &str = "index.html";

/// Starts nginx on a machine and waits until it answers at all addresses.
///
/// # Errors
///
/// [`crate::Error::Start`] when there is no `nginx` or `curl`, [`crate::Error::Ended`] when nginx does not start.
pub fn serve_page(machine: &Machine, addresses: &[SocketAddr], page: &str) -> Result<Process> {
    let namespace = machine.namespace();
    namespace.write_file(PAGE, page)?;
    let config = namespace.write_file("nginx.conf", config(addresses))?;
    let mut command = namespace.command("nginx");
    command.args(["-e", "stderr", "-c"]).arg(config);
    let mut server = Process::spawn(&mut command)?;
    for address in addresses {
        let url = format!("http://{address}/");
        wait_for(&format!("nginx answers at {url}"), READY_TIMEOUT, || {
            if let Err(ended) = server.expect_running("answering") {
                return Ok(Err(ended));
            }
            let mut curl = namespace.command("curl");
            output(curl.args(["-sSf", "--max-time", "5", "-o", "/dev/null", &url])).map(Ok)
        })??;
    }
    Ok(server)
}

/// Returns the configuration. All files that nginx writes are in the machine's directory.
fn config(addresses: &[SocketAddr]) -> String {
    let own = Namespace::FILES;
    let mut listen = String::new();
    for address in addresses {
        // Writing to a string cannot fail.
        let _ = writeln!(listen, "    listen {address};");
    }
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {own}/nginx-{kind};\n"))
        .concat();
    format!(
        "daemon off;
pid {own}/nginx.pid;
error_log stderr warn;
worker_processes 1;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  keepalive_requests 1000000;
{temporary}  server {{
{listen}    root {own};
  }}
}}
"
    )
}
