//! Which changes of its request a running pod can follow, and the request in one text.
//!
//! The scheduler writes on a pod the request that its share was given for ([`names::ALLOCATED`]). Only such a pod can be
//! resized: the scheduler sees that the two differ, and asks the node's agent for the new size. Everything else of a
//! request stays, because nothing would follow it: the GPUs of a container, and the kind of its share, are set when it
//! starts.

use std::fmt;

use apportion_abi::names::{RESOURCE_SHARE_MIB, RESOURCE_SHARE_MICRO};

use crate::names;
use crate::pod::Pod;

/// The annotations whose value can change.
const SIZES: [&str; 2] = [names::MEMORY, names::FRACTION];

/// The request for a share in one text, such as `gpu-memory=2000`; `None` if the pod has no share in one of these words,
/// or has it in both.
pub fn request_text<'p>(annotation: impl Fn(&str) -> Option<&'p str>) -> Option<String> {
    let mut asked = SIZES.iter().filter_map(|key| Some((key, annotation(key)?)));
    let (key, value) = asked.next()?;
    asked.next().is_none().then(|| format!("{key}={value}"))
}

/// The annotation and its value in such a text.
#[must_use]
pub fn read_text(text: &str) -> Option<(&'static str, &str)> {
    let (key, value) = text.split_once('=')?;
    let key = SIZES.into_iter().find(|known| *known == key)?;
    Some((key, value))
}

/// Why a bound pod keeps a part of its request.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptReason {
    /// The scheduler has not written for which request it has its share.
    Bound { node: String },
    /// Another annotation says how much it has.
    NotItsSize { node: String, key: &'static str },
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
    let node = || old.spec.node_name.clone();
    let Some((size, _)) = old.annotation(names::ALLOCATED).and_then(read_text) else {
        return Some(KeptReason::Bound { node: node() });
    };
    let is_there = |pod: &Pod| pod.annotation(key).is_some();
    if key != size || !is_there(old) || !is_there(new) {
        return Some(KeptReason::NotItsSize {
            node: node(),
            key: size,
        });
    }
    counted(old)
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
