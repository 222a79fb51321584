//! Grove: a pod's label names its PodGang, which says everything, with parts and where they shall be.
//!
//! Its `topologyConstraintGroupConfigs` are inner parts that hold some of its pod groups; a config that
//! holds none of them that exist is nothing to wait for and is left out.

use serde_json::Value;

use crate::group::{PodGroup, SubGroup, Topology, members};
use crate::malformed::Malformed;
use crate::names::ANNOTATION_TOPOLOGY;
use crate::object::Object;
use crate::table::Row;
use crate::workload::Workload;

const POD_GANG: &str = "grove.io/podgang";
const TOPOLOGY_NAME: &str = "grove.io/topology-name";

/// A pod that a gang names as its member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodReference {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
}

pub(crate) fn group(row: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    let pod = workload.pod;
    let name = pod
        .label(POD_GANG)
        .ok_or_else(|| Malformed::unset(pod, POD_GANG))?;
    let gang = workload
        .objects
        .need("PodGang", workload.namespace(), name)?;
    let mut group = workload.owned_by(gang).plain(row.priority);
    if let Some(class) = gang.text(&["spec", "priorityClassName"]) {
        group.priority_class = class.to_owned();
    }
    let topology = topology_name(gang);
    if let Some(spec) = gang.part(&["spec"])
        && let Some(wish) = constraint(spec, gang, topology)?
    {
        group.topology = wish;
    }
    let leaves = leaves(gang, topology)?;
    group.min_member = members(&leaves);
    group.sub_groups = with_parents(gang, topology, leaves)?;
    Ok(group)
}

fn topology_name(gang: Object<'_>) -> &str {
    gang.annotation(TOPOLOGY_NAME)
        .or_else(|| gang.annotation(ANNOTATION_TOPOLOGY))
        .unwrap_or_default()
}

fn leaves(gang: Object<'_>, topology: &str) -> Result<Vec<SubGroup>, Malformed> {
    let field = ["spec", "podgroups"];
    let entries = gang.list(&field)?;
    if entries.is_empty() {
        return Err(Malformed::unset(gang, &field.join(".")));
    }
    entries
        .iter()
        .map(|entry| parse_sub_group(entry, gang, topology))
        .collect()
}

/// Reads one entry of a gang's pod groups.
pub fn parse_sub_group(
    entry: &Value,
    gang: Object<'_>,
    topology: &str,
) -> Result<SubGroup, Malformed> {
    let entry = Object::new(entry);
    let name = entry.text(&["name"]).ok_or(Malformed::Required("name"))?;
    let least = entry
        .count(&["minReplicas"])?
        .ok_or(Malformed::Required("minReplicas"))?;
    if entry.at(&["podReferences"]).is_none() {
        return Err(Malformed::Required("podReferences"));
    }
    let mut leaf = SubGroup::leaf(name, least).placed(constraint(entry, gang, topology)?);
    for reference in entry.list(&["podReferences"])? {
        let reference = parse_pod_reference(reference)?;
        if reference.namespace != gang.namespace() {
            return Err(Malformed::ForeignPod {
                gang: gang.name().to_owned(),
                namespace: gang.namespace().to_owned(),
                other: reference.namespace,
            });
        }
        leaf.pods.push(reference.name);
    }
    Ok(leaf)
}

/// Reads one entry of a pod group's references.
pub fn parse_pod_reference(entry: &Value) -> Result<PodReference, Malformed> {
    let entry = Object::new(entry);
    let text = |field: &'static str| {
        entry
            .text(&[field])
            .map(str::to_owned)
            .ok_or(Malformed::Required(field))
    };
    Ok(PodReference {
        namespace: text("namespace")?,
        name: text("name")?,
    })
}

/// Puts leaves below the inner parts that hold them.
fn with_parents(
    gang: Object<'_>,
    topology: &str,
    mut leaves: Vec<SubGroup>,
) -> Result<Vec<SubGroup>, Malformed> {
    let configs = gang.list(&["spec", "topologyConstraintGroupConfigs"])?;
    let mut all = Vec::new();
    for config in configs.iter().map(Object::new) {
        let name = config.text(&["name"]).ok_or(Malformed::Required("name"))?;
        let held = config.list(&["podGroupNames"])?;
        let mut children = 0;
        for leaf in leaves.iter_mut().filter(|leaf| leaf.parent.is_none()) {
            if held.iter().any(|held| held.as_str() == Some(&leaf.name)) {
                leaf.parent = Some(name.to_owned());
                children += 1;
            }
        }
        if children > 0 {
            all.push(SubGroup::node(name, children).placed(constraint(config, gang, topology)?));
        }
    }
    all.extend(leaves);
    Ok(all)
}

/// The placement that a gang or a part of it asks for.
fn constraint(
    part: Object<'_>,
    gang: Object<'_>,
    topology: &str,
) -> Result<Option<Topology>, Malformed> {
    let Some(pack) = part.part(&["topologyConstraint", "packConstraint"]) else {
        return Ok(None);
    };
    let text = |field| pack.text(&[field]).unwrap_or_default().to_owned();
    let wish = Topology {
        name: topology.to_owned(),
        required: text("required"),
        preferred: text("preferred"),
    };
    match wish.some() {
        Some(wish) if wish.name.is_empty() => Err(Malformed::NoTopology(gang.to_string())),
        wish => Ok(wish),
    }
}
