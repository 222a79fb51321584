//! A running pod gets no more than its queues have room for.

use std::sync::Arc;
use std::time::Duration;

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::{
    Job, ListedCard, Node, PodSet, Queue, Quota, SubGroupSet, Task, TaskGpuRequest, TaskStatus,
};
use apportion_policy::{Cluster, QueueBound, QueueShortfall, Session};

const ANY: f64 = apportion_policy::amounts::UNLIMITED;

fn mib(mib: u64) -> TaskGpuRequest {
    TaskGpuRequest::Shared {
        share: Share::Memory(Bytes::from_mib(mib)),
        devices: 1,
    }
}

fn half() -> TaskGpuRequest {
    TaskGpuRequest::Shared {
        share: Share::Fraction("0.5".parse().expect("a fraction")),
        devices: 1,
    }
}

/// A pod that runs on a card.
fn job(name: &str, is_preemptible: bool, card: &str, cards: TaskGpuRequest) -> Arc<Job> {
    Arc::new(Job {
        name: name.to_owned(),
        queue: "team".to_owned(),
        is_preemptible,
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
            status: TaskStatus::Running,
            node: Some("node".to_owned()),
            on: vec![card.to_owned()],
            ..Task::default()
        }],
        ..Job::default()
    })
}

/// A large and a small card, and a queue below another: `deserved` is the quota of the upper one, `limit` that of the
/// lower one.
fn cluster(deserved: f64, limit: f64) -> Cluster {
    let card = |(name, mib): (&str, u64)| ListedCard {
        name: name.to_owned(),
        memory: Bytes::from_mib(mib),
        is_healthy: true,
    };
    let queue = |name: &str, parent: Option<&str>, gpu: Quota| Queue {
        parent: parent.map(str::to_owned),
        gpu,
        ..Queue::unbounded(name)
    };
    let quota = |deserved, limit| Quota {
        deserved,
        limit,
        weight: 1.0,
    };
    let listed = [("large", 20_000), ("small", 10_000)].map(card).to_vec();
    Cluster {
        nodes: vec![Node {
            name: "node".to_owned(),
            pods: 20,
            cards: 2,
            card_memory: Bytes::from_mib(10_000),
            listed,
            ..Node::default()
        }],
        queues: vec![
            queue("company", None, quota(deserved, ANY)),
            queue("team", Some("company"), quota(ANY, limit)),
        ],
        jobs: vec![
            job("on-large", true, "large", mib(8_000)),
            job("on-small", false, "small", mib(4_000)),
        ],
        ..Cluster::default()
    }
}

fn shortfall(cluster: &Cluster, task: &str, cards: &TaskGpuRequest) -> Option<QueueShortfall> {
    Session::open(Duration::ZERO, cluster).resize_shortfall(task, cards, None)
}

#[test]
fn a_pod_grows_up_to_the_limit_of_its_queue() {
    // Both have 0.4 of a GPU.
    let cluster = cluster(ANY, 1.0);
    assert_eq!(shortfall(&cluster, "on-large", &mib(12_000)), None);
    let found = shortfall(&cluster, "on-large", &mib(12_200)).expect("it is too much");
    assert_eq!(
        (found.queue.uid.as_str(), found.bound),
        ("team", QueueBound::Limit)
    );
    assert!((found.queue.of(found.resource).allocated - 0.8).abs() < 1e-9);
    assert!(
        (found.more.amounts[found.resource] - 0.21).abs() < 1e-9,
        "{found:?}"
    );
    // A MiB of the small card is a larger part of a GPU.
    assert_eq!(shortfall(&cluster, "on-small", &mib(6_000)), None);
    assert!(shortfall(&cluster, "on-small", &mib(6_200)).is_some());
    assert_eq!(shortfall(&cluster, "on-small", &half()), None);
}

#[test]
fn a_pod_that_cannot_be_preempted_grows_up_to_the_quota_of_all_queues_above() {
    let cluster = cluster(0.5, ANY);
    assert_eq!(shortfall(&cluster, "on-small", &mib(5_000)), None);
    let found = shortfall(&cluster, "on-small", &mib(5_200)).expect("it is too much");
    assert_eq!(
        (found.queue.uid.as_str(), found.bound),
        ("company", QueueBound::Quota)
    );
    assert_eq!(shortfall(&cluster, "on-large", &mib(20_000)), None);
}

#[test]
fn a_pod_may_always_shrink() {
    let cluster = cluster(0.0, 0.1);
    for task in ["on-large", "on-small"] {
        assert_eq!(shortfall(&cluster, task, &mib(2)), None);
        assert!(shortfall(&cluster, task, &mib(9_000)).is_some());
    }
}
