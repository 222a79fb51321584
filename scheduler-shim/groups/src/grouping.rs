//! Decides which group a pod belongs to.

use crate::error::GroupingError;
use crate::group::DerivedPodGroup;
use crate::names::{ANNOTATION_GROUP, ANNOTATION_SKIP, ANNOTATION_TOP_OWNER};
use crate::object::ObjectView;
use crate::table::{GroupingRule, OwnerKindEntry, row_of};
use crate::workload::GroupingInput;

/// Which group a pod belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grouping {
    /// A group that follows from the pod's owners; the caller creates and updates it.
    Derived(Box<DerivedPodGroup>),
    /// A group that somebody else (a user, Kueue) creates and updates, by name; `None` until the pod names it.
    External(Option<String>),
}

/// The group of a pod.
pub fn group(workload: &GroupingInput<'_>) -> Result<Grouping, GroupingError> {
    let named = workload.pod.annotation(ANNOTATION_GROUP);
    let mut asked = workload.owners().chain([workload.pod]);
    if asked.any(|object| object.annotation(ANNOTATION_SKIP) == Some("true")) {
        return Ok(Grouping::External(named.map(str::to_owned)));
    }
    if let Some(name) = named.filter(|name| is_foreign(workload, name)) {
        return Ok(Grouping::External(Some(name.to_owned())));
    }
    let mut derived = group_by(row_of(workload.owner), workload)?;
    if let Some(name) = named.filter(|name| is_awaited(workload, name, &derived)) {
        return Ok(Grouping::External(Some(name.to_owned())));
    }
    let pool_label = &workload.settings.node_pool_label;
    if let Some(pool) = workload.pod.label(pool_label) {
        let labels = derived.labels.entry(pool_label.clone());
        labels.or_insert_with(|| pool.to_owned());
    }
    Ok(Grouping::Derived(Box::new(derived)))
}

/// The group of a pod by the rule of this row, whatever the kind of its owner.
pub fn group_by(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    match row.rule {
        GroupingRule::Plain => Ok(workload.plain_of(&workload.all_specs(), row.priority)),
        GroupingRule::Replicas(replicas) => replicas.group(row, workload),
        GroupingRule::Own(rule) => rule(row, workload),
    }
}

/// Whether somebody else made the group that the pod names. Ours carry an annotation with their owner.
fn is_foreign(workload: &GroupingInput<'_>, name: &str) -> bool {
    let found = workload
        .objects
        .find("PodGroup", workload.namespace(), name);
    found.is_some_and(|found| {
        // Parsed apart from the cache: there are as many as pods, and each is dropped at once.
        let apart = found.read_apart();
        let found = ObjectView::new(&apart);
        found.annotation(ANNOTATION_TOP_OWNER).is_none()
    })
}

/// Whether the group that the pod names does not exist yet, and somebody else is to make it. A group of ours that
/// was deleted does not count: its name contains its owner's uid, and it is made again.
fn is_awaited(workload: &GroupingInput<'_>, name: &str, derived: &DerivedPodGroup) -> bool {
    let exists = workload
        .objects
        .find("PodGroup", workload.namespace(), name)
        .is_some();
    let uid = &derived.owner.uid;
    let is_ours = name == derived.name || (!uid.is_empty() && name.contains(uid.as_str()));
    !exists && !is_ours
}
