//! What a stand-in writes to the API server: its node's `GpuNode` and the node's allocatable resources, in the form and
//! as often as an agent does. So the API server and the scheduler have that work, too.

use apportion_abi::names::{HEARTBEAT, NODE_CHECK, PACE, RESOURCE_MEMORY, RESOURCE_MEMORY_FREE};
use apportion_crds::{CardHealth, GpuCard, GpuHolder, GpuNode, GpuNodeStatus};
use apportion_proto::v1;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{GetParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, interval_at, sleep, timeout_at};

/// The field manager of an agent.
const FIELD_MANAGER: &str = "apportion-agent";

/// Publishes the state of one node.
#[derive(Clone, Debug)]
pub(crate) struct NodePublisher {
    node: String,
    nodes: Api<Node>,
    gpu_nodes: Api<GpuNode>,
    since: Timestamp,
}

impl NodePublisher {
    pub(crate) fn new(client: Client, node: String) -> Self {
        Self {
            node,
            nodes: Api::all(client.clone()),
            gpu_nodes: Api::all(client),
            since: Timestamp::now(),
        }
    }

    /// Creates the object and writes the current state.
    pub(crate) async fn begin(&self, list: &v1::ListReply) -> Result<(), kube::Error> {
        let object = GpuNode::new(&self.node, Default::default());
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let (node, patch) = (&self.node, Patch::Apply(&object));
        self.gpu_nodes.patch(node, &parameters, &patch).await?;
        self.write(list).await
    }

    /// Writes soon after each change and at every heartbeat, and reads the node now and then. `part` of each period is
    /// over.
    pub(crate) async fn keep(self, mut list: watch::Receiver<v1::ListReply>, part: f64) {
        let begun = Instant::now();
        let mut due = begun + HEARTBEAT.mul_f64(1.0 - part);
        let first_check = begun + NODE_CHECK.mul_f64(1.0 - part);
        let mut check = interval_at(first_check, NODE_CHECK);
        loop {
            tokio::select! {
                changed = timeout_at(due, list.changed()) => if let Ok(Err(_)) = changed {
                    return;
                },
                _ = check.tick() => {
                    let _ = self.nodes.get_with(&self.node, &GetParams::any()).await;
                    continue;
                }
            }
            let now = list.borrow_and_update().clone();
            // The API server may be shutting down.
            let _ = self.write(&now).await;
            sleep(PACE).await;
            due = Instant::now() + HEARTBEAT;
        }
    }

    async fn write(&self, list: &v1::ListReply) -> Result<(), kube::Error> {
        let applied = GpuNode {
            status: Some(self.status(list)),
            ..GpuNode::new(&self.node, Default::default())
        };
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let (node, patch) = (&self.node, Patch::Apply(&applied));
        self.gpu_nodes
            .patch_status(node, &parameters, &patch)
            .await?;
        let mib = |of: fn(&v1::Card) -> u64| {
            let bytes: u64 = list.cards.iter().map(of).sum();
            (bytes >> 20).to_string()
        };
        let numbers = json!({RESOURCE_MEMORY: mib(|card| card.allocatable_bytes),
            RESOURCE_MEMORY_FREE: mib(|card| card.free_bytes)});
        let numbers = json!({"status": {"capacity": numbers, "allocatable": numbers}});
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(numbers));
        self.nodes.patch_status(node, &parameters, &patch).await?;
        Ok(())
    }

    fn status(&self, list: &v1::ListReply) -> GpuNodeStatus {
        let ready = Condition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            reason: "AgentReady".to_owned(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(self.since),
        };
        GpuNodeStatus {
            agent_version: "stand-in".to_owned(),
            driver_version: "580.105.08".to_owned(),
            last_heartbeat_time: Some(Time(Timestamp::now())),
            simulated: true,
            cards: list
                .cards
                .iter()
                .map(|card| card_status(list, card))
                .collect(),
            conditions: vec![ready],
            ..GpuNodeStatus::default()
        }
    }
}

fn card_status(list: &v1::ListReply, card: &v1::Card) -> GpuCard {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let holders = list.allocations.iter().flat_map(|allocation| {
        let own = allocation
            .grants
            .iter()
            .filter(|grant| grant.card == card.uuid);
        own.map(|grant| GpuHolder {
            namespace: None,
            pod: None,
            container: allocation.name.clone(),
            limit_bytes: signed(grant.limit_bytes),
            guaranteed_bytes: None,
            suspended: false,
            idle: false,
        })
    });
    GpuCard {
        uuid: card.uuid.clone(),
        model: card.model.clone(),
        index: i64::from(card.index),
        memory_bytes: signed(card.total_bytes),
        allocatable_bytes: signed(card.allocatable_bytes),
        allocated_bytes: signed(card.granted_bytes),
        free_bytes: signed(card.free_bytes),
        health: CardHealth::Healthy,
        holders: holders.collect(),
        ..GpuCard::default()
    }
}
