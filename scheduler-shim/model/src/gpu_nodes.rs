//! `GpuNode` objects: the agents' reports about cards, for a cluster in files.
//!
//! A running scheduler asks the agents for their cards, and uses these objects only for addresses and heartbeats. Its
//! snapshot has them with the current cards.

use std::collections::BTreeSet;

use apportion_abi::{Bytes, OvercommitFactor};
use apportion_groups::ObjectView;
use apportion_policy::Cluster;
use apportion_policy::cluster::ListedCard;
use serde_json::Value;

use super::cards::{CardInventory, ForeignHolding, ForeignHoldings, add_strangers, written};
use super::inventory::ObjectInventory;
use super::object_kinds::GPU_NODE;
use super::pods;

/// The cards that the objects and the pods name.
pub fn known(inventory: &ObjectInventory) -> CardInventory {
    let mut known = CardInventory::default();
    for object in inventory.all(GPU_NODE.1) {
        let listed = cards(object).map(listed).collect();
        known.listed.insert(object.name().to_owned(), listed);
        if let Some(factor) = overcommit(object) {
            known.overcommit.insert(object.name().to_owned(), factor);
        }
        for card in cards(object) {
            for pod in holders(card).filter_map(pod) {
                let on = known.on.entry(pod).or_default();
                on.extend(card["uuid"].as_str().map(str::to_owned));
            }
        }
    }
    for pod in inventory.all("Pod") {
        let on = written(pod).into_iter().flatten();
        let on: Vec<String> = on.map(|share| share.card).collect();
        if !on.is_empty() {
            known.on.insert(pods::name(pod), on);
        }
    }
    known
}

/// Adds what the objects say is held by others than the pods of the cluster.
pub fn enter_strangers(inventory: &ObjectInventory, cluster: &mut Cluster) {
    let tasks = cluster.jobs.iter().flat_map(|job| &job.tasks);
    let here = tasks.filter(|task| task.status.is_active());
    let here: BTreeSet<String> = here.map(|task| task.name.clone()).collect();
    for object in inventory.all(GPU_NODE.1) {
        let mut held = ForeignHoldings::new();
        for card in cards(object) {
            let name = card["uuid"].as_str().unwrap_or_default();
            let mut nodes = cluster.nodes.iter();
            let node = nodes.find(|node| node.name == object.name());
            let is_left = node.is_some_and(|node| node.listed.iter().any(|one| one.name == name));
            let strange = holders(card).filter(|holder| {
                let pod = pod(holder);
                pod.is_none_or(|pod| !here.contains(&pod))
            });
            let mut holding = ForeignHolding {
                bytes: bytes(&card["unmanagedBytes"]),
                limits: Bytes::ZERO,
            };
            for holder in strange {
                holding.add(guaranteed(holder), bytes(&holder["limitBytes"]));
            }
            if holding.bytes > Bytes::ZERO && is_left {
                held.insert((name, false), holding);
            }
        }
        if !held.is_empty() {
            add_strangers(cluster, object.name(), held);
        }
    }
}

fn overcommit(object: ObjectView<'_>) -> Option<OvercommitFactor> {
    let percent = object.json()["status"]["overcommitPercent"].as_u64()?;
    OvercommitFactor::from_hundredths(u32::try_from(percent).ok()?)
}

fn cards(object: ObjectView<'_>) -> impl Iterator<Item = &Value> {
    let cards = object.json()["status"]["cards"].as_array();
    cards.into_iter().flatten()
}

fn holders(card: &Value) -> impl Iterator<Item = &Value> {
    card["holders"].as_array().into_iter().flatten()
}

/// Namespace and name of the pod that holds a share; `None` if it is no pod.
fn pod(holder: &Value) -> Option<String> {
    let text = |field: &str| holder[field].as_str();
    Some(format!("{}/{}", text("namespace")?, text("pod")?))
}

/// What a holder is guaranteed. An agent only says it where it is less than the limit.
fn guaranteed(holder: &Value) -> Bytes {
    match &holder["guaranteedBytes"] {
        Value::Null => bytes(&holder["limitBytes"]),
        guaranteed => bytes(guaranteed),
    }
}

fn listed(card: &Value) -> ListedCard {
    ListedCard {
        name: card["uuid"].as_str().unwrap_or_default().to_owned(),
        memory: bytes(&card["allocatableBytes"]),
        is_healthy: card["health"] == "Healthy",
    }
}

fn bytes(value: &Value) -> Bytes {
    Bytes(value.as_u64().unwrap_or(0))
}
