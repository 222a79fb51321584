//! Changes to a cluster that must not change the decisions.

use std::sync::Arc;

use apportion_abi::{Bytes, SHARE_UNIT, Share, whole_units};
use apportion_policy::cluster::{Cluster, Node, Quota, Task, TaskGpuRequest};
use apportion_policy::step;
use proptest::prelude::*;

use super::clusters::{NOW, cluster, queue};
use super::rounds::carry_on;

fn twice(bytes: Bytes) -> Bytes {
    Bytes(bytes.0 * 2)
}

fn grow_task(task: &mut Task) {
    task.cpu_millis *= 3;
    task.memory *= 5;
    if let TaskGpuRequest::Shared {
        share: Share::Memory(bytes),
        ..
    } = &mut task.cards
    {
        *bytes = twice(*bytes);
    }
}

/// The same cluster with no share that needs rounding: rounding at one size may not occur at twice that size.
fn unrounded(mut cluster: Cluster) -> Cluster {
    for task in cluster
        .jobs
        .iter_mut()
        .flat_map(|job| &mut Arc::make_mut(job).tasks)
    {
        if let TaskGpuRequest::Shared {
            share: Share::Memory(bytes),
            ..
        } = &mut task.cards
        {
            *bytes = whole_units(Bytes(bytes.0.max(SHARE_UNIT)));
        }
    }
    cluster
}

/// The same cluster with larger machines and larger pods.
fn grown(cluster: &Cluster) -> Cluster {
    let mut grown = cluster.clone();
    for node in &mut grown.nodes {
        node.cpu_millis *= 3;
        node.memory *= 5;
        node.card_memory = twice(node.card_memory);
        for card in &mut node.listed {
            card.memory = twice(card.memory);
        }
    }
    let tasks = grown
        .jobs
        .iter_mut()
        .flat_map(|job| &mut Arc::make_mut(job).tasks);
    tasks.for_each(grow_task);
    grown
}

/// The same cluster with an empty node and queues without waiting jobs.
fn with_nothing_more(cluster: &Cluster) -> Cluster {
    let mut more = cluster.clone();
    more.nodes.push(Node {
        name: "nothing".to_owned(),
        ..Node::default()
    });
    more.queues
        .push(queue("empty", None, Quota::UNLIMITED, 500));
    more.queues
        .push(queue("empty-below", Some("all"), Quota::UNLIMITED, 500));
    more
}

proptest! {
    #[test]
    fn larger_machines_for_larger_pods_change_nothing(mut cluster in cluster().prop_map(unrounded)) {
        for _ in 0..3 {
            let decisions = step(NOW, &cluster);
            prop_assert_eq!(&decisions, &step(NOW, &grown(&cluster)));
            carry_on(&mut cluster, &decisions);
        }
    }

    #[test]
    fn what_nobody_can_use_and_who_asks_for_nothing_change_nothing(mut cluster in cluster()) {
        for _ in 0..3 {
            let decisions = step(NOW, &cluster);
            prop_assert_eq!(&decisions, &step(NOW, &with_nothing_more(&cluster)));
            carry_on(&mut cluster, &decisions);
        }
    }
}
