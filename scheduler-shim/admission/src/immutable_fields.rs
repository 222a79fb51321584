//! What must not change once a pod is bound.
//!
//! KAI reads a pod's annotations in every cycle. If `gpu-fraction` of a running pod is lowered, KAI frees memory that
//! the pod still has, and packs the next pod on top. Here an edit changes nothing until the node's agent has taken it.
//! An edit that no agent would take ([`resize`]) would mislead everybody who reads the pod, so it is refused.

use crate::names;
use crate::pod::{Metadata, Pod};
use crate::refusal::PodRefusal;
use crate::resize::{self, KeptReason};

/// The word for an absent value.
const NOTHING: &str = "nothing";

/// A change that comes too late.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} {key} of pod {namespace}/{name} cannot change from {old} to {new}: {why}; delete the pod and create it anew"
)]
pub struct ImmutableFieldChange {
    /// `annotation` or `label`.
    pub what: &'static str,
    pub key: String,
    pub namespace: String,
    pub name: String,
    pub old: String,
    pub new: String,
    pub why: KeptReason,
}

/// One annotation or label, before and after an update.
struct ChangedField<'p> {
    pod: &'p Metadata,
    what: &'static str,
    key: &'p str,
    before: Option<&'p String>,
    after: Option<&'p String>,
}

/// Compares a bound pod with its update.
///
/// # Errors
/// [`PodRefusal::Frozen`] for the first annotation or label that must not change.
pub fn check(old: &Pod, new: &Pod) -> Result<(), PodRefusal> {
    if old.spec.node_name.is_empty() || is_over(old) {
        return Ok(());
    }
    let (before, after) = (&old.metadata.annotations, &new.metadata.annotations);
    let keys = before.keys().chain(after.keys());
    for key in keys.filter(|key| is_gpu_request(key)) {
        if before.get(key) != after.get(key)
            && let Some(why) = resize::kept(old, new, key)
        {
            let (pod, what) = (&new.metadata, "annotation");
            let (before, after) = (before.get(key), after.get(key));
            return Err(frozen(
                ChangedField {
                    pod,
                    what,
                    key,
                    before,
                    after,
                },
                why,
            ));
        }
    }
    let (before, after) = (&old.metadata.labels, &new.metadata.labels);
    // A label may be added: KAI's pods are adopted while they run.
    for key in before.keys().filter(|key| names_card(key)) {
        if before.get(key) != after.get(key) {
            let node = old.spec.node_name.clone();
            let (pod, what) = (&new.metadata, "label");
            let (before, after) = (before.get(key), after.get(key));
            let field = ChangedField {
                pod,
                what,
                key,
                before,
                after,
            };
            return Err(frozen(field, KeptReason::Bound { node }));
        }
    }
    Ok(())
}

/// The change of an annotation or label from its value in `old` to that in `new`.
fn frozen(field: ChangedField<'_>, why: KeptReason) -> PodRefusal {
    let text = |value: Option<&String>| value.map_or(NOTHING.to_owned(), |v| format!("{v:?}"));
    PodRefusal::Frozen(Box::new(ImmutableFieldChange {
        what: field.what,
        key: field.key.to_owned(),
        namespace: field.pod.namespace.clone(),
        name: field.pod.name.clone(),
        old: text(field.before),
        new: text(field.after),
        why,
    }))
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
