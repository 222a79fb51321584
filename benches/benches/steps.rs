//! The cost of one step of the policy, by action and by the number of nodes, which have eight cards each.
//!
//! The shapes are those that KAI measures: one-card jobs in four queues of two departments. The sizes are 10, 100, 500
//! and 5000 nodes, or the numbers in `APPORTION_BENCH_NODES`, separated by commas.

use std::env;
use std::fs;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::{
    Job, ListedCard, Node, PodAffinityTerm, PodSet, PreferredTerm, Queue, Quota, SpreadConstraint,
    SubGroupSet, Task, TaskGpuRequest, TaskStatus, WeightedPreference,
};
use apportion_policy::{Action, Cluster, Session, plan};
use criterion::{BenchmarkId, Criterion, criterion_group};

const NOW: Duration = Duration::from_secs(1_000_000);
const CARDS: usize = 8;
/// How much longer a step may take if queues have a burst limit that holds nobody back.
const BURST_LIMIT_BUDGET: f64 = 1.15;
/// Each pod with affinity terms is checked against each node, so the largest cluster would take minutes.
const MOST_SPREAD: usize = 500;

/// Jobs of one kind: their number, their pods, and the cards of each pod.
#[derive(Clone, Copy)]
struct JobBatch {
    name: &'static str,
    queues: [&'static str; 2],
    priority: i32,
    count: usize,
    pods: usize,
    cards: usize,
}

const RUNNING: JobBatch = JobBatch {
    name: "running",
    queues: ["a", "b"],
    priority: 50,
    count: 0,
    pods: 1,
    cards: 1,
};

const WAITING: JobBatch = JobBatch {
    name: "waiting",
    queues: ["c", "d"],
    ..RUNNING
};

fn node(number: usize) -> Node {
    Node {
        name: format!("node-{number}"),
        cpu_millis: 1_000_000,
        memory: 1 << 42,
        pods: 110,
        cards: CARDS as i64,
        card_memory: Bytes::from_mib(80_000),
        ..Node::default()
    }
}

fn queue(name: &str, parent: Option<&str>, deserved: usize) -> Queue {
    Queue {
        parent: parent.map(str::to_owned),
        gpu: Quota {
            deserved: deserved as f64,
            ..Quota::UNLIMITED
        },
        ..Queue::unbounded(name)
    }
}

/// The jobs of a batch. Job number `n` runs on node `on(n)`; with `None` it waits.
fn jobs(jobs: JobBatch, on: impl Fn(usize) -> Option<usize>) -> Vec<Job> {
    (0..jobs.count)
        .map(|number| {
            let name = format!("{}-{number}", jobs.name);
            Job {
                tasks: (0..jobs.pods)
                    .map(|pod| Task {
                        name: format!("{name}-{pod}"),
                        set: "default".to_owned(),
                        status: match on(number) {
                            Some(_) => TaskStatus::Running,
                            None => TaskStatus::Pending,
                        },
                        node: on(number).map(|node| format!("node-{node}")),
                        cards: TaskGpuRequest::Whole(jobs.cards as i64),
                        cpu_millis: 1000,
                        memory: 1 << 30,
                        ..Task::default()
                    })
                    .collect(),
                queue: jobs.queues[number % 2].to_owned(),
                priority: jobs.priority,
                is_preemptible: true,
                created: NOW - Duration::from_secs(number as u64),
                root: SubGroupSet {
                    sets: vec![PodSet {
                        name: "default".to_owned(),
                        min_available: jobs.pods,
                        topology: None,
                    }],
                    ..SubGroupSet::default()
                },
                name,
                ..Job::default()
            }
        })
        .collect()
}

/// A cluster whose nodes each run `running` one-card pods, in two queues without a quota. The jobs that wait belong to
/// two queues whose quotas cover everything.
fn cluster(nodes: usize, running: usize, waiting: JobBatch) -> Cluster {
    let all = nodes * CARDS;
    let on_each = JobBatch {
        count: nodes * running,
        ..RUNNING
    };
    let mut jobs_of_both = jobs(on_each, |number| Some(number / running.max(1)));
    jobs_of_both.extend(jobs(waiting, |_| None));
    Cluster {
        nodes: (0..nodes).map(node).collect(),
        queues: vec![
            queue("poor", None, 0),
            queue("rich", None, all),
            queue("a", Some("poor"), 0),
            queue("b", Some("poor"), 0),
            queue("c", Some("rich"), all / 2),
            queue("d", Some("rich"), all / 2),
        ],
        jobs: jobs_of_both.into_iter().map(Arc::new).collect(),
        ..Cluster::default()
    }
}

/// The same cluster with each card listed, as agents report them.
fn with_known_cards(mut cluster: Cluster) -> Cluster {
    for node in &mut cluster.nodes {
        node.listed = (0..CARDS)
            .map(|number| ListedCard {
                name: format!("{}-{number}", node.name),
                memory: node.card_memory,
                is_healthy: true,
            })
            .collect();
    }
    let tasks = cluster
        .jobs
        .iter_mut()
        .flat_map(|job| &mut Arc::make_mut(job).tasks);
    for (number, task) in tasks.enumerate() {
        task.on = task
            .node
            .as_ref()
            .map(|node| format!("{node}-{}", number % CARDS))
            .into_iter()
            .collect();
    }
    cluster
}

/// The same cluster where each pod is one of forty of its application. A topology spread constraint keeps a pod off
/// nodes with too many of them, and a preferred anti-affinity term sends it to nodes without any.
fn with_affinity(mut cluster: Cluster) -> Cluster {
    const HOST: &str = "kubernetes.io/hostname";
    const REPLICAS: usize = 40;
    for node in &mut cluster.nodes {
        let name = node.name.clone();
        node.set_label(HOST, &name);
    }
    let tasks = cluster
        .jobs
        .iter_mut()
        .flat_map(|job| &mut Arc::make_mut(job).tasks);
    for (number, task) in tasks.enumerate() {
        let app = format!("app-{}", number / REPLICAS);
        task.labels = Arc::new([("app".to_owned(), app)].into_iter().collect());
        let like = PodAffinityTerm::with(task.labels.iter(), HOST);
        task.prefers = vec![WeightedPreference {
            term: PreferredTerm::Near(like.clone()),
            weight: -100,
        }];
        task.even = vec![SpreadConstraint {
            like,
            skew: 2,
            least_domains: 1,
        }];
    }
    cluster
}

/// Pods that wait for half a GPU each and may use more of it. With bounds, each queue has a burst limit that all of them keep.
fn elastic(nodes: usize, has_bounds: bool) -> Cluster {
    let count = nodes * CARDS;
    let mut cluster = cluster(nodes, 0, JobBatch { count, ..WAITING });
    let memory = cluster
        .nodes
        .first()
        .map_or(Bytes::ZERO, |of| of.card_memory);
    for job in &mut cluster.jobs {
        for task in &mut Arc::make_mut(job).tasks {
            task.cards = TaskGpuRequest::Shared {
                share: Share::Memory(Bytes(memory.0 / 2)),
                devices: 1,
            };
            task.limit = Some(Share::Memory(Bytes(memory.0 / 4 * 3)));
        }
    }
    for queue in &mut cluster.queues {
        queue.burst_limit = has_bounds.then_some(count as f64);
    }
    cluster
}

/// Jobs that would each take the room that is made for the other. Two gangs of queue `left` run on each pair of nodes.
/// A job of `right`, which has nothing, and a job of higher priority in `left` wait for room there.
fn blocked(nodes: usize) -> Cluster {
    let pairs = nodes / 2;
    let half = CARDS / 2;
    let of = |name, queue, priority, pods, cards| JobBatch {
        name,
        queues: [queue; 2],
        priority,
        count: pairs,
        pods,
        cards,
    };
    let mut first = jobs(of("first", "left", 50, 2, half), Some);
    first.extend(jobs(of("second", "left", 60, 2, half), Some));
    for job in &mut first {
        for (pod, task) in job.tasks.iter_mut().enumerate() {
            let pair = job
                .name
                .rsplit('-')
                .next()
                .and_then(|pair| pair.parse().ok());
            let pair: usize = pair.unwrap_or(0);
            task.node = Some(format!("node-{}", 2 * pair + pod));
        }
    }
    first.extend(jobs(of("reclaimer", "right", 50, 1, CARDS - 2), |_| None));
    first.extend(jobs(of("preemptor", "left", 75, 1, 2), |_| None));
    let quota = nodes * CARDS / 8;
    Cluster {
        nodes: (0..nodes).map(node).collect(),
        queues: vec![queue("left", None, quota), queue("right", None, quota)],
        jobs: first.into_iter().map(Arc::new).collect(),
        ..Cluster::default()
    }
}

fn shapes(nodes: usize) -> [(&'static str, Option<Action>, Cluster); 11] {
    let all = nodes * CARDS;
    let one_card = |count| JobBatch { count, ..WAITING };
    let preemptors = JobBatch {
        queues: RUNNING.queues,
        priority: 75,
        ..one_card(nodes)
    };
    let whole_nodes = JobBatch {
        cards: CARDS,
        ..one_card(nodes.div_ceil(8))
    };
    let too_much = JobBatch {
        queues: RUNNING.queues,
        pods: 10,
        cards: CARDS,
        ..one_card(1)
    };
    [
        (
            "allocate",
            Some(Action::Allocate),
            cluster(nodes, 0, one_card(all)),
        ),
        (
            "allocate-spread",
            Some(Action::Allocate),
            with_affinity(cluster(nodes, 0, one_card(all))),
        ),
        (
            "allocate-elastic",
            Some(Action::Allocate),
            elastic(nodes, false),
        ),
        (
            "allocate-bounded",
            Some(Action::Allocate),
            elastic(nodes, true),
        ),
        (
            "reclaim",
            Some(Action::Reclaim),
            cluster(nodes, CARDS, one_card(all)),
        ),
        (
            "preempt",
            Some(Action::Preempt),
            cluster(nodes, CARDS, preemptors),
        ),
        (
            "consolidate",
            Some(Action::Consolidate),
            cluster(nodes, 6, whole_nodes),
        ),
        ("full", None, cluster(nodes, CARDS, one_card(all))),
        (
            "full-known",
            None,
            with_known_cards(cluster(nodes, CARDS, one_card(all))),
        ),
        ("refuse", None, cluster(nodes, CARDS, too_much)),
        ("blocked", None, blocked(nodes)),
    ]
}

fn sizes() -> Vec<usize> {
    let sizes = env::var("APPORTION_BENCH_NODES").unwrap_or_else(|_| "10,100,500,5000".to_owned());
    sizes
        .split(',')
        .filter_map(|size| size.trim().parse().ok())
        .collect()
}

fn steps(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("steps");
    group.sample_size(10);
    for nodes in sizes() {
        for (name, action, cluster) in shapes(nodes) {
            if name == "allocate-spread" && nodes > MOST_SPREAD {
                continue;
            }
            group.bench_function(BenchmarkId::new(name, nodes), |bencher| {
                bencher.iter(|| {
                    let session = match action {
                        None => plan(NOW, black_box(&cluster)),
                        Some(action) => {
                            let mut session = Session::open(NOW, black_box(&cluster));
                            session.run(action);
                            session
                        }
                    };
                    black_box(session.decisions().len())
                });
            });
        }
    }
    group.finish();
}

/// One full step before anything else, with the process's peak memory.
fn first_of_all() {
    let nodes = sizes().into_iter().max().unwrap_or(500);
    let cluster = cluster(
        nodes,
        CARDS,
        JobBatch {
            count: nodes * CARDS,
            ..WAITING
        },
    );
    let built = peak();
    let begun = Instant::now();
    let decisions = plan(NOW, black_box(&cluster)).decisions().len();
    println!(
        "one full step of {nodes} nodes with {0} pods running and {0} waiting: {decisions} decisions, {1:.2?}, \
         peak {2} MiB, of which {built} MiB are the cluster",
        nodes * CARDS,
        begun.elapsed(),
        peak(),
    );
}

/// The same step with and without burst limits, in turns.
fn burst_limits() {
    const ROUNDS: usize = 15;
    let nodes = sizes().into_iter().filter(|nodes| *nodes <= 500).max();
    let Some(nodes) = nodes else { return };
    let clusters = [false, true].map(|has_bounds| elastic(nodes, has_bounds));
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (cluster, times) in clusters.iter().zip(&mut times) {
            let begun = Instant::now();
            let session = plan(NOW, black_box(cluster));
            times.push(begun.elapsed());
            assert_eq!(session.decisions().len(), nodes * CARDS);
        }
    }
    let [without, with] = times.map(|mut times| {
        times.sort();
        times[ROUNDS / 2]
    });
    let ratio = with.as_secs_f64() / without.as_secs_f64();
    let is_kept = if ratio <= BURST_LIMIT_BUDGET {
        "kept"
    } else {
        "missed"
    };
    println!(
        "a step of {nodes} nodes with burst limits: {with:.2?}, without {without:.2?}, ratio {ratio:.2}, \
         budget {BURST_LIMIT_BUDGET}: {is_kept}"
    );
}

/// The peak memory of this process, in MiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    kib.unwrap_or(0) / 1024
}

criterion_group!(benches, steps);

fn main() {
    first_of_all();
    burst_limits();
    benches();
}
