//! LeaderWorkerSets: each group of a leader and its workers is a gang.
//!
//! Where workers wait for the leader to be ready, the leader starts alone, and the gang is whole only once
//! it is placed. A group may be cut into segments, the leader within the first or beside them, by the
//! set's own subgroup policy or by KAI's annotation.

use crate::group::{PodGroup, SubGroup, Topology};
use crate::inherit::group_name;
use crate::malformed::Malformed;
use crate::object::Object;
use crate::segments::{MAX_SEGMENTS, annotated_size, cut, topology};
use crate::table::Row;
use crate::workload::Workload;

const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
const SIZE: &str = "leaderworkerset.sigs.k8s.io/size";
const TEMPLATE: [&str; 2] = ["spec", "leaderWorkerTemplate"];
const LEADER: &str = "leader";
const WORKERS: &str = "workers";

pub(crate) fn group(row: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    let (owner, pod) = (workload.owner, workload.pod);
    let mut group = workload.plain(row.priority);
    if let Some(index) = pod.label(GROUP_INDEX) {
        group.name = format!("{}-group-{index}", group_name(owner));
    }
    let size = size(owner, pod)?;
    let waits = owner.text(&["spec", "startupPolicy"]) == Some("LeaderReady");
    let is_leader = worker_index(pod)? == Some(0);
    if waits && is_leader && pod.text(&["spec", "nodeName"]).is_none() {
        group.min_member = 1;
        group.sub_groups = vec![SubGroup::leaf(LEADER, 1).holding(pod, true)];
    } else {
        group.min_member = size;
        group.sub_groups = sub_groups(owner, pod, size)?;
    }
    Ok(group)
}

/// The pods of one group: the pod knows best, as the set may be changing its size.
fn size(owner: Object<'_>, pod: Object<'_>) -> Result<u32, Malformed> {
    let stated = pod.annotation(SIZE).and_then(|size| size.parse().ok());
    let template = owner.part(&TEMPLATE);
    let size = match (stated, template) {
        (Some(size), _) => size,
        (None, Some(template)) => template.count(&["size"])?.unwrap_or(1),
        (None, None) => 1,
    };
    match size {
        0 => Err(Malformed::field(
            owner,
            "spec.leaderWorkerTemplate.size",
            "it must be >= 1",
        )),
        size => Ok(size),
    }
}

/// The index of a pod in its group; the leader's is zero.
fn worker_index(pod: Object<'_>) -> Result<Option<u32>, Malformed> {
    let parse = |text: &str| {
        text.parse().map_err(|_| Malformed::Index {
            pod: pod.to_string(),
            found: text.to_owned(),
        })
    };
    pod.label(WORKER_INDEX).map(parse).transpose()
}

/// The parts of one group of `size` pods.
pub fn sub_groups(
    owner: Object<'_>,
    pod: Object<'_>,
    size: u32,
) -> Result<Vec<SubGroup>, Malformed> {
    let index = worker_index(pod)?;
    let workers = size.saturating_sub(1);
    let leader = SubGroup::leaf(LEADER, 1).holding(pod, index == Some(0));
    if workers == 0 {
        return Ok(vec![leader]);
    }
    let template = owner.part(&["spec", "leaderWorkerTemplate", "workerTemplate"]);
    let template = template.unwrap_or(owner);
    match segment_size(owner, template)? {
        Some(segment) => Shape {
            leader,
            pod,
            // A pod without an index is a worker of which nothing more is known.
            index: index.unwrap_or(1),
            wish: topology(template, owner)?,
        }
        .cut(owner, workers, segment),
        None => Ok(vec![
            leader,
            SubGroup::leaf(WORKERS, workers).holding(pod, index != Some(0)),
        ]),
    }
}

fn segment_size(owner: Object<'_>, template: Object<'_>) -> Result<Option<u32>, Malformed> {
    if let Some(size) = annotated_size(template)? {
        return Ok(Some(size));
    }
    let policy = owner.part(&["spec", "leaderWorkerTemplate", "subGroupPolicy"]);
    match policy.map(|policy| policy.count(&["subGroupSize"])) {
        Some(size) => match size? {
            Some(0) => Err(Malformed::SegmentSize("0".to_owned())),
            size => Ok(size),
        },
        None => Ok(None),
    }
}

/// A group that is being cut into segments.
struct Shape<'a> {
    leader: SubGroup,
    pod: Object<'a>,
    index: u32,
    wish: Option<Topology>,
}

impl Shape<'_> {
    fn cut(self, owner: Object<'_>, workers: u32, size: u32) -> Result<Vec<SubGroup>, Malformed> {
        let kind = [
            "spec",
            "leaderWorkerTemplate",
            "subGroupPolicy",
            "subGroupPolicyType",
        ];
        if owner.text(&kind) == Some("LeaderExcluded") {
            return Ok(self.beside(&cut(workers, size)?));
        }
        Ok(self.within(&leader_included(workers, size)?))
    }

    /// The leader is a part of its own, then come the segments.
    fn beside(self, runs: &[u32]) -> Vec<SubGroup> {
        let segments = self.segments(0, 0, runs);
        [vec![self.leader], segments].concat()
    }

    /// The leader and the first workers make up the first segment.
    fn within(self, runs: &[u32]) -> Vec<SubGroup> {
        let (first, others) = runs.split_first().unwrap_or((&0, &[]));
        let parts = 1 + u32::from(*first > 0);
        let root = "segment-0";
        let mut all = vec![
            SubGroup::node(root, parts).placed(self.wish.clone()),
            self.leader.clone().under(root),
        ];
        if *first > 0 {
            let holds = (1..=*first).contains(&self.index);
            let workers = SubGroup::leaf(WORKERS, *first).under(root);
            all.push(workers.holding(self.pod, holds));
        }
        all.extend(self.segments(1, *first, others));
        all
    }

    /// Leaves for runs of workers, numbered from `first`; `before` workers are in earlier segments.
    fn segments(&self, first: u32, before: u32, runs: &[u32]) -> Vec<SubGroup> {
        let mut start = before;
        let mut all = Vec::new();
        for (number, run) in (first..).zip(runs) {
            let holds = (start + 1..=start + run).contains(&self.index);
            start += run;
            all.push(
                SubGroup::leaf(format!("segment-{number}"), *run)
                    .placed(self.wish.clone())
                    .holding(self.pod, holds),
            );
        }
        all
    }
}

/// The workers of each segment, of which the first has the leader too. As the set itself has it, the leader
/// takes a worker's place unless the workers alone fill whole segments: then it comes on top.
fn leader_included(workers: u32, size: u32) -> Result<Vec<u32>, Malformed> {
    let first = if workers.is_multiple_of(size) {
        size
    } else {
        size - 1
    };
    let first = first.min(workers);
    let runs = [vec![first], cut(workers - first, size)?].concat();
    match u32::try_from(runs.len()) {
        Ok(count) if count <= MAX_SEGMENTS => Ok(runs),
        _ => Err(Malformed::TooManySegments(runs.len() as u64)),
    }
}
