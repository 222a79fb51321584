//! A pod's group, kept until something changes that it was read from.

use std::sync::Arc;

use super::change_counters::ChangeCounters;
use super::pod_group_terms::PodGroupTerms;

/// A pod's group, or why it has none.
pub(crate) type PodGroupResult = Arc<Result<PodGroupTerms, String>>;

/// A group derived from a pod's owners, with a stamp of its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedGroup {
    /// The name of the group.
    pub name: Arc<str>,
    /// The subgroup that holds the pod.
    pub part: Option<Arc<str>>,
    /// Equal for objects that say the same.
    pub stamp: u64,
}

/// A group, and the ages of everything that it was read from.
#[derive(Debug)]
pub(crate) struct CachedGroup {
    pub(crate) ages: (u64, u64),
    /// PodGroups by namespace and name, with their ages.
    pub(crate) pod_groups: Vec<(String, String, u64)>,
    pub(crate) group: PodGroupResult,
    pub(crate) derived: Option<DerivedGroup>,
}

impl CachedGroup {
    pub(crate) fn is_of(&self, namespace: &str, ages: &ChangeCounters) -> bool {
        let mut pod_groups = self.pod_groups.iter();
        self.ages == ages.of(namespace)
            && pod_groups.all(|(space, name, age)| ages.of_group(space, name) == *age)
    }
}
