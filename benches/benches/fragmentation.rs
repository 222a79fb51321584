//! How full a cluster gets under more demand than capacity, by the rule that chooses nodes and cards.
//!
//! Pods of a mix come and go at random. The figures are the average part of the cards that is allocated, and the number
//! of pods that were placed. All rules see the same pods at the same times. KAI's rule is its own order of nodes and
//! cards, with amounts in bytes. First fit takes the first node by name. The seeds are fixed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::{Bytes, Share};
use apportion_policy::cluster::{
    Job, Node, PlacementStrategy, PodSet, Queue, SharedCardPreference, SubGroupSet, Task,
    TaskGpuRequest, TaskStatus,
};
use apportion_policy::{Action, Cluster, Decision, Session};

const NODES: usize = 32;
const CARDS: usize = 8;
const CARD: Bytes = Bytes::from_mib(80_000);
const ROUNDS: usize = 120;
/// Rounds at the beginning, while the cluster fills, that are not counted.
const FILLED: usize = 40;
/// How many rounds a pod runs on average.
const LIFE: u64 = 20;
/// The demand as a multiple of the capacity.
const DEMAND: f64 = 1.0;
/// How many rounds a pod waits before it is given up.
const PATIENCE: usize = 1;
const SEEDS: u64 = 3;

/// Kinds of pods, with the percentage of each.
type WorkloadMix = &'static [(u64, RequestChoices)];

/// What pods of a kind request: one of these at random.
#[derive(Clone, Copy)]
enum RequestChoices {
    /// Hundredths of a card, on this many cards.
    Parts(&'static [u32], u32),
    /// GiB of one card.
    Memory(&'static [u64]),
    Whole(&'static [i64]),
}

const MIXES: &[(&str, WorkloadMix)] = &[
    (
        "fractions",
        &[(
            100,
            RequestChoices::Parts(&[10, 20, 25, 30, 40, 50, 60, 70], 1),
        )],
    ),
    (
        "memory",
        &[(100, RequestChoices::Memory(&[4, 8, 12, 16, 24, 32, 40, 60]))],
    ),
    (
        "halves and whole",
        &[
            (70, RequestChoices::Parts(&[50], 1)),
            (30, RequestChoices::Whole(&[1, 1, 2, 4, 8])),
        ],
    ),
    (
        "several devices",
        &[
            (60, RequestChoices::Parts(&[20, 30, 50], 1)),
            (40, RequestChoices::Parts(&[30, 50, 60], 2)),
        ],
    ),
    (
        "all",
        &[
            (50, RequestChoices::Parts(&[10, 25, 30, 50, 70], 1)),
            (20, RequestChoices::Memory(&[8, 16, 24, 40])),
            (5, RequestChoices::Parts(&[50], 2)),
            (20, RequestChoices::Whole(&[1, 1, 1, 2])),
            (5, RequestChoices::Whole(&[4, 8])),
        ],
    ),
];

/// The rules that choose nodes and cards.
const RULES: &[(&str, PlacementStrategy, SharedCardPreference)] = &[
    ("KAI", PlacementStrategy::Binpack, SharedCardPreference::Any),
    (
        "first fit",
        PlacementStrategy::ByName,
        SharedCardPreference::NoMatter,
    ),
    (
        "best fit",
        PlacementStrategy::Binpack,
        SharedCardPreference::BestFit,
    ),
    (
        "least fragments",
        PlacementStrategy::Binpack,
        SharedCardPreference::LeastFragments,
    ),
];

struct BenchRng(u64);

impl BenchRng {
    fn below(&mut self, count: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % count
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        let count = u64::try_from(all.len()).ok()?;
        all.get(usize::try_from(self.below(count)).ok()?).copied()
    }

    fn cards(&mut self, mix: WorkloadMix) -> TaskGpuRequest {
        let mut at = self.below(100);
        let kind = mix.iter().find(|(percent, _)| {
            let is_it = at < *percent;
            at = at.saturating_sub(*percent);
            is_it
        });
        let shared = |share, devices| TaskGpuRequest::Shared { share, devices };
        let cards = match kind.map(|(_, asks)| *asks) {
            None => None,
            Some(RequestChoices::Whole(counts)) => self.one_of(counts).map(TaskGpuRequest::Whole),
            Some(RequestChoices::Memory(sizes)) => self
                .one_of(sizes)
                .map(|size| shared(Share::Memory(Bytes::from_mib(size * 1000)), 1)),
            Some(RequestChoices::Parts(parts, devices)) => self.one_of(parts).and_then(|part| {
                let fraction = format!("0.{part:02}").parse().ok()?;
                Some(shared(Share::Fraction(fraction), devices))
            }),
        };
        cards.unwrap_or_default()
    }
}

/// A pod: what it requests, when it comes, and for how many rounds it runs.
struct BenchPod {
    name: String,
    cards: TaskGpuRequest,
    comes: usize,
    life: usize,
}

fn pods(mix: WorkloadMix, seed: u64) -> Vec<BenchPod> {
    let mut random = BenchRng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let all = (NODES * CARDS) as f64;
    let mut pods = Vec::new();
    for comes in 0..ROUNDS {
        let mut asked = 0.0;
        while asked < all * DEMAND / LIFE as f64 {
            let cards = random.cards(mix);
            asked += cards.count(CARD);
            let life = usize::try_from(1 + random.below(2 * LIFE)).unwrap_or(1);
            let name = format!("pod-{:06}", pods.len());
            pods.push(BenchPod {
                name,
                cards,
                comes,
                life,
            });
        }
    }
    pods
}

fn cluster(strategy: PlacementStrategy, shared: SharedCardPreference) -> Cluster {
    let queue = Queue::unbounded("all");
    let mut cluster = Cluster {
        nodes: (0..NODES)
            .map(|number| Node {
                name: format!("node-{number:03}"),
                cpu_millis: 1_000_000,
                memory: 1 << 42,
                pods: 250,
                cards: CARDS as i64,
                card_memory: CARD,
                ..Node::default()
            })
            .collect(),
        queues: vec![queue],
        ..Cluster::default()
    };
    cluster.settings.gpu_nodes = strategy;
    cluster.settings.shared_cards = shared;
    cluster
}

fn job(pod: &BenchPod) -> Job {
    Job {
        name: pod.name.clone(),
        queue: "all".to_owned(),
        is_preemptible: true,
        created: Duration::from_secs(pod.comes as u64),
        root: SubGroupSet {
            sets: vec![PodSet {
                name: "set".to_owned(),
                min_available: 1,
                topology: None,
            }],
            ..SubGroupSet::default()
        },
        tasks: vec![Task {
            name: pod.name.clone(),
            set: "set".to_owned(),
            cards: pod.cards.clone(),
            cpu_millis: 100,
            memory: 1 << 20,
            ..Task::default()
        }],
        ..Job::default()
    }
}

/// The average part of all cards that is allocated, and the number of pods that were placed.
fn fill(mut cluster: Cluster, pods: &[BenchPod]) -> (f64, usize) {
    let lives: BTreeMap<&str, &BenchPod> =
        pods.iter().map(|pod| (pod.name.as_str(), pod)).collect();
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    let (mut given, mut placed) = (0.0, BTreeSet::new());
    for round in 0..ROUNDS {
        cluster.jobs.retain(|job| match ends.get(&job.name) {
            Some(end) => *end > round,
            None => lives[job.name.as_str()].comes + PATIENCE > round,
        });
        let new = pods.iter().filter(|pod| pod.comes == round);
        cluster.jobs.extend(new.map(job).map(Arc::new));
        let mut session = Session::open(Duration::from_secs(round as u64), &cluster);
        session.run(Action::Allocate);
        let decisions = session.decisions();
        for decision in decisions {
            let Decision::Bind {
                task, placement, ..
            } = decision
            else {
                continue;
            };
            let mut tasks = cluster
                .jobs
                .iter_mut()
                .flat_map(|job| &mut Arc::make_mut(job).tasks);
            if let Some(found) = tasks.find(|found| found.name == task) {
                // A new card gets its permanent name when its first pod is placed.
                let cards = placement
                    .cards
                    .iter()
                    .map(|card| card.replace("new", &format!("card-{round}")));
                (found.status, found.node, found.on) =
                    (TaskStatus::Running, Some(placement.node), cards.collect());
                ends.insert(task.clone(), round + lives[task.as_str()].life);
                placed.insert(task);
            }
        }
        if round >= FILLED {
            let tasks = cluster.jobs.iter().flat_map(|job| &job.tasks);
            let running = tasks.filter(|task| task.status == TaskStatus::Running);
            given += running.map(|task| task.cards.count(CARD)).sum::<f64>();
        }
    }
    let all = (NODES * CARDS * (ROUNDS - FILLED)) as f64;
    (given / all, placed.len())
}

fn main() {
    println!(
        "{NODES} nodes of {CARDS} cards, {DEMAND} times as much asked as there is, {SEEDS} times {ROUNDS} rounds: \
         cards given away, pods placed, and both by KAI's"
    );
    for (name, mix) in MIXES {
        let mut kai = None;
        for (rule, strategy, shared) in RULES {
            let (mut given, mut placed) = (0.0, 0);
            for seed in 1..=SEEDS {
                let (part, pods) = fill(cluster(*strategy, *shared), &pods(mix, seed));
                given += part / SEEDS as f64;
                placed += pods;
            }
            let (by, than) = *kai.get_or_insert((given, placed));
            println!(
                "{name:>18} {rule:>16}: {:6.2} % {placed:>6}  {:6.3} {:6.3}",
                given * 100.0,
                given / by,
                placed as f64 / than as f64,
            );
        }
    }
}
