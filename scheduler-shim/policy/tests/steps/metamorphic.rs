//! Changes to a cluster after which the same must be decided.

use std::collections::BTreeMap;

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::{Cards, Cluster, Node, Quota, Task};
use apportion_policy::{Decision, step};
use proptest::prelude::*;

use super::clusters::{NOW, cluster, queue};
use super::rounds::carry_on;

fn twice(bytes: Bytes) -> Bytes {
    Bytes(bytes.0 * 2)
}

fn grow_task(task: &mut Task) {
    task.cpu_millis *= 3;
    task.memory *= 5;
    if let Cards::Shared {
        share: Share::Memory(bytes),
        ..
    } = &mut task.cards
    {
        *bytes = twice(*bytes);
    }
}

/// The same cluster of larger machines and larger pods.
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
    let tasks = grown.jobs.iter_mut().flat_map(|job| &mut job.tasks);
    tasks.for_each(grow_task);
    grown
}

/// The same cluster with a node that has nothing to give and queues in which nobody waits.
fn with_nothing_more(cluster: &Cluster) -> Cluster {
    let mut more = cluster.clone();
    more.nodes.push(Node {
        name: "nothing".to_owned(),
        labels: BTreeMap::new(),
        ..Node::default()
    });
    more.queues
        .push(queue("empty", None, Quota::UNLIMITED, 500));
    more.queues
        .push(queue("empty-below", Some("all"), Quota::UNLIMITED, 500));
    more
}

/// The cluster under names of its own, with all cards alike, for pods that can be nowhere else.
fn side(mut cluster: Cluster, side: &str) -> Cluster {
    let own = |name: &mut String| name.insert_str(0, side);
    for node in &mut cluster.nodes {
        own(&mut node.name);
        node.labels.insert("side".to_owned(), side.to_owned());
        node.card_memory = Bytes::from_mib(1000);
        for card in &mut node.listed {
            card.memory = Bytes::from_mib(1000);
        }
    }
    // What they have is theirs: a queue that may have everything would have the others', too.
    let cards: i64 = cluster.nodes.iter().map(Node::card_count).sum();
    for queue in &mut cluster.queues {
        own(&mut queue.name);
        if queue.parent.is_none() {
            queue.gpu.deserved = cards as f64;
        }
        queue.parent.as_mut().into_iter().for_each(own);
    }
    for job in &mut cluster.jobs {
        own(&mut job.name);
        own(&mut job.queue);
        for task in &mut job.tasks {
            own(&mut task.name);
            let there = ("side".to_owned(), vec![side.to_owned()]);
            task.node_affinity.push(there);
            // What bytes are worth to nodes is compared with how full they are among all.
            if matches!(
                task.cards,
                Cards::Shared {
                    share: Share::Memory(_),
                    ..
                }
            ) {
                task.cards = Cards::Whole(1);
            }
        }
    }
    cluster
}

fn beside(left: &Cluster, right: &Cluster) -> Cluster {
    let mut both = left.clone();
    both.nodes.extend(right.nodes.iter().cloned());
    both.queues.extend(right.queues.iter().cloned());
    both.jobs.extend(right.jobs.iter().cloned());
    both
}

/// The decisions with new cards numbered on each node as they come.
fn numbered(mut decisions: Vec<Decision>) -> Vec<Decision> {
    decisions.sort();
    let mut known: BTreeMap<(String, String), String> = BTreeMap::new();
    for decision in &mut decisions {
        let (Decision::Bind { place, .. } | Decision::Reserve { place, .. }) = decision else {
            continue;
        };
        for card in place
            .cards
            .iter_mut()
            .filter(|card| card.starts_with("new-"))
        {
            let name = format!("new-{}", known.len());
            let key = (place.node.clone(), card.clone());
            *card = known.entry(key).or_insert(name).clone();
        }
    }
    decisions
}

proptest! {
    #[test]
    fn larger_machines_for_larger_pods_change_nothing(mut cluster in cluster()) {
        for round in 0..3 {
            let decisions = step(NOW, &cluster);
            prop_assert_eq!(&decisions, &step(NOW, &grown(&cluster)));
            carry_on(&mut cluster, round, &decisions);
        }
    }

    #[test]
    fn what_nobody_can_use_and_who_asks_for_nothing_change_nothing(mut cluster in cluster()) {
        for round in 0..3 {
            let decisions = step(NOW, &cluster);
            prop_assert_eq!(&decisions, &step(NOW, &with_nothing_more(&cluster)));
            carry_on(&mut cluster, round, &decisions);
        }
    }

    // Twins, because parts of the whole cluster are compared: with others beside it, processors may come to be
    // scarcer than cards. Were somebody evicted, which of victims that are as good leave could depend on the twin.
    #[test]
    fn twins_that_share_nothing_decide_as_each_would_alone_while_nobody_is_evicted(
        cluster in cluster(),
    ) {
        let mut twins = ["left-", "right-"].map(|name| side(cluster.clone(), name));
        for round in 0..3 {
            let alone = twins.each_ref().map(|twin| step(NOW, twin));
            let is_eviction = |one: &Decision| matches!(one, Decision::Evict { .. });
            if alone.iter().flatten().any(is_eviction) {
                break;
            }
            let together = step(NOW, &beside(&twins[0], &twins[1]));
            prop_assert_eq!(numbered(alone.concat()), numbered(together));
            for (twin, decisions) in twins.iter_mut().zip(&alone) {
                carry_on(twin, round, decisions);
            }
        }
    }
}
