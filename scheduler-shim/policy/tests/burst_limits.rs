//! The limits of a queue's pods add up to no more than its burst limit.

use std::sync::Arc;
use std::time::Duration;

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::{
    Job, ListedCard, Node, PodSet, Queue, SubGroupSet, Task, TaskGpuRequest, TaskStatus,
};
use apportion_policy::{Cluster, Decision, QueueBound, Session, step};

fn queue(name: &str, parent: Option<&str>, burst_limit: Option<f64>) -> Queue {
    Queue {
        parent: parent.map(str::to_owned),
        burst_limit,
        ..Queue::unbounded(name)
    }
}

fn part(text: &str) -> Share {
    Share::Fraction(text.parse().expect("a fraction"))
}

fn mib(mib: u64) -> Share {
    Share::Memory(Bytes::from_mib(mib))
}

/// A job that waits: pods that start together, each with a share and a limit.
#[derive(Clone)]
struct Waiting {
    name: &'static str,
    queue: &'static str,
    priority: i32,
    pods: usize,
    cards: TaskGpuRequest,
    limit: Option<Share>,
}

fn fixed(name: &'static str, share: Share) -> Waiting {
    Waiting {
        name,
        queue: "team",
        priority: 50,
        pods: 1,
        cards: TaskGpuRequest::Shared { share, devices: 1 },
        limit: None,
    }
}

fn elastic(name: &'static str, share: Share, limit: Share) -> Waiting {
    Waiting {
        limit: Some(limit),
        ..fixed(name, share)
    }
}

fn whole(name: &'static str) -> Waiting {
    Waiting {
        cards: TaskGpuRequest::Whole(1),
        ..fixed(name, part("0.5"))
    }
}

impl Waiting {
    fn job(&self, number: u64) -> Arc<Job> {
        let tasks = (0..self.pods).map(|pod| Task {
            name: format!("{}-{pod}", self.name),
            set: "set".to_owned(),
            cards: self.cards.clone(),
            limit: self.limit,
            ..Task::default()
        });
        Arc::new(Job {
            name: self.name.to_owned(),
            queue: self.queue.to_owned(),
            priority: self.priority,
            is_preemptible: true,
            created: Duration::from_secs(number),
            root: SubGroupSet {
                sets: vec![PodSet {
                    name: "set".to_owned(),
                    min_available: self.pods,
                    topology: None,
                }],
                ..SubGroupSet::default()
            },
            tasks: tasks.collect(),
            ..Job::default()
        })
    }
}

/// A node whose cards have these sizes in MiB, and the queue `team` below `company`.
fn cluster(cards: &[u64], company: Option<f64>, team: Option<f64>) -> Cluster {
    let listed = cards.iter().enumerate().map(|(number, size)| ListedCard {
        name: format!("card-{number}"),
        memory: Bytes::from_mib(*size),
        is_healthy: true,
    });
    Cluster {
        nodes: vec![Node {
            name: "node".to_owned(),
            pods: 40,
            listed: listed.collect(),
            ..Node::default()
        }],
        queues: vec![
            queue("company", None, company),
            queue("team", Some("company"), team),
            queue("other", Some("company"), None),
        ],
        ..Cluster::default()
    }
}

fn add(cluster: &mut Cluster, jobs: &[Waiting]) {
    for job in jobs {
        let number = cluster.jobs.len() as u64;
        cluster.jobs.push(job.job(number));
    }
}

/// One step; what is bound runs, and what is evicted waits.
fn carry_on(cluster: &mut Cluster) -> Vec<Decision> {
    let decisions = step(Duration::from_secs(1000), cluster);
    for decision in &decisions {
        let (Decision::Bind { job, task, .. }
        | Decision::Evict { job, task }
        | Decision::Reserve { job, task, .. }) = decision;
        let mut jobs = cluster.jobs.iter_mut();
        let job = jobs.find(|known| known.name == *job).expect("a job");
        let mut tasks = Arc::make_mut(job).tasks.iter_mut();
        let task = tasks.find(|known| known.name == *task).expect("a task");
        match decision {
            Decision::Bind { placement, .. } => {
                task.status = TaskStatus::Running;
                task.node = Some(placement.node.clone());
                task.on.clone_from(&placement.cards);
            }
            Decision::Evict { .. } => {
                task.status = TaskStatus::Pending;
                task.node = None;
                task.on.clear();
            }
            Decision::Reserve { .. } => {}
        }
    }
    decisions
}

fn running(cluster: &Cluster) -> Vec<&str> {
    let tasks = cluster.jobs.iter().flat_map(|job| &job.tasks);
    let running = tasks.filter(|task| task.status == TaskStatus::Running);
    running.map(|task| task.name.as_str()).collect()
}

/// Which of these pods run in the end, with these burst limits of the upper and the lower queue.
fn started(cards: &[u64], limits: [Option<f64>; 2], jobs: &[Waiting]) -> Vec<String> {
    let [company, team] = limits;
    let mut cluster = cluster(cards, company, team);
    add(&mut cluster, jobs);
    for _ in 0..3 {
        carry_on(&mut cluster);
    }
    running(&cluster).into_iter().map(str::to_owned).collect()
}

const FOUR: &[u64] = &[10_000; 4];

#[test]
fn pods_start_until_their_limits_add_up_to_the_bound() {
    let pods = [
        elastic("a", part("0.25"), part("0.75")),
        elastic("b", part("0.25"), part("0.75")),
        elastic("c", part("0.25"), part("0.75")),
        fixed("d", part("0.5")),
        fixed("e", part("0.1")),
    ];
    assert_eq!(started(FOUR, [None, None], &pods).len(), 5);
    // 0.75 + 0.75 + 0.5: the third is one too many, and the last one, too.
    let of_team = started(FOUR, [None, Some(2.0)], &pods);
    assert_eq!(of_team, ["a-0", "b-0", "d-0"]);
    // The queue above bounds as well, and the lowest bound counts.
    assert_eq!(started(FOUR, [Some(2.0), None], &pods), of_team);
    assert_eq!(started(FOUR, [Some(2.0), Some(9.0)], &pods), of_team);
    assert!(started(FOUR, [None, Some(0.0)], &pods).is_empty());
}

#[test]
fn sums_of_limits_are_not_refused_for_rounding() {
    // A third and two thirds of a card, in bytes: three limits are two cards.
    let third = || elastic("a", mib(3000), mib(6000));
    let pods = ["a", "b", "c", "d"].map(|name| Waiting { name, ..third() });
    assert_eq!(started(&[9000; 4], [None, Some(2.0)], &pods).len(), 3);
}

#[test]
fn whole_gpus_and_shares_of_several_count_with_all_of_them() {
    let of_two = Waiting {
        cards: TaskGpuRequest::Shared {
            share: part("0.25"),
            devices: 2,
        },
        ..elastic("two", part("0.25"), part("0.75"))
    };
    let pods = [whole("a"), of_two, whole("b")];
    assert_eq!(started(FOUR, [None, Some(2.4)], &pods), ["a-0", "b-0"]);
    assert_eq!(started(FOUR, [None, Some(2.5)], &pods), ["a-0", "two-0"]);
    assert_eq!(started(FOUR, [None, Some(3.5)], &pods).len(), 3);
}

#[test]
fn a_gang_starts_with_all_its_limits_or_not_at_all() {
    let gang = Waiting {
        pods: 3,
        ..elastic("gang", part("0.25"), part("0.75"))
    };
    let pods = [gang, elastic("single", part("0.25"), part("0.75"))];
    assert_eq!(started(FOUR, [None, Some(2.2)], &pods), ["single-0"]);
    assert_eq!(started(FOUR, [None, Some(2.25)], &pods).len(), 3);
    assert_eq!(started(FOUR, [None, Some(3.0)], &pods).len(), 4);
}

#[test]
fn queues_below_one_share_its_bound() {
    let other = Waiting {
        queue: "other",
        ..elastic("b", part("0.25"), part("0.75"))
    };
    let pods = [elastic("a", part("0.25"), part("0.75")), other];
    assert_eq!(started(FOUR, [Some(1.0), None], &pods).len(), 1);
    assert_eq!(started(FOUR, [None, Some(1.0)], &pods).len(), 2);
}

#[test]
fn a_limit_in_bytes_counts_as_a_part_of_the_card_that_it_is_on() {
    // All of the small card, which fits better, or half of the large one.
    let pods = [elastic("a", mib(1000), mib(10_000))];
    let mut cluster = cluster(&[10_000, 20_000], None, Some(0.5));
    add(&mut cluster, &pods);
    carry_on(&mut cluster);
    assert_eq!(cluster.jobs[0].tasks[0].on, ["card-1"]);
    assert!(started(&[10_000, 20_000], [None, Some(0.4)], &pods).is_empty());
    // A limit above the card is the card.
    let pods = [elastic("a", mib(1000), mib(90_000))];
    assert_eq!(started(&[10_000], [None, Some(1.0)], &pods).len(), 1);
    // So it is where a fraction is guaranteed and the limit is in bytes.
    let pods = [elastic("a", part("0.1"), mib(10_000))];
    assert_eq!(
        started(&[10_000, 20_000], [None, Some(0.5)], &pods).len(),
        1
    );
    assert!(started(&[10_000, 20_000], [None, Some(0.4)], &pods).is_empty());
}

#[test]
fn a_higher_priority_takes_the_limits_of_a_lower_one_in_the_same_queue_only() {
    let mut cluster = cluster(FOUR, Some(2.0), None);
    let lesser = Waiting {
        queue: "other",
        ..elastic("lesser", part("0.25"), part("0.75"))
    };
    add(
        &mut cluster,
        &[elastic("low", part("0.25"), part("0.75")), lesser],
    );
    carry_on(&mut cluster);
    assert_eq!(running(&cluster).len(), 2);
    // Nobody leaves for an equal.
    let equal = elastic("equal", part("0.25"), part("0.75"));
    add(&mut cluster, std::slice::from_ref(&equal));
    assert!(carry_on(&mut cluster).is_empty());
    let high = Waiting {
        priority: 75,
        ..elastic("high", part("0.25"), part("0.75"))
    };
    add(&mut cluster, &[high]);
    let decisions = carry_on(&mut cluster);
    let evicted = decisions.iter().filter_map(|decision| match decision {
        Decision::Evict { task, .. } => Some(task.as_str()),
        Decision::Bind { .. } | Decision::Reserve { .. } => None,
    });
    assert_eq!(evicted.collect::<Vec<_>>(), ["low-0"]);
    carry_on(&mut cluster);
    assert_eq!(running(&cluster), ["lesser-0", "high-0"]);
}

#[test]
fn nobody_leaves_if_that_does_not_help() {
    let mut cluster = cluster(FOUR, None, Some(1.0));
    add(&mut cluster, &[elastic("low", part("0.25"), part("0.75"))]);
    carry_on(&mut cluster);
    // Two cards of limits are more than the queue may ever have.
    let large = Waiting {
        priority: 75,
        pods: 2,
        ..elastic("large", part("0.25"), part("0.75"))
    };
    add(&mut cluster, &[large]);
    assert!(carry_on(&mut cluster).is_empty());
    assert_eq!(running(&cluster), ["low-0"]);
}

#[test]
fn a_bound_that_is_lowered_takes_nothing_and_keeps_only_gpus() {
    let mut cluster = cluster(FOUR, None, None);
    add(&mut cluster, &[elastic("a", part("0.25"), part("0.75"))]);
    carry_on(&mut cluster);
    cluster.queues[1].burst_limit = Some(0.5);
    let without = Waiting {
        cards: TaskGpuRequest::None,
        ..fixed("without", part("0.5"))
    };
    add(&mut cluster, &[fixed("with", part("0.1")), without]);
    carry_on(&mut cluster);
    assert_eq!(running(&cluster), ["a-0", "without-0"]);
}

#[test]
fn a_pod_that_leaves_frees_its_limit_for_the_next() {
    let mut cluster = cluster(FOUR, None, Some(1.0));
    let pods = ["a", "b"].map(|name| elastic(name, part("0.25"), part("0.75")));
    add(&mut cluster, &pods);
    carry_on(&mut cluster);
    assert_eq!(running(&cluster), ["a-0"]);
    Arc::make_mut(&mut cluster.jobs[0]).tasks[0].status = TaskStatus::Releasing;
    // It leaves, so the next one starts: only limits were in the way.
    carry_on(&mut cluster);
    assert_eq!(running(&cluster), ["b-0"]);
}

#[test]
fn a_running_pod_gets_no_limit_beyond_the_bound() {
    let mut cluster = cluster(&[10_000], Some(1.5), None);
    let pods = ["a", "b"].map(|name| elastic(name, part("0.25"), part("0.5")));
    add(&mut cluster, &pods);
    carry_on(&mut cluster);
    assert_eq!(running(&cluster).len(), 2);
    let session = Session::open(Duration::ZERO, &cluster);
    let shortfall = |share: &str, limit: Option<&str>| {
        let share = part(share);
        let cards = TaskGpuRequest::Shared { share, devices: 1 };
        session.resize_shortfall("a-0", &cards, limit.map(part))
    };
    assert_eq!(shortfall("0.25", Some("0.99")), None);
    assert_eq!(shortfall("0.75", None), None, "a fixed share is its limit");
    let mut lower = cluster.clone();
    lower.queues[0].burst_limit = Some(1.25);
    let session = Session::open(Duration::ZERO, &lower);
    let shortfall = |share: &str, limit: Option<&str>| {
        let share = part(share);
        let cards = TaskGpuRequest::Shared { share, devices: 1 };
        session.resize_shortfall("a-0", &cards, limit.map(part))
    };
    assert_eq!(shortfall("0.25", Some("0.75")), None);
    let found = shortfall("0.25", Some("0.8")).expect("it is too much");
    assert_eq!(
        (found.queue.uid.as_str(), found.bound),
        ("company", QueueBound::BurstLimit)
    );
    assert!((found.queue.limits() - 1.0).abs() < 1e-6, "{found:?}");
    assert!((found.more.limits - 0.3).abs() < 1e-6, "{found:?}");
    assert!(shortfall("0.76", None).is_some());
    // A larger guarantee below the same limit changes nothing, also in a queue that is above its bound.
    lower.queues[0].burst_limit = Some(0.1);
    let session = Session::open(Duration::ZERO, &lower);
    let cards = TaskGpuRequest::Shared {
        share: part("0.4"),
        devices: 1,
    };
    assert_eq!(
        session.resize_shortfall("a-0", &cards, Some(part("0.5"))),
        None
    );
}
