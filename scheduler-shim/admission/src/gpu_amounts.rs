//! How many cards a pod counts for in KAI's statuses: requested and received.
//!
//! These amounts are in cards, for people and dashboards; decisions are made elsewhere, in bytes. KAI counts a pod that
//! shares several cards as one in what it received, and as several in what it requested. Here it is several both times.

use std::collections::BTreeMap;

use apportion_abi::names::LABEL_GPU_MEMORY as NVIDIA;

use crate::config_map::FRACTION;
use crate::names;
use crate::pod::Pod;
use apportion_kubernetes::{ParseQuantityError, Quantity};

/// Amounts by resource name.
pub type ResourceQuantities = BTreeMap<&'static str, Quantity>;

/// The prefix of the label whose key contains the memory of a node's AMD cards.
const AMD: &str = "beta.amd.com/gpu.vram";
/// AMD's label counts bytes; the result is in millions of bytes.
const MILLION: f64 = 1e6;

/// Why an amount cannot be computed.
#[expect(missing_docs, reason = "the message of each refusal names its fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuAmountError {
    /// The pod asks for no share.
    #[error("cannot calculate fraction because the pod doesn't a fraction or memory annotation")]
    NoShare,
    /// The node does not exist.
    #[error("failed extract node gpu memory for node {0} : nodes \"{0}\" not found")]
    NoNode(String),
    /// No label of the node says how much memory a card has.
    #[error(
        "failed to extract memory from gpu node nither nvidia not amd memory labels has been found for: {0}"
    )]
    NoLabel(String),
    /// Labels of two vendors do.
    #[error(
        "the node {0} has both nvidia and amd gpu labels. Such nodes aren't supported for fraction resource requests"
    )]
    BothLabels(String),
    /// A label's value is not an amount.
    #[error("failed to extract memory from the label {key}: {value}")]
    Label { key: String, value: String },
    /// An annotation's value is not an amount.
    #[error("failed to parse {key} annotation value <{value}>")]
    Annotation { key: &'static str, value: String },
    /// The result is not a valid quantity.
    #[error(transparent)]
    Quantity(#[from] ParseQuantityError),
}

/// A node's name and labels.
#[expect(missing_docs, reason = "the message of each refusal names its fields")]
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    pub name: &'a str,
    pub labels: &'a BTreeMap<String, String>,
}

/// What a pod requests.
///
/// # Errors
/// The first annotation whose value is not an amount.
pub fn requested(pod: &Pod) -> Result<ResourceQuantities, GpuAmountError> {
    let count = devices(pod)?;
    let mut amounts = ResourceQuantities::new();
    for (key, resource) in [
        (names::FRACTION, names::WHOLE),
        (names::MEMORY, names::STATUS_MEMORY),
    ] {
        if let Some(amount) = amount(pod, key)? {
            amounts.insert(resource, amount.times(count));
        }
    }
    Ok(amounts)
}

/// How many of the cards that it shares a pod received; empty for a pod that shares none.
///
/// # Errors
/// Why it cannot be computed.
pub fn received(pod: &Pod, node: Option<Node<'_>>) -> Result<ResourceQuantities, GpuAmountError> {
    if pod.annotation(names::RECEIVED) != Some(FRACTION) {
        return Ok(ResourceQuantities::new());
    }
    let of_each = allocated(pod, node)?;
    Ok([(names::WHOLE, of_each.times(devices(pod)?))].into())
}

/// The part of each of its cards that a pod received.
///
/// # Errors
/// Why it cannot be computed.
pub fn allocated(pod: &Pod, node: Option<Node<'_>>) -> Result<Quantity, GpuAmountError> {
    if let Some(fraction) = amount(pod, names::FRACTION)? {
        return Ok(fraction);
    }
    let memory = pod
        .annotation(names::MEMORY)
        .ok_or(GpuAmountError::NoShare)?;
    part_of(memory, &pod.spec.node_name, node)
}

/// The part of a node's card that this many MiB are.
///
/// # Errors
/// Why it cannot be computed.
pub fn part_of(
    memory: &str,
    name: &str,
    node: Option<Node<'_>>,
) -> Result<Quantity, GpuAmountError> {
    let mib: i64 = memory.parse().map_err(|_| GpuAmountError::Annotation {
        key: names::MEMORY,
        value: memory.to_owned(),
    })?;
    let node = node.ok_or_else(|| GpuAmountError::NoNode(name.to_owned()))?;
    let part = mib as f64 / card_memory(node)?;
    Ok(part.to_string().parse()?)
}

/// The memory of one card of a node.
///
/// # Errors
/// No label says it, or two do.
pub fn card_memory(node: Node<'_>) -> Result<f64, GpuAmountError> {
    match (nvidia_memory(node)?, amd_memory(node)?) {
        (Some(memory), None) | (None, Some(memory)) => Ok(memory),
        (None, None) => Err(GpuAmountError::NoLabel(node.name.to_owned())),
        (Some(_), Some(_)) => Err(GpuAmountError::BothLabels(node.name.to_owned())),
    }
}

/// The memory of one NVIDIA card of a node.
///
/// # Errors
/// The label's value is not an amount.
pub fn nvidia_memory(node: Node<'_>) -> Result<Option<f64>, GpuAmountError> {
    let Some(text) = node.labels.get(NVIDIA) else {
        return Ok(None);
    };
    let memory: i64 = text.parse().map_err(|_| GpuAmountError::Label {
        key: NVIDIA.to_owned(),
        value: text.clone(),
    })?;
    Ok(Some(memory as f64))
}

/// The memory of one AMD card of a node.
///
/// # Errors
/// The label's value is not an amount.
pub fn amd_memory(node: Node<'_>) -> Result<Option<f64>, GpuAmountError> {
    let labels = node.labels.keys().filter(|key| key.starts_with(AMD));
    for key in labels {
        let Some(start) = key.find(|c: char| c.is_ascii_digit()) else {
            continue;
        };
        let amount = key[start..].parse::<Quantity>().ok();
        let bytes = amount.and_then(Quantity::whole);
        return match bytes {
            Some(bytes) => Ok(Some(bytes as f64 / MILLION)),
            None => Err(GpuAmountError::Label {
                key: key.clone(),
                value: key[start..].to_owned(),
            }),
        };
    }
    Ok(None)
}

fn devices(pod: &Pod) -> Result<u64, GpuAmountError> {
    let Some(amount) = amount(pod, names::DEVICES)? else {
        return Ok(1);
    };
    let count = amount.whole().and_then(|count| u64::try_from(count).ok());
    count.ok_or_else(|| annotation(pod, names::DEVICES))
}

fn amount(pod: &Pod, key: &'static str) -> Result<Option<Quantity>, GpuAmountError> {
    let text = pod.annotation(key);
    let amount = text.map(str::parse).transpose();
    amount.map_err(|_| annotation(pod, key))
}

fn annotation(pod: &Pod, key: &'static str) -> GpuAmountError {
    GpuAmountError::Annotation {
        key,
        value: pod.annotation(key).unwrap_or_default().to_owned(),
    }
}
