//! The best node for a task, cached for the next task like it.
//!
//! A node's score depends only on the node itself, except for the density, which compares all nodes. So for each
//! kind of task, the nodes that fit are kept in order of their own score and then of what is free on them. Only
//! changed nodes are looked at again. The density decides between the first few, by the same sum as in
//! [`Session::ranked`]. That is asked where the cache can't tell: for pods with affinity or preferences, for
//! requests that differ from node to node, and for the first of a kind.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::capacity_bound::asks_alike;
use crate::changed_nodes::ChangeCursor;
use crate::charges::wants_cards;
use crate::choose::{DENSITY, density, free, overall, packing, score};
use crate::cluster::PlacementStrategy;
use crate::fit::{fits, has_node_quota};
use crate::node_resources::ResourceRequest;
use crate::requests::need_anywhere;
use crate::session::Session;
use crate::session::caches::{NodeRanking, NodeScore, OrderedFloat};

/// How many kinds of tasks are kept.
const KEPT: usize = 16;

impl Eq for OrderedFloat {}

impl Ord for OrderedFloat {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for OrderedFloat {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl NodeRanking {
    fn of(session: &Session<'_>, task: usize, need: ResourceRequest) -> Self {
        Self {
            task,
            need,
            wants_cards: wants_cards(session, task),
            seen: ChangeCursor::default(),
            places: vec![NodeScore::default(); session.nodes.len()],
            fitting: BTreeMap::new(),
            free: BTreeMap::new(),
        }
    }

    fn catch_up(&mut self, session: &Session<'_>) {
        match session.touched.since(&mut self.seen) {
            Some(nodes) => nodes.iter().for_each(|&node| self.look_at(session, node)),
            None => (0..self.places.len()).for_each(|node| self.look_at(session, node)),
        }
    }

    fn look_at(&mut self, session: &Session<'_>, node: usize) {
        let now = self.place(session, node);
        let before = std::mem::replace(&mut self.places[node], now);
        if now == before {
            return;
        }
        if let Some(worth) = before.worth {
            self.take_out(worth, node);
        }
        if let Some((worth, place)) = now.worth {
            let equals = self.fitting.entry(OrderedFloat(worth)).or_default();
            equals.insert((OrderedFloat(place), node));
        }
        if let Some(free) = before.free
            && let Some(count) = self.free.get_mut(&OrderedFloat(free))
        {
            *count -= 1;
            if *count == 0 {
                self.free.remove(&OrderedFloat(free));
            }
        }
        if let Some(free) = now.free {
            *self.free.entry(OrderedFloat(free)).or_default() += 1;
        }
    }

    fn take_out(&mut self, (worth, place): (f64, f64), node: usize) {
        if let Some(equals) = self.fitting.get_mut(&OrderedFloat(worth)) {
            equals.remove(&(OrderedFloat(place), node));
            if equals.is_empty() {
                self.fitting.remove(&OrderedFloat(worth));
            }
        }
    }

    fn place(&self, session: &Session<'_>, node: usize) -> NodeScore {
        let free = free(session, self.wants_cards, node);
        let overall = overall(session, self.wants_cards, node);
        let place = || match packing(session, self.wants_cards) {
            PlacementStrategy::ByName => 0.0,
            // A node without the resource scores like the emptiest one.
            PlacementStrategy::Binpack if overall == 0.0 => f64::INFINITY,
            PlacementStrategy::Binpack => free,
            PlacementStrategy::Spread if overall == 0.0 => 0.0,
            PlacementStrategy::Spread => 0.0 - free / overall,
        };
        let fits = fits(session, self.task, node, &self.need);
        NodeScore {
            // `+ 0.0` makes -0.0 a 0.0.
            worth: fits.then(|| (score(session, self.task, node, &self.need) + 0.0, place())),
            free: (overall > 0.0).then_some(free),
        }
    }

    /// The best node, if any fits. The outer `None` means that the ranking can't tell.
    fn best(&self, session: &Session<'_>) -> Option<Option<usize>> {
        let ends = (self.free.first_key_value(), self.free.last_key_value());
        let (least, most) = match ends {
            (Some((least, _)), Some((most, _))) => (least.0, most.0.max(0.0)),
            (None, _) | (_, None) => (f64::MAX, 0.0),
        };
        // If nothing is free anywhere, all nodes are packed alike, even those with less than nothing free.
        if most == 0.0 && least < 0.0 {
            return None;
        }
        let mut best: Option<(f64, usize)> = None;
        for (&OrderedFloat(worth), equals) in self.fitting.iter().rev() {
            if best.is_some_and(|(best, _)| best > worth + DENSITY) {
                break;
            }
            // When packing, nodes without the resource come last here but score like the emptiest one.
            let last = equals.range((OrderedFloat(f64::INFINITY), 0)..).next();
            for &(_, node) in equals.first().into_iter().chain(last) {
                let value = worth + density(session, self.wants_cards, (least, most), node);
                let is_better = |(best, known): (f64, usize)| match value.total_cmp(&best) {
                    Ordering::Greater => true,
                    Ordering::Equal => node < known,
                    Ordering::Less => false,
                };
                if best.is_none_or(is_better) {
                    best = Some((value, node));
                }
            }
        }
        Some(best.map(|(_, node)| node))
    }
}

/// The best of all nodes for a task, if one fits. The outer `None` means that no ranking is kept.
pub(crate) fn best_of_all(session: &Session<'_>, task: usize) -> Option<Option<usize>> {
    if !is_alone(session, task) {
        return None;
    }
    let need = need_anywhere(session, task)?;
    let mut rankings = session.rankings.borrow_mut();
    let is_like =
        |known: usize| asks_alike(session, known, task) && is_guaranteed_as(session, known, task);
    let known = rankings.kept.iter().rposition(|known| is_like(known.task));
    let mut ranking = match known {
        Some(known) => rankings.kept.remove(known),
        None if rankings.asked.iter().any(|&known| is_like(known)) => {
            NodeRanking::of(session, task, need)
        }
        None => {
            rankings.asked.truncate(KEPT - 1);
            rankings.asked.insert(0, task);
            return None;
        }
    };
    session.spend(session.nodes.len());
    ranking.catch_up(session);
    let best = ranking.best(session);
    if rankings.kept.len() == KEPT {
        rankings.kept.remove(0);
    }
    rankings.kept.push(ranking);
    let best = best?;
    Some(best.filter(|_| has_node_quota(session, task, 0)))
}

/// Whether only a node's own state decides its score for the task.
fn is_alone(session: &Session<'_>, task: usize) -> bool {
    let facts = session.tasks[task].task;
    session.most_zones == 0
        && !session.inter_pod_affinity.may_be_refused(task)
        && facts.near.is_empty()
        && facts.apart.is_empty()
        && facts.even.is_empty()
        && facts.prefers.is_empty()
}

fn is_guaranteed_as(session: &Session<'_>, left: usize, right: usize) -> bool {
    let (left, right) = (session.tasks[left].task, session.tasks[right].task);
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
    use crate::requests::need_to_place;
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
        let need = need_to_place(session, task, node);
        if let Some(chosen) = cards_for(session, task, node, &need, false) {
            reserve(session, task, node, chosen.cards);
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
            let all: Vec<usize> = (0..session.nodes.len()).collect();
            for (task, (_, gone)) in kinds.iter().enumerate() {
                let best = ranked(&session, task, &all, |_| Some(0.0)).first().copied();
                if let Some(kept) = best_of_all(&session, task) {
                    prop_assert_eq!(kept, best);
                }
                if let Some(node) = best {
                    place(&mut session, task, node);
                }
                if let Some(gone) = gone.filter(|gone| *gone < task)
                    && session.task_states[gone].status.is_active_allocated()
                {
                    evict(&mut session, gone);
                }
            }
        }
    }
}
