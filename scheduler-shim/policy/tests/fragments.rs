//! Where pods go to keep as much free capacity as possible useful.

use std::sync::Arc;
use std::time::Duration;

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::{
    Job, Node, PodSet, Queue, SharedCardPreference, SubGroupSet, Task, TaskGpuRequest, TaskStatus,
};
use apportion_policy::{Cluster, Decision, step};

fn part(text: &str) -> TaskGpuRequest {
    TaskGpuRequest::Shared {
        share: Share::Fraction(text.parse().expect("a fraction")),
        devices: 1,
    }
}

fn node(name: &str, cards: i64) -> Node {
    Node {
        name: name.to_owned(),
        pods: 20,
        cards,
        card_memory: Bytes::from_mib(10_000),
        ..Node::default()
    }
}

/// A job of one pod, on a card of a node or waiting.
fn job(name: &str, cards: TaskGpuRequest, on: Option<&str>) -> Job {
    Job {
        name: name.to_owned(),
        queue: "all".to_owned(),
        is_preemptible: true,
        root: SubGroupSet {
            sets: vec![PodSet {
                name: "set".to_owned(),
                min_available: 1,
                topology: None,
            }],
            ..SubGroupSet::default()
        },
        tasks: vec![Task {
            name: name.to_owned(),
            set: "set".to_owned(),
            cards,
            status: on.map_or(TaskStatus::Pending, |_| TaskStatus::Running),
            node: on.map(str::to_owned),
            on: on
                .map(|node| format!("card of {node}"))
                .into_iter()
                .collect(),
            ..Task::default()
        }],
        ..Job::default()
    }
}

/// The node that `new` gets beside the pods that are `there`.
fn placement(
    shared: SharedCardPreference,
    nodes: Vec<Node>,
    new: TaskGpuRequest,
    there: Vec<Job>,
) -> String {
    let mut cluster = Cluster {
        nodes,
        queues: vec![Queue::unbounded("all")],
        jobs: there.into_iter().map(Arc::new).collect(),
        ..Cluster::default()
    };
    cluster.jobs.push(job("new", new, None).into());
    cluster.settings.shared_cards = shared;
    match step(Duration::ZERO, &cluster).as_slice() {
        [Decision::Bind { placement, .. }] => placement.node.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hole_that_most_pods_could_use_is_left_to_them() {
    let placement = |shared| {
        let there = vec![
            job("on-a", part("0.4"), Some("a")),
            job("large-1", part("0.6"), Some("c")),
            job("small-1", part("0.4"), Some("c")),
            job("large-2", part("0.6"), Some("d")),
            job("small-2", part("0.4"), Some("d")),
        ];
        let nodes = ["a", "b", "c", "d"].map(|name| node(name, 1));
        placement(shared, nodes.to_vec(), part("0.3"), there)
    };
    // What would be left of the hole of 0.6 helps few pods; what is left of a whole card helps all.
    assert_eq!(placement(SharedCardPreference::BestFit), "a");
    assert_eq!(placement(SharedCardPreference::LeastFragments), "b");
}

#[test]
fn whole_cards_are_taken_where_they_are_of_no_use_to_those_who_want_several() {
    let placement = |shared| {
        let there = vec![
            job("many-1", TaskGpuRequest::Whole(4), Some("c")),
            job("many-2", TaskGpuRequest::Whole(4), Some("d")),
            job("on-b", part("0.5"), Some("b")),
        ];
        let nodes = vec![node("a", 4), node("b", 7), node("c", 4), node("d", 4)];
        placement(shared, nodes, TaskGpuRequest::Whole(2), there)
    };
    // Of four cards two would be left, useless to pods that want four. Of seven, five would be left, and a half
    // less.
    assert_eq!(placement(SharedCardPreference::BestFit), "a");
    assert_eq!(placement(SharedCardPreference::LeastFragments), "b");
}
