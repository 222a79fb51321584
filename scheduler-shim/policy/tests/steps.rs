//! What every step of the policy promises, over random clusters that are carried on round after round.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::{Cards, Group, Job, Node, PodSet, Queue, Quota, Status, Task};
use apportion_policy::{Cluster, Decision, Place, step};
use proptest::prelude::*;

const NOW: Duration = Duration::from_secs(1_000_000);
const ROUNDS: usize = 20;

fn quota(deserved: f64, limit: f64, weight: f64) -> Quota {
    Quota {
        deserved,
        limit,
        weight,
    }
}

fn queue(name: &str, parent: Option<&str>, gpu: Quota, priority: i32) -> Queue {
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

fn cards() -> impl Strategy<Value = Cards> {
    let fraction = prop::sample::select(vec!["0.1", "0.25", "0.3", "0.5", "0.7", "0.9"]);
    prop_oneof![
        3 => (1..4_i64).prop_map(Cards::Whole),
        4 => (fraction, 1..3_u32).prop_map(|(text, devices)| Cards::Shared {
            share: Share::Fraction(text.parse().unwrap()),
            devices,
        }),
        2 => (1..900_u64).prop_map(|mib| Cards::Shared {
            share: Share::Memory(Bytes::from_mib(mib)),
            devices: 1,
        }),
        1 => Just(Cards::None),
    ]
}

/// A job that waits: its queue, priority, pods, minimum and what each pod wants.
fn job() -> impl Strategy<Value = (usize, i32, usize, usize, Cards, u64)> {
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

fn cluster() -> impl Strategy<Value = Cluster> {
    let nodes = prop::collection::vec((1..5_i64, 1..4_u64), 1..4);
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
                .map(|(number, (cards, size))| Node {
                    name: format!("node-{number}"),
                    cpu_millis: 64_000,
                    memory: 1 << 40,
                    pods: 110,
                    cards,
                    card_memory: Bytes::from_mib(size * 1000),
                    ..Node::default()
                })
                .collect(),
            queues,
            jobs: jobs.into_iter().enumerate().map(build_job).collect(),
            ..Cluster::default()
        }
    })
}

fn build_job(
    (number, (queue, priority, pods, minimum, cards, age)): (
        usize,
        (usize, i32, usize, usize, Cards, u64),
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
        root: Group {
            sets: vec![PodSet {
                name: "default".to_owned(),
                min_available: minimum.min(pods),
                topology: None,
            }],
            ..Group::default()
        },
        tasks: (0..pods).map(task).collect(),
        ..Job::default()
    }
}

fn task_of<'c>(cluster: &'c mut Cluster, name: &str) -> &'c mut Task {
    let tasks = cluster.jobs.iter_mut().flat_map(|job| &mut job.tasks);
    tasks.into_iter().find(|task| task.name == name).unwrap()
}

/// Does what was decided: what is bound runs, what is evicted is made anew and waits.
fn carry_on(cluster: &mut Cluster, round: usize, decisions: &[Decision]) {
    for decision in decisions {
        match decision {
            Decision::Evict { task, .. } => {
                let task = task_of(cluster, task);
                task.status = Status::Pending;
                task.node = None;
                task.on.clear();
            }
            Decision::Bind { task, place, .. } => {
                let task = task_of(cluster, task);
                task.status = Status::Running;
                task.node = Some(place.node.clone());
                task.on.clone_from(&place.cards);
            }
            Decision::Reserve { .. } => {}
        }
    }
    // A new card gets its name for good when it is opened.
    for task in cluster.jobs.iter_mut().flat_map(|job| &mut job.tasks) {
        for card in &mut task.on {
            if let Some(number) = card.strip_prefix("new-") {
                *card = format!("card-{round}-{number}");
            }
        }
    }
}

/// What the tasks that run hold of each card and how many cards of each node are left, at least zero.
fn check_cards(cluster: &Cluster) -> Result<(), TestCaseError> {
    for node in &cluster.nodes {
        let mut shared: BTreeMap<&str, u64> = BTreeMap::new();
        let mut whole = 0;
        let tasks = cluster.jobs.iter().flat_map(|job| &job.tasks);
        let here = tasks.filter(|task| task.node.as_ref() == Some(&node.name));
        for task in here.filter(|task| task.status == Status::Running) {
            match &task.cards {
                Cards::Whole(count) => whole += count,
                Cards::Shared { share, devices } => {
                    prop_assert_eq!(task.on.len(), usize::try_from(*devices).unwrap());
                    for card in &task.on {
                        let capacity = apportion_abi::Capacity {
                            total: node.card_memory,
                            reserved: Bytes::ZERO,
                        };
                        *shared.entry(card).or_default() += share.bytes_of(capacity).0;
                    }
                }
                Cards::None | Cards::Partitions(_) => {}
            }
        }
        prop_assert!(shared.values().all(|held| *held <= node.card_memory.0));
        let used = whole + i64::try_from(shared.len()).unwrap();
        prop_assert!(used <= node.cards, "{} cards of {} used", used, node.cards);
    }
    Ok(())
}

fn held_by(cluster: &Cluster, queue: &str, only_fixed: bool) -> f64 {
    let jobs = cluster.jobs.iter().filter(|job| job.queue == queue);
    let jobs = jobs.filter(|job| !only_fixed || !job.is_preemptible);
    let tasks = jobs.flat_map(|job| &job.tasks);
    let running = tasks.filter(|task| task.status == Status::Running);
    running
        .map(|task| {
            let mut nodes = cluster.nodes.iter();
            let node = nodes.find(|node| Some(&node.name) == task.node.as_ref());
            task.cards.count(node.unwrap().card_memory)
        })
        .sum()
}

fn check_queues(cluster: &Cluster) -> Result<(), TestCaseError> {
    for queue in cluster.queues.iter().filter(|queue| queue.parent.is_some()) {
        let (held, fixed) = (
            held_by(cluster, &queue.name, false),
            held_by(cluster, &queue.name, true),
        );
        let limit = queue.gpu.limit;
        prop_assert!(limit < 0.0 || held <= limit + 1e-6, "{held} of {limit}");
        prop_assert!(fixed <= queue.gpu.deserved + 1e-6);
    }
    Ok(())
}

/// Pods that are moved have a place while they wait for it.
fn check_gangs(cluster: &Cluster, decisions: &[Decision]) -> Result<(), TestCaseError> {
    let is_promised = |name: &str| {
        let mut decisions = decisions.iter();
        decisions.any(|one| matches!(one, Decision::Reserve { task, .. } if task == name))
    };
    for job in &cluster.jobs {
        let has_place = |task: &&Task| task.status == Status::Running || is_promised(&task.name);
        let placed = job.tasks.iter().filter(has_place).count();
        let minimum = job.root.sets.iter().map(|set| set.min_available).sum();
        let is_whole = placed == 0 || placed >= minimum;
        prop_assert!(is_whole, "{} is half placed", job.name);
    }
    Ok(())
}

fn shuffled(cluster: &Cluster, seed: usize) -> Cluster {
    let mut other = cluster.clone();
    let by = |length: usize| if length == 0 { 0 } else { seed % length };
    let (nodes, queues, jobs) = (
        by(other.nodes.len()),
        by(other.queues.len()),
        by(other.jobs.len()),
    );
    other.nodes.rotate_left(nodes);
    other.queues.rotate_left(queues);
    other.jobs.rotate_left(jobs);
    other.jobs.reverse();
    for job in &mut other.jobs {
        job.tasks.reverse();
    }
    other
}

proptest! {
    #[test]
    fn cards_limits_quotas_and_gangs_hold_round_after_round(mut cluster in cluster()) {
        for round in 0..ROUNDS {
            let decisions = step(NOW, &cluster);
            if decisions.is_empty() {
                break;
            }
            carry_on(&mut cluster, round, &decisions);
            check_cards(&cluster)?;
            check_queues(&cluster)?;
            check_gangs(&cluster, &decisions)?;
        }
    }

    #[test]
    fn a_cluster_settles_and_nothing_is_evicted_in_vain(mut cluster in cluster()) {
        let mut changes = Vec::new();
        for round in 0..ROUNDS {
            let mut decisions = step(NOW, &cluster);
            decisions.retain(|one| !matches!(one, Decision::Reserve { .. }));
            if decisions.is_empty() {
                return Ok(());
            }
            carry_on(&mut cluster, round, &decisions);
            changes.push(decisions);
        }
        prop_assert!(false, "still changing: {:?}", changes.split_off(ROUNDS - 4));
    }

    #[test]
    fn the_order_of_the_input_does_not_matter(mut cluster in cluster(), seed in 0..100_usize) {
        for round in 0..3 {
            let decisions = step(NOW, &cluster);
            prop_assert_eq!(&decisions, &step(NOW, &shuffled(&cluster, seed)));
            carry_on(&mut cluster, round, &decisions);
        }
    }
}

#[test]
fn one_card_is_bound_where_it_leaves_the_smallest_hole() {
    let task = |name: &str, fraction: &str, on: Option<(&str, &str)>| Task {
        name: name.to_owned(),
        set: "default".to_owned(),
        status: if on.is_some() {
            Status::Running
        } else {
            Status::Pending
        },
        node: on.map(|(node, _)| node.to_owned()),
        on: on.iter().map(|(_, card)| (*card).to_owned()).collect(),
        cards: Cards::Shared {
            share: Share::Fraction(fraction.parse().unwrap()),
            devices: 1,
        },
        ..Task::default()
    };
    let job = |task: Task| Job {
        name: task.name.clone(),
        queue: "all".to_owned(),
        is_preemptible: true,
        root: Group {
            sets: vec![PodSet {
                name: "default".to_owned(),
                min_available: 1,
                topology: None,
            }],
            ..Group::default()
        },
        tasks: vec![task],
        ..Job::default()
    };
    let node = |name: &str| Node {
        name: name.to_owned(),
        pods: 10,
        cards: 1,
        card_memory: Bytes::from_mib(1000),
        ..Node::default()
    };
    let cluster = Cluster {
        nodes: vec![node("a"), node("b")],
        queues: vec![queue("all", None, quota(-1.0, -1.0, 1.0), 100)],
        jobs: vec![
            job(task("low", "0.1", Some(("a", "a0")))),
            job(task("high", "0.7", Some(("b", "b0")))),
            job(task("new", "0.3", None)),
        ],
        ..Cluster::default()
    };
    let place = Place {
        node: "b".to_owned(),
        cards: vec!["b0".to_owned()],
    };
    let bind = Decision::Bind {
        job: "new".to_owned(),
        task: "new".to_owned(),
        place,
    };
    assert_eq!(step(NOW, &cluster), [bind]);
}
