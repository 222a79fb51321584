//! What a job takes from its pod group.
//!
//! Each parsed pod keeps the terms of its group, and there are thousands of them. A [`DerivedPodGroup`] is several
//! times as large: it also has what only the PodGroup object needs.

use std::time::Duration;

use apportion_abi::names::{
    ANNOTATION_DELAY as DELAY, ANNOTATION_GRACE as GRACE,
    ANNOTATION_LAST_EVICTION as LAST_EVICTION, ANNOTATION_LAST_START as LAST_START,
    ANNOTATION_STALE as STALE, ANNOTATION_TOP_OWNER,
};
use apportion_groups::{
    DerivedPodGroup, DerivedSubGroup, DerivedTopologyConstraint, GroupPreemptibility,
};
use apportion_kubernetes::{parse_duration, parse_timestamp};
use apportion_policy::cluster::StalenessGracePeriod;

/// The terms of a pod group.
#[derive(Debug)]
pub(crate) struct PodGroupTerms {
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) queue: Box<str>,
    pub(crate) priority_class: Box<str>,
    pub(crate) preemptibility: Option<GroupPreemptibility>,
    pub(crate) preemption_delay: Duration,
    pub(crate) min_member: u32,
    pub(crate) min_sub_group: Option<u32>,
    /// `None` if it names no topology.
    pub(crate) topology: Option<Box<DerivedTopologyConstraint>>,
    pub(crate) sub_groups: Box<[DerivedSubGroup]>,
    /// Whether it says when its pods last started, even if that cannot be read.
    pub(crate) has_last_start: bool,
    pub(crate) last_start: Option<Duration>,
    pub(crate) last_eviction: Option<Duration>,
    pub(crate) stale_since: Option<Duration>,
    pub(crate) grace: Option<StalenessGracePeriod>,
    /// Whether it was derived from the owners of a pod.
    pub(crate) has_top_owner: bool,
}

impl PodGroupTerms {
    pub(crate) fn of(group: DerivedPodGroup) -> Self {
        let annotated = |key: &str| group.annotations.get(key).map(String::as_str);
        let at = |key: &str| annotated(key).and_then(parse_timestamp);
        Self {
            preemption_delay: group
                .preemption_delay
                .or_else(|| annotated(DELAY).and_then(parse_duration))
                .unwrap_or_default(),
            has_last_start: annotated(LAST_START).is_some(),
            last_start: at(LAST_START),
            last_eviction: at(LAST_EVICTION),
            stale_since: at(STALE),
            grace: annotated(GRACE).and_then(grace),
            has_top_owner: annotated(ANNOTATION_TOP_OWNER).is_some(),
            namespace: group.namespace.into(),
            name: group.name.into(),
            queue: group.queue.into(),
            priority_class: group.priority_class.into(),
            preemptibility: group.preemptibility,
            min_member: group.min_member,
            min_sub_group: group.min_sub_group,
            topology: Some(group.topology)
                .filter(|topology| !topology.name.is_empty())
                .map(Box::new),
            sub_groups: group.sub_groups.into(),
        }
    }
}

/// A staleness grace period: a negative one never ends.
pub(crate) fn grace(text: &str) -> Option<StalenessGracePeriod> {
    if text.starts_with('-') {
        return Some(StalenessGracePeriod::Forever);
    }
    parse_duration(text).map(StalenessGracePeriod::For)
}
