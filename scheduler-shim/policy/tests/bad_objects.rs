//! A faulty object does not stop the rest of the cluster.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::sync::Arc;
use std::time::Duration;

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::{
    Job, Node, PodSet, Queue, Quota, SubGroupSet, Task, TaskGpuRequest, TaskStatus,
    TopologyConstraint,
};
use apportion_policy::{Cluster, Decision, step};
use proptest::prelude::*;

const NOW: Duration = Duration::from_secs(1_000_000);

fn queue(name: &str, parent: Option<&str>) -> Queue {
    Queue {
        parent: parent.map(str::to_owned),
        ..Queue::unbounded(name)
    }
}

fn job(name: &str, queue: &str, cards: i64) -> Job {
    Job {
        name: name.to_owned(),
        queue: queue.to_owned(),
        is_preemptible: true,
        root: SubGroupSet {
            sets: vec![PodSet {
                name: "default".to_owned(),
                min_available: 1,
                topology: None,
            }],
            ..SubGroupSet::default()
        },
        tasks: vec![Task {
            name: format!("{name}-0"),
            set: "default".to_owned(),
            cards: TaskGpuRequest::Whole(cards),
            ..Task::default()
        }],
        ..Job::default()
    }
}

fn node(name: &str, cards: i64) -> Node {
    Node {
        name: name.to_owned(),
        cpu_millis: 1000,
        memory: 1000,
        pods: 10,
        cards,
        card_memory: Bytes::from_mib(1000),
        ..Node::default()
    }
}

/// The names of the pods that are bound.
fn bound(cluster: &Cluster) -> Vec<String> {
    let decisions = step(NOW, cluster).into_iter();
    let bound = decisions.filter_map(|one| match one {
        Decision::Bind { task, .. } => Some(task),
        Decision::Evict { .. } | Decision::Reserve { .. } => None,
    });
    bound.collect()
}

#[test]
fn queues_in_a_circle_and_orphans_are_left_out() {
    let cluster = Cluster {
        nodes: vec![node("a", 8)],
        queues: vec![
            queue("round", Some("about")),
            queue("about", Some("round")),
            queue("self", Some("self")),
            queue("orphan", Some("nobody")),
            queue("sound", None),
        ],
        jobs: vec![
            job("one", "round", 1).into(),
            job("two", "self", 1).into(),
            job("three", "orphan", 1).into(),
            job("four", "nowhere", 1).into(),
            job("five", "sound", 1).into(),
        ],
        ..Cluster::default()
    };
    assert_eq!(bound(&cluster), ["five-0"]);
}

#[test]
fn a_queue_that_may_have_nothing_gets_nothing() {
    let nothing = Quota {
        deserved: 0.0,
        limit: 0.0,
        weight: 0.0,
    };
    let cluster = Cluster {
        nodes: vec![node("a", 8)],
        queues: vec![
            Queue {
                gpu: nothing,
                ..queue("none", None)
            },
            queue("all", None),
        ],
        jobs: vec![job("one", "none", 1).into(), job("two", "all", 1).into()],
        ..Cluster::default()
    };
    assert_eq!(bound(&cluster), ["two-0"]);
}

#[test]
fn a_gang_larger_than_the_cluster_waits_and_others_do_not() {
    let mut giant = job("giant", "all", 8);
    giant.priority = 75;
    let mut more = giant.tasks.clone();
    more[0].name = "giant-1".to_owned();
    giant.tasks.extend(more);
    giant.root.sets[0].min_available = 2;
    let cluster = Cluster {
        nodes: vec![node("a", 8)],
        queues: vec![queue("all", None)],
        jobs: vec![giant.into(), job("small", "all", 1).into()],
        ..Cluster::default()
    };
    assert_eq!(bound(&cluster), ["small-0"]);
}

#[test]
fn a_topology_that_does_not_exist_keeps_its_job_waiting() {
    let mut lost = job("lost", "all", 1);
    lost.root.topology = Some(TopologyConstraint {
        topology: "atlantis".to_owned(),
        required: Some("street".to_owned()),
        preferred: None,
    });
    let cluster = Cluster {
        nodes: vec![node("a", 8)],
        queues: vec![queue("all", None)],
        jobs: vec![lost.into(), job("found", "all", 1).into()],
        ..Cluster::default()
    };
    assert_eq!(bound(&cluster), ["found-0"]);
}

fn amount() -> impl Strategy<Value = i64> {
    prop::sample::select(vec![-1, 0, 1, 2, 8, 1000])
}

fn any_task() -> impl Strategy<Value = Task> {
    let cards = prop_oneof![
        Just(TaskGpuRequest::None),
        amount().prop_map(TaskGpuRequest::Whole),
        (0..4_u32, 0..3000_u64).prop_map(|(devices, mib)| TaskGpuRequest::Shared {
            share: Share::Memory(Bytes::from_mib(mib)),
            devices,
        }),
        (0..4_u32).prop_map(|devices| TaskGpuRequest::Shared {
            share: Share::Fraction("0.3".parse().unwrap()),
            devices,
        }),
    ];
    let status = prop::sample::select(vec![
        TaskStatus::Pending,
        TaskStatus::Gated,
        TaskStatus::Binding,
        TaskStatus::Running,
        TaskStatus::Pipelined,
        TaskStatus::Releasing,
        TaskStatus::StuckInReleasing,
        TaskStatus::Succeeded,
        TaskStatus::Failed,
    ]);
    let node = prop::sample::select(vec![None, Some("a"), Some("b"), Some("gone")]);
    let set = prop::sample::select(vec!["default", "other", "missing"]);
    (cards, status, node, set, amount()).prop_map(|(cards, status, node, set, cpu)| Task {
        set: set.to_owned(),
        status,
        node: node.map(str::to_owned),
        on: node.iter().map(|node| format!("{node}-0")).collect(),
        cards,
        cpu_millis: cpu,
        ..Task::default()
    })
}

fn any_cluster() -> impl Strategy<Value = Cluster> {
    let quotas = prop::collection::vec((amount(), amount(), amount()), 3);
    let jobs = prop::collection::vec(
        (
            prop::collection::vec(any_task(), 0..4),
            0..4_usize,
            0..5_usize,
            any::<bool>(),
        ),
        0..8,
    );
    let nodes = (amount(), amount(), 0..2000_u64);
    (quotas, jobs, nodes).prop_map(|(quotas, jobs, (first, second, mib))| {
        let names = ["top", "left", "right"];
        let queues = names
            .iter()
            .zip(quotas)
            .map(|(name, (deserved, limit, weight))| Queue {
                gpu: Quota {
                    deserved: deserved as f64,
                    limit: limit as f64,
                    weight: weight as f64,
                },
                ..queue(name, (*name != "top").then_some("top"))
            });
        let jobs = jobs.into_iter().enumerate();
        let jobs = jobs.map(|(number, (tasks, minimum, queue, preemptible))| {
            let set = |name: &str| PodSet {
                name: name.to_owned(),
                min_available: minimum,
                topology: None,
            };
            let tasks = tasks.into_iter().enumerate();
            Job {
                is_preemptible: preemptible,
                root: SubGroupSet {
                    sets: vec![set("default"), set("other")],
                    ..SubGroupSet::default()
                },
                tasks: tasks
                    .map(|(pod, task)| Task {
                        name: format!("{number}-{pod}"),
                        ..task
                    })
                    .collect(),
                ..job(
                    &number.to_string(),
                    ["left", "right", "top", "x", "left"][queue],
                    1,
                )
            }
        });
        Cluster {
            nodes: vec![
                node("a", first),
                Node {
                    card_memory: Bytes::from_mib(mib),
                    ..node("b", second)
                },
            ],
            queues: queues.collect(),
            jobs: jobs.map(Arc::new).collect(),
            ..Cluster::default()
        }
    })
}

proptest! {
    #[test]
    fn whatever_the_objects_say_there_is_a_plan_and_it_is_the_same_twice(cluster in any_cluster()) {
        prop_assert_eq!(step(NOW, &cluster), step(NOW, &cluster));
    }
}
