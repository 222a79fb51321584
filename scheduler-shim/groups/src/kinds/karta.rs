//! Kinds that no row knows, by the Karta definition that describes them.
//!
//! A Karta is a tree of components, of which each says by expressions over the owner how many replicas
//! it has, and by expressions over a pod which pods are its own. Its gang instructions come in two forms: one
//! group with components as subgroups, or (deprecated) several groups of pods that share some key.

use serde_json::Value;

use crate::group::{PodGroup, SubGroup, Topology};
use crate::malformed::Malformed;
use crate::object::Object;
use crate::table::Row;
use crate::workload::Workload;

mod component;
mod expression;

use component::Components;
use expression::Expression;

pub(crate) fn group(row: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    let group = workload.plain(row.priority);
    let Some((karta, gang)) = definition(workload) else {
        return Ok(group);
    };
    let components = Components::read(karta, workload.owner)?;
    match gang.part(&["podGroup"]) {
        Some(one) => whole(workload, group, one, &components),
        None => keyed(workload, group, gang.list(&["podGroups"])?, &components),
    }
}

/// The Karta of the owner's kind, with its gang instructions.
fn definition<'a>(workload: &Workload<'a>) -> Option<(Object<'a>, Object<'a>)> {
    let root = ["spec", "structureDefinition", "rootComponent", "kind"];
    let kartas = workload.settings.kartas.iter().map(Object::new);
    let mut fitting = kartas.filter(|karta| {
        karta.part(&root).is_some_and(|kind| {
            kind.text(&["kind"]) == Some(workload.owner.kind())
                && kind.text(&["group"]).unwrap_or_default() == workload.owner.api_group()
        })
    });
    fitting.find_map(|karta| Some((karta, instructions(karta)?)))
}

fn instructions(karta: Object<'_>) -> Option<Object<'_>> {
    ["instructions", "optimizationInstructions"]
        .iter()
        .find_map(|field| karta.part(&["spec", field, "gangScheduling"]))
}

/// One group for the whole workload.
fn whole(
    workload: &Workload<'_>,
    mut group: PodGroup,
    one: Object<'_>,
    components: &Components,
) -> Result<PodGroup, Malformed> {
    let name = one.text(&["name"]).unwrap_or_default();
    group.name = format!("pg-{}-{name}", workload.owner.uid());
    if let Some(wish) = one.part(&["topology"]).and_then(placement) {
        group.topology = wish;
    }
    group.min_member = components.replicas();
    let listed = one.list(&["subGroups"])?;
    if !listed.is_empty() {
        group.sub_groups = parts(workload, listed, components)?;
        let top = group.sub_groups.iter().filter(|part| part.parent.is_none());
        group.min_sub_group = u32::try_from(top.count()).ok();
        group.min_member = 0;
    }
    Ok(group)
}

fn placement(topology: Object<'_>) -> Option<Topology> {
    let text = |field| topology.text(&[field]).unwrap_or_default().to_owned();
    Topology {
        name: text("topologyName"),
        required: text("requiredTopologyLevel"),
        preferred: text("preferredTopologyLevel"),
    }
    .some()
}

/// A subgroup for each component that is listed, below the nearest ancestor that is.
fn parts(
    workload: &Workload<'_>,
    listed: &[Value],
    components: &Components,
) -> Result<Vec<SubGroup>, Malformed> {
    let listed: Vec<Object<'_>> = listed.iter().map(Object::new).collect();
    let names: Vec<&str> = listed
        .iter()
        .filter_map(|part| part.text(&["componentName"]))
        .collect();
    let own = components.of_pod(workload.pod)?;
    let own = own.and_then(|own| components.nearest(own, &names));
    let mut parts = Vec::new();
    for (part, name) in listed.iter().zip(&names) {
        let above = components.parent(name);
        let parent = above.and_then(|above| components.nearest(above, &names));
        let children = names.iter().filter(|other| {
            let above = components.parent(other);
            above.and_then(|above| components.nearest(above, &names)) == Some(*name)
        });
        let made = match u32::try_from(children.count()).unwrap_or(u32::MAX) {
            0 => SubGroup::leaf(*name, components.replicas_of(name)?),
            children => SubGroup::node(*name, children),
        };
        let made = made
            .placed(part.part(&["topology"]).and_then(placement))
            .holding(workload.pod, own == Some(*name));
        parts.push(match parent {
            Some(parent) => made.under(parent),
            None => made,
        });
    }
    Ok(parts)
}

/// The first group one of whose members the pod is.
fn keyed(
    workload: &Workload<'_>,
    mut group: PodGroup,
    defined: &[Value],
    components: &Components,
) -> Result<PodGroup, Malformed> {
    let own = components.of_pod(workload.pod)?;
    for definition in defined.iter().map(Object::new) {
        let members = definition.list(&["members"])?;
        for member in members.iter().map(Object::new) {
            let component = member.text(&["componentName"]).unwrap_or_default();
            if !components.holds(component, own) || !passes(workload.pod, member)? {
                continue;
            }
            let keys = keys(workload.pod, member)?;
            let suffix = match keys.is_empty() {
                true => definition.text(&["name"]).unwrap_or_default().to_owned(),
                false => keys.join("-"),
            };
            group.name = format!("pg-{}-{suffix}", workload.owner.uid());
            group.min_member = sum(members, components)?;
            return Ok(group);
        }
    }
    Err(Malformed::NoMember(workload.pod.to_string()))
}

fn sum(members: &[Value], components: &Components) -> Result<u32, Malformed> {
    members
        .iter()
        .filter_map(|member| Object::new(member).text(&["componentName"]))
        .try_fold(0_u32, |sum, name| {
            Ok(sum.saturating_add(components.replicas_of(name)?))
        })
}

fn texts<'a>(member: Object<'a>, field: &str) -> Result<Vec<&'a str>, Malformed> {
    let all = member.list(&[field])?;
    Ok(all.iter().filter_map(Value::as_str).collect())
}

fn passes(pod: Object<'_>, member: Object<'_>) -> Result<bool, Malformed> {
    for filter in texts(member, "filters")? {
        if !Expression::parse(filter)?.holds(pod.json())? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn keys(pod: Object<'_>, member: Object<'_>) -> Result<Vec<String>, Malformed> {
    texts(member, "groupByKeyPaths")?
        .into_iter()
        .map(|path| Expression::parse(path)?.text(pod.json()))
        .collect()
}
