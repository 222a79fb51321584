//! Grove: a pod's label names its PodGang, which has everything: subgroups and topology constraints.
//!
//! Metadata of the topmost owner (a PodCliqueSet) does not reach the gang, so its labels and annotations apply
//! where the gang has none. A label of either wins over the gang's spec.

use crate::error::GroupingError;
use crate::group::{DerivedPodGroup, DerivedTopologyConstraint, GroupPreemptibility, members};
use crate::inherit::texts;
use crate::names::{
    ANNOTATION_DELAY, ANNOTATION_PREFERRED, ANNOTATION_REQUIRED, ANNOTATION_TOPOLOGY,
    LABEL_PREEMPTIBILITY, LABEL_PRIORITY,
};
use crate::object::ObjectView;
use crate::objects::RequiredResource;
use crate::table::OwnerKindEntry;
use crate::workload::GroupingInput;
use apportion_kubernetes::parse_duration;

mod parts;

pub use parts::{PodReference, parse_pod_reference, parse_sub_group};

const GANG: RequiredResource = RequiredResource {
    kind: "PodGang",
    name: "podgangs.scheduler.grove.io",
};
const POD_GANG: &str = "grove.io/podgang";
const TOPOLOGY_NAME: &str = "grove.io/topology-name";

pub(crate) fn group(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let pod = workload.pod;
    let name = pod
        .given_label(POD_GANG)
        .ok_or_else(|| GroupingError::unset(pod, POD_GANG))?;
    let gang = workload
        .objects
        .require(&GANG, workload.namespace(), name)?;
    let topology = topology_name(gang);
    let mut group = workload.owned_by(gang).plain(row.priority);
    if let Some(constraint_found) = constraint(gang, &["spec"], gang, topology)? {
        group.topology = constraint_found;
    }
    if let Some(class) = gang.string(&["spec", "priorityClassName"])? {
        class.clone_into(&mut group.priority_class);
    }
    if !workload.owner.is(pod) {
        inherit(&mut group, workload.owner);
    }
    apply_metadata(&mut group, gang)?;
    let (nodes, parents) = parts::nodes(gang, topology)?;
    let leaves = parts::leaves(gang, topology, &parents)?;
    group.min_member = members(&leaves);
    group.sub_groups = [nodes, leaves].concat();
    Ok(group)
}

fn topology_name(gang: ObjectView<'_>) -> &str {
    gang.given_annotation(TOPOLOGY_NAME)
        .or_else(|| gang.given_annotation(ANNOTATION_TOPOLOGY))
        .unwrap_or_default()
}

/// Copies the labels and annotations that the group lacks.
fn inherit(group: &mut DerivedPodGroup, owner: ObjectView<'_>) {
    for (key, value) in texts(owner, "labels") {
        group.labels.entry(key).or_insert(value);
    }
    for (key, value) in texts(owner, "annotations") {
        group.annotations.entry(key).or_insert(value);
    }
}

/// Applies the merged labels and annotations.
fn apply_metadata(group: &mut DerivedPodGroup, gang: ObjectView<'_>) -> Result<(), GroupingError> {
    if let Some(class) = group.labels.get(LABEL_PRIORITY) {
        class.clone_into(&mut group.priority_class);
    }
    if let Some(word) = group.labels.get(LABEL_PREEMPTIBILITY) {
        group.preemptibility = GroupPreemptibility::parse(word);
        if group.preemptibility.is_none() && !word.is_empty() {
            let why = format!("'{word}' is no preemptibility");
            return Err(GroupingError::field(gang, LABEL_PREEMPTIBILITY, why));
        }
    }
    let delay = group.annotations.get(ANNOTATION_DELAY);
    if let Some(delay) = delay.and_then(|delay| parse_duration(delay)) {
        group.preemption_delay = Some(delay);
    }
    for (key, place) in [
        (ANNOTATION_TOPOLOGY, &mut group.topology.name),
        (ANNOTATION_REQUIRED, &mut group.topology.required),
        (ANNOTATION_PREFERRED, &mut group.topology.preferred),
    ] {
        if let (true, Some(text)) = (place.is_empty(), group.annotations.get(key)) {
            text.clone_into(place);
        }
    }
    Ok(())
}

/// The topology constraint of a gang or a part of it.
fn constraint(
    part: ObjectView<'_>,
    path: &[&str],
    gang: ObjectView<'_>,
    topology: &str,
) -> Result<Option<DerivedTopologyConstraint>, GroupingError> {
    let level = |name| {
        let field = [path, &["topologyConstraint", "packConstraint", name]].concat();
        part.string(&field)
    };
    let (preferred, required) = (level("preferred")?, level("required")?);
    if preferred.is_none() && required.is_none() {
        return Ok(None);
    }
    if topology.is_empty() {
        return Err(GroupingError::NoTopology(gang.to_string()));
    }
    Ok(Some(DerivedTopologyConstraint {
        name: topology.to_owned(),
        required: required.unwrap_or_default().to_owned(),
        preferred: preferred.unwrap_or_default().to_owned(),
    }))
}
