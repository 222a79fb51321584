//! Pod groups: the subgroups must form a tree, and every minimum must be possible.
//!
//! Subgroups that form no tree are refused. So are wrong minimums, except for two kinds that KAI only warns about,
//! because groups from before the rule must stay editable.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The fields of a pod group that the rules read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReviewedPodGroup {
    /// Its spec.
    pub spec: ReviewedPodGroupSpec,
}

/// A pod group's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReviewedPodGroupSpec {
    /// How many pods must start together.
    pub min_member: Option<i32>,
    /// How many of the top-level subgroups must start together.
    pub min_sub_group: Option<i32>,
    /// Its subgroups.
    pub sub_groups: Vec<ReviewedSubGroup>,
}

/// A subgroup of a pod group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReviewedSubGroup {
    /// Its name.
    pub name: String,
    /// Its parent; `None` at the top level.
    pub parent: Option<String>,
    /// How many of its pods must start together.
    pub min_member: Option<i32>,
    /// How many of its children must start together.
    pub min_sub_group: Option<i32>,
}

/// What is wrong with a pod group.
#[expect(missing_docs, reason = "the fields are those of KAI's PodGroup")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodGroupError {
    /// The group has both minimums.
    #[error(
        "minMember and minSubGroup are mutually exclusive: set minMember ({0}) to schedule a fixed number of pods, or set minSubGroup to require a minimum number of child SubGroups, but not both"
    )]
    BothMinimums(i32),
    /// A subgroup has both minimums.
    #[error("subgroup {0:?}: minMember and minSubGroup are mutually exclusive")]
    BothMinimumsOf(String),
    /// Two subgroups have the same name.
    #[error("duplicate subgroup name {0}")]
    Duplicate(String),
    /// A subgroup's parent does not exist.
    #[error("parent {parent} of {name} was not found")]
    NoParent { parent: String, name: String },
    /// A subgroup is its own ancestor.
    #[error("cycle detected in subgroups")]
    Cycle,
    /// `minSubGroup` on a subgroup without children.
    #[error("subgroup {0:?}: minSubGroup cannot be set on a leaf SubGroup (no child SubGroups)")]
    PartsOfLeaf(String),
    /// No `minMember` on a subgroup without children.
    #[error("subgroup {0}: minMember is required")]
    NoMembers(String),
    /// `minMember` on a subgroup with children.
    #[error(
        "subgroup {0:?}: minMember cannot be set on a mid-level SubGroup (has child SubGroups); use minSubGroup instead"
    )]
    MembersOfParent(String),
    /// `minSubGroup` exceeds the number of children.
    #[error(
        "{}minSubGroup ({least}) exceeds the number of direct child SubGroups ({parts})",
        of(name)
    )]
    TooManyParts {
        /// The subgroup; `None` for the group itself.
        name: Option<String>,
        least: i32,
        /// The number of children.
        parts: usize,
    },
}

fn of(name: &Option<String>) -> String {
    let name = name.as_ref();
    name.map_or(String::new(), |name| format!("subgroup {name:?}: "))
}

impl PodGroupError {
    /// KAI's name for the kind of mistake.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::BothMinimums(_) | Self::BothMinimumsOf(_) => "mutuallyExclusiveFieldsError",
            Self::Duplicate(_) | Self::NoParent { .. } | Self::Cycle => "subGroupGraphError",
            Self::PartsOfLeaf(_) => "invalidMinSubGroupError",
            Self::NoMembers(_) => "missingMinMemberError",
            Self::MembersOfParent(_) => "parentMinMemberError",
            Self::TooManyParts { .. } => "minSubGroupExceedsChildCountError",
        }
    }

    fn is_warning(&self, is_update: bool) -> bool {
        match self {
            Self::TooManyParts { .. } => true,
            Self::MembersOfParent(_) => is_update,
            _ => false,
        }
    }
}

/// All mistakes in a pod group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodGroupFindings {
    /// Why the subgroups form no tree, or the group is ambiguous.
    pub structure: Option<PodGroupError>,
    /// The wrong minimums.
    pub minimums: Vec<PodGroupError>,
}

/// The verdict on a pod group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodGroupVerdict {
    /// Shown to the user whether or not the group is admitted.
    pub warnings: Vec<String>,
    /// Why it is refused, if it is.
    pub refusal: Option<String>,
}

/// Judges a pod group that is created or updated.
#[must_use]
pub fn check(group: &ReviewedPodGroup, is_update: bool) -> PodGroupVerdict {
    let found = find(&group.spec);
    if let Some(mistake) = found.structure {
        return PodGroupVerdict {
            warnings: Vec::new(),
            refusal: Some(mistake.to_string()),
        };
    }
    let all = found.minimums.iter();
    let (warnings, errors): (Vec<_>, Vec<_>) = all.partition(|one| one.is_warning(is_update));
    let texts =
        |all: Vec<&PodGroupError>| -> Vec<String> { all.iter().map(ToString::to_string).collect() };
    let errors = texts(errors);
    PodGroupVerdict {
        warnings: texts(warnings),
        refusal: (!errors.is_empty()).then(|| errors.join("\n")),
    }
}

/// Finds all mistakes in a pod group.
#[must_use]
pub fn find(spec: &ReviewedPodGroupSpec) -> PodGroupFindings {
    if let (Some(members), Some(_)) = (spec.min_member, spec.min_sub_group) {
        return PodGroupFindings {
            structure: Some(PodGroupError::BothMinimums(members)),
            minimums: Vec::new(),
        };
    }
    let tree = match SubGroupTree::of(&spec.sub_groups) {
        Ok(tree) => tree,
        Err(mistake) => {
            return PodGroupFindings {
                structure: Some(mistake),
                minimums: Vec::new(),
            };
        }
    };
    let mut minimums = Vec::new();
    for group in tree.by_name.values() {
        if group.min_member.is_some() && group.min_sub_group.is_some() {
            return PodGroupFindings {
                structure: Some(PodGroupError::BothMinimumsOf(group.name.clone())),
                minimums,
            };
        }
        minimums.extend(tree.minimums_of(group));
    }
    let roots = spec
        .sub_groups
        .iter()
        .filter(|group| group.parent.is_none());
    minimums.extend(too_many(None, spec.min_sub_group, roots.count()));
    PodGroupFindings {
        structure: None,
        minimums,
    }
}

/// Reports a minimum above the number of children.
fn too_many(name: Option<&str>, least: Option<i32>, parts: usize) -> Option<PodGroupError> {
    let least = least.filter(|least| usize::try_from(*least).is_ok_and(|least| least > parts))?;
    Some(PodGroupError::TooManyParts {
        name: name.map(str::to_owned),
        least,
        parts,
    })
}

/// Subgroups by name, and the number of children of each.
struct SubGroupTree<'a> {
    by_name: BTreeMap<&'a str, &'a ReviewedSubGroup>,
    parts: BTreeMap<&'a str, usize>,
}

impl<'a> SubGroupTree<'a> {
    fn of(groups: &'a [ReviewedSubGroup]) -> Result<Self, PodGroupError> {
        let mut by_name = BTreeMap::new();
        for group in groups {
            if by_name.insert(group.name.as_str(), group).is_some() {
                return Err(PodGroupError::Duplicate(group.name.clone()));
            }
        }
        let mut parts: BTreeMap<&str, usize> = BTreeMap::new();
        for group in by_name.values() {
            let Some(parent) = group.parent.as_deref() else {
                continue;
            };
            if !by_name.contains_key(parent) {
                return Err(PodGroupError::NoParent {
                    parent: parent.to_owned(),
                    name: group.name.clone(),
                });
            }
            *parts.entry(parent).or_default() += 1;
        }
        let tree = Self { by_name, parts };
        if tree.by_name.keys().all(|name| tree.reaches_top(name)) {
            Ok(tree)
        } else {
            Err(PodGroupError::Cycle)
        }
    }

    /// Whether the path to the top ends. A path with more steps than there are subgroups is a cycle.
    fn reaches_top(&self, name: &str) -> bool {
        let first = self.by_name.get(name).map(|group| group.name.as_str());
        let way = std::iter::successors(first, |name: &&'a str| {
            self.by_name.get(name)?.parent.as_deref()
        });
        way.take(self.by_name.len() + 1).count() <= self.by_name.len()
    }

    fn minimums_of(&self, group: &ReviewedSubGroup) -> Vec<PodGroupError> {
        let name = &group.name;
        let parts = self.parts.get(name.as_str()).copied().unwrap_or_default();
        let found = if parts == 0 {
            [
                (group.min_sub_group.is_some()).then(|| PodGroupError::PartsOfLeaf(name.clone())),
                (group.min_member.is_none()).then(|| PodGroupError::NoMembers(name.clone())),
            ]
        } else {
            [
                (group.min_member.is_some()).then(|| PodGroupError::MembersOfParent(name.clone())),
                too_many(Some(name), group.min_sub_group, parts),
            ]
        };
        found.into_iter().flatten().collect()
    }
}
