//! The three writes: the `GpuNode` itself, its status, and two numbers on the node.
//!
//! The object is applied on the server's side under the agent's own name, so that what others add to it
//! stays. It is owned by the node, which is read for its UID. The numbers are capacities, because the
//! kubelet derives what can be allocated from them and would undo anything else; no pod is to ask for
//! them, and the chart's admission policy sees to that.

use apportion_abi::names::{RESOURCE_MEMORY, RESOURCE_MEMORY_FREE};
use apportion_crds::{GpuNode, GpuNodeStatus};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};

/// Under which name the agent applies.
const FIELD_MANAGER: &str = "apportion-agent";
const MIB: i64 = 1 << 20;

/// Where the node's state is published.
pub(super) struct Remote {
    node: String,
    nodes: Api<Node>,
    gpu_nodes: Api<GpuNode>,
    /// The conditions as last written; `None` until the object was found or made.
    known: Option<Vec<Condition>>,
}

impl Remote {
    pub(super) fn new(client: Client, node: String) -> Self {
        Self {
            node,
            nodes: Api::all(client.clone()),
            gpu_nodes: Api::all(client),
            known: None,
        }
    }

    /// Writes all three. What fails is made anew the next time.
    pub(super) async fn write(&mut self, wanted: &GpuNodeStatus) -> Result<(), kube::Error> {
        let known = match self.known.take() {
            Some(known) => known,
            None => self.make().await?,
        };
        let mut status = wanted.clone();
        status.last_heartbeat_time = Some(Time(Timestamp::now()));
        for condition in &mut status.conditions {
            condition.last_transition_time = since(condition, &known);
        }
        let conditions = status.conditions.clone();
        let applied = GpuNode {
            status: Some(status),
            ..GpuNode::new(&self.node, Default::default())
        };
        let params = PatchParams::apply(FIELD_MANAGER).force();
        self.gpu_nodes
            .patch_status(&self.node, &params, &Patch::Apply(&applied))
            .await?;
        let numbers = Patch::Merge(numbers(wanted));
        self.nodes
            .patch_status(&self.node, &PatchParams::default(), &numbers)
            .await?;
        self.known = Some(conditions);
        Ok(())
    }

    /// Writes where an earlier agent has made the object.
    pub(super) async fn write_if_known(
        &mut self,
        wanted: &GpuNodeStatus,
    ) -> Result<(), kube::Error> {
        match self.gpu_nodes.get_opt(&self.node).await? {
            Some(_) => self.write(wanted).await,
            None => Ok(()),
        }
    }

    /// Makes the object if it is not there, and says which conditions it has.
    async fn make(&self) -> Result<Vec<Condition>, kube::Error> {
        let node = self.nodes.get(&self.node).await?;
        let mut object = GpuNode::new(&self.node, Default::default());
        object.meta_mut().owner_references = Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            ..OwnerReference::default()
        }]);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let made = self
            .gpu_nodes
            .patch(&self.node, &params, &Patch::Apply(&object))
            .await?;
        Ok(made.status.unwrap_or_default().conditions)
    }
}

/// Since when a condition holds: since it changed, or since now.
fn since(condition: &Condition, known: &[Condition]) -> Time {
    let same = known
        .iter()
        .find(|known| known.type_ == condition.type_ && known.status == condition.status);
    same.map_or_else(
        || Time(Timestamp::now()),
        |known| known.last_transition_time.clone(),
    )
}

fn numbers(status: &GpuNodeStatus) -> Value {
    let mib = |of: fn(&apportion_crds::GpuCard) -> i64| {
        let bytes: i64 = status.cards.iter().map(of).sum();
        (bytes / MIB).to_string()
    };
    let numbers = json!({
        RESOURCE_MEMORY: mib(|card| card.allocatable_bytes),
        RESOURCE_MEMORY_FREE: mib(|card| card.free_bytes),
    });
    json!({ "status": { "capacity": numbers, "allocatable": numbers } })
}
