//! Clusters that once did not settle: each job that got a place was evicted from it again, forever.

use apportion_abi::{Bytes, GpuFraction, Share};
use apportion_policy::cluster::{Job, ListedCard, Node, PodSet, SubGroupSet, Task, TaskGpuRequest};
use apportion_policy::{Cluster, step};

use super::clusters::{NOW, queue, quota};
use super::rounds::{are_only_reservations, carry_on};

const ROUNDS: usize = 20;

/// A node with cards of these sizes, in thousand MiB.
fn node(name: &str, cards: &[u64]) -> Node {
    Node {
        name: name.to_owned(),
        pods: 110,
        listed: cards
            .iter()
            .enumerate()
            .map(|(index, size)| ListedCard {
                name: format!("gpu-{index}"),
                memory: Bytes::from_mib(size * 1000),
                is_healthy: true,
            })
            .collect(),
        ..Node::default()
    }
}

/// A job of two pods.
fn job(name: &str, queue: &str, priority: i32, minimum: usize, cards: TaskGpuRequest) -> Job {
    Job {
        name: name.to_owned(),
        queue: queue.to_owned(),
        priority,
        is_preemptible: true,
        root: SubGroupSet {
            sets: vec![PodSet {
                name: "default".to_owned(),
                min_available: minimum,
                topology: None,
            }],
            ..SubGroupSet::default()
        },
        tasks: (0..2)
            .map(|pod| Task {
                name: format!("{name}-{pod}"),
                set: "default".to_owned(),
                cards: cards.clone(),
                ..Task::default()
            })
            .collect(),
        ..Job::default()
    }
}

fn part(text: &str, devices: u32) -> TaskGpuRequest {
    let fraction: GpuFraction = text.parse().unwrap();
    TaskGpuRequest::Shared {
        share: Share::Fraction(fraction),
        devices,
    }
}

/// A queue with a quota of two cards and one with the rest. Both want more than there is on the cards that are
/// large enough.
fn tight() -> Cluster {
    let bytes = TaskGpuRequest::Shared {
        share: Share::Memory(Bytes::from_mib(751)),
        devices: 1,
    };
    let mut whole = job("job-1", "rest", 50, 1, TaskGpuRequest::Whole(2));
    whole.tasks.truncate(1);
    Cluster {
        nodes: vec![node("node-0", &[2, 3]), node("node-1", &[3, 1, 1, 2])],
        queues: vec![
            queue("all", None, quota(-1.0, -1.0, 1.0), 100),
            queue("rest", Some("all"), quota(0.0, -1.0, 1.0), 100),
            queue("quota", Some("all"), quota(2.0, -1.0, 0.0), 100),
        ],
        jobs: vec![
            job("job-0", "quota", 75, 2, part("0.25", 2)).into(),
            whole.into(),
            job("job-2", "quota", 75, 2, bytes).into(),
            job("job-3", "quota", 50, 1, part("0.25", 1)).into(),
            job("job-4", "rest", 50, 1, part("0.5", 2)).into(),
        ],
        ..Cluster::default()
    }
}

#[test]
fn who_would_push_lesser_jobs_of_its_queue_out_is_not_taken_in_their_stead() {
    let mut cluster = tight();
    for _ in 0..ROUNDS {
        let decisions = step(NOW, &cluster);
        if are_only_reservations(&decisions) {
            return;
        }
        carry_on(&mut cluster, &decisions);
    }
    panic!("it has not settled");
}
