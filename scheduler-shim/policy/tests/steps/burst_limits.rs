//! Limits of pods and of queues, over random clusters.

use std::sync::Arc;

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::{Cluster, TaskGpuRequest, TaskStatus};
use apportion_policy::step;
use proptest::prelude::*;

use super::checks::{check_cards, check_gangs, check_queues};
use super::clusters::{NOW, cluster};
use super::rounds::carry_on;

fn limit() -> impl Strategy<Value = Option<Share>> {
    let part = prop::sample::select(vec!["0.3", "0.6", "0.95"]);
    prop_oneof![
        Just(None),
        part.prop_map(|text| Some(Share::Fraction(text.parse().unwrap()))),
        (500..4000_u64).prop_map(|mib| Some(Share::Memory(Bytes::from_mib(mib)))),
    ]
}

/// A cluster in which pods have limits above their shares, with the burst limits of its queues in halves of a card.
fn elastic_cluster() -> impl Strategy<Value = (Cluster, Vec<Option<u32>>)> {
    let limits = prop::collection::vec(limit(), 14);
    let bounds = prop::collection::vec(prop::option::of(0..12_u32), 4);
    (cluster(), limits, bounds).prop_map(|(mut cluster, limits, bounds)| {
        for (job, limit) in cluster.jobs.iter_mut().zip(limits) {
            let tasks = Arc::make_mut(job).tasks.iter_mut();
            let shared = tasks.filter(|task| matches!(task.cards, TaskGpuRequest::Shared { .. }));
            shared.for_each(|task| task.limit = limit);
        }
        (cluster, bounds)
    })
}

fn bounded(mut cluster: Cluster, bounds: &[Option<u32>]) -> Cluster {
    for (queue, bound) in cluster.queues.iter_mut().zip(bounds) {
        queue.burst_limit = bound.map(|halves| f64::from(halves) / 2.0);
    }
    cluster
}

fn part_of(share: Share, card: Bytes) -> f64 {
    match share {
        Share::Whole => 1.0,
        Share::Fraction(fraction) => f64::from(fraction.parts_per_billion()) / 1e9,
        Share::Memory(bytes) => bytes.0 as f64 / card.0 as f64,
    }
}

/// What the limits of the running pods of a queue, and of those below it, add up to.
fn limits_in(cluster: &Cluster, queue: &str) -> f64 {
    let is_below = |name: &str| {
        let mut queues = cluster.queues.iter();
        let found = queues.find(|known| known.name == name);
        name == queue || found.is_some_and(|found| found.parent.as_deref() == Some(queue))
    };
    let jobs = cluster.jobs.iter().filter(|job| is_below(&job.queue));
    let tasks = jobs.flat_map(|job| &job.tasks);
    let running = tasks.filter(|task| task.status == TaskStatus::Running);
    let limits = running.map(|task| {
        let mut nodes = cluster.nodes.iter();
        let node = nodes.find(|node| Some(&node.name) == task.node.as_ref());
        let node = node.unwrap();
        let TaskGpuRequest::Shared { share, .. } = &task.cards else {
            return task.cards.count(Bytes::ZERO);
        };
        let on_card = |card: &String| {
            let size = node.size_of(card);
            let limit = task
                .limit
                .map_or(0.0, |limit| part_of(limit, size).min(1.0));
            part_of(*share, size).max(limit)
        };
        task.on.iter().map(on_card).sum()
    });
    limits.sum()
}

proptest! {
    #[test]
    fn limits_add_up_to_no_more_than_the_burst_limits_of_all_queues_above(
        (cluster, bounds) in elastic_cluster(),
    ) {
        let mut cluster = bounded(cluster, &bounds);
        for _ in 0..4 {
            let decisions = step(NOW, &cluster);
            carry_on(&mut cluster, &decisions);
            check_cards(&cluster)?;
            check_queues(&cluster)?;
            check_gangs(&cluster, &decisions)?;
            for queue in &cluster.queues {
                let limits = limits_in(&cluster, &queue.name);
                let bound = queue.burst_limit.unwrap_or(f64::INFINITY);
                prop_assert!(limits <= bound + 1e-4, "{limits} of {bound} in {}", queue.name);
            }
        }
    }

    #[test]
    fn without_burst_limits_nothing_depends_on_the_limits_of_pods((cluster, _) in elastic_cluster()) {
        let mut cluster = cluster;
        for _ in 0..3 {
            let mut others = [cluster.clone(), cluster.clone()];
            let [fixed, wide] = &mut others;
            for job in &mut fixed.jobs {
                let tasks = Arc::make_mut(job).tasks.iter_mut();
                tasks.for_each(|task| task.limit = None);
            }
            wide.queues.iter_mut().for_each(|queue| queue.burst_limit = Some(1e6));
            let decisions = step(NOW, &cluster);
            for other in others {
                prop_assert_eq!(&decisions, &step(NOW, &other));
            }
            carry_on(&mut cluster, &decisions);
        }
    }
}
