//! A cluster's defaults for owner kinds: the config map that says "Deployments are `build` here".
//!
//! Its key `types` holds a JSON list of `{typeName, group, priorityName, preemptibility}`. An entry with a group
//! applies to that group's kind only and wins over one without. Of two entries for the same kind, the last counts.

use serde_json::Value;

use crate::error::GroupingError;
use crate::group::GroupPreemptibility;
use crate::object::ObjectView;

/// The defaults of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindDefault {
    /// The kind.
    pub kind: String,
    /// Its API group; empty for the kind in any group.
    pub api_group: String,
    /// The priority class; empty for none.
    pub priority_class: String,
    /// Whether its groups may be evicted; `None` also if the entry has neither value.
    pub preemptibility: Option<GroupPreemptibility>,
}

/// The defaults of all kinds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KindDefaults(Vec<KindDefault>);

impl KindDefaults {
    /// Reads the config map.
    pub fn parse(config_map: ObjectView<'_>) -> Result<Self, GroupingError> {
        let text = config_map
            .text(&["data", "types"])
            .ok_or_else(|| GroupingError::unset(config_map, "data.types"))?;
        let entries: Vec<Value> = serde_json::from_str(text)
            .map_err(|error| GroupingError::field(config_map, "data.types", error.to_string()))?;
        Ok(Self(
            entries.iter().map(ObjectView::new).map(entry).collect(),
        ))
    }

    /// The defaults, in the order of the config map.
    pub fn entries(&self) -> &[KindDefault] {
        &self.0
    }

    /// The defaults for a kind.
    pub fn of(&self, api_group: &str, kind: &str) -> Option<&KindDefault> {
        let find = |group: &str| {
            self.0
                .iter()
                .rfind(|entry| entry.kind == kind && entry.api_group == group)
        };
        find(api_group).or_else(|| find(""))
    }
}

fn entry(entry: ObjectView<'_>) -> KindDefault {
    let text = |field| entry.text(&[field]).unwrap_or_default().to_owned();
    KindDefault {
        kind: text("typeName"),
        api_group: text("group"),
        priority_class: text("priorityName"),
        preemptibility: GroupPreemptibility::parse(&text("preemptibility").to_lowercase()),
    }
}
