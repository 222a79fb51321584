//! Resolves a pod's group: the PodGroup object that it names, else the group derived from its owners.
//!
//! A pod's group depends on its owners and on PodGroups. It is cached until something in its namespace or cluster-wide
//! changes that grouping rules read, and not at all if the rule counted other pods. There are as many PodGroups as
//! pods, so only those count that the rules read.

use std::sync::{Arc, PoisonError};

use apportion_abi::names::{ANNOTATION_GROUP, LABEL_OLD_QUEUE, LABEL_QUEUE};
use apportion_groups::{
    DerivedPodGroup, DerivedSubGroup, DerivedTopologyConstraint, GroupPreemptibility, Grouping,
    GroupingError, GroupingInput, GroupingSettings, ObjectStore, ObjectView, PodGroupOwner, group,
};
use apportion_kubernetes::parse_duration;
use serde_json::Value;

use super::cached_group::{CachedGroup, DerivedGroup, PodGroupResult};
use super::inventory::ObjectInventory;
use super::labels::texts;
use super::parsed_objects::ParsedPod;
use super::pod_group_terms::PodGroupTerms;
use super::{group_objects, owners, pods};

/// The group of a pod, and how it was found.
#[derive(Debug)]
pub struct ResolvedGroup {
    /// The group, or why it has none that can be scheduled.
    pub group: Result<DerivedPodGroup, String>,
    /// The group derived from its owners, unless somebody else makes its group.
    pub derived: Option<DerivedPodGroup>,
    /// Whether one of its owners was not read yet.
    pub is_awaited: bool,
}

/// The group of a pod.
pub fn group_of(
    pod: ObjectView<'_>,
    inventory: &ObjectInventory,
    lookup: &ObjectStore,
    settings: &GroupingSettings,
) -> ResolvedGroup {
    let chain = owners::chain(pod, inventory);
    let chain: Vec<ObjectView<'_>> = chain.iter().map(ObjectView::new).collect();
    let awaited = chain
        .iter()
        .find(|owner| inventory.awaits(**owner))
        .map(|owner| format!("{} {}", owner.kind(), owner.name()));
    let grouping = group(&GroupingInput::new(pod, chain, lookup, settings));
    let derived = match &grouping {
        // A group derived from an unknown owner could be another one than the owner's.
        Ok(Grouping::Derived(derived)) if awaited.is_none() => {
            Some(DerivedPodGroup::clone(derived))
        }
        Ok(Grouping::Derived(_) | Grouping::External(_)) | Err(_) => None,
    };
    let is_awaited = awaited.is_some();
    let group = valid(pod, inventory, grouping, awaited).map(|group| match &derived {
        Some(derived) if derived.name == group.name => with_pods_of(group, derived),
        Some(_) | None => group,
    });
    ResolvedGroup {
        group,
        derived,
        is_awaited,
    }
}

impl ParsedPod {
    /// The group that the pod is in.
    pub(crate) fn group(
        &self,
        pod: ObjectView<'_>,
        among: &ObjectInventory,
        settings: &GroupingSettings,
    ) -> PodGroupResult {
        self.grouped(pod, among, settings, |grouped| grouped.group.clone())
    }

    /// The group derived from its owners, unless somebody else makes its group.
    pub fn derived(
        &self,
        pod: ObjectView<'_>,
        among: &ObjectInventory,
        settings: &GroupingSettings,
    ) -> Option<DerivedGroup> {
        self.grouped(pod, among, settings, |grouped| grouped.derived.clone())
    }

    fn grouped<T>(
        &self,
        pod: ObjectView<'_>,
        among: &ObjectInventory,
        settings: &GroupingSettings,
        asked: impl FnOnce(&CachedGroup) -> T,
    ) -> T {
        let mut known = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known
            .as_ref()
            .filter(|known| known.is_of(pod.namespace(), &among.ages))
        {
            return asked(known);
        }
        let (read, is_lasting) = read_group(pod, among, settings);
        let answer = asked(&read);
        *known = Some(read).filter(|_| is_lasting);
        answer
    }
}

/// The group of a pod, and whether it can be cached until something with a known age changes.
fn read_group(
    pod: ObjectView<'_>,
    among: &ObjectInventory,
    settings: &GroupingSettings,
) -> (CachedGroup, bool) {
    let lookup: &ObjectStore = among.lookup();
    // Parsed apart from the cache: a burst brings thousands, and each is dropped at once.
    let apart = pod.read_apart();
    let pod = ObjectView::new(&apart);
    let (found, trace) = lookup.traced(|| group_of(pod, among, lookup, settings));
    let is_lasting = !trace.listed_all && !found.is_awaited;
    let mut watched = trace.pod_groups;
    watched.sort_unstable();
    watched.dedup();
    let read = CachedGroup {
        ages: among.ages.of(pod.namespace()),
        pod_groups: watched
            .into_iter()
            .map(|(space, name)| {
                let age = among.ages.of_group(&space, &name);
                (space, name, age)
            })
            .collect(),
        derived: found.derived.map(|derived| DerivedGroup {
            stamp: group_objects::stamp(&derived),
            part: group_objects::part_of(&derived, pod.name()).map(Arc::from),
            name: derived.name.into(),
        }),
        group: Arc::new(found.group.map(PodGroupTerms::of)),
    };
    (read, is_lasting)
}

/// Fills the subgroups with the pods that the rules put there, whether the pods are labelled yet or not.
fn with_pods_of(mut group: DerivedPodGroup, derived: &DerivedPodGroup) -> DerivedPodGroup {
    for part in &mut group.sub_groups {
        let same = derived.sub_groups.iter().find(|one| one.name == part.name);
        part.pods = same.map_or_else(Vec::new, |same| same.pods.clone());
    }
    group
}

/// The group that counts: an object takes precedence over a derived group.
fn valid(
    pod: ObjectView<'_>,
    inventory: &ObjectInventory,
    grouping: Result<Grouping, GroupingError>,
    awaited: Option<String>,
) -> Result<DerivedPodGroup, String> {
    let existing = |name: &str| inventory.find("PodGroup", pod.namespace(), name);
    let awaited = awaited
        .filter(|_| pods::node(pod).is_none())
        .map(|owner| format!("its owner {owner} is not known yet"));
    if let Some(found) = pod.annotation(ANNOTATION_GROUP).and_then(existing) {
        return given(found, pod);
    }
    match grouping {
        Ok(Grouping::Derived(derived)) => match existing(&derived.name) {
            Some(found) => given(found, pod),
            None => awaited.map_or(Ok(*derived), Err),
        },
        Ok(Grouping::External(Some(name))) => match existing(&name) {
            Some(found) => given(found, pod),
            None => Err(format!("its pod group {name} does not exist")),
        },
        Ok(Grouping::External(None)) => {
            Err("it opts out of grouping and names no pod group".to_owned())
        }
        Err(malformed) => {
            Err(awaited.unwrap_or_else(|| format!("it has no pod group: {malformed}")))
        }
    }
}

/// The group of a PodGroup object.
fn given(object: ObjectView<'_>, pod: ObjectView<'_>) -> Result<DerivedPodGroup, String> {
    // Parsed apart from the cache: there are as many as pods, and each is dropped at once.
    let apart = object.read_apart();
    let read = ObjectView::new(&apart);
    let name = object.name();
    let wrong = |why: String| format!("its pod group {name} cannot be used: {why}");
    let spec = &read.json()["spec"];
    let text = |field: &str| spec[field].as_str().filter(|text| !text.is_empty());
    let min_member = count(spec, "minMember").map_err(wrong)?;
    let min_sub_group = count(spec, "minSubGroup").map_err(wrong)?;
    let parts = spec["subGroups"]
        .as_array()
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .map(part)
        .collect::<Result<Vec<_>, _>>();
    let named = |key: &str| read.label(key).or(pod.label(key));
    let label = named(LABEL_QUEUE).or_else(|| named(LABEL_OLD_QUEUE));
    Ok(DerivedPodGroup {
        name: name.to_owned(),
        namespace: object.namespace().to_owned(),
        owner: PodGroupOwner {
            api_version: read.api_version().to_owned(),
            kind: object.kind().to_owned(),
            name: name.to_owned(),
            uid: object.uid().to_owned(),
        },
        queue: text("queue")
            .or(label)
            .unwrap_or("default-queue")
            .to_owned(),
        priority_class: text("priorityClassName").unwrap_or("train").to_owned(),
        preemptibility: text("preemptibility").and_then(GroupPreemptibility::parse),
        preemption_delay: text("preemptionDelay").and_then(parse_duration),
        min_member: min_member.unwrap_or(u32::from(min_sub_group.is_none())),
        min_sub_group,
        labels: texts(&read.json()["metadata"]["labels"]),
        annotations: texts(&read.json()["metadata"]["annotations"]),
        topology: topology(&spec["topologyConstraint"]),
        sub_groups: parts.map_err(wrong)?,
    })
}

fn part(json: &Value) -> Result<DerivedSubGroup, String> {
    let text = |field: &str| json[field].as_str().filter(|text| !text.is_empty());
    let topology = topology(&json["topologyConstraint"]);
    Ok(DerivedSubGroup {
        name: text("name")
            .ok_or("one of its subgroups has no name")?
            .to_owned(),
        parent: text("parent").map(str::to_owned),
        min_member: count(json, "minMember")?.unwrap_or(0),
        min_sub_group: count(json, "minSubGroup")?,
        pods: Vec::new(),
        topology: (!topology.name.is_empty()).then_some(topology),
    })
}

fn topology(json: &Value) -> DerivedTopologyConstraint {
    let text = |field: &str| json[field].as_str().unwrap_or_default().to_owned();
    DerivedTopologyConstraint {
        name: text("topology"),
        required: text("requiredTopologyLevel"),
        preferred: text("preferredTopologyLevel"),
    }
}

fn count(json: &Value, field: &str) -> Result<Option<u32>, String> {
    let given = &json[field];
    if given.is_null() {
        return Ok(None);
    }
    let count = given.as_u64().and_then(|count| u32::try_from(count).ok());
    count
        .map(Some)
        .ok_or_else(|| format!("{field} {given} is not a number of members"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::object_warnings::ObjectWarnings;

    /// A pod of a Job of a JobSet of four pods, on a node or on none.
    fn pod(node: Option<&str>) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": "default", "uid": "p",
            "labels": {"jobset.sigs.k8s.io/replicatedjob-name": "workers", "jobset.sigs.k8s.io/job-index": "0"},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "j", "controller": true}]},
            "spec": {"nodeName": node}})
    }

    fn job() -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job", "namespace": "default", "uid": "j",
            "ownerReferences": [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set",
                "uid": "s", "controller": true}]}, "spec": {"parallelism": 4, "completions": 4}})
    }

    fn job_set() -> Value {
        json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
            "metadata": {"name": "set", "namespace": "default", "uid": "s"},
            "spec": {"replicatedJobs": [{"name": "workers", "replicas": 1,
                "template": {"spec": {"parallelism": 4, "completions": 4}}}]}})
    }

    fn found(inventory: &ObjectInventory, pod: &Value) -> ResolvedGroup {
        let settings = GroupingSettings::default();
        group_of(
            ObjectView::new(pod),
            inventory,
            inventory.lookup(),
            &settings,
        )
    }

    /// The inventory of a running scheduler with these objects.
    fn running(objects: Vec<Value>) -> ObjectInventory {
        let mut inventory = ObjectInventory::of(objects, &mut ObjectWarnings::default());
        inventory.unreadable = Some(BTreeSet::new());
        inventory
    }

    #[test]
    fn a_pod_waits_for_each_owner_that_is_not_read_yet() {
        let pod = pod(None);
        for (known, missing) in [
            (vec![], "its owner Job job is not known yet"),
            (vec![job()], "its owner JobSet set is not known yet"),
        ] {
            let found = found(&running(known), &pod);
            assert_eq!(found.group.unwrap_err(), missing);
            assert!(found.derived.is_none() && found.is_awaited, "{missing}");
        }
        let found = found(&running(vec![job(), job_set()]), &pod);
        assert!(!found.group.unwrap().sub_groups.is_empty());
        assert!(found.derived.is_some() && !found.is_awaited);
    }

    #[test]
    fn nothing_is_awaited_in_a_file_nor_of_kinds_that_cannot_be_read() {
        let pod = pod(None);
        let file = ObjectInventory::of(vec![], &mut ObjectWarnings::default());
        assert!(found(&file, &pod).group.is_ok());
        let mut inventory = running(vec![]);
        inventory.unreadable = Some(["Job".to_owned()].into());
        let found = found(&inventory, &pod);
        assert!(found.group.is_ok() && found.derived.is_some());
    }

    #[test]
    fn a_node_that_owns_a_pod_is_not_awaited() {
        let mut pod = pod(None);
        pod["metadata"]["ownerReferences"][0] =
            json!({"apiVersion": "v1", "kind": "Node", "name": "node", "uid": "n"});
        assert!(found(&running(vec![]), &pod).group.is_ok());
    }

    #[test]
    fn a_pod_that_runs_is_counted_and_nothing_is_written_of_its_group() {
        let found = found(&running(vec![]), &pod(Some("node")));
        assert!(found.group.is_ok() && found.derived.is_none());
    }
}
