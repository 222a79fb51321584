//! Which nodes the parts of a job may use together.
//!
//! A topology is a tree of domains, made of node labels from wide to narrow. One domain of the required level must
//! hold all of a part. The preferred level is tried first, then wider ones, and nodes rank by the order of its
//! domains. Among domains that can hold the part, the one with the least room goes first.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::Share;

use crate::cluster::{ClusterTopology, KaiBehavior, TaskGpuRequest, TopologyConstraint};
use crate::gang::{GroupMember, JobView, PodSetTree};
use crate::node_resources::NodeResources;
use crate::session::Session;

mod domains;

use domains::{DomainTree, TopologyDomain};

/// How close nodes are to the preferred domain, by the part of the job that prefers it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopologyScores(Vec<(GroupMember, BTreeMap<usize, f64>)>);

impl TopologyScores {
    /// The scores that apply to a pod set: its own, or those of the nearest group above it.
    pub(crate) fn of(&self, tree: &PodSetTree, set: usize) -> Option<&BTreeMap<usize, f64>> {
        let find = |member| {
            let found = self.0.iter().rev().find(|(of, _)| *of == member);
            found.map(|(_, scores)| scores)
        };
        let groups = std::iter::successors(tree.sets[set].parent, |&at| tree.groups[at].parent);
        find(GroupMember::Set(set)).or_else(|| groups.map(GroupMember::Group).find_map(find))
    }

    fn set(&mut self, member: GroupMember, scores: BTreeMap<usize, f64>) {
        self.0.retain(|(of, _)| *of != member);
        self.0.push((member, scores));
    }
}

/// The domains for a part, in the order in which they are tried.
struct RankedDomains {
    node_sets: Vec<Vec<usize>>,
    /// How close nodes are to the preferred domain, if one is preferred.
    scores: Option<BTreeMap<usize, f64>>,
}

/// What the tasks of a part ask of a domain.
struct TaskDemand {
    tasks: usize,
    /// The largest request of each resource; `None` if the tasks are too different for that to say anything.
    largest: Option<(NodeResources, f64)>,
    sum: (NodeResources, f64),
}

/// The sets of nodes to try for a part, in order.
pub(crate) fn node_sets<'n>(
    session: &Session<'_>,
    view: &JobView,
    member: GroupMember,
    tasks: &[usize],
    nodes: &'n [usize],
    closeness: &mut TopologyScores,
) -> Vec<Cow<'n, [usize]>> {
    let tree = &session.facts().job(view.job).tree;
    let part = match member {
        GroupMember::Group(group) => &tree.groups[group],
        GroupMember::Set(set) => &tree.sets[set],
    };
    let Some(constraint) = &part.topology else {
        return vec![Cow::Borrowed(nodes)];
    };
    let mut topologies = session.facts().topologies().iter();
    let Some(topology) = topologies.find(|known| known.name == constraint.topology) else {
        return Vec::new();
    };
    let domains = DomainTree::of(topology, session.facts().nodes());
    let active = active_nodes(session, view, tasks);
    let found = domains_for(
        session, topology, constraint, domains, tasks, nodes, &active,
    );
    let Some(found) = found else {
        return Vec::new();
    };
    if let Some(scores) = found.scores {
        closeness.set(member, scores);
    }
    found.node_sets.into_iter().map(Cow::Owned).collect()
}

/// The nodes where pods of the same pod sets already have a place.
fn active_nodes(session: &Session<'_>, view: &JobView, tasks: &[usize]) -> BTreeSet<usize> {
    let sets: BTreeSet<usize> = tasks
        .iter()
        .map(|&task| session.facts().task(task).set)
        .collect();
    let placed = sets.iter().flat_map(|&set| &view.tasks[set]);
    placed
        .map(|&task| session.state().task(task))
        .filter(|state| state.status.is_active_allocated())
        .filter_map(|state| state.node)
        .collect()
}

/// The domains to try for a part that has this constraint; `None` if none can hold it.
fn domains_for(
    session: &Session<'_>,
    topology: &ClusterTopology,
    constraint: &TopologyConstraint,
    mut domains: DomainTree,
    tasks: &[usize],
    nodes: &[usize],
    active: &BTreeSet<usize>,
) -> Option<RankedDomains> {
    let depth = |level: &Option<String>| match level {
        None => Some(None),
        Some(level) => {
            let at = topology.levels.iter().position(|known| known == level);
            at.map(|at| Some(at + 1))
        }
    };
    let (required, preferred) = (depth(&constraint.required)?, depth(&constraint.preferred)?);
    let deepest = preferred.or(required)?;
    let demand = demand(session, tasks);
    let valid: BTreeSet<usize> = nodes
        .iter()
        .copied()
        .filter(|node| domains.root().nodes.contains(node))
        .collect();
    // No narrower than required: a cluster of one rack is also one zone.
    let narrowest = if session.facts().settings().goes(KaiBehavior::NarrowsDomains) {
        preferred.unwrap_or(topology.levels.len())
    } else {
        deepest
    };
    let common = domains.common(&valid, narrowest);
    if !fits(session, &demand, domains.get(common)) {
        return None;
    }
    domains.sort_below(common, deepest, &|domain| {
        fullness(session, &demand, domain)
    });
    let scores = preferred.map(|preferred| domains.scores(common, preferred));
    let widest = required.unwrap_or(0);
    let depths = widest..=deepest.max(widest);
    let mut node_sets = Vec::new();
    for domain in domains.deepest_first(common) {
        if !depths.contains(&domain.depth) || !fits(session, &demand, domain) {
            continue;
        }
        // A required domain is the one where pods of the same sets already are.
        if required.is_some() && !active.is_empty() {
            let required = domains.ancestor(domain, widest);
            if required.nodes.is_disjoint(active) {
                continue;
            }
        }
        node_sets.push(domain.nodes.intersection(&valid).copied().collect());
    }
    Some(RankedDomains { node_sets, scores })
}

fn demand(session: &Session<'_>, tasks: &[usize]) -> TaskDemand {
    let mut largest = (NodeResources::default(), 0.0);
    let mut sum = (NodeResources::default(), 0.0);
    let mut with_cards = 0;
    let mut with_partitions = 0;
    for &task in tasks {
        let facts = session.facts().task(task).task;
        let ask = NodeResources {
            cpu: facts.cpu_millis,
            memory: facts.memory,
            pods: 1,
            ..NodeResources::default()
        };
        let cards = match &facts.cards {
            // Whether it takes cards or has a claim depends on the node.
            _ if !facts.extended.is_empty() => 0.0,
            TaskGpuRequest::Partitions(_) => 0.0,
            // Which part of a card that is depends on the card.
            TaskGpuRequest::Shared {
                share: Share::Memory(_),
                ..
            } => 0.0,
            cards => {
                cards.count(session.facts().card_sizes().smallest())
                    + session.facts().task(task).claimed_cards
            }
        };
        with_cards += usize::from(cards > 0.0);
        with_partitions += usize::from(matches!(facts.cards, TaskGpuRequest::Partitions(_)));
        sum.0.add(&ask, 1);
        sum.1 += cards;
        largest.0.cpu = largest.0.cpu.max(ask.cpu);
        largest.0.memory = largest.0.memory.max(ask.memory);
        largest.0.pods = 1;
        largest.1 = f64::max(largest.1, cards);
    }
    let all_or_none = |count: usize| count == 0 || count == tasks.len();
    TaskDemand {
        tasks: tasks.len(),
        largest: (all_or_none(with_cards) && all_or_none(with_partitions)).then_some(largest),
        sum,
    }
}

/// Whether a domain could hold the tasks, by a rough count.
fn fits(session: &Session<'_>, demand: &TaskDemand, domain: &TopologyDomain) -> bool {
    match &demand.largest {
        Some(largest) => {
            let nodes = domain.nodes.iter();
            let slots: i64 = nodes
                .map(|&node| accommodates(session, demand, largest, node))
                .sum();
            slots >= i64::try_from(demand.tasks).unwrap_or(i64::MAX)
        }
        None => fullness(session, demand, domain) <= 1.0,
    }
}

/// How many tasks with the largest request fit on the node.
fn accommodates(
    session: &Session<'_>,
    demand: &TaskDemand,
    largest: &(NodeResources, f64),
    node: usize,
) -> i64 {
    let (ask, cards) = largest;
    let node_state = session.state().node(node);
    let soon = node_state.soon();
    let mut free_cards = soon.cards as f64;
    if *cards > 0.0 && *cards < 1.0 {
        free_cards += node_state.free_on_shared_cards();
    }
    let host = [
        (ask.cpu, soon.cpu),
        (ask.memory, soon.memory),
        (ask.pods, soon.pods),
    ];
    let slots = host
        .into_iter()
        .filter(|(ask, _)| *ask > 0)
        .map(|(ask, free)| free.max(0) / ask)
        .min();
    let slots = slots.unwrap_or(i64::try_from(demand.tasks).unwrap_or(i64::MAX));
    if *cards > 0.0 {
        slots.min((free_cards.max(0.0) / cards + 1e-9).floor() as i64)
    } else {
        slots
    }
}

/// The part of a domain's free resources that would be taken, of the scarcest resource.
fn fullness(session: &Session<'_>, demand: &TaskDemand, domain: &TopologyDomain) -> f64 {
    const NOTHING_FREE: f64 = 1000.0;
    let mut free = NodeResources::default();
    for &node in &domain.nodes {
        free.add(&session.state().node(node).soon(), 1);
    }
    let (ask, cards) = &demand.sum;
    let parts = [
        (ask.cpu as f64, free.cpu as f64),
        (ask.memory as f64, free.memory as f64),
        (*cards, free.cards as f64),
    ];
    parts
        .into_iter()
        .filter(|(ask, _)| *ask > 0.0)
        .map(|(ask, free)| {
            if free <= 0.0 {
                NOTHING_FREE
            } else {
                ask / free
            }
        })
        .fold(0.0, f64::max)
}
