//! Writes the `GpuNode`, its status, and the node's extended resources.
//!
//! The object is written by server-side apply under the agent's own field manager, so fields of others stay. It is
//! owned by the node, whose UID must be read first. The resources are written as capacity too, because the kubelet
//! derives allocatable from capacity and would undo anything else. Two of them are for people: no pod may request
//! them, and the chart's admission policy enforces that. The other two count shares.

use std::collections::BTreeMap;

use apportion_abi::SHARE_UNIT;
use apportion_abi::names::{
    RESOURCE_MEMORY, RESOURCE_MEMORY_FREE, RESOURCE_SHARE_MIB, RESOURCE_SHARE_MICRO,
};
use apportion_crds::{GpuNode, GpuNodeStatus};
use apportion_kubernetes::Quantity as ParsedQuantity;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{GetParams, Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};

/// The field manager of the agent.
const FIELD_MANAGER: &str = "apportion-agent";
const MIB: i64 = 1 << 20;
const MILLION: u64 = 1_000_000;
/// How many millionths the webhook subtracts from the request of a share.
const ROUNDING: u64 = 125;
/// The number of shares on a node whose rounding is compensated: the default number of slots.
const SHARES: u64 = 128;

/// Writes the node's state.
pub(super) struct GpuNodePublisher {
    node: String,
    nodes: Api<Node>,
    gpu_nodes: Api<GpuNode>,
    /// The conditions as last written; `None` until the object was read or created.
    known: Option<Vec<Condition>>,
}

impl GpuNodePublisher {
    pub(super) fn new(client: Client, node: String) -> Self {
        Self {
            node,
            nodes: Api::all(client.clone()),
            gpu_nodes: Api::all(client),
            known: None,
        }
    }

    /// Writes everything. After a failure the object is created or read again the next time.
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
        self.write_resources(&extended_resources(wanted)).await?;
        self.known = Some(conditions);
        Ok(())
    }

    async fn write_resources(&self, resources: &Value) -> Result<(), kube::Error> {
        let patch =
            Patch::Merge(json!({"status": {"capacity": resources, "allocatable": resources}}));
        self.nodes
            .patch_status(&self.node, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Writes the node's extended resources if it has others. Returns whether it had.
    pub(super) async fn restore_resources(
        &self,
        wanted: &GpuNodeStatus,
    ) -> Result<bool, kube::Error> {
        let resources = extended_resources(wanted);
        let cached = self.nodes.get_with(&self.node, &GetParams::any()).await?;
        let status = cached.status.unwrap_or_default();
        let shown = [status.capacity, status.allocatable];
        let mut shown = shown.iter().map(Option::as_ref);
        let is_shown = shown.all(|shown| has_all(shown, &resources));
        if !is_shown {
            self.write_resources(&resources).await?;
        }
        Ok(!is_shown)
    }

    /// Writes only if an earlier agent has created the object.
    pub(super) async fn write_if_known(
        &mut self,
        wanted: &GpuNodeStatus,
    ) -> Result<(), kube::Error> {
        match self.gpu_nodes.get_opt(&self.node).await? {
            Some(_) => self.write(wanted).await,
            None => Ok(()),
        }
    }

    /// Creates the object if it does not exist. Returns its conditions.
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

/// The transition time of a condition: unchanged if its status is, else now.
fn since(condition: &Condition, known: &[Condition]) -> Time {
    let same = known
        .iter()
        .find(|known| known.type_ == condition.type_ && known.status == condition.status);
    same.map_or_else(
        || Time(Timestamp::now()),
        |known| known.last_transition_time.clone(),
    )
}

fn extended_resources(status: &GpuNodeStatus) -> Value {
    let mib = |of: fn(&apportion_crds::GpuCard) -> i64| {
        let bytes: i64 = status.cards.iter().map(of).sum();
        (bytes / MIB).to_string()
    };
    let mut resources = json!({
        RESOURCE_MEMORY: mib(|card| card.allocatable_bytes),
        RESOURCE_MEMORY_FREE: mib(|card| card.free_bytes),
    });
    // The requests of running pods must still fit when a restarted kubelet admits them again. So cards that are
    // unused or unhealthy count, too, and known numbers are never set back to zero.
    if let Some(micro) = micro(status) {
        resources[RESOURCE_SHARE_MIB] = resources[RESOURCE_MEMORY].clone();
        resources[RESOURCE_SHARE_MICRO] = micro.to_string().into();
    }
    resources
}

/// Whether a node shows all these resources. The API server writes large numbers in its own way, 2000000 as 2M.
fn has_all(shown: Option<&BTreeMap<String, Quantity>>, resources: &Value) -> bool {
    let whole = |text: &str| text.parse().ok().and_then(ParsedQuantity::whole);
    let mut resources = resources.as_object().into_iter().flatten();
    resources.all(|(resource, number)| {
        let shown = shown.and_then(|shown| whole(&shown.get(resource)?.0));
        shown.is_some() && shown == number.as_str().and_then(whole)
    })
}

/// The millionths of cards that pods of a node can request: a million for each card. Rounding down to whole units
/// makes a share smaller, so that more shares fit than the fractions say. Each request is smaller by [`ROUNDING`]
/// for that. On a card so small that rounding costs more, the node offers the difference. So the kubelet admits
/// every pod that the ledger has room for.
fn micro(status: &GpuNodeStatus) -> Option<u64> {
    let sizes = status
        .cards
        .iter()
        .filter_map(|card| u64::try_from(card.allocatable_bytes).ok());
    let smallest = sizes.filter(|bytes| *bytes > 0).min()?;
    let cards = u64::try_from(status.cards.len()).ok()?;
    let lost = (SHARE_UNIT * MILLION).div_ceil(smallest);
    Some(cards * MILLION + SHARES * lost.saturating_sub(ROUNDING))
}

#[cfg(test)]
mod tests {
    use apportion_abi::{Bytes, CardCapacity, GpuFraction, Share};
    use apportion_crds::GpuCard;

    use super::*;

    fn status(sizes: &[i64]) -> GpuNodeStatus {
        GpuNodeStatus {
            cards: sizes
                .iter()
                .map(|mib| GpuCard {
                    allocatable_bytes: mib * MIB,
                    ..GpuCard::default()
                })
                .collect(),
            ..GpuNodeStatus::default()
        }
    }

    #[test]
    fn what_pods_request_that_run_is_never_taken_back() {
        let nothing = extended_resources(&status(&[]));
        assert_eq!(nothing[RESOURCE_MEMORY], "0");
        assert!(nothing.get(RESOURCE_SHARE_MIB).is_none(), "{nothing}");
        assert!(nothing.get(RESOURCE_SHARE_MICRO).is_none(), "{nothing}");
        let two = extended_resources(&status(&[81_152, 81_152]));
        assert_eq!(two[RESOURCE_SHARE_MIB], "162304");
        assert_eq!(two[RESOURCE_SHARE_MICRO], "2000000");
    }

    #[test]
    fn the_kubelet_takes_whatever_the_ledger_has_room_for() {
        let mut state = 7_u64;
        let mut any = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        let mut most = 0;
        for _ in 0..2000 {
            let size = 1024 + any(100_000);
            // With equal shares or different ones: rounding losses add up if all shares lose the same.
            let (alike, spread) = (1 + any(300), any(2) * 20);
            let capacity = CardCapacity {
                total: Bytes::from_mib(size),
                reserved: Bytes::ZERO,
            };
            let (mut free, mut requested, mut sum) = (capacity.total.0, 0, 0);
            for _ in 0..SHARES {
                let part = (alike + any(1 + spread)) * 1_000_000;
                let fraction: GpuFraction = format!("0.{part:09}").parse().unwrap();
                let bytes = Share::Fraction(fraction).bytes_of(capacity).0;
                if bytes > 0 && bytes <= free {
                    free -= bytes;
                    let millionths = u64::from(fraction.parts_per_billion() / 1000);
                    requested += millionths.saturating_sub(ROUNDING);
                    sum += millionths;
                }
            }
            let size = i64::try_from(size).unwrap();
            assert!(requested <= micro(&status(&[size])).unwrap(), "{size}");
            most = most.max(sum);
        }
        assert!(most > MILLION, "rounding gave nobody more: {most}");
    }
}
