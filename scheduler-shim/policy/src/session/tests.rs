//! Compares what is kept with what is computed again, after any sequence of changes, rollbacks and commits.

use std::collections::BTreeMap;
use std::sync::Arc;

use apportion_abi::{Bytes, Share};
use proptest::prelude::*;

use super::*;
use crate::capacity_bound::{CapacityBound, free_capacity};
use crate::choose::{cards_for, ranked};
use crate::claim_devices::ClaimDevices;
use crate::cluster::{
    Job, LabelMap, LabelRequirement, ListedCard, Node, NumaPolicy, NumaZone, PodAffinityTerm,
    PodSet, Queue, SpreadConstraint, SubGroupSet, Task, TaskGpuRequest, TaskStatus, ZoneAmounts,
};
use crate::fit::cheapest_request;
use crate::inter_pod_affinity::AffinityCounts;
use crate::node_resources::{NodeResources, SharedCard};
use crate::ranking::best_of_all;
use crate::topology_spread::topology_spread;
use crate::transitions::{bind, evict, reserve, wait_instead};

fn node() -> impl Strategy<Value = Node> {
    (0..5_i64, 1..5_i64, any::<bool>(), 0..2_u8, any::<bool>()).prop_map(
        |(cards, cpu, is_listed, zone, is_aligned)| {
            let listed = (0..cards).map(|number| ListedCard {
                name: format!("card-{number}"),
                memory: Bytes::from_mib(if number % 2 == 0 { 1000 } else { 2000 }),
                is_healthy: number != 3,
            });
            let all = ZoneAmounts {
                cpu: cpu * 500,
                memory: 0,
                cards,
            };
            Node {
                cpu_millis: cpu * 1000,
                pods: 6,
                cards,
                card_memory: Bytes::from_mib(1000),
                listed: listed.filter(|_| is_listed).collect(),
                labels: Arc::new(LabelMap::from_iter([(
                    "zone".to_owned(),
                    format!("zone-{zone}"),
                )])),
                numa: if is_aligned {
                    NumaPolicy::BestEffort
                } else {
                    NumaPolicy::None
                },
                zones: (0..2)
                    .filter(|_| is_aligned)
                    .map(|number| NumaZone {
                        name: format!("zone-{number}"),
                        allocatable: all,
                        available: all,
                    })
                    .collect(),
                ..Node::default()
            }
        },
    )
}

fn cards() -> impl Strategy<Value = TaskGpuRequest> {
    let part = prop::sample::select(vec!["0.25", "0.3", "0.5"]);
    prop_oneof![
        Just(TaskGpuRequest::None),
        (1..3_i64).prop_map(TaskGpuRequest::Whole),
        (part, 1..3_u32).prop_map(|(part, devices)| TaskGpuRequest::Shared {
            share: Share::Fraction(part.parse().expect("a fraction")),
            devices,
        }),
        (100..1500_u64).prop_map(|mib| TaskGpuRequest::Shared {
            share: Share::Memory(Bytes::from_mib(mib)),
            devices: 1,
        }),
    ]
}

fn same_application() -> PodAffinityTerm {
    let value = LabelRequirement::In(["a".to_owned()].into_iter().collect());
    PodAffinityTerm {
        labels: vec![("app".to_owned(), value)],
        domain: "zone".to_owned(),
    }
}

fn task() -> impl Strategy<Value = Task> {
    (cards(), 0..4_u8, any::<bool>(), 0..3_i64).prop_map(|(cards, kind, is_of_app, cpu)| {
        let app = is_of_app.then(|| ("app".to_owned(), "a".to_owned()));
        let spread = SpreadConstraint {
            like: same_application(),
            skew: 1,
            least_domains: 0,
        };
        Task {
            set: "set".to_owned(),
            cards,
            cpu_millis: cpu * 500,
            labels: Arc::new(app.into_iter().collect()),
            apart: (kind == 1).then(same_application).into_iter().collect(),
            even: (kind == 2).then_some(spread).into_iter().collect(),
            ..Task::default()
        }
    })
}

/// Nodes, and jobs of one or two tasks; some tasks run.
fn cluster() -> impl Strategy<Value = Cluster> {
    let nodes = prop::collection::vec(node(), 1..5);
    let tasks = prop::collection::vec(task(), 1..3);
    let jobs = prop::collection::vec((tasks, prop::option::of(0..5_usize)), 1..8);
    let strategy = prop::sample::select(vec![
        crate::cluster::PlacementStrategy::Binpack,
        crate::cluster::PlacementStrategy::Spread,
    ]);
    (nodes, jobs, strategy).prop_map(|(mut nodes, jobs, strategy)| {
        for (number, node) in nodes.iter_mut().enumerate() {
            node.name = format!("node-{number}");
        }
        let jobs = jobs
            .into_iter()
            .enumerate()
            .map(|(number, (tasks, node))| {
                let node = node.map(|node| nodes[node % nodes.len()].name.clone());
                let name = |place| format!("pod-{number}-{place}");
                let set = PodSet {
                    name: "set".to_owned(),
                    ..PodSet::default()
                };
                Arc::new(Job {
                    name: format!("job-{number}"),
                    queue: "queue".to_owned(),
                    root: SubGroupSet {
                        sets: vec![set],
                        ..SubGroupSet::default()
                    },
                    tasks: tasks
                        .into_iter()
                        .enumerate()
                        .map(|(place, task)| Task {
                            name: name(place),
                            status: match &node {
                                Some(_) => TaskStatus::Running,
                                None => TaskStatus::Pending,
                            },
                            node: node.clone(),
                            ..task
                        })
                        .collect(),
                    ..Job::default()
                })
            })
            .collect();
        let mut cluster = Cluster {
            nodes,
            jobs,
            queues: vec![queue()],
            ..Cluster::default()
        };
        cluster.settings.gpu_nodes = strategy;
        cluster
    })
}

fn queue() -> Queue {
    Queue {
        priority: 0,
        ..Queue::unbounded("queue")
    }
}

/// A change of a session.
#[derive(Clone, Copy, Debug)]
enum SessionChange {
    Place { task: usize, node: usize },
    Reserve { task: usize, node: usize },
    Evict { task: usize },
    Mark,
    RollBack,
    WaitInstead,
    Commit,
}

fn change() -> impl Strategy<Value = SessionChange> {
    use SessionChange::*;
    prop_oneof![
        6 => (0..16_usize, 0..5_usize).prop_map(|(task, node)| Place { task, node }),
        4 => (0..16_usize, 0..5_usize).prop_map(|(task, node)| Reserve { task, node }),
        4 => (0..16_usize).prop_map(|task| Evict { task }),
        2 => Just(Mark),
        3 => Just(RollBack),
        1 => Just(WaitInstead),
        1 => Just(Commit),
    ]
}

/// What a rollback restores.
type Restored = (Vec<TaskState>, Vec<NodeTotals>, Vec<[f64; 3]>);

/// The totals of a node. Keys of cards are not among them: they are never taken back.
type NodeTotals = (
    NodeResources,
    NodeResources,
    BTreeMap<CardKey, SharedCard>,
    Vec<ZoneAmounts>,
);

fn node_totals(nodes: &[crate::node_resources::NodeState]) -> Vec<NodeTotals> {
    let totals = nodes.iter().map(|node| {
        let zones = node.zones.available();
        (
            node.idle.clone(),
            node.releasing.clone(),
            node.shared.clone(),
            zones,
        )
    });
    totals.collect()
}

fn allocated(queues: &QueueTree) -> Vec<[f64; 3]> {
    let allocated = queues.all().iter().map(|queue| queue.allocated());
    allocated
        .map(|amounts| crate::amounts::ResourceKind::ALL.map(|kind| amounts[kind]))
        .collect()
}

fn restored(session: &Session<'_>) -> Restored {
    let states = session.state().before_and_after();
    (
        states.map(|(_, now)| now.clone()).collect(),
        node_totals(session.state().nodes()),
        allocated(session.state().queues()),
    )
}

fn are_close(left: &[[f64; 3]], right: &[[f64; 3]]) -> bool {
    let pairs = left.iter().flatten().zip(right.iter().flatten());
    left.len() == right.len() && pairs.into_iter().all(|(l, r)| (l - r).abs() < 1e-6)
}

/// Puts a task on a node if it fits there, as the actions do.
fn place(session: &mut Session<'_>, task: usize, node: usize, only_wait: bool) {
    if session.state().has_node(task) {
        return;
    }
    let request = cheapest_request(session, task, node);
    if !session.state().node(node).fits_soon(&request) {
        return;
    }
    let Some(chosen) = cards_for(session, task, node, &request, only_wait) else {
        return;
    };
    let nothing = ClaimDevices::default();
    if chosen.must_wait {
        reserve(session, task, node, chosen.cards, nothing);
    } else {
        bind(session, task, node, chosen.cards, nothing);
    }
}

/// Whether the totals are the sums over all tasks: without the tasks, nothing is left of them.
fn check_totals(session: &Session<'_>) -> Result<(), TestCaseError> {
    let facts = session.facts();
    let empty = session.state().totals_without_tasks(facts);
    for (node, state) in empty.nodes().iter().enumerate() {
        prop_assert_eq!(&state.idle, &state.total, "idle of node {}", node);
        let nothing = NodeResources {
            partitions: vec![0; facts.profiles().len()],
            ..NodeResources::default()
        };
        prop_assert_eq!(&state.releasing, &nothing, "releasing of node {}", node);
        prop_assert!(state.shared.is_empty(), "shared cards of node {}", node);
        prop_assert_eq!(state.sizes.whole(true), state.sizes.whole(false));
        prop_assert_eq!(state.legacy, 0);
    }
    let nothing = vec![[0.0; 3]; empty.queues().all().len()];
    prop_assert!(are_close(&allocated(empty.queues()), &nothing));
    let foreign = AffinityCounts::of(facts.affinity_terms());
    prop_assert!(empty.affinity().has_same_counts(&foreign));
    Ok(())
}

/// Whether the caches say what new ones say.
fn check_caches(session: &mut Session<'_>) -> Result<(), TestCaseError> {
    let tasks: Vec<usize> = (0..session.facts().tasks().len()).collect();
    let nodes: Vec<usize> = (0..session.facts().nodes().len()).collect();
    let answers = |session: &Session<'_>| {
        let bounds = tasks.chunks(2).map(|some| CapacityBound::of(session, some));
        let spreads = tasks.iter().map(|&task| topology_spread(session, task));
        (
            free_capacity(session),
            bounds.collect::<Vec<_>>(),
            spreads.collect::<Vec<_>>(),
        )
    };
    let kept = answers(session);
    let caches = std::mem::take(&mut session.caches);
    let computed = answers(session);
    session.caches = caches;
    prop_assert_eq!(kept, computed);
    for &task in &tasks {
        if let Some(best) = best_of_all(session, task) {
            let ranked = ranked(session, task, &nodes, |_| Some(0.0));
            prop_assert_eq!(best, ranked.first().copied(), "best node of task {}", task);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn what_is_kept_is_what_is_computed_again(
        cluster in cluster(),
        changes in prop::collection::vec((change(), prop::bool::weighted(0.4)), 1..40),
    ) {
        let mut session = Session::open(Duration::ZERO, &cluster);
        let (tasks, nodes) = (session.facts().tasks().len(), session.facts().nodes().len());
        let mut marks: Vec<(Checkpoint, Restored)> = Vec::new();
        check_totals(&session)?;
        for (change, checks) in changes {
            match change {
                SessionChange::Place { task, node } => {
                    place(&mut session, task % tasks, node % nodes, false);
                }
                SessionChange::Reserve { task, node } => {
                    place(&mut session, task % tasks, node % nodes, true);
                }
                SessionChange::Evict { task } => {
                    let task = task % tasks;
                    if session.state().has_node(task) {
                        evict(&mut session, task);
                    }
                }
                SessionChange::Mark => marks.push((session.state().mark(), restored(&session))),
                SessionChange::RollBack => {
                    if let Some((mark, before)) = marks.pop() {
                        session.roll_back(mark);
                        let after = restored(&session);
                        prop_assert_eq!(&before.0, &after.0);
                        prop_assert_eq!(&before.1, &after.1);
                        prop_assert!(are_close(&before.2, &after.2));
                    }
                }
                SessionChange::WaitInstead => {
                    if let Some((mark, _)) = marks.last() {
                        wait_instead(&mut session, *mark);
                    }
                }
                SessionChange::Commit => {
                    session.commit();
                    marks.clear();
                }
            }
            // Not after each change, so that caches also catch up with several at once.
            if checks {
                check_caches(&mut session)?;
            }
            check_totals(&session)?;
        }
    }
}
