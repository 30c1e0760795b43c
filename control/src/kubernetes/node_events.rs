//! Publishes Events about this machine's Node: the programs are attached, or are not, or something is not in force.

use std::time::Duration;

use kube::api::ListParams;
use kube::runtime::events::{Event, EventType};
use kube::{Api, Client, Resource};
use tokio::time::sleep;

use super::events::{LONGEST, publish_as_agent};
use super::request_errors::{Purpose, RequestErrors};
use super::schema::NodeMetadata;
use crate::chain::chain;
use crate::healthz::{MachineState, Reports};

/// How long a state must last: a device that has just come is without its program for a moment.
const SETTLE: Duration = Duration::from_secs(5);
/// Shortest time between two Events.
const PACE: Duration = Duration::from_secs(60);

/// Publishes each state that lasts and differs from the last one, for ever.
pub(super) async fn publish(
    client: Client,
    node_name: String,
    reports: Reports,
    request_errors: RequestErrors,
) {
    let mut states = reports.follow_machine_state();
    let mut told = None;
    loop {
        sleep(SETTLE).await;
        let state = states.borrow_and_update().clone();
        if let Some(state) = state.filter(|state| told.as_ref() != Some(state)) {
            // An Event that cannot be published is not repeated: nothing depends on it.
            let outcome = tell(&client, &node_name, &state).await;
            request_errors.take(Purpose::Event, outcome.map_err(|error| chain(&error)));
            told = Some(state);
            sleep(PACE).await;
        }
        if states.changed().await.is_err() {
            return;
        }
    }
}

async fn tell(client: &Client, node_name: &str, state: &MachineState) -> kube::Result<()> {
    // Agents may list Nodes, and need no right to get one.
    let own = ListParams::default().fields(&format!("metadata.name={node_name}"));
    let nodes: Api<NodeMetadata> = Api::all(client.clone());
    let Some(node) = nodes.list(&own).await?.items.pop() else {
        // An edge outside the cluster.
        return Ok(());
    };
    let event = Event {
        type_: if state.is_warning {
            EventType::Warning
        } else {
            EventType::Normal
        },
        reason: state.reason.to_owned(),
        note: Some(state.text.chars().take(LONGEST).collect()),
        action: "Attach".to_owned(),
        secondary: None,
    };
    publish_as_agent(client, node_name, &event, &node.object_ref(&())).await
}
