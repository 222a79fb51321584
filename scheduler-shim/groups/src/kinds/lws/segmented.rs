//! A LeaderWorkerSet group split into segments, by the set's own subgroup policy or by KAI's annotation.
//!
//! The leader is in the first segment, in a subgroup of its own, or outside all segments. If the workers alone fill
//! whole segments, the leader comes on top of the first; else it takes a worker's place.

use crate::error::{GroupingError, counted};
use crate::group::{DerivedSubGroup, DerivedTopologyConstraint};
use crate::names::ANNOTATION_SEGMENT_SIZE;
use crate::object::ObjectView;
use crate::segments;

use super::{LEADER, WORKER_INDEX, WORKERS, is_leader, leader, worker_index};

const POLICY_SIZE: [&str; 4] = [
    "spec",
    "leaderWorkerTemplate",
    "subGroupPolicy",
    "subGroupSize",
];
const POLICY_TYPE: [&str; 4] = [
    "spec",
    "leaderWorkerTemplate",
    "subGroupPolicy",
    "subGroupPolicyType",
];
const TEMPLATE: [&str; 3] = ["spec", "leaderWorkerTemplate", "workerTemplate"];

/// A group of pods to split.
pub(super) struct SegmentedGroup<'a> {
    owner: ObjectView<'a>,
    pod: ObjectView<'a>,
    /// The number of pods of a segment.
    size: i64,
    /// The number of workers of the group.
    workers: i64,
    /// Whether the leader is outside the segments.
    is_leader_excluded: bool,
    constraint_found: Option<DerivedTopologyConstraint>,
}

impl<'a> SegmentedGroup<'a> {
    /// How to split a group of `pods`; `None` if it is not split.
    pub(super) fn read(
        owner: ObjectView<'a>,
        pod: ObjectView<'a>,
        pods: u32,
    ) -> Result<Option<Self>, GroupingError> {
        let Some(size) = size(owner, pods)? else {
            return Ok(None);
        };
        let template = owner.field(&TEMPLATE)?.map(ObjectView::new);
        Ok(Some(Self {
            owner,
            pod,
            size,
            workers: i64::from(pods) - 1,
            is_leader_excluded: owner.string(&POLICY_TYPE)? == Some("LeaderExcluded"),
            constraint_found: template.and_then(|_| segments::topology(pod, template, owner)),
        }))
    }

    pub(super) fn parts(self) -> Result<Vec<DerivedSubGroup>, GroupingError> {
        let fills = self.workers % self.size == 0;
        if self.is_leader_excluded && !fills {
            let why = format!(
                "{} workers do not fill segments of {}, which they must where the leader is in none",
                self.workers, self.size
            );
            return Err(GroupingError::field(
                self.owner,
                &POLICY_TYPE.join("."),
                why,
            ));
        }
        let cut = if fills {
            self.workers
        } else {
            self.workers + 1
        };
        let number = segments::count(cut, self.size)?;
        let own = self.own_segment(fills, number)?;
        let mut runs = Vec::new();
        for index in 0..number {
            let pods = self.size.min(cut - i64::from(index) * self.size);
            let pods = counted(self.owner, ANNOTATION_SEGMENT_SIZE, pods)?;
            runs.push(
                DerivedSubGroup::leaf(format!("segment-{index}"), pods)
                    .placed(self.constraint_found.clone())
                    .holding(self.pod, own == Some(index)),
            );
        }
        Ok(if self.is_leader_excluded {
            [vec![leader(self.pod)], runs].concat()
        } else {
            self.with_leader(runs, fills, own)
        })
    }

    /// The segment of the pod, unless it is the leader.
    fn own_segment(&self, fills: bool, number: u32) -> Result<Option<u32>, GroupingError> {
        let index =
            worker_index(self.pod)?.ok_or_else(|| GroupingError::unset(self.pod, WORKER_INDEX))?;
        if index == 0 {
            return Ok(None);
        }
        let own = (index - i64::from(fills)) / self.size;
        let own = u32::try_from(own).ok().filter(|own| *own < number);
        own.map(Some).ok_or_else(|| {
            let why = format!("its group has {} workers", self.workers);
            GroupingError::field(self.pod, WORKER_INDEX, why)
        })
    }

    /// Splits the first segment into two subgroups: the leader, and the workers beside it.
    fn with_leader(
        &self,
        mut runs: Vec<DerivedSubGroup>,
        fills: bool,
        own: Option<u32>,
    ) -> Vec<DerivedSubGroup> {
        let Some(first) = runs.first_mut() else {
            return runs;
        };
        let workers = if fills {
            first.min_member
        } else {
            first.min_member - 1
        };
        *first = DerivedSubGroup::node(&*first.name, 2).placed(first.topology.take());
        let root = first.name.clone();
        let beside = DerivedSubGroup::leaf(WORKERS, workers).under(&root);
        let leader = DerivedSubGroup::leaf(LEADER, 1).under(&root);
        runs.push(leader.holding(self.pod, is_leader(self.pod)));
        runs.push(beside.holding(self.pod, own == Some(0)));
        runs
    }
}

/// The segment size: from the set's policy, else the annotation of the set or of its workers' template.
fn size(owner: ObjectView<'_>, pods: u32) -> Result<Option<i64>, GroupingError> {
    let template = owner.part(&TEMPLATE);
    let size = match owner.whole(&POLICY_SIZE)? {
        Some(size) => segments::size(&size.to_string(), 2)?,
        None => {
            let value = owner.given_annotation(ANNOTATION_SEGMENT_SIZE);
            match value.or_else(|| template?.given_annotation(ANNOTATION_SEGMENT_SIZE)) {
                Some(value) => segments::size(value, 2)?,
                None => return Ok(None),
            }
        }
    };
    if size > i64::from(pods) {
        return Err(GroupingError::SegmentSize {
            size: size.to_string(),
            bounds: format!("<= {pods}, the pods of a group"),
        });
    }
    Ok(Some(size))
}
