//! What must not change once a pod is bound.
//!
//! KAI reads a pod's annotations in every cycle. If `gpu-fraction` of a running pod is lowered, KAI frees memory that
//! the pod still has, and packs the next pod on top. Here the request is read once, when the pod is bound. A later edit
//! would free nothing and mislead everybody who reads the pod, so it is refused.

use crate::names;
use crate::pod::Pod;
use crate::refusal::PodRefusal;

/// The word for an absent value.
const NOTHING: &str = "nothing";

/// A change that comes too late.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} {key} of pod {namespace}/{name} cannot change from {old} to {new}: the pod is bound to node {node} and keeps its share there; delete the pod and create it anew"
)]
pub struct ImmutableFieldChange {
    /// `annotation` or `label`.
    pub what: &'static str,
    pub key: String,
    pub namespace: String,
    pub name: String,
    pub node: String,
    pub old: String,
    pub new: String,
}

/// Compares a bound pod with its update.
///
/// # Errors
/// [`PodRefusal::Frozen`] for the first annotation or label that must not change.
pub fn check(old: &Pod, new: &Pod) -> Result<(), PodRefusal> {
    if old.spec.node_name.is_empty() || is_over(old) {
        return Ok(());
    }
    let frozen = |what, key: &String, before: Option<&String>, after: Option<&String>| {
        let text = |value: Option<&String>| value.map_or(NOTHING.to_owned(), |v| format!("{v:?}"));
        Err(PodRefusal::Frozen(Box::new(ImmutableFieldChange {
            what,
            key: key.clone(),
            namespace: new.metadata.namespace.clone(),
            name: new.metadata.name.clone(),
            node: old.spec.node_name.clone(),
            old: text(before),
            new: text(after),
        })))
    };
    let (before, after) = (&old.metadata.annotations, &new.metadata.annotations);
    let keys = before.keys().chain(after.keys());
    for key in keys.filter(|key| is_gpu_request(key)) {
        if before.get(key) != after.get(key) {
            return frozen("annotation", key, before.get(key), after.get(key));
        }
    }
    let (before, after) = (&old.metadata.labels, &new.metadata.labels);
    // A label may be added: KAI's pods are adopted while they run.
    for key in before.keys().filter(|key| names_card(key)) {
        if before.get(key) != after.get(key) {
            return frozen("label", key, before.get(key), after.get(key));
        }
    }
    Ok(())
}

/// Whether an annotation is part of a pod's request.
#[must_use]
pub fn is_gpu_request(key: &str) -> bool {
    let names_container = names::REQUEST_OF_CONTAINER
        .iter()
        .any(|start| key.starts_with(start));
    names::REQUEST.contains(&key) || key == names::CONFIG_MAP || names_container
}

fn names_card(key: &str) -> bool {
    let rest = key.strip_prefix(names::GROUP);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn is_over(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}
