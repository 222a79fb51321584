//! The subgroups of a PodGang: its pod groups, and the configs that hold several of them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::{GroupingError, counted};
use crate::group::DerivedSubGroup;
use crate::object::ObjectView;

use super::constraint;

const GROUPS: [&str; 2] = ["spec", "podgroups"];
const CONFIGS: [&str; 2] = ["spec", "topologyConstraintGroupConfigs"];

/// A pod that a gang names as its member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodReference {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
}

/// The inner subgroups, and which of them holds which pod group. All pod groups that a config names must start
/// together, even those that don't exist yet: a gang may be read before it has all its groups.
pub(super) fn nodes(
    gang: ObjectView<'_>,
    topology: &str,
) -> Result<(Vec<DerivedSubGroup>, BTreeMap<String, String>), GroupingError> {
    let mut nodes = Vec::new();
    let mut parents = BTreeMap::new();
    let configs = gang
        .list(&CONFIGS)
        .map_err(|_| GroupingError::Unparsed("topologyConstraintGroupConfigs"))?;
    for (index, config) in configs.iter().enumerate() {
        let path = format!("{}[{index}]", CONFIGS.join("."));
        let config = entry(gang, config, &path)?;
        let in_config = |why| part(gang, &path, why);
        let name = required(config, "name").map_err(in_config)?;
        let held = names(config).map_err(in_config)?;
        if held.is_empty() {
            continue;
        }
        let count = i64::try_from(held.len()).unwrap_or(i64::MAX);
        let node = DerivedSubGroup::node(name, counted(gang, "podGroupNames", count)?);
        let constraint_found = constraint(config, &[], gang, topology).map_err(in_config)?;
        nodes.push(node.placed(constraint_found));
        let of_node = held.into_iter().map(|held| (held, name.to_owned()));
        parents.extend(of_node);
    }
    Ok((nodes, parents))
}

fn names(config: ObjectView<'_>) -> Result<Vec<String>, GroupingError> {
    let field = ["podGroupNames"];
    let all = config.list(&field)?.iter();
    all.map(|name| {
        name.as_str()
            .map(str::to_owned)
            .ok_or_else(|| GroupingError::Unparsed(field[0]))
    })
    .collect()
}

/// The pod groups, as leaves.
pub(super) fn leaves(
    gang: ObjectView<'_>,
    topology: &str,
    parents: &BTreeMap<String, String>,
) -> Result<Vec<DerivedSubGroup>, GroupingError> {
    let path = GROUPS.join(".");
    let listed = gang.list(&GROUPS).map_err(|why| GroupingError::Unread {
        path: path.clone(),
        object: format!("PodGang {}/{}", gang.namespace(), gang.name()),
        why: Box::new(why),
    })?;
    let mut leaves = Vec::new();
    for (index, listed) in listed.iter().enumerate() {
        let path = format!("{path}[{index}]");
        entry(gang, listed, &path)?;
        let leaf =
            parse_sub_group(listed, index, gang, topology).map_err(|why| part(gang, &path, why))?;
        let parent = parents.get(&leaf.name).cloned();
        leaves.push(DerivedSubGroup { parent, ..leaf });
    }
    Ok(leaves)
}

/// Parses the entry at `index` of a gang's pod groups.
pub fn parse_sub_group(
    json: &Value,
    index: usize,
    gang: ObjectView<'_>,
    topology: &str,
) -> Result<DerivedSubGroup, GroupingError> {
    let group = ObjectView::new(json);
    let name = required(group, "name")?;
    let least = group
        .whole(&["minReplicas"])?
        .ok_or(GroupingError::Required("minReplicas"))?;
    if least <= 0 {
        return Err(GroupingError::Invalid {
            field: "minReplicas",
            why: "Must be greater than 0",
        });
    }
    let references = group
        .listed(&["podReferences"])?
        .ok_or(GroupingError::Required("podReferences"))?;
    let mut leaf = DerivedSubGroup::leaf(name, counted(gang, "minReplicas", least)?);
    for (number, json) in references.iter().enumerate() {
        entry(
            gang,
            json,
            &format!("spec.podgroup[{index}].podReferences[{number}]"),
        )?;
        let path = format!("spec.podgroups[{index}].podreferences[{number}]");
        let pod = parse_pod_reference(json).map_err(|why| part(gang, &path, why))?;
        if pod.namespace != gang.namespace() {
            return Err(GroupingError::ForeignPod {
                gang: gang.name().to_owned(),
                namespace: gang.namespace().to_owned(),
                other: pod.namespace,
            });
        }
        leaf.pods.push(pod.name);
    }
    Ok(leaf.placed(constraint(group, &[], gang, topology)?))
}

/// Parses one entry of a pod group's references.
pub fn parse_pod_reference(entry: &Value) -> Result<PodReference, GroupingError> {
    let entry = ObjectView::new(entry);
    Ok(PodReference {
        namespace: required(entry, "namespace")?.to_owned(),
        name: required(entry, "name")?.to_owned(),
    })
}

fn required<'a>(entry: ObjectView<'a>, field: &'static str) -> Result<&'a str, GroupingError> {
    entry
        .string(&[field])?
        .ok_or(GroupingError::Required(field))
}

fn entry<'a>(
    gang: ObjectView<'_>,
    json: &'a Value,
    path: &str,
) -> Result<ObjectView<'a>, GroupingError> {
    if json.is_object() {
        Ok(ObjectView::new(json))
    } else {
        Err(GroupingError::Entry {
            path: path.to_owned(),
            object: format!("PodGang {}/{}", gang.namespace(), gang.name()),
        })
    }
}

fn part(gang: ObjectView<'_>, path: &str, why: GroupingError) -> GroupingError {
    GroupingError::Part {
        path: path.to_owned(),
        object: format!("PodGang {}/{}", gang.namespace(), gang.name()),
        why: Box::new(why),
    }
}
