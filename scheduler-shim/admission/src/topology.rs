//! Topologies: an alias of a level must not name anything else.

use std::collections::BTreeSet;

use serde::Deserialize;

/// The fields of a topology that the rules read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReviewedTopology {
    /// Its spec.
    pub spec: ReviewedTopologySpec,
}

/// A topology's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReviewedTopologySpec {
    /// Its levels, coarsest first.
    pub levels: Vec<ReviewedTopologyLevel>,
}

/// A level of a topology.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReviewedTopologyLevel {
    /// The node label.
    pub node_label: String,
    /// Another name for the label.
    pub alias: String,
}

/// Why a topology is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid topology aliases: {0}")]
pub struct TopologyRefusal(String);

/// Judges a topology that is created or updated.
///
/// # Errors
/// All wrong aliases at once.
pub fn check(topology: &ReviewedTopology) -> Result<(), TopologyRefusal> {
    let levels = &topology.spec.levels;
    let labels: BTreeSet<&str> = levels
        .iter()
        .map(|level| level.node_label.as_str())
        .collect();
    let aliases = levels.iter().map(|level| level.alias.as_str());
    let aliases: Vec<&str> = aliases.filter(|alias| !alias.is_empty()).collect();
    let mut known = BTreeSet::new();
    let repeated = aliases
        .iter()
        .copied()
        .filter(|alias| !known.insert(*alias));
    let repeated: Vec<&str> = repeated.collect();
    let conflicting = aliases
        .iter()
        .copied()
        .filter(|alias| labels.contains(alias));
    let wrong = [
        (
            "aliases must be unique within the topology; duplicated",
            repeated,
        ),
        (
            "an alias must not equal a nodeLabel; conflicting",
            conflicting.collect(),
        ),
    ];
    let problems: Vec<String> = wrong
        .into_iter()
        .filter(|(_, aliases)| !aliases.is_empty())
        .map(|(what, mut aliases)| {
            aliases.sort_unstable();
            format!("{what}: [{}]", aliases.join(" "))
        })
        .collect();
    if problems.is_empty() {
        Ok(())
    } else {
        Err(TopologyRefusal(problems.join("; ")))
    }
}
