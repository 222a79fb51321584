//! Fair share over time: queues that can't have the cluster together take turns.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::Bytes;
use apportion_policy::amounts::ResourceAmounts;
use apportion_policy::cluster::{
    Job, Node, PodSet, Queue, Quota, SubGroupSet, Task, TaskGpuRequest,
};
use apportion_policy::usage::{UsageWindow, WindowedUsage};
use apportion_policy::{Cluster, Decision, step};

const HOUR: Duration = Duration::from_secs(3600);
const CARDS: i64 = 16;

fn queue(name: &str, weight: f64, used: [f64; 3]) -> Queue {
    Queue {
        gpu: Quota {
            deserved: 0.0,
            limit: -1.0,
            weight,
        },
        usage: used,
        ..Queue::unbounded(name)
    }
}

/// A job that wants every card.
fn job(queue: &str, created: Duration) -> Job {
    Job {
        name: queue.to_owned(),
        queue: queue.to_owned(),
        is_preemptible: true,
        created,
        root: SubGroupSet {
            sets: vec![PodSet {
                name: "default".to_owned(),
                min_available: 1,
                topology: None,
            }],
            ..SubGroupSet::default()
        },
        tasks: vec![Task {
            name: format!("{queue}-0"),
            set: "default".to_owned(),
            cards: TaskGpuRequest::Whole(CARDS),
            ..Task::default()
        }],
        ..Job::default()
    }
}

/// How many of the hours each of two queues with these weights gets if both always want everything.
fn hours(weights: [f64; 2], hours: u32) -> [u32; 2] {
    let names = ["a", "b"];
    let mut usage = WindowedUsage::new(UsageWindow::WEEK, Some(HOUR * 48));
    let mut had = [0, 0];
    for hour in 0..hours {
        let now = HOUR * hour;
        let queues = names
            .iter()
            .zip(weights)
            .map(|(name, weight)| queue(name, weight, usage.of(name, now)));
        let cluster = Cluster {
            nodes: vec![Node {
                name: "node".to_owned(),
                pods: 10,
                cards: CARDS,
                card_memory: Bytes::from_mib(1000),
                ..Node::default()
            }],
            queues: queues.collect(),
            jobs: names.map(|name| Arc::new(job(name, now))).into(),
            ..Cluster::default()
        };
        let mut held = BTreeMap::new();
        for decision in step(now, &cluster) {
            if let Decision::Bind { job, .. } = decision {
                held.insert(job.clone(), ResourceAmounts::new(0.0, 0.0, CARDS as f64));
                for (name, had) in names.iter().zip(&mut had) {
                    *had += u32::from(*name == job);
                }
            }
        }
        let capacity = ResourceAmounts::new(0.0, 0.0, CARDS as f64);
        usage.record(now, now + HOUR, &held, capacity);
    }
    had
}

#[test]
fn two_queues_of_one_weight_have_the_cluster_for_half_of_the_time_each() {
    let [a, b] = hours([1.0, 1.0], 100);
    assert_eq!(a + b, 100);
    assert!(a.abs_diff(b) <= 10, "{a} and {b}");
}

#[test]
fn a_queue_of_twice_the_weight_has_it_for_longer_but_not_always() {
    let [a, b] = hours([2.0, 1.0], 100);
    assert_eq!(a + b, 100);
    assert!(a >= 55 && b >= 10, "{a} and {b}");
}
