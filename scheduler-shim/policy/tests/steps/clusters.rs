//! Random clusters.

use std::sync::Arc;
use std::time::Duration;

use apportion_abi::{Bytes, Share};
use apportion_policy::Cluster;
use apportion_policy::cluster::{
    Job, ListedCard, Node, PodSet, Queue, Quota, SubGroupSet, Task, TaskGpuRequest,
};
use proptest::prelude::*;

pub(crate) const NOW: Duration = Duration::from_secs(1_000_000);

pub(crate) fn quota(deserved: f64, limit: f64, weight: f64) -> Quota {
    Quota {
        deserved,
        limit,
        weight,
    }
}

pub(crate) fn queue(name: &str, parent: Option<&str>, gpu: Quota, priority: i32) -> Queue {
    Queue {
        name: name.to_owned(),
        parent: parent.map(str::to_owned),
        created: Duration::from_secs(1),
        priority,
        cpu: Quota::UNLIMITED,
        memory: Quota::UNLIMITED,
        gpu,
        usage: [0.0; 3],
        preempt_min_runtime: None,
        reclaim_min_runtime: None,
    }
}

fn cards() -> impl Strategy<Value = TaskGpuRequest> {
    let fraction = prop::sample::select(vec!["0.1", "0.25", "0.3", "0.5", "0.7", "0.9"]);
    prop_oneof![
        3 => (1..4_i64).prop_map(TaskGpuRequest::Whole),
        4 => (fraction, 1..3_u32).prop_map(|(text, devices)| TaskGpuRequest::Shared {
            share: Share::Fraction(text.parse().unwrap()),
            devices,
        }),
        2 => (1..900_u64).prop_map(|mib| TaskGpuRequest::Shared {
            share: Share::Memory(Bytes::from_mib(mib)),
            devices: 1,
        }),
        1 => Just(TaskGpuRequest::None),
    ]
}

/// A waiting job: its queue, priority, pods, minimum and what each pod asks for.
fn job() -> impl Strategy<Value = (usize, i32, usize, usize, TaskGpuRequest, u64)> {
    let priority = prop::sample::select(vec![50, 50, 50, 75, 100, 125]);
    (
        0..3_usize,
        priority,
        1..4_usize,
        1..4_usize,
        cards(),
        0..5_u64,
    )
}

/// A node whose cards are counted, or known one by one with several sizes and some unhealthy.
fn node() -> impl Strategy<Value = Node> {
    let host = || Node {
        cpu_millis: 64_000,
        memory: 1 << 40,
        pods: 110,
        ..Node::default()
    };
    let counted = (1..5_i64, 1..4_u64).prop_map(move |(cards, size)| Node {
        cards,
        card_memory: Bytes::from_mib(size * 1000),
        ..host()
    });
    let card = (1..4_u64, prop::bool::weighted(0.9));
    let listed = prop::collection::vec(card, 1..5).prop_map(move |cards| Node {
        listed: (cards.into_iter().enumerate())
            .map(|(number, (size, is_healthy))| ListedCard {
                name: format!("gpu-{number}"),
                memory: Bytes::from_mib(size * 1000),
                is_healthy,
            })
            .collect(),
        ..host()
    });
    prop_oneof![counted, listed]
}

pub(crate) fn cluster() -> impl Strategy<Value = Cluster> {
    let nodes = prop::collection::vec(node(), 1..4);
    let quotas = prop::collection::vec((0..4_i32, prop::option::of(1..6_i32), 0..3_i32), 3);
    (nodes, quotas, prop::collection::vec(job(), 1..14)).prop_map(|(nodes, quotas, jobs)| {
        let mut queues = vec![queue("all", None, quota(-1.0, -1.0, 1.0), 100)];
        for (number, (deserved, limit, weight)) in quotas.into_iter().enumerate() {
            let limit = limit.map_or(-1.0, f64::from);
            let gpu = quota(f64::from(deserved), limit, f64::from(weight));
            queues.push(queue(&format!("queue-{number}"), Some("all"), gpu, 100));
        }
        Cluster {
            nodes: nodes
                .into_iter()
                .enumerate()
                .map(|(number, node)| Node {
                    name: format!("node-{number}"),
                    ..node
                })
                .collect(),
            queues,
            jobs: jobs
                .into_iter()
                .enumerate()
                .map(build_job)
                .map(Arc::new)
                .collect(),
            ..Cluster::default()
        }
    })
}

fn build_job(
    (number, (queue, priority, pods, minimum, cards, age)): (
        usize,
        (usize, i32, usize, usize, TaskGpuRequest, u64),
    ),
) -> Job {
    let task = |pod| Task {
        name: format!("job-{number}-{pod}"),
        set: "default".to_owned(),
        cards: cards.clone(),
        cpu_millis: 100,
        memory: 1 << 20,
        ..Task::default()
    };
    Job {
        name: format!("job-{number}"),
        queue: format!("queue-{queue}"),
        priority,
        is_preemptible: priority < 100,
        created: NOW - Duration::from_secs(age * 60),
        root: SubGroupSet {
            sets: vec![PodSet {
                name: "default".to_owned(),
                min_available: minimum.min(pods),
                topology: None,
            }],
            ..SubGroupSet::default()
        },
        tasks: (0..pods).map(task).collect(),
        ..Job::default()
    }
}
