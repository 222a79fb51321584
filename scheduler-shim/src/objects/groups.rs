//! Which pod group a pod is in: the PodGroup object that it names, else what follows from its owners.

use apportion_abi::names::{ANNOTATION_GROUP, LABEL_OLD_QUEUE, LABEL_QUEUE};
use apportion_groups::{
    Grouping, Malformed, Object, Objects, Owner, PodGroup, Preemptibility, Settings, SubGroup,
    Topology, Workload, group, parse_duration,
};
use serde_json::Value;

use super::inventory::Inventory;
use super::owners;

/// What is known of a pod's group.
#[derive(Debug)]
pub(crate) struct Found {
    /// The group, or why it has none that could be scheduled.
    pub(crate) group: Result<PodGroup, String>,
    /// The group that follows from its owners, unless somebody else makes its group.
    pub(crate) derived: Option<PodGroup>,
}

/// The group of a pod.
pub(crate) fn group_of(
    pod: Object<'_>,
    inventory: &Inventory,
    lookup: &Objects,
    settings: &Settings,
) -> Found {
    let chain = owners::chain(pod, inventory);
    let chain = chain.iter().map(Object::new).collect();
    let grouping = group(&Workload::new(pod, chain, lookup, settings));
    let derived = match &grouping {
        Ok(Grouping::Derived(derived)) => Some(PodGroup::clone(derived)),
        Ok(Grouping::External(_)) | Err(_) => None,
    };
    let group = valid(pod, inventory, grouping).map(|group| match &derived {
        Some(derived) if derived.name == group.name => with_pods_of(group, derived),
        Some(_) | None => group,
    });
    Found { group, derived }
}

/// A group whose parts hold the pods that they hold by the rules, whether the pods are labelled yet or not.
fn with_pods_of(mut group: PodGroup, derived: &PodGroup) -> PodGroup {
    for part in &mut group.sub_groups {
        let same = derived.sub_groups.iter().find(|one| one.name == part.name);
        part.pods = same.map_or_else(Vec::new, |same| same.pods.clone());
    }
    group
}

/// The group that counts: an object goes before what follows from owners.
fn valid(
    pod: Object<'_>,
    inventory: &Inventory,
    grouping: Result<Grouping, Malformed>,
) -> Result<PodGroup, String> {
    let existing = |name: &str| inventory.find("PodGroup", pod.namespace(), name);
    if let Some(found) = pod.annotation(ANNOTATION_GROUP).and_then(existing) {
        return given(found, pod);
    }
    match grouping {
        Ok(Grouping::Derived(derived)) => match existing(&derived.name) {
            Some(found) => given(found, pod),
            None => Ok(*derived),
        },
        Ok(Grouping::External(Some(name))) => match existing(&name) {
            Some(found) => given(found, pod),
            None => Err(format!("its pod group {name} does not exist")),
        },
        Ok(Grouping::External(None)) => {
            Err("it opts out of grouping and names no pod group".to_owned())
        }
        Err(malformed) => Err(format!("it has no pod group: {malformed}")),
    }
}

/// A PodGroup object as it stands.
fn given(object: Object<'_>, pod: Object<'_>) -> Result<PodGroup, String> {
    let name = object.name();
    let wrong = |why: String| format!("its pod group {name} cannot be used: {why}");
    let spec = &object.json()["spec"];
    let text = |field: &str| spec[field].as_str().filter(|text| !text.is_empty());
    let min_member = count(spec, "minMember").map_err(wrong)?;
    let min_sub_group = count(spec, "minSubGroup").map_err(wrong)?;
    let parts = spec["subGroups"].as_array().map_or(&[][..], Vec::as_slice);
    let parts = parts.iter().map(part).collect::<Result<Vec<_>, _>>();
    let named = |key: &str| object.label(key).or(pod.label(key));
    let label = named(LABEL_QUEUE).or_else(|| named(LABEL_OLD_QUEUE));
    Ok(PodGroup {
        name: name.to_owned(),
        namespace: object.namespace().to_owned(),
        owner: Owner {
            api_version: object.api_version().to_owned(),
            kind: object.kind().to_owned(),
            name: name.to_owned(),
            uid: object.uid().to_owned(),
        },
        queue: text("queue")
            .or(label)
            .unwrap_or("default-queue")
            .to_owned(),
        priority_class: text("priorityClassName").unwrap_or("train").to_owned(),
        preemptibility: text("preemptibility").and_then(Preemptibility::parse),
        preemption_delay: text("preemptionDelay").and_then(parse_duration),
        min_member: min_member.unwrap_or(u32::from(min_sub_group.is_none())),
        min_sub_group,
        labels: super::nodes::texts(&object.json()["metadata"]["labels"]),
        annotations: super::nodes::texts(&object.json()["metadata"]["annotations"]),
        topology: topology(&spec["topologyConstraint"]),
        sub_groups: parts.map_err(wrong)?,
    })
}

fn part(json: &Value) -> Result<SubGroup, String> {
    let text = |field: &str| json[field].as_str().filter(|text| !text.is_empty());
    let topology = topology(&json["topologyConstraint"]);
    Ok(SubGroup {
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

fn topology(json: &Value) -> Topology {
    let text = |field: &str| json[field].as_str().unwrap_or_default().to_owned();
    Topology {
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
    let wrong = || format!("{field} {given} is not a number of members");
    count.map(Some).ok_or_else(wrong)
}
