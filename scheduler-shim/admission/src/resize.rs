//! Which changes of its request a running pod can follow, and the request in one text.
//!
//! The scheduler writes on a pod the request that its share was given for ([`names::ALLOCATED`]). Only such a pod can be
//! resized: the scheduler sees that the two differ, and asks the node's agent for the new size. Everything else of a
//! request stays, because nothing would follow it: the GPUs of a container, and the kind of its share, are set when it
//! starts.
//!
//! # Decision: a pod that may burst has all its amounts in the text
//! Its request and its limit can change, each alone. They may be in annotations of its containers, too. The text of any
//! other pod has only `gpu-memory` or `gpu-fraction`, as earlier releases wrote it: its limit is nothing that the
//! scheduler gives.

use std::collections::BTreeSet;
use std::fmt;

use apportion_abi::names::{RESOURCE_SHARE_MIB, RESOURCE_SHARE_MICRO};

use crate::limits::{MAY, may_burst};
use crate::names;
use crate::pod::Pod;
use crate::request;

/// The annotations with the share of a pod, one of which it has.
const SHARES: [&str; 2] = [names::MEMORY, names::FRACTION];

/// Whose amount an annotation has. Those of a running pod stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SizeSubject<'a> {
    /// The pod's share, as memory.
    Memory,
    /// The pod's share, as a part of each GPU.
    Fraction,
    /// The share of the container with this name.
    Container(&'a str),
}

impl<'a> SizeSubject<'a> {
    /// Of an annotation with a request or a limit; `None` of all others.
    #[must_use]
    pub fn of(key: &'a str) -> Option<Self> {
        match key {
            names::MEMORY | names::MEMORY_UP_TO => Some(Self::Memory),
            names::FRACTION | names::FRACTION_LIMIT => Some(Self::Fraction),
            _ => Self::of_container(key),
        }
    }

    fn of_container(key: &'a str) -> Option<Self> {
        if let Some(rest) = key.strip_prefix(names::PER_CONTAINER) {
            let mut ends = [names::PER_CONTAINER_REQUEST, names::PER_CONTAINER_LIMIT].into_iter();
            let name = ends.find_map(|end| rest.strip_suffix(end));
            return name.filter(|name| !name.is_empty()).map(Self::Container);
        }
        let rest = key.strip_prefix(names::KAI_CONTAINER)?;
        rest.ends_with(names::PORTION_LIMIT)
            .then_some(Self::Fraction)
    }
}

/// The request for a share in one text, such as `gpu-memory=2000` or `gpu-memory=2000,gpu-memory.limit=8Gi`; `None` if
/// the pod has no share in one of these words, or has it in both.
pub fn request_text<'p>(
    annotations: impl Iterator<Item = (&'p str, &'p str)> + Clone,
) -> Option<String> {
    let of = |key: &str| annotations.clone().find(|(found, _)| *found == key);
    if SHARES.iter().all(|key| of(key).is_some()) {
        return None;
    }
    let is_marked = of(names::BURST).is_some_and(|(_, value)| value == MAY);
    let mut amounts: Vec<_> = annotations
        .filter(|(key, _)| {
            if is_marked {
                SizeSubject::of(key).is_some()
            } else {
                SHARES.contains(key)
            }
        })
        .collect();
    amounts.sort_unstable();
    let amounts: Vec<_> = amounts
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    (!amounts.is_empty()).then(|| amounts.join(","))
}

/// The annotations and their values in such a text.
#[must_use]
pub fn read_text(text: &str) -> Option<Vec<(&str, &str)>> {
    let amounts = text.split(',').map(|amount| {
        let (key, value) = amount.split_once('=')?;
        SizeSubject::of(key).map(|_| (key, value))
    });
    amounts.collect()
}

/// Whose amounts are in such a text.
#[must_use]
pub fn subjects(text: &str) -> Option<BTreeSet<SizeSubject<'_>>> {
    let amounts = read_text(text)?.into_iter();
    Some(
        amounts
            .filter_map(|(key, _)| SizeSubject::of(key))
            .collect(),
    )
}

/// Why a bound pod keeps a part of its request.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptReason {
    /// The scheduler has not written for which request it has its share.
    Bound { node: String },
    /// Another annotation says how much it has.
    NotItsSize { node: String, key: &'static str },
    /// The pod may burst, and this is neither its request nor its limit.
    NotItsAmounts { node: String },
    /// A container requests its share as a resource, too.
    Counted {
        container: String,
        resource: &'static str,
        amount: String,
    },
}

impl fmt::Display for KeptReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bound { node } => {
                write!(
                    f,
                    "the pod is bound to node {node} and keeps its share there"
                )
            }
            Self::NotItsSize { node, key } => write!(
                f,
                "the pod is bound to node {node}, where only the value of {key} can change"
            ),
            Self::NotItsAmounts { node } => write!(
                f,
                "the pod is bound to node {node}, where only how much it requests and its limit can change"
            ),
            Self::Counted {
                container,
                resource,
                amount,
            } => write!(
                f,
                "its container {container} requests {amount} of {resource}, which Kubernetes cannot change while the pod runs"
            ),
        }
    }
}

/// Why the annotation `key` of a bound pod must not change; `None` if the change is a resize.
pub(crate) fn kept(old: &Pod, new: &Pod, key: &str) -> Option<KeptReason> {
    let node = old.spec.node_name.clone();
    let allocated = old.annotation(names::ALLOCATED).and_then(read_text);
    let Some(allocated) = allocated else {
        return Some(KeptReason::Bound { node });
    };
    if may_burst(old) {
        let is_amount = SizeSubject::of(key).is_some();
        if !is_amount || subjects_of(old) != subjects_of(new) {
            return Some(KeptReason::NotItsAmounts { node });
        }
    } else {
        let mut shares = SHARES.into_iter();
        let of_pod = |share: &&str| allocated.iter().any(|(key, _)| key == share);
        let Some(size) = shares.find(of_pod) else {
            return Some(KeptReason::Bound { node });
        };
        let is_there = |pod: &Pod| pod.annotation(key).is_some();
        if key != size || !is_there(old) || !is_there(new) {
            return Some(KeptReason::NotItsSize { node, key: size });
        }
    }
    counted(old).filter(|_| !has_same_requests(old, new))
}

/// Whose amounts a pod has: the pod's own share, and its containers.
fn subjects_of(pod: &Pod) -> BTreeSet<SizeSubject<'_>> {
    let annotations = pod.metadata.annotations.iter();
    let amounts = annotations.filter(|(_, value)| !value.is_empty());
    amounts
        .filter_map(|(key, _)| SizeSubject::of(key))
        .collect()
}

/// Whether only limits differ, which are not counted.
fn has_same_requests(old: &Pod, new: &Pod) -> bool {
    let requests = |pod: &Pod| {
        let asked = request::read(pod).ok()?;
        let asked = asked.into_iter().map(|asked| asked.request);
        Some(asked.collect::<Vec<_>>())
    };
    requests(old).is_some_and(|old| requests(new) == Some(old))
}

/// The container that requests its share as a resource. What a container requests of such a resource is fixed, so a
/// quota would go on counting the old size.
fn counted(pod: &Pod) -> Option<KeptReason> {
    pod.all_containers().find_map(|container| {
        let limits = &container.resources.limits;
        let resources = [RESOURCE_SHARE_MIB, RESOURCE_SHARE_MICRO].into_iter();
        let mut found = resources.filter_map(|resource| Some((resource, limits.get(resource)?)));
        let (resource, amount) = found.next()?;
        Some(KeptReason::Counted {
            container: container.name.clone(),
            resource,
            amount: amount.as_str().map_or(amount.to_string(), str::to_owned),
        })
    })
}
