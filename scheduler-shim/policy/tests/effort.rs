//! What a search for victims may cost, in pods looked at: a clock would differ from machine to machine.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::sync::Arc;
use std::time::Duration;

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::{
    Job, Node, PodAffinityTerm, PodSet, PolicySettings, Queue, Quota, SubGroupSet, Task,
    TaskGpuRequest, TaskStatus,
};
use apportion_policy::{Action, Cluster, Decision, Session, plan};

const NOW: Duration = Duration::from_secs(1_000_000);
const NODES: usize = 500;
const CARDS: usize = 8;

fn queue(name: &str, deserved: f64) -> Queue {
    Queue {
        gpu: Quota {
            deserved,
            ..Quota::UNLIMITED
        },
        ..Queue::unbounded(name)
    }
}

fn job(name: &str, queue: &str, priority: i32, tasks: Vec<Task>) -> Job {
    Job {
        name: name.to_owned(),
        queue: queue.to_owned(),
        priority,
        is_preemptible: true,
        root: SubGroupSet {
            sets: vec![PodSet {
                name: "default".to_owned(),
                min_available: tasks.len(),
                topology: None,
            }],
            ..SubGroupSet::default()
        },
        tasks,
        ..Job::default()
    }
}

fn pod(name: &str, cards: TaskGpuRequest, node: Option<usize>) -> Task {
    Task {
        name: name.to_owned(),
        set: "default".to_owned(),
        status: match node {
            Some(_) => TaskStatus::Running,
            None => TaskStatus::Pending,
        },
        node: node.map(|node| format!("node-{node}")),
        cards,
        cpu_millis: 1000,
        memory: 1 << 30,
        ..Task::default()
    }
}

/// All cards but `idle` have a pod of a queue with an unlimited quota.
fn full(idle: usize) -> Cluster {
    let running = (idle..NODES * CARDS).map(|number| {
        let name = format!("running-{number}");
        let task = pod(&name, TaskGpuRequest::Whole(1), Some(number % NODES));
        job(&name, "all", 50, vec![task])
    });
    Cluster {
        nodes: (0..NODES)
            .map(|number| Node {
                name: format!("node-{number}"),
                cpu_millis: 64_000,
                memory: 1 << 40,
                pods: 110,
                cards: i64::try_from(CARDS).unwrap(),
                card_memory: Bytes::from_mib(80_000),
                ..Node::default()
            })
            .collect(),
        queues: vec![queue("all", -1.0), queue("other", -1.0)],
        jobs: running.map(Arc::new).collect(),
        settings: PolicySettings::default(),
        ..Cluster::default()
    }
}

/// The effort of a plan for waiting jobs, and how many decisions it makes.
fn effort(mut cluster: Cluster, waiting: Vec<Job>) -> (u64, usize) {
    cluster.jobs.extend(waiting.into_iter().map(Arc::new));
    let session: Session<'_> = plan(NOW, &cluster);
    (session.effort(), session.decisions().len())
}

fn waits(queue: &str, priority: i32, cards: TaskGpuRequest, pods: usize) -> Job {
    job(
        "waiting",
        queue,
        priority,
        (0..pods)
            .map(|number| pod(&format!("pod-{number}"), cards.clone(), None))
            .collect(),
    )
}

#[test]
fn nobody_is_searched_for_victims_when_a_queue_with_all_of_the_quota_has_all_cards() {
    let (effort, decisions) = effort(
        full(0),
        vec![waits("other", 50, TaskGpuRequest::Whole(1), 1)],
    );
    assert_eq!(decisions, 0);
    assert!(effort < 100_000, "{effort}");
}

#[test]
fn a_gang_that_the_cluster_has_no_room_for_is_refused_by_counting() {
    let (effort, decisions) = effort(
        full(0),
        vec![waits("other", 50, TaskGpuRequest::Whole(8), 10)],
    );
    assert_eq!(decisions, 0);
    assert!(effort < 100_000, "{effort}");
}

#[test]
fn a_pod_that_no_node_could_ever_take_makes_nobody_a_victim() {
    let mut waiting = waits("all", 75, TaskGpuRequest::Whole(1), 1);
    let required = vec![("kind".to_owned(), vec!["none".to_owned()])];
    waiting.tasks[0].node_affinity = required.into();
    let (effort, decisions) = effort(full(0), vec![waiting]);
    assert_eq!(decisions, 0);
    assert!(effort < 100_000, "{effort}");
}

#[test]
fn a_share_in_bytes_that_is_larger_than_any_card_makes_nobody_a_victim() {
    let share = TaskGpuRequest::Shared {
        share: Share::Memory(Bytes::from_mib(100_000)),
        devices: 1,
    };
    let (effort, decisions) = effort(full(8), vec![waits("all", 75, share, 1)]);
    assert_eq!(decisions, 0);
    assert!(effort < 100_000, "{effort}");
}

/// A pod that everyone would make room for, but with affinity to a pod that does not exist.
fn with_anti_affinity(name: &str) -> Job {
    let mut job = waits("all", 50, TaskGpuRequest::Whole(8), 1);
    name.clone_into(&mut job.name);
    name.clone_into(&mut job.tasks[0].name);
    let none = ("app".to_owned(), "none".to_owned());
    job.tasks[0].near = vec![PodAffinityTerm::with([(&none.0, &none.1)], "zone")];
    job
}

#[test]
fn what_was_sought_in_vain_is_not_sought_again_for_a_twin() {
    let twins = |count: usize| {
        let mut cluster = full(NODES);
        cluster.settings.search_effort = 100_000;
        let names = (0..count).map(|number| format!("twin-{number}"));
        effort(
            cluster,
            names.map(|name| with_anti_affinity(&name)).collect(),
        )
        .0
    };
    let (one, many) = (twins(1), twins(200));
    assert!(one > 100_000, "{one}");
    // The allocate action checks each twin once against each node.
    assert!(many <= one + 200 * NODES as u64, "{one} and {many}");
}

#[test]
fn a_search_ends_when_its_effort_is_spent() {
    let mut cluster = full(NODES);
    cluster.settings.search_effort = 10_000;
    let (effort, decisions) = effort(cluster, vec![with_anti_affinity("waiting")]);
    assert_eq!(decisions, 0);
    assert!(effort < 100_000, "{effort}");
}

#[test]
fn an_action_looks_at_as_many_jobs_of_a_queue_as_it_may() {
    let mut cluster = full(3);
    let waiting = ["b", "a", "c"].into_iter().map(|name| {
        let mut job = waits("all", 50, TaskGpuRequest::Whole(1), 1);
        name.clone_into(&mut job.name);
        name.clone_into(&mut job.tasks[0].name);
        Arc::new(job)
    });
    cluster.jobs.extend(waiting);
    let started = |cluster: &Cluster| {
        let decisions = plan(NOW, cluster).decisions();
        decisions
            .iter()
            .filter(|one| matches!(one, Decision::Bind { .. }))
            .count()
    };
    assert_eq!(started(&cluster), 3);
    cluster.settings.queue_depth = [(Action::Allocate, 2)].into();
    assert_eq!(started(&cluster), 2);
    cluster.settings.queue_depth = [(Action::Reclaim, 2)].into();
    assert_eq!(started(&cluster), 3);
}

/// Jobs that would each take the room made for the other. Two gangs of the queue `all` run on each pair of nodes. A
/// job of `other`, which holds nothing, and one of higher priority in `all` wait for room there.
fn blocked(pairs: usize) -> Cluster {
    let mut cluster = full(NODES * CARDS);
    cluster.nodes.truncate(2 * pairs);
    let half = TaskGpuRequest::Whole(4);
    let mut add = |name: String, queue: &str, priority: i32, tasks: Vec<Task>| {
        let job = job(&name, queue, priority, tasks);
        cluster.jobs.push(Arc::new(job));
    };
    for pair in 0..pairs {
        for (kind, priority) in [("first", 50), ("second", 60)] {
            let name = format!("{kind}-{pair}");
            let tasks = (0..2)
                .map(|side| {
                    pod(
                        &format!("{name}-{side}"),
                        half.clone(),
                        Some(2 * pair + side),
                    )
                })
                .collect();
            add(name.clone(), "all", priority, tasks);
        }
        for (kind, queue, priority, cards) in [("taker", "other", 50, 6), ("above", "all", 75, 2)] {
            let name = format!("{kind}-{pair}");
            let tasks = vec![pod(&name, TaskGpuRequest::Whole(cards), None)];
            add(name, queue, priority, tasks);
        }
    }
    let quota = i64::try_from(2 * pairs).unwrap() as f64;
    cluster.queues = vec![queue("all", quota), queue("other", quota)];
    cluster
}

#[test]
fn jobs_that_block_each_other_are_served_in_the_end_at_a_bounded_cost() {
    let mut cluster = blocked(60);
    cluster.settings.search_effort = 20_000;
    for _ in 0..20 {
        let mut effort = 0;
        let session = apportion_policy::plan_observed(NOW, &cluster, |session, action| {
            if action == Action::EvictStaleGangs {
                effort += session.effort();
            }
        });
        let decisions = session.decisions();
        drop(session);
        assert!(effort < 30 * 20_000, "{effort}");
        for decision in &decisions {
            let (name, placement) = match decision {
                Decision::Evict { task, .. } => (task, None),
                Decision::Bind {
                    task, placement, ..
                } => (task, Some(placement)),
                Decision::Reserve { .. } => continue,
            };
            let tasks = cluster
                .jobs
                .iter_mut()
                .flat_map(|job| &mut Arc::make_mut(job).tasks);
            let task = tasks.into_iter().find(|task| task.name == *name).unwrap();
            task.node = placement.map(|placement| placement.node.clone());
            task.status = match placement {
                Some(_) => TaskStatus::Running,
                None => TaskStatus::Pending,
            };
        }
    }
    let mut others = cluster.jobs.iter().filter(|job| job.queue == "other");
    let is_served = others.any(|job| job.tasks[0].status == TaskStatus::Running);
    assert!(is_served, "nobody was served");
}
