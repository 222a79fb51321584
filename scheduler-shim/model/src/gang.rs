//! The subgroups of a pod group as the tree that the policy schedules by.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::names::LABEL_SUBGROUP;
use apportion_groups::{DerivedSubGroup, DerivedTopologyConstraint, ObjectView};
use apportion_policy::cluster::{self, LabelMap, PodSet, SubGroupSet, TopologyConstraint};
use serde_json::Value;

use super::inventory::ObjectInventory;
use super::pod_group_terms::PodGroupTerms;

const SET: &str = "default";

/// The tree of a group, or what is wrong with its subgroups.
pub(crate) fn tree(
    group: &PodGroupTerms,
    inventory: &ObjectInventory,
) -> Result<SubGroupSet, String> {
    let levels = TopologyResolver(inventory);
    let topology = group
        .topology
        .as_deref()
        .and_then(|term| levels.constraint(term));
    if group.sub_groups.is_empty() {
        return Ok(SubGroupSet {
            topology,
            sets: vec![PodSet {
                name: SET.to_owned(),
                min_available: members(group.min_member),
                topology: None,
            }],
            ..SubGroupSet::default()
        });
    }
    check(&group.sub_groups)?;
    let below = SubGroupIndex::of(&group.sub_groups, &levels);
    Ok(SubGroupSet {
        min_members: group.min_sub_group.map(members),
        topology,
        ..below.group(None)
    })
}

/// The pod set that a pod is in.
pub(crate) fn set_of(pod: &str, labels: &LabelMap, group: &PodGroupTerms) -> String {
    if group.sub_groups.is_empty() {
        return SET.to_owned();
    }
    let found = group
        .sub_groups
        .iter()
        .filter(|part| {
            !group
                .sub_groups
                .iter()
                .any(|other| other.parent.as_ref() == Some(&part.name))
        })
        .find(|part| part.pods.iter().any(|name| name == pod));
    let label = labels.get(LABEL_SUBGROUP).filter(|label| !label.is_empty());
    found
        .map_or_else(
            || label.map_or(SET, String::as_str),
            |part| part.name.as_str(),
        )
        .to_owned()
}

fn members(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn check(parts: &[DerivedSubGroup]) -> Result<(), String> {
    let mut parents: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for part in parts {
        if parents.insert(&part.name, part.parent.as_deref()).is_some() {
            return Err(format!("duplicate subgroup name {}", part.name));
        }
    }
    for (name, parent) in &parents {
        if let Some(parent) = parent.filter(|parent| !parents.contains_key(parent)) {
            return Err(format!("parent {parent} of {name} was not found"));
        }
    }
    for name in parents.keys() {
        let mut visited = BTreeSet::new();
        let mut at = Some(*name);
        while let Some(part) = at {
            if !visited.insert(part) {
                return Err("cycle detected in subgroups".to_owned());
            }
            at = parents.get(part).copied().flatten();
        }
    }
    Ok(())
}

struct SubGroupIndex<'a> {
    parts: BTreeMap<Option<&'a str>, Vec<&'a DerivedSubGroup>>,
    levels: &'a TopologyResolver<'a>,
}

impl<'a> SubGroupIndex<'a> {
    fn of(parts: &'a [DerivedSubGroup], levels: &'a TopologyResolver<'a>) -> Self {
        let mut by_parent: BTreeMap<Option<&str>, Vec<&DerivedSubGroup>> = BTreeMap::new();
        for part in parts {
            by_parent
                .entry(part.parent.as_deref())
                .or_default()
                .push(part);
        }
        Self {
            parts: by_parent,
            levels,
        }
    }

    fn group(&self, of: Option<&DerivedSubGroup>) -> SubGroupSet {
        let topology = |part: &DerivedSubGroup| {
            part.topology
                .as_ref()
                .and_then(|term| self.levels.constraint(term))
        };
        let mut group = SubGroupSet {
            name: of.map(|part| part.name.clone()).unwrap_or_default(),
            min_members: of.and_then(|part| part.min_sub_group).map(members),
            topology: of.and_then(topology),
            ..SubGroupSet::default()
        };
        let name = of.map(|part| part.name.as_str());
        for part in self.parts.get(&name).into_iter().flatten() {
            if self.parts.contains_key(&Some(part.name.as_str())) {
                group.groups.push(self.group(Some(part)));
            } else {
                group.sets.push(PodSet {
                    name: part.name.clone(),
                    min_available: members(part.min_member),
                    topology: topology(part),
                });
            }
        }
        group
    }
}

/// Topologies, whose levels may have an alias.
pub(crate) struct TopologyResolver<'a>(pub(crate) &'a ObjectInventory);

impl TopologyResolver<'_> {
    pub(crate) fn topologies(&self) -> Vec<cluster::ClusterTopology> {
        self.0
            .all("Topology")
            .map(|object: ObjectView<'_>| cluster::ClusterTopology {
                name: object.name().to_owned(),
                levels: levels(object)
                    .map(|level| text(level, "nodeLabel"))
                    .collect(),
            })
            .collect()
    }

    fn constraint(&self, term: &DerivedTopologyConstraint) -> Option<TopologyConstraint> {
        let level = |name: &str| {
            let topology = self.0.find("Topology", "", &term.name);
            let mut known = topology.into_iter().flat_map(levels);
            let found = known.find(|level| text(level, "alias") == name);
            let label = found.map_or_else(|| name.to_owned(), |level| text(level, "nodeLabel"));
            (!name.is_empty()).then_some(label)
        };
        (!term.name.is_empty()).then(|| TopologyConstraint {
            topology: term.name.clone(),
            required: level(&term.required),
            preferred: level(&term.preferred),
        })
    }
}

fn levels(topology: ObjectView<'_>) -> impl Iterator<Item = &Value> {
    let levels = topology.json().pointer("/spec/levels");
    levels.and_then(Value::as_array).into_iter().flatten()
}

fn text(level: &Value, field: &str) -> String {
    level[field].as_str().unwrap_or_default().to_owned()
}
