//! Serves `/healthz`, `/livez` and `/readyz` about the machine as a whole.
//!
//! `/healthz` is for load balancers in front. It also fails while the Node is about to be removed. A liveness
//! probe there would restart the agent of a node that drains, so `/livez` ignores the Node.

use std::time::Instant;

use hyper::StatusCode;
use hyper::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use tokio::net::TcpListener;

use super::Reports;
use super::machine_health::MachineHealth;
use crate::http::{self, Answer};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
}

/// Serves until the task is dropped.
pub async fn serve(listener: TcpListener, reports: Reports) {
    http::serve_pages(listener, move |path| {
        let response = answer(
            &path,
            &reports.machine_health(),
            Instant::now(),
            Timestamp::now(),
        );
        std::future::ready(response)
    })
    .await;
}

fn answer(path: &str, machine_health: &MachineHealth, now: Instant, time: Timestamp) -> Answer {
    let is_healthy = machine_health.is_healthy(now);
    let body = |node_eligible| Body {
        last_updated: time
            .checked_sub(machine_health.age(now))
            .unwrap_or(time)
            .to_string(),
        current_time: time.to_string(),
        node_eligible,
    };
    match path {
        "/healthz" => {
            let is_eligible = machine_health.is_eligible();
            json(is_healthy && is_eligible, &body(Some(is_eligible)))
        }
        "/livez" => json(is_healthy, &body(None)),
        "/readyz" => http::ok_unless(&machine_health.missing()),
        _ => http::text(StatusCode::NOT_FOUND, "try /healthz, /livez or /readyz\n"),
    }
}

fn json(is_fine: bool, body: &Body) -> Answer {
    json_answer(is_fine, serde_json::to_vec(body).unwrap_or_default())
}

/// Answers as kube-proxy does: 200 or 503 with JSON. A header forbids browsers to guess another type.
pub(super) fn json_answer(is_fine: bool, body: Vec<u8>) -> Answer {
    let status = if is_fine {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let answer = http::body(status, HeaderValue::from_static("application/json"), body);
    let nosniff = HeaderValue::from_static("nosniff");
    http::with_header(answer, X_CONTENT_TYPE_OPTIONS, nosniff)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::super::machine_health::HEALTH_TIMEOUT;
    use super::*;
    use crate::http::testing::{body_of, get, send, serving};

    /// A machine that is synced, began a while ago, and of which more is told.
    fn machine(tell: impl FnOnce(&mut MachineHealth, Instant)) -> std::net::SocketAddr {
        let now = Instant::now();
        let began = now.checked_sub(2 * HEALTH_TIMEOUT).unwrap();
        let reports = Reports::new(began);
        {
            let mut machine_health = reports.machine_health();
            machine_health.pass(began, began);
            machine_health.take();
            machine_health.finish(began);
            tell(&mut machine_health, now);
        }
        serving(move |listener| serve(listener, reports))
    }

    fn late(machine_health: &mut MachineHealth, now: Instant) {
        let late = now.checked_sub(HEALTH_TIMEOUT + Duration::from_secs(1));
        machine_health.gather(late);
    }

    fn status(response: &str) -> &str {
        response.split(' ').nth(1).unwrap()
    }

    #[test]
    fn healthy_machine_passes_everything() {
        let address = machine(|_, _| {});
        for path in ["/healthz", "/livez", "/readyz"] {
            let response = get(address, path);
            assert_eq!(status(&response), "200", "{path}: {response}");
        }
        let response = get(address, "/healthz");
        for header in [
            "content-type: application/json\r\n",
            "x-content-type-options: nosniff\r\n",
        ] {
            assert!(response.contains(header), "{response}");
        }
        let body: Value = serde_json::from_str(body_of(&response)).unwrap();
        assert_eq!(body["nodeEligible"], true);
        assert_eq!(body["lastUpdated"], body["currentTime"]);
    }

    #[test]
    fn late_change_fails_health_and_liveness_with_the_time_of_the_last_update() {
        let address = machine(late);
        for path in ["/healthz", "/livez"] {
            let response = get(address, path);
            assert_eq!(status(&response), "503", "{path}: {response}");
            let body: Value = serde_json::from_str(body_of(&response)).unwrap();
            let time = |name: &str| body[name].as_str().unwrap().parse::<Timestamp>().unwrap();
            let age = time("currentTime").duration_since(time("lastUpdated"));
            assert!((120..150).contains(&age.as_secs()), "{body}");
        }
        assert_eq!(status(&get(address, "/readyz")), "200");
    }

    #[test]
    fn node_about_to_go_fails_health_but_not_liveness() {
        let address = machine(|machine_health, _| machine_health.set_leaving(Some(true)));
        let response = get(address, "/healthz");
        assert_eq!(status(&response), "503");
        assert!(response.contains("\"nodeEligible\":false"), "{response}");
        let response = get(address, "/livez");
        assert_eq!(status(&response), "200");
        assert!(!response.contains("nodeEligible"), "{response}");
    }

    #[test]
    fn missing_program_fails_readiness_only_and_is_named() {
        let missing = "no XDP program on eth0";
        let address =
            machine(|machine_health, _| machine_health.set_unattached(vec![missing.to_owned()]));
        let response = get(address, "/readyz");
        assert_eq!(status(&response), "503");
        assert!(response.contains(missing), "{response}");
        assert_eq!(status(&get(address, "/healthz")), "200");
        assert_eq!(status(&get(address, "/livez")), "200");
    }

    #[test]
    fn other_requests_are_refused() {
        let address = machine(|_, _| {});
        assert_eq!(status(&get(address, "/metrics")), "404");
        let post = send(address, "POST /livez HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(status(&post), "405");
        let head = send(address, "HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!((status(&head), body_of(&head)), ("200", ""));
        assert_eq!(status(&send(address, "nonsense\r\n\r\n")), "400");
    }
}
