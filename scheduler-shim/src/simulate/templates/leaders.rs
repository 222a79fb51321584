//! LeaderWorkerSets: replicas of a leader and its workers.
//!
//! If workers wait for their leader to be ready, there are only leaders at first.

use apportion_groups::ObjectView;
use serde_json::{Value, json};

use super::{MOST, count, pod};

const LEADER_READY: &str = "LeaderReady";

pub(super) fn pods(set: ObjectView<'_>) -> Vec<Value> {
    let at = |path: &str| set.json().pointer(path);
    let size = count(at("/spec/leaderWorkerTemplate/size"), 1);
    let only_leaders = at("/spec/startupPolicy") == Some(&LEADER_READY.into());
    let made = if only_leaders { size.min(1) } else { size };
    let worker = at("/spec/leaderWorkerTemplate/workerTemplate").unwrap_or(&Value::Null);
    let leader = at("/spec/leaderWorkerTemplate/leaderTemplate");
    let leader = leader.filter(|given| !given.is_null()).unwrap_or(worker);
    let groups = 0..count(at("/spec/replicas"), 1);
    let places = groups.flat_map(|group| (0..made).map(move |index| (group, index)));
    places
        .take(MOST)
        .map(|(group, index)| {
            let labels = json!({
                "leaderworkerset.sigs.k8s.io/name": set.name(),
                "leaderworkerset.sigs.k8s.io/group-index": group.to_string(),
                "leaderworkerset.sigs.k8s.io/worker-index": index.to_string(),
            });
            let (template, name) = match index {
                0 => (leader, format!("{}-{group}", set.name())),
                _ => (worker, format!("{}-{group}-{index}", set.name())),
            };
            let mut pod = pod(set, template, &name, &labels);
            let annotations = &mut pod["metadata"]["annotations"];
            if !annotations.is_object() {
                *annotations = json!({});
            }
            annotations["leaderworkerset.sigs.k8s.io/size"] = size.to_string().into();
            pod
        })
        .collect()
}
