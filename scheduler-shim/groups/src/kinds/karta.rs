//! Kinds without a row, by the Karta definition that describes them.
//!
//! A Karta is a tree of components. Each has expressions over the owner for its number of replicas, and expressions
//! over a pod that select its pods. The gang instructions have two forms: one group with components as subgroups,
//! or (deprecated) several groups of pods that share some key.

use serde_json::Value;

use crate::error::{GroupingError, counted};
use crate::group::{DerivedPodGroup, DerivedSubGroup, DerivedTopologyConstraint};
use crate::object::ObjectView;
use crate::table::OwnerKindEntry;
use crate::workload::GroupingInput;

mod component;
mod expression;

use component::KartaComponents;
use expression::JqExpression;

/// The maximum length of an object's name.
const MAX_NAME: usize = 253;

pub(crate) fn group(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let Some((karta, gang)) = definition(workload) else {
        return Ok(workload.plain_of(&workload.all_specs(), row.priority));
    };
    let group = workload.plain(row.priority);
    let components = KartaComponents::read(karta, workload.owner)?;
    match gang.part(&["podGroup"]) {
        Some(one) => whole(workload, group, one, &components),
        None => keyed(workload, group, gang.list(&["podGroups"])?, &components),
    }
}

/// The Karta of the owner's kind, with its gang instructions; `None` if there are several.
fn definition<'a>(workload: &GroupingInput<'a>) -> Option<(ObjectView<'a>, ObjectView<'a>)> {
    let owner = workload.owner;
    let kartas = workload.settings.kartas.iter().map(ObjectView::new);
    let fitting = kartas.filter(|karta| {
        let root = ["spec", "structureDefinition", "rootComponent", "kind"];
        let declares =
            |kind: ObjectView<'_>, field, of: &str| kind.text(&[field]).unwrap_or_default() == of;
        karta.at(&["metadata", "deletionTimestamp"]).is_none()
            && karta.part(&root).is_some_and(|kind| {
                declares(kind, "kind", owner.kind())
                    && declares(kind, "group", owner.api_group())
                    && declares(kind, "version", owner.version())
            })
    });
    let mut fitting = fitting.filter_map(|karta| Some((karta, instructions(karta)?)));
    let found = fitting.next()?;
    fitting.next().is_none().then_some(found)
}

fn instructions(karta: ObjectView<'_>) -> Option<ObjectView<'_>> {
    let gang = ["instructions", "optimizationInstructions"]
        .iter()
        .find_map(|field| karta.part(&["spec", field, "gangScheduling"]))?;
    let declares_gang = gang.at(&["podGroup"]).is_some()
        || gang.list(&["podGroups"]).is_ok_and(|all| !all.is_empty());
    declares_gang.then_some(gang)
}

/// One group for the whole workload.
fn whole(
    workload: &GroupingInput<'_>,
    mut group: DerivedPodGroup,
    one: ObjectView<'_>,
    components: &KartaComponents<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let name = one.text(&["name"]).unwrap_or_default();
    group.name = format!("pg-{}-{name}", workload.owner.uid());
    if let Some(topology) = one.part(&["topology"]) {
        group.topology = placement(topology)?;
    }
    let listed = one.list(&["subGroups"])?;
    if listed.is_empty() {
        let pods = components.scale(components.root(), None)?;
        group.min_member = counted(workload.owner, "scale", pods)?;
        return Ok(group);
    }
    for part in listed.iter().map(ObjectView::new) {
        group
            .sub_groups
            .push(sub_group(workload, part, components)?);
    }
    group.min_sub_group = u32::try_from(listed.len()).ok();
    group.min_member = 0;
    Ok(group)
}

fn placement(topology: ObjectView<'_>) -> Result<DerivedTopologyConstraint, GroupingError> {
    let text = |field| topology.text(&[field]).unwrap_or_default().to_owned();
    let constraint_found = DerivedTopologyConstraint {
        name: text("topologyName"),
        required: text("requiredTopologyLevel"),
        preferred: text("preferredTopologyLevel"),
    };
    if constraint_found.name.is_empty() {
        return Err(GroupingError::Constraint("the name of a topology"));
    }
    constraint_found
        .some()
        .ok_or(GroupingError::Constraint("a preferred or required level"))
}

/// A listed component with all its children. Its number of pods must be stated.
fn sub_group(
    workload: &GroupingInput<'_>,
    part: ObjectView<'_>,
    components: &KartaComponents<'_>,
) -> Result<DerivedSubGroup, GroupingError> {
    let name = part.text(&["componentName"]).unwrap_or_default();
    let pods = components.scale(name, None)?;
    if pods == 0 {
        let why = "it says no number of replicas";
        return Err(GroupingError::field(workload.owner, name, why));
    }
    let constraint_found = part.part(&["topology"]).map(placement).transpose()?;
    let part = DerivedSubGroup::leaf(name, counted(workload.owner, "scale", pods)?)
        .placed(constraint_found);
    Ok(part.holding(workload.pod, components.holds(name, workload.pod)?))
}

/// The group of the nearest member whose component is the pod's or a parent of it, and whose filters the pod
/// passes.
fn keyed(
    workload: &GroupingInput<'_>,
    mut group: DerivedPodGroup,
    defined: &[Value],
    components: &KartaComponents<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let pod = workload.pod;
    let own = components.of_pod(pod)?;
    let (component, member) = member(pod, own, defined, components)?
        .ok_or_else(|| GroupingError::NoMember(pod.to_string()))?;
    let instance = if component == own {
        components.instance_of(own, pod)?
    } else {
        None
    };
    let keys = keys(pod, member)?;
    group.name = format!("pg-{}", workload.owner.uid());
    if !keys.is_empty() {
        group.name = format!("{}-{}", group.name, keys.join("-"));
        check_name(&group.name, &keys)?;
    }
    let pods = components.scale(component, instance.as_deref())?;
    group.min_member = counted(workload.owner, "scale", pods)?;
    Ok(group)
}

fn member<'a>(
    pod: ObjectView<'_>,
    own: &'a str,
    defined: &'a [Value],
    components: &'a KartaComponents<'_>,
) -> Result<Option<(&'a str, ObjectView<'a>)>, GroupingError> {
    for component in components.lineage(own) {
        for definition in defined.iter().map(ObjectView::new) {
            for member in definition.list(&["members"])?.iter().map(ObjectView::new) {
                let named = member.text(&["componentName"]);
                if named == Some(component) && passes(pod, member)? {
                    return Ok(Some((component, member)));
                }
            }
        }
    }
    Ok(None)
}

fn check_name(name: &str, keys: &[String]) -> Result<(), GroupingError> {
    if name.len() <= MAX_NAME
        && name.split('.').all(|part| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            part.starts_with(plain)
                && part.ends_with(plain)
                && part.chars().all(|c| plain(c) || c == '-')
        })
    {
        return Ok(());
    }
    Err(GroupingError::GroupingKeys {
        keys: keys.join(" "),
        name: name.to_owned(),
    })
}

fn texts<'a>(member: ObjectView<'a>, field: &str) -> Result<Vec<&'a str>, GroupingError> {
    let all = member.list(&[field])?;
    Ok(all.iter().filter_map(Value::as_str).collect())
}

fn passes(pod: ObjectView<'_>, member: ObjectView<'_>) -> Result<bool, GroupingError> {
    for filter in texts(member, "filters")? {
        if JqExpression::parse(filter)?.one(pod.json())? != Value::Bool(true) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn keys(pod: ObjectView<'_>, member: ObjectView<'_>) -> Result<Vec<String>, GroupingError> {
    texts(member, "groupByKeyPaths")?
        .into_iter()
        .map(|path| JqExpression::parse(path)?.text(pod.json()))
        .collect()
}
