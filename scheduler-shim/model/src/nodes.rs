//! Turns Node objects into the policy's nodes: what they have, and whether they take pods.
//!
//! What pods of other schedulers hold is subtracted by `snapshot`. The device plugin's count of cards takes
//! precedence over the label, because it leaves out broken cards.

use std::collections::BTreeMap;
use std::sync::Arc;

use apportion_abi::Bytes;
use apportion_abi::names::{
    LABEL_GPU_COUNT as COUNT, LABEL_GPU_MEMORY as MEMORY, LABEL_MIG_STRATEGY as MIG,
    RESOURCE_PARTITION as PARTITION, RESOURCE_WHOLE,
};
use apportion_groups::ObjectView;
use apportion_kubernetes::Quantity;
use apportion_policy::cluster::{LabelMap, MigStrategy, Node};
use serde_json::{Value, json};

use super::labels::{HOSTNAME, texts};
use super::object_warnings::{ObjectWarnings, called};
use super::requests::WHOLE;

/// The field of a node's status that keeps its own count of `nvidia.com/gpu` where an agent's count takes its place. No
/// API server has such a field.
pub(crate) const BY_DEVICE_PLUGIN: &str = " by-device-plugin";

/// From this label value on, memory is in bytes and not in MiB.
const IN_BYTES: f64 = 1_099_511_627_776.0;
/// The size of cards of unknown size: fractions work on them, amounts of memory do not.
const UNKNOWN: Bytes = Bytes::from_mib(100);
/// How many pods a kubelet runs if it does not say.
const PODS: i64 = 110;

/// A node with nothing subtracted. The warnings apply only if its cards are not listed elsewhere.
pub(crate) fn node(object: ObjectView<'_>, warnings: &mut ObjectWarnings) -> Node {
    let amount = |resource: &str| {
        let status = &object.json()["status"];
        let of = |kind: &str| {
            Quantity::from_json(&status[kind][resource]).filter(|amount| !amount.is_negative())
        };
        of("allocatable").or_else(|| of("capacity"))
    };
    let counted: Vec<Quantity> = WHOLE.iter().filter_map(|name| amount(name)).collect();
    let cards = if counted.is_empty() {
        let labelled = object
            .label(COUNT)
            .and_then(|count| count.parse::<i64>().ok());
        labelled.unwrap_or(0).max(0)
    } else {
        counted.into_iter().sum::<Quantity>().units()
    };
    let memory = object.label(MEMORY).and_then(card_memory);
    if cards > 0 && memory.is_none() {
        let given = object.label(MEMORY).unwrap_or("not set");
        warnings.add(
            called("Node", "", object.name()),
            format!("its label {MEMORY} is {given}, so gpu-memory requests cannot be placed on its {cards} GPUs"),
        );
    }
    Node {
        name: object.name().to_owned(),
        cpu_millis: amount("cpu").unwrap_or_default().millis(),
        memory: amount("memory").unwrap_or_default().units(),
        pods: amount("pods").map_or(PODS, Quantity::units),
        cards,
        card_memory: memory.unwrap_or(UNKNOWN),
        mig: match object.label(MIG) {
            Some("mixed") => Some(MigStrategy::Mixed),
            Some("single") => Some(MigStrategy::Single),
            _ => None,
        },
        partitions: partitions(object),
        labels: Arc::new(labels(object)),
        ..Node::default()
    }
}

/// Whether a node has an extended resource by a device plugin.
pub(crate) fn offers(object: ObjectView<'_>, resource: &str) -> bool {
    let status = &object.json()["status"];
    let amount = match &status[BY_DEVICE_PLUGIN] {
        own if resource == RESOURCE_WHOLE && !own.is_null() => own,
        _ => &status["allocatable"][resource],
    };
    Quantity::from_json(amount).is_some_and(|amount| amount > Quantity::ZERO)
}

/// Keeps a node's own count of `nvidia.com/gpu`, before an agent's count takes its place.
pub fn keep_own_cards(node: &mut Value) {
    let status = &mut node["status"];
    if status[BY_DEVICE_PLUGIN].is_null() {
        let own = status["allocatable"][RESOURCE_WHOLE].clone();
        status[BY_DEVICE_PLUGIN] = if own.is_null() { json!("0") } else { own };
    }
}

fn card_memory(text: &str) -> Option<Bytes> {
    let amount: f64 = text.parse().ok().filter(|amount| *amount > 0.0)?;
    if amount >= IN_BYTES {
        return Some(Bytes(amount as u64));
    }
    Some(Bytes::from_mib(amount as u64))
}

fn partitions(object: ObjectView<'_>) -> BTreeMap<String, i64> {
    let given = object.json()["status"]["allocatable"].as_object();
    let entries = given.into_iter().flatten();
    entries
        .filter(|(name, _)| name.starts_with(PARTITION))
        .filter_map(|(name, value)| Some((name.clone(), Quantity::from_json(value)?.units())))
        .collect()
}

fn labels(object: ObjectView<'_>) -> LabelMap {
    let mut labels = texts(&object.json()["metadata"]["labels"]);
    labels
        .entry(HOSTNAME.to_owned())
        .or_insert_with(|| object.name().to_owned());
    labels.into_iter().collect()
}

/// Why a node takes no pods, if so.
pub(crate) fn closed(object: ObjectView<'_>) -> Option<&'static str> {
    let json = object.json();
    let conditions = json["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    if json["spec"]["unschedulable"] == true {
        return Some("is cordoned");
    }
    ready
        .any(|condition| condition["status"] != "True")
        .then_some("is not ready")
}
