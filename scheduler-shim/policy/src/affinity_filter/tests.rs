//! Checks the counts against the rules, asked of every pod one by one, after any sequence of changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::claim_devices::ClaimDevices;
use crate::cluster::{
    Cluster, ForeignPod, Job, LabelMap, LabelRequirement, Node, PodAffinityTerm, PodSet,
    SpreadConstraint, SubGroupSet, Task,
};
use crate::node_resources::CardAssignment;
use crate::requests::matches_labels;
use crate::transitions::{bind, evict, reserve};

const LABELS: [&str; 2] = ["app", "tier"];
const DOMAINS: [&str; 2] = ["zone", "rack"];

fn labels(names: [&'static str; 2]) -> impl Strategy<Value = Arc<LabelMap>> {
    let value = || prop::option::of(prop::sample::select(vec!["a", "b"]));
    (value(), value()).prop_map(move |(one, other)| {
        let both = names.into_iter().zip([one, other]);
        let given = both.filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        Arc::new(given.collect())
    })
}

fn requirement() -> impl Strategy<Value = LabelRequirement> {
    let values = || prop::collection::btree_set(prop::sample::select(vec!["a", "b"]), 0..3);
    let texts =
        |values: std::collections::BTreeSet<&str>| values.into_iter().map(str::to_owned).collect();
    prop_oneof![
        4 => values().prop_map(move |values| LabelRequirement::In(texts(values))),
        1 => values().prop_map(move |values| LabelRequirement::NotIn(texts(values))),
        1 => Just(LabelRequirement::Exists),
        1 => Just(LabelRequirement::DoesNotExist),
    ]
}

fn neighbours() -> impl Strategy<Value = PodAffinityTerm> {
    let label = prop::sample::select(LABELS.to_vec()).prop_map(str::to_owned);
    let labels = prop::collection::vec((label, requirement()), 0..3);
    let domain = prop::sample::select(DOMAINS.to_vec()).prop_map(str::to_owned);
    (labels, domain).prop_map(|(labels, domain)| PodAffinityTerm { labels, domain })
}

fn some<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    prop::collection::vec(of, 0..3)
}

fn spread() -> impl Strategy<Value = SpreadConstraint> {
    (neighbours(), 1..3_u64, 0..4_u64).prop_map(|(like, skew, least_domains)| SpreadConstraint {
        like,
        skew,
        least_domains,
    })
}

fn task() -> impl Strategy<Value = Task> {
    let wants = (some(neighbours()), some(neighbours()), some(spread()));
    let zone = prop::option::of(prop::sample::select(vec!["a", "b"]));
    (labels(LABELS), wants, zone).prop_map(|(labels, (near, apart, even), zone)| {
        let wanted = zone.map(|zone| ("zone".to_owned(), vec![zone.to_owned()]));
        Task {
            set: "set".to_owned(),
            labels,
            near,
            apart,
            even,
            node_affinity: Arc::new(wanted.into_iter().collect()),
            ..Task::default()
        }
    })
}

fn cluster() -> impl Strategy<Value = Cluster> {
    let nodes = prop::collection::vec(labels(DOMAINS), 1..5);
    let bystander = (0..5_usize, labels(LABELS), some(neighbours()));
    let bystanders = some(bystander.prop_map(|(node, labels, apart)| ForeignPod {
        node: format!("node-{node}"),
        labels,
        apart,
    }));
    let tasks = prop::collection::vec(task(), 1..7);
    (nodes, bystanders, tasks).prop_map(|(nodes, bystanders, tasks)| Cluster {
        nodes: nodes
            .into_iter()
            .enumerate()
            .map(|(number, labels)| Node {
                name: format!("node-{number}"),
                pods: 100,
                labels,
                ..Node::default()
            })
            .collect(),
        bystanders,
        jobs: tasks
            .into_iter()
            .enumerate()
            .map(|(number, mut task)| {
                task.name = format!("pod-{number}");
                let set = PodSet {
                    name: "set".to_owned(),
                    ..PodSet::default()
                };
                Job {
                    name: task.name.clone(),
                    root: SubGroupSet {
                        sets: vec![set],
                        ..SubGroupSet::default()
                    },
                    tasks: vec![task],
                    ..Job::default()
                }
            })
            .map(Arc::new)
            .collect(),
        ..Cluster::default()
    })
}

/// A pod that has a node.
struct PlacedPod<'s> {
    labels: &'s LabelMap,
    apart: &'s [PodAffinityTerm],
    node: usize,
    presence: Presence,
}

/// All pods that have a node, except one.
fn placed_pods<'s>(
    session: &'s Session<'_>,
    cluster: &'s Cluster,
    but: usize,
) -> Vec<PlacedPod<'s>> {
    let all = (0..session.facts().tasks().len()).filter(|&task| task != but);
    let tasks = all.flat_map(|task| {
        let facts = session.facts().task(task).task;
        let places = session.state().task(task).presences();
        places.map(move |(node, presence)| PlacedPod {
            labels: &facts.labels,
            apart: &facts.apart,
            node,
            presence,
        })
    });
    let bystanders = cluster.bystanders.iter().filter_map(|one| {
        Some(PlacedPod {
            labels: &one.labels,
            apart: &one.apart,
            node: session
                .facts()
                .nodes()
                .iter()
                .position(|node| node.name == one.node)?,
            presence: Presence::Stays,
        })
    });
    tasks.chain(bystanders).collect()
}

/// The first rule that forbids the node, in the order of the checks, and whether the pod would have to wait.
fn said(session: &Session<'_>, cluster: &Cluster, task: usize, node: usize) -> (Option<u8>, bool) {
    let facts = session.facts().task(task).task;
    let others = placed_pods(session, cluster, task);
    let domain = |node: usize, label: &str| session.facts().node(node).labels.get(label);
    let together = |other: &PlacedPod<'_>, label: &str| {
        domain(node, label).is_some() && domain(node, label) == domain(other.node, label)
    };
    let stays = |other: &&PlacedPod<'_>| other.presence == Presence::Stays;
    let all_near = |labels: &LabelMap| facts.near.iter().all(|wanted| wanted.are_like(labels));
    let is_moves_only = session.plan().is_moves_only();
    // Nodes that the pod itself has yet to leave.
    let own: Vec<usize> = session
        .state()
        .task(task)
        .presences()
        .filter(|(_, presence)| is_moves_only && *presence == Presence::Leaves)
        .map(|(node, _)| node)
        .collect();
    let mut before = others.iter().filter(|other| is_moves_only || stays(other));
    let is_first =
        all_near(&facts.labels) && own.is_empty() && !before.any(|other| all_near(other.labels));
    let pods_without_match = facts.near.iter().any(|wanted| {
        let mut staying = others.iter().filter(stays);
        let here = domain(node, &wanted.domain);
        let has = staying.any(|other| all_near(other.labels) && together(other, &wanted.domain));
        let mut own = own.iter().map(|&node| domain(node, &wanted.domain));
        let had = here.is_some() && all_near(&facts.labels) && own.any(|own| own == here);
        !(has || had || is_first && here.is_some())
    });
    let crowd = |other: &PlacedPod<'_>| {
        let mut wanted = facts.apart.iter();
        wanted.any(|one| one.are_like(other.labels) && together(other, &one.domain))
    };
    let dread = |other: &PlacedPod<'_>| {
        let mut wanted = other.apart.iter();
        wanted.any(|one| one.are_like(&facts.labels) && together(other, &one.domain))
    };
    let uneven = facts.even.iter().any(|rule| {
        let mut counts: BTreeMap<&String, u64> = BTreeMap::new();
        let may_be = (0..session.facts().nodes().len()).filter(|&node| {
            let mut even = facts.even.iter();
            even.all(|rule| domain(node, &rule.like.domain).is_some())
                && matches_labels(session.facts(), task, node)
        });
        for other_node in may_be {
            let Some(value) = domain(other_node, &rule.like.domain) else {
                continue;
            };
            let like = others
                .iter()
                .filter(stays)
                .filter(|other| other.node == other_node && rule.like.are_like(other.labels));
            *counts.entry(value).or_default() += like.count() as u64;
        }
        let least = counts.values().min().copied().unwrap_or(0);
        let least = if (counts.len() as u64) < rule.least_domains {
            0
        } else {
            least
        };
        let here = domain(node, &rule.like.domain).and_then(|value| counts.get(value));
        let own = u64::from(rule.like.are_like(&facts.labels));
        here.is_none_or(|here| here + own > least + rule.skew)
    });
    let rules = [
        pods_without_match,
        others.iter().filter(stays).any(crowd),
        others.iter().filter(stays).any(dread),
        uneven,
    ];
    let first = rules.into_iter().zip(0..).find(|(forbids, _)| *forbids);
    let mut leaving = others.iter().filter(|other| !stays(other));
    let waits = leaving.any(|other| crowd(other) || dread(other));
    (first.map(|(_, rule)| rule), waits)
}

fn rule(refusal: &AffinityRefusal) -> u8 {
    match refusal {
        AffinityRefusal::AffinityNotSatisfied { .. } => 0,
        AffinityRefusal::AntiAffinityViolated { .. } => 1,
        AffinityRefusal::ExistingAntiAffinity { .. } => 2,
        AffinityRefusal::TopologySkewExceeded { .. } => 3,
    }
}

proptest! {
    #[test]
    fn counts_say_what_asking_everybody_says(
        cluster in cluster(),
        changes in prop::collection::vec((0..7_usize, 0..5_usize, 0..4_u8), 0..20),
        is_moves_only: bool,
    ) {
        let mut session = Session::open(Duration::ZERO, &cluster);
        session.plan_mut().set_moves_only(is_moves_only);
        let (tasks, nodes) = (session.facts().tasks().len(), session.facts().nodes().len());
        for (task, node, change) in changes {
            let (task, node) = (task % tasks, node % nodes);
            let start = session.state().mark();
            match change {
                0 => bind(&mut session, task, node, CardAssignment::default(), ClaimDevices::default()),
                1 => reserve(&mut session, task, node, CardAssignment::default(), ClaimDevices::default()),
                _ if session.state().task(task).node.is_some() => evict(&mut session, task),
                _ => {}
            }
            if change == 3 {
                session.roll_back(start);
            }
            for task in 0..tasks {
                for node in 0..nodes {
                    let expected = said(&session, &cluster, task, node);
                    let names = (&session.facts().task(task).task.name, &session.facts().node(node).name);
                    let refusal = session.affinity_refusal(names.0, names.1);
                    prop_assert_eq!(refusal.as_ref().map(rule), expected.0);
                    prop_assert_eq!(waits_for_affinity(&session, task, node), expected.1);
                }
            }
        }
    }
}
