//! Invariants of any cluster.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::Bytes;
use apportion_policy::cluster::{Node, Task, TaskGpuRequest, TaskStatus};
use apportion_policy::{Cluster, Decision};
use proptest::prelude::*;

/// No card, and no node, has more taken by running tasks than it has.
pub(crate) fn check_cards(cluster: &Cluster) -> Result<(), TestCaseError> {
    for node in &cluster.nodes {
        let mut shared: BTreeMap<&str, u64> = BTreeMap::new();
        let mut alone: Vec<&str> = Vec::new();
        let mut whole = 0;
        let tasks = cluster.jobs.iter().flat_map(|job| &job.tasks);
        let here = tasks.filter(|task| task.node.as_ref() == Some(&node.name));
        for task in here.filter(|task| task.status == TaskStatus::Running) {
            match &task.cards {
                TaskGpuRequest::Whole(count) => {
                    whole += count;
                    alone.extend(task.on.iter().map(String::as_str));
                }
                TaskGpuRequest::Shared { share, devices } => {
                    prop_assert_eq!(task.on.len(), usize::try_from(*devices).unwrap());
                    for card in &task.on {
                        let capacity = apportion_abi::CardCapacity {
                            total: node.size_of(card),
                            reserved: Bytes::ZERO,
                        };
                        *shared.entry(card).or_default() += share.bytes_of(capacity).0;
                    }
                }
                TaskGpuRequest::None | TaskGpuRequest::Partitions(_) => {}
            }
        }
        for (card, held) in &shared {
            prop_assert!(*held <= node.size_of(card).0, "{held} of {card}");
        }
        let used = whole + i64::try_from(shared.len()).unwrap();
        let has = node.card_count();
        prop_assert!(used <= has, "{} cards of {} used", used, has);
        check_names(node, whole, &alone, &shared)?;
    }
    Ok(())
}

/// If cards are known one by one, tasks have healthy ones only, and no task has a card that another has alone.
fn check_names(
    node: &Node,
    whole: i64,
    alone: &[&str],
    shared: &BTreeMap<&str, u64>,
) -> Result<(), TestCaseError> {
    if node.listed.is_empty() {
        return Ok(());
    }
    prop_assert_eq!(alone.len(), usize::try_from(whole).unwrap());
    for card in alone.iter().chain(shared.keys()) {
        let mut listed = node.listed.iter();
        prop_assert!(
            listed.any(|listed| listed.name == **card && listed.is_healthy),
            "{card} is given"
        );
    }
    let different: BTreeSet<&&str> = alone.iter().chain(shared.keys()).collect();
    prop_assert_eq!(different.len(), alone.len() + shared.len());
    Ok(())
}

/// How many cards a task counts for; bytes count by the cards that they are on.
fn charged(task: &Task, node: &Node) -> f64 {
    let TaskGpuRequest::Shared { share, .. } = &task.cards else {
        return task.cards.count(Bytes::ZERO);
    };
    let one = TaskGpuRequest::Shared {
        share: *share,
        devices: 1,
    };
    let cards = task.on.iter();
    cards.map(|card| one.count(node.size_of(card))).sum()
}

fn held_by(cluster: &Cluster, queue: &str, only_fixed: bool) -> f64 {
    let jobs = cluster.jobs.iter().filter(|job| job.queue == queue);
    let jobs = jobs.filter(|job| !only_fixed || !job.is_preemptible);
    let tasks = jobs.flat_map(|job| &job.tasks);
    let running = tasks.filter(|task| task.status == TaskStatus::Running);
    running
        .map(|task| {
            let mut nodes = cluster.nodes.iter();
            let node = nodes.find(|node| Some(&node.name) == task.node.as_ref());
            charged(task, node.unwrap())
        })
        .sum()
}

pub(crate) fn check_queues(cluster: &Cluster) -> Result<(), TestCaseError> {
    for queue in cluster.queues.iter().filter(|queue| queue.parent.is_some()) {
        let (held, fixed) = (
            held_by(cluster, &queue.name, false),
            held_by(cluster, &queue.name, true),
        );
        let limit = queue.gpu.limit;
        prop_assert!(limit < 0.0 || held <= limit + 1e-6, "{held} of {limit}");
        prop_assert!(fixed <= queue.gpu.deserved + 1e-6);
    }
    Ok(())
}

/// Every gang is whole. Moved pods count as placed while they wait for their place.
pub(crate) fn check_gangs(cluster: &Cluster, decisions: &[Decision]) -> Result<(), TestCaseError> {
    for job in &cluster.jobs {
        let placed = job.tasks.iter().filter(|task| {
            let name = &task.name;
            let mut decisions = decisions.iter();
            task.status == TaskStatus::Running
                || decisions
                    .any(|one| matches!(one, Decision::Reserve { task, .. } if task == name))
        });
        let placed = placed.count();
        let minimum = job.root.sets.iter().map(|set| set.min_available).sum();
        let is_whole = placed == 0 || placed >= minimum;
        prop_assert!(is_whole, "{} is half placed", job.name);
    }
    Ok(())
}
