//! How many cards a pod counts for in KAI's statuses: what it asked for, and what it was given.
//!
//! These are amounts for people and dashboards, in cards; what is decided is decided in bytes elsewhere. KAI counts
//! a pod that shares several cards as one when it says what was given, and as several when it says what was
//! asked; here it is several both times.

use std::collections::BTreeMap;

use apportion_abi::names::LABEL_GPU_MEMORY as NVIDIA;

use crate::config_map::FRACTION;
use crate::names;
use crate::pod::Pod;
use crate::quantity::{ParseQuantityError, Quantity};

/// Amounts by the names of resources.
pub type ResourceQuantities = BTreeMap<&'static str, Quantity>;

/// How the label begins that has the memory of a node's AMD cards in its name.
const AMD: &str = "beta.amd.com/gpu.vram";
/// AMD's label counts bytes, everything else millions of them.
const MILLION: f64 = 1e6;

/// Why an amount can't be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuAmountError {
    /// The pod asks for no share.
    #[error("cannot calculate fraction because the pod doesn't a fraction or memory annotation")]
    NoShare,
    /// The node isn't there.
    #[error("failed extract node gpu memory for node {0} : nodes \"{0}\" not found")]
    NoNode(String),
    /// No label says how much memory a card of the node has.
    #[error(
        "failed to extract memory from gpu node nither nvidia not amd memory labels has been found for: {0}"
    )]
    NoLabel(String),
    /// Two labels do.
    #[error(
        "the node {0} has both nvidia and amd gpu labels. Such nodes aren't supported for fraction resource requests"
    )]
    BothLabels(String),
    /// A label has no amount.
    #[error("failed to extract memory from the label {key}: {value}")]
    Label {
        /// The label.
        key: String,
        /// What it says.
        value: String,
    },
    /// An annotation has no amount.
    #[error("failed to parse {key} annotation value <{value}>")]
    Annotation {
        /// The annotation.
        key: &'static str,
        /// What it says.
        value: String,
    },
    /// An amount can't be written.
    #[error(transparent)]
    Quantity(#[from] ParseQuantityError),
}

/// A node's name and labels.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
}

/// What a pod asks for.
///
/// # Errors
/// The first annotation that is no amount.
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

/// What a pod was given of cards that it shares; nothing for pods that share none.
///
/// # Errors
/// Why it can't be told.
pub fn received(pod: &Pod, node: Option<Node<'_>>) -> Result<ResourceQuantities, GpuAmountError> {
    if pod.annotation(names::RECEIVED) != Some(FRACTION) {
        return Ok(ResourceQuantities::new());
    }
    let of_each = allocated(pod, node)?;
    Ok([(names::WHOLE, of_each.times(devices(pod)?))].into())
}

/// Which part of each of its cards a pod was given.
///
/// # Errors
/// Why it can't be told.
pub fn allocated(pod: &Pod, node: Option<Node<'_>>) -> Result<Quantity, GpuAmountError> {
    if let Some(fraction) = amount(pod, names::FRACTION)? {
        return Ok(fraction);
    }
    let memory = pod
        .annotation(names::MEMORY)
        .ok_or(GpuAmountError::NoShare)?;
    part_of(memory, &pod.spec.node_name, node)
}

/// Which part of a card of a node so many MiB are.
///
/// # Errors
/// Why it can't be told.
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
/// No label says so, or two do.
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
/// The label is there and has no amount.
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
/// The label is there and has no amount.
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
