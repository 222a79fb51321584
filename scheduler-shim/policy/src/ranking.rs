//! The best node for a task, cached for the next task like it.
//!
//! A node's score depends only on the node itself, except for the density, which compares all nodes. So for each
//! kind of task a [`NodeRanking`] is kept, and only changed nodes are scored again. The sum is the same as in
//! [`ranked`](crate::choose::ranked). That is asked where the cache can't tell: for pods with affinity or
//! preferences, for requests that differ from node to node, and for the first of a kind.

use crate::caches::node_ranking::{NodeRanking, NodeScore, RankedKind};
use crate::capacity_bound::asks_alike;
use crate::charges::wants_cards;
use crate::choose::{DENSITY, density, free, overall, packing, score};
use crate::cluster::PlacementStrategy;
use crate::fit::{fits, has_node_quota};
use crate::requests::request_anywhere;
use crate::session::Session;
use crate::snapshot::ClusterSnapshot;

/// The best of all nodes for a task, if one fits. The outer `None` means that no ranking is kept.
pub(crate) fn best_of_all(session: &Session<'_>, task: usize) -> Option<Option<usize>> {
    if !is_alone(session.facts(), task) {
        return None;
    }
    let facts = session.facts();
    let request = request_anywhere(facts, task)?;
    let nodes = facts.nodes().len();
    let best = session.caches().with_node_ranking(
        task,
        |known| asks_alike(facts, known, task) && is_guaranteed_as(facts, known, task),
        || {
            let kind = RankedKind {
                task,
                request,
                wants_cards: wants_cards(facts, task),
            };
            NodeRanking::new(kind, nodes)
        },
        |ranking| {
            session.spend(nodes);
            let changed = session.state().changed_nodes();
            ranking.catch_up(changed, |kind, node| node_score(session, kind, node));
            ranking.best(DENSITY, |kind, range, node| {
                density(session, kind.wants_cards, range, node)
            })
        },
    );
    let best = best??;
    Some(best.filter(|_| has_node_quota(session, task, 0)))
}

/// What a node is worth for tasks of a kind.
pub(crate) fn node_score(session: &Session<'_>, kind: &RankedKind, node: usize) -> NodeScore {
    let free = free(session, kind.wants_cards, node);
    let overall = overall(session, kind.wants_cards, node);
    let fits = fits(session, kind.task, node, &kind.request);
    NodeScore {
        // `+ 0.0` makes -0.0 a 0.0.
        worth: fits.then(|| {
            let score = score(session, kind.task, node, &kind.request) + 0.0;
            let place = match packing(session, kind.wants_cards) {
                PlacementStrategy::ByName => 0.0,
                // A node without the resource scores like the emptiest one.
                PlacementStrategy::Binpack if overall == 0.0 => f64::INFINITY,
                PlacementStrategy::Binpack => free,
                PlacementStrategy::Spread if overall == 0.0 => 0.0,
                PlacementStrategy::Spread => 0.0 - free / overall,
            };
            (score, place)
        }),
        free: (overall > 0.0).then_some(free),
    }
}

/// Whether only a node's own state decides its score for the task.
fn is_alone(facts: &ClusterSnapshot<'_>, task: usize) -> bool {
    let asked = facts.task(task).task;
    facts.most_zones() == 0
        && !facts.affinity_terms().may_be_refused(task)
        && asked.near.is_empty()
        && asked.apart.is_empty()
        && asked.even.is_empty()
        && asked.prefers.is_empty()
}

fn is_guaranteed_as(facts: &ClusterSnapshot<'_>, left: usize, right: usize) -> bool {
    let (left, right) = (facts.task(left).task, facts.task(right).task);
    left.is_guaranteed == right.is_guaranteed && left.containers == right.containers
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use apportion_abi::{Bytes, Share};
    use proptest::prelude::*;

    use super::best_of_all;
    use crate::choose::{cards_for, ranked};
    use crate::cluster::{
        Cluster, Job, Node, PlacementStrategy as Packing, PodSet, SubGroupSet, Task, TaskGpuRequest,
    };

    use crate::claim_devices::ClaimDevices;
    use crate::fit::cheapest_request;
    use crate::session::Session;
    use crate::transitions::{evict, reserve};

    /// Pods of a few kinds, one job each.
    fn job(number: usize, kind: usize) -> Job {
        let cards = match kind {
            0 => TaskGpuRequest::None,
            1 | 2 => TaskGpuRequest::Whole(1 + i64::from(kind == 2)),
            _ => TaskGpuRequest::Shared {
                share: Share::Fraction(
                    ["0.25", "0.3", "0.301"][kind % 3].parse().expect("a share"),
                ),
                devices: 1,
            },
        };
        let name = format!("pod-{number}");
        Job {
            root: SubGroupSet {
                sets: vec![PodSet {
                    name: "set".to_owned(),
                    ..PodSet::default()
                }],
                ..SubGroupSet::default()
            },
            tasks: vec![Task {
                name: name.clone(),
                set: "set".to_owned(),
                cards,
                cpu_millis: 1000,
                ..Task::default()
            }],
            name,
            ..Job::default()
        }
    }

    fn node((number, (cards, cpu)): (usize, (i64, i64))) -> Node {
        Node {
            name: format!("node-{number}"),
            cpu_millis: cpu * 1000,
            pods: 9,
            cards,
            card_memory: Bytes::from_mib(1000),
            ..Node::default()
        }
    }

    fn packings() -> prop::sample::Select<Packing> {
        prop::sample::select(vec![Packing::Binpack, Packing::Spread, Packing::ByName])
    }

    fn place(session: &mut Session<'_>, task: usize, node: usize) {
        let request = cheapest_request(session, task, node);
        if let Some(chosen) = cards_for(session, task, node, &request, false) {
            reserve(session, task, node, chosen.cards, ClaimDevices::default());
        }
    }

    #[test]
    fn a_node_that_is_worth_a_little_less_is_the_best_where_it_is_fuller() {
        let kinds = [5, 4, 3, 3].into_iter().enumerate();
        let nodes = [(3, 9), (1, 9)].into_iter().enumerate();
        let cluster = Cluster {
            nodes: nodes.map(node).collect(),
            jobs: kinds
                .map(|(number, kind)| Arc::new(job(number, kind)))
                .collect(),
            ..Cluster::default()
        };
        let mut session = Session::open(Duration::ZERO, &cluster);
        place(&mut session, 0, 0);
        place(&mut session, 1, 1);
        assert_eq!(ranked(&session, 2, &[0, 1], |_| Some(0.0)), [1, 0]);
        assert_eq!(best_of_all(&session, 2), None);
        assert_eq!(best_of_all(&session, 3), Some(Some(1)));
    }

    proptest! {
        #[test]
        fn the_best_that_is_kept_is_the_best_of_all_whatever_came_and_went(
            nodes in prop::collection::vec((0..4_i64, 1..6_i64), 1..6),
            kinds in prop::collection::vec((0..6_usize, prop::option::of(0..40_usize)), 1..40),
            strategies in (packings(), packings()),
        ) {
            let mut cluster = Cluster {
                nodes: nodes.into_iter().enumerate().map(node).collect(),
                jobs: kinds.iter().enumerate().map(|(number, (kind, _))| Arc::new(job(number, *kind))).collect(),
                ..Cluster::default()
            };
            (cluster.settings.gpu_nodes, cluster.settings.cpu_nodes) = strategies;
            let mut session = Session::open(Duration::ZERO, &cluster);
            let all: Vec<usize> = (0..session.facts().nodes().len()).collect();
            for (task, (_, gone)) in kinds.iter().enumerate() {
                let best = ranked(&session, task, &all, |_| Some(0.0)).first().copied();
                if let Some(cached) = best_of_all(&session, task) {
                    prop_assert_eq!(cached, best);
                }
                if let Some(node) = best {
                    place(&mut session, task, node);
                }
                if let Some(gone) = gone.filter(|gone| *gone < task)
                    && session.state().has_node(gone)
                {
                    evict(&mut session, gone);
                }
            }
        }
    }
}
