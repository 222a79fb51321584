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
        parent: parent.map(str::to_owned),
        created: Duration::from_secs(1),
        priority,
        gpu,
        ..Queue::unbounded(name)
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

/// A waiting job.
#[derive(Clone, Debug)]
pub(crate) struct WaitingJob {
    pub(crate) queue: usize,
    pub(crate) priority: i32,
    pub(crate) pods: usize,
    pub(crate) minimum: usize,
    pub(crate) cards: TaskGpuRequest,
    pub(crate) age_minutes: u64,
}

fn job() -> impl Strategy<Value = WaitingJob> {
    let priority = prop::sample::select(vec![50, 50, 50, 75, 100, 125]);
    (
        0..3_usize,
        priority,
        1..4_usize,
        1..4_usize,
        cards(),
        0..5_u64,
    )
        .prop_map(
            |(queue, priority, pods, minimum, cards, age_minutes)| WaitingJob {
                queue,
                priority,
                pods,
                minimum,
                cards,
                age_minutes,
            },
        )
}

fn host() -> Node {
    Node {
        cpu_millis: 64_000,
        memory: 1 << 40,
        pods: 110,
        ..Node::default()
    }
}

/// A node whose cards are counted.
pub(crate) fn counted(cards: i64, thousand_mib: u64) -> Node {
    Node {
        cards,
        card_memory: Bytes::from_mib(thousand_mib * 1000),
        ..host()
    }
}

/// A node whose cards are known one by one: the size in thousand MiB, and whether it is healthy.
pub(crate) fn listed(cards: impl IntoIterator<Item = (u64, bool)>) -> Node {
    Node {
        listed: cards
            .into_iter()
            .enumerate()
            .map(|(number, (size, is_healthy))| ListedCard {
                name: format!("gpu-{number}"),
                memory: Bytes::from_mib(size * 1000),
                is_healthy,
            })
            .collect(),
        ..host()
    }
}

/// A node whose cards are counted, or known one by one with several sizes and some unhealthy.
fn node() -> impl Strategy<Value = Node> {
    let card = (1..4_u64, prop::bool::weighted(0.9));
    prop_oneof![
        (1..5_i64, 1..4_u64).prop_map(|(cards, size)| counted(cards, size)),
        prop::collection::vec(card, 1..5).prop_map(listed),
    ]
}

pub(crate) fn cluster() -> impl Strategy<Value = Cluster> {
    let nodes = prop::collection::vec(node(), 1..4);
    let quotas = prop::collection::vec((0..4_i32, prop::option::of(1..6_i32), 0..3_i32), 3);
    (nodes, quotas, prop::collection::vec(job(), 1..14)).prop_map(|(nodes, quotas, jobs)| {
        let quotas = quotas.into_iter().map(|(deserved, limit, weight)| {
            let limit = limit.map_or(-1.0, f64::from);
            quota(f64::from(deserved), limit, f64::from(weight))
        });
        build_cluster(nodes, quotas, jobs)
    })
}

/// A cluster of these nodes, with a queue for each quota, and jobs that wait.
pub(crate) fn build_cluster(
    nodes: Vec<Node>,
    quotas: impl IntoIterator<Item = Quota>,
    jobs: Vec<WaitingJob>,
) -> Cluster {
    let mut queues = vec![queue("all", None, quota(-1.0, -1.0, 1.0), 100)];
    for (number, gpu) in quotas.into_iter().enumerate() {
        queues.push(queue(&format!("queue-{number}"), Some("all"), gpu, 100));
    }
    let nodes = nodes.into_iter().enumerate().map(|(number, node)| Node {
        name: format!("node-{number}"),
        ..node
    });
    let jobs = jobs.into_iter().enumerate();
    Cluster {
        nodes: nodes.collect(),
        queues,
        jobs: jobs
            .map(|(number, job)| Arc::new(build_job(number, &job)))
            .collect(),
        ..Cluster::default()
    }
}

fn build_job(number: usize, waiting: &WaitingJob) -> Job {
    let &WaitingJob {
        queue,
        priority,
        pods,
        minimum,
        age_minutes,
        ..
    } = waiting;
    Job {
        name: format!("job-{number}"),
        queue: format!("queue-{queue}"),
        priority,
        is_preemptible: priority < 100,
        created: NOW - Duration::from_secs(age_minutes * 60),
        root: SubGroupSet {
            sets: vec![PodSet {
                name: "default".to_owned(),
                min_available: minimum.min(pods),
                topology: None,
            }],
            ..SubGroupSet::default()
        },
        tasks: (0..pods)
            .map(|pod| Task {
                name: format!("job-{number}-{pod}"),
                set: "default".to_owned(),
                cards: waiting.cards.clone(),
                cpu_millis: 100,
                memory: 1 << 20,
                ..Task::default()
            })
            .collect(),
        ..Job::default()
    }
}
