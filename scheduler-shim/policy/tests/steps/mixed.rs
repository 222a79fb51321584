//! Nodes whose cards are known one by one: sizes and health that differ within a node.

use std::sync::Arc;

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::{
    Job, ListedCard, Node, PodSet, Quota, SubGroupSet, Task, TaskGpuRequest, TaskStatus,
};
use apportion_policy::{Cluster, Decision, step};

use super::clusters::{NOW, queue, quota};

/// Cards of these sizes in GiB, named by their index; `None` is an unhealthy card.
fn node(name: &str, cards: &[Option<u64>]) -> Node {
    Node {
        name: name.to_owned(),
        pods: 20,
        listed: cards
            .iter()
            .enumerate()
            .map(|(placement, size)| ListedCard {
                name: format!("{name}{placement}"),
                memory: gib(size.unwrap_or(80)),
                is_healthy: size.is_some(),
            })
            .collect(),
        ..Node::default()
    }
}

const fn gib(count: u64) -> Bytes {
    Bytes::from_mib(count * 1024)
}

fn memory(count: u64, devices: u32) -> TaskGpuRequest {
    TaskGpuRequest::Shared {
        share: Share::Memory(gib(count)),
        devices,
    }
}

fn half() -> TaskGpuRequest {
    TaskGpuRequest::Shared {
        share: Share::Fraction("0.5".parse().unwrap()),
        devices: 1,
    }
}

/// A job of one pod, on these cards of the node with which their names begin, if any.
fn job(name: &str, cards: TaskGpuRequest, on: &[&str]) -> Job {
    let task = Task {
        name: name.to_owned(),
        set: "default".to_owned(),
        status: if on.is_empty() {
            TaskStatus::Pending
        } else {
            TaskStatus::Running
        },
        node: on.first().map(|card| card[..1].to_owned()),
        on: on.iter().map(|card| (*card).to_owned()).collect(),
        cards,
        ..Task::default()
    };
    Job {
        name: name.to_owned(),
        queue: "all".to_owned(),
        is_preemptible: true,
        root: SubGroupSet {
            sets: vec![PodSet {
                name: "default".to_owned(),
                min_available: 1,
                topology: None,
            }],
            ..SubGroupSet::default()
        },
        tasks: vec![task],
        ..Job::default()
    }
}

fn cluster(nodes: Vec<Node>, jobs: Vec<Job>) -> Cluster {
    Cluster {
        nodes,
        queues: vec![queue("all", None, Quota::UNLIMITED, 100)],
        jobs: jobs.into_iter().map(Arc::new).collect(),
        ..Cluster::default()
    }
}

/// The decisions, one line each.
fn decided(cluster: &Cluster) -> Vec<String> {
    step(NOW, cluster)
        .into_iter()
        .map(|decision| match decision {
            Decision::Evict { task, .. } => format!("evict {task}"),
            Decision::Bind {
                task, placement, ..
            } => format!("bind {task} to {}", placement.cards.join(" ")),
            Decision::Reserve {
                task, placement, ..
            } => format!("reserve {task} on {}", placement.node),
        })
        .collect()
}

#[test]
fn a_large_ask_finds_the_one_large_card_and_a_whole_card_is_the_smallest() {
    let nodes = vec![node("a", &[Some(80), Some(24), Some(24)])];
    let jobs = vec![
        job("large", memory(40, 1), &[]),
        job("whole", TaskGpuRequest::Whole(1), &[]),
    ];
    let expected = ["bind large to a0", "bind whole to a1"];
    assert_eq!(decided(&cluster(nodes, jobs)), expected);
}

#[test]
fn a_card_out_of_order_is_not_given_and_its_holders_take_no_other() {
    let nodes = vec![node("a", &[None, Some(24)])];
    let jobs = vec![
        job("held", memory(20, 1), &["a0"]),
        job("alone", TaskGpuRequest::Whole(1), &[]),
        job("late", memory(1, 1), &[]),
    ];
    assert_eq!(decided(&cluster(nodes, jobs)), ["bind alone to a1"]);
}

#[test]
fn the_smallest_hole_is_counted_in_bytes_whatever_the_size_of_the_card() {
    // Half of 24 GiB leaves less than two thirds of 80 GiB.
    let nodes = vec![node("a", &[Some(80)]), node("b", &[Some(24)])];
    let jobs = vec![
        job("on-large", memory(50, 1), &["a0"]),
        job("on-small", memory(12, 1), &["b0"]),
        job("new", memory(10, 1), &[]),
    ];
    assert_eq!(decided(&cluster(nodes, jobs)), ["bind new to b0"]);
}

#[test]
fn several_devices_may_be_of_several_sizes_and_a_fraction_is_of_each() {
    let nodes = vec![node("a", &[Some(24), Some(80), None, Some(48)])];
    let jobs = vec![
        job("half", half(), &["a1"]),
        job("three", memory(24, 3), &[]),
        job("four", memory(1, 4), &[]),
    ];
    assert_eq!(decided(&cluster(nodes, jobs)), ["bind three to a1 a0 a3"]);
}

#[test]
fn bytes_are_charged_by_the_card_that_they_are_on_and_a_limit_may_need_a_larger_one() {
    let nodes = vec![node("a", &[Some(24), Some(80)])];
    let mut cluster = cluster(nodes, vec![job("new", memory(20, 1), &[])]);
    cluster.queues[0].gpu = quota(-1.0, 0.5, 1.0);
    assert_eq!(decided(&cluster), ["bind new to a1"]);
    cluster.queues[0].gpu = quota(-1.0, 0.2, 1.0);
    assert!(decided(&cluster).is_empty());
}

#[test]
fn who_is_on_the_large_card_moves_to_a_small_one_for_who_needs_it() {
    let nodes = vec![node("a", &[Some(80), Some(24)])];
    let jobs = vec![
        job("modest", TaskGpuRequest::Whole(1), &["a0"]),
        job("large", memory(60, 1), &[]),
    ];
    let expected = ["evict modest", "reserve large on a", "reserve modest on a"];
    assert_eq!(decided(&cluster(nodes, jobs)), expected);
}

#[test]
fn who_moves_to_a_larger_card_leaves_more_than_was_free() {
    // A fifth of one card and seven tenths of the other are free: less than the whole card that is asked for.
    let nodes = vec![node("a", &[Some(10)]), node("b", &[Some(20)])];
    let jobs = vec![
        job("alone", TaskGpuRequest::Whole(1), &[]),
        job("first", memory(6, 1), &["a0"]),
        job("second", memory(2, 1), &["a0"]),
        job("stays", memory(6, 1), &["b0"]),
    ];
    let expected = [
        "evict first",
        "evict second",
        "reserve alone on a",
        "reserve first on b",
        "reserve second on b",
    ];
    assert_eq!(decided(&cluster(nodes, jobs)), expected);
}

#[test]
fn who_leads_its_set_starts_before_the_others() {
    let mut gang = job("gang", TaskGpuRequest::Whole(1), &[]);
    let task = |name: &str, leads: bool| Task {
        name: name.to_owned(),
        leads,
        order: (!leads).then_some(9),
        ..gang.tasks[0].clone()
    };
    gang.tasks = vec![task("a", false), task("z", true)];
    let nodes = vec![node("a", &[Some(24)])];
    assert_eq!(decided(&cluster(nodes, vec![gang])), ["bind z to a0"]);
}
