//! The cluster after the decisions: cards with their holders, and queues with their numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::{Bytes, CardCapacity, Holder};
use apportion_policy::amounts::{ResourceAmounts, ResourceKind};
use apportion_policy::cluster::{Cluster, Job, Node, Task, TaskGpuRequest, TaskStatus};
use apportion_policy::tree::QueueTree;
use apportion_policy::{Action, CardCharge, Decision, Session, TaskOutcome, plan_observed};

/// One decision, and the action that made it.
#[derive(Clone, Debug)]
pub struct ActionDecision {
    /// What was decided.
    pub decision: Decision,
    /// The action of the round that decided it.
    pub action: Action,
}

/// The cluster after the decisions.
#[derive(Debug)]
pub struct DecidedCluster<'a> {
    /// The cluster before the round.
    pub cluster: &'a Cluster,
    /// The policy's session after the round.
    pub session: Session<'a>,
    /// What was decided, in order.
    pub made: Vec<ActionDecision>,
    /// The queues after the round.
    pub queues: QueueTree,
    /// Where each pod is after the round, by name.
    pub outcomes: BTreeMap<&'a str, TaskOutcome>,
    /// The cards of each pod in numbers.
    charged: BTreeMap<&'a str, CardCharge>,
    nodes: BTreeMap<&'a str, &'a Node>,
    card_sizes: (Bytes, Bytes),
    /// Cards by node, with the bytes of each that pods hold.
    cards: BTreeMap<String, BTreeMap<String, Vec<Holder>>>,
    /// What the limits on each of these cards add up to.
    limits: BTreeMap<(String, String), Bytes>,
    /// Display names of cards, by node and by the policy's name.
    names: BTreeMap<(String, String), String>,
    /// Holders of whole cards without a name, by node.
    whole: BTreeMap<String, Vec<(&'a str, i64)>>,
}

/// Decides as the scheduler does, and records everything.
pub fn decide(now: Duration, cluster: &Cluster) -> DecidedCluster<'_> {
    let mut made: Vec<ActionDecision> = Vec::new();
    let mut before = BTreeSet::new();
    let session = plan_observed(now, cluster, |session, action| {
        if action == Action::Allocate {
            made.clear();
            before.clear();
        }
        let after = session.decisions();
        // A later action may undo what an earlier one decided.
        made.retain(|one| after.contains(&one.decision));
        let new = after
            .iter()
            .filter(|decision| !before.contains(*decision))
            .cloned();
        made.extend(new.map(|decision| ActionDecision { decision, action }));
        before = after.into_iter().collect();
    });
    made.sort_by(|left, right| left.decision.cmp(&right.decision));
    let mut decided = DecidedCluster {
        cluster,
        made,
        queues: QueueTree::of(&cluster.queues),
        outcomes: BTreeMap::new(),
        charged: BTreeMap::new(),
        nodes: (cluster.nodes.iter())
            .map(|node| (node.name.as_str(), node))
            .collect(),
        card_sizes: card_sizes(cluster),
        cards: BTreeMap::new(),
        limits: BTreeMap::new(),
        names: BTreeMap::new(),
        whole: BTreeMap::new(),
        session,
    };
    let outcomes = decided.session.outcomes();
    let outcome = |task: &Task| outcomes.get(task.name.as_str()).cloned();
    let all = cluster.jobs.iter().map(Arc::as_ref).flat_map(|job| {
        let tasks = job.tasks.iter();
        tasks.filter_map(move |task| Some((job, task, outcome(task)?)))
    });
    let all: Vec<(&Job, &Task, (TaskOutcome, CardCharge))> = all.collect();
    for (job, task, (outcome, charged)) in all {
        decided.enter(job, task, outcome, charged);
    }
    decided.name_cards();
    let total = decided.total();
    decided.queues.divide(cluster.settings.division, total);
    decided
}

impl<'a> DecidedCluster<'a> {
    /// What all nodes have together.
    pub fn total(&self) -> ResourceAmounts {
        self.cluster.nodes.iter().map(capacity).sum()
    }

    fn enter(&mut self, job: &Job, task: &'a Task, outcome: TaskOutcome, charged: CardCharge) {
        let placement = outcome
            .placement
            .as_ref()
            .filter(|_| outcome.status.is_active());
        let node = placement.and_then(|placement| self.node(&placement.node));
        if let Some(queue) = self.queues.find(&job.queue) {
            let (_, largest) = self.card_sizes();
            let mut amounts = task.amounts(largest);
            if node.is_some() {
                amounts[ResourceKind::Gpu] = charged.cards;
            }
            if outcome.status.is_active_allocated() && node.is_some() {
                self.queues.charge(queue, amounts, job.is_preemptible);
                self.queues.charge_burst(queue, charged.burst);
            }
            if outcome.status.is_active_allocated() || outcome.status == TaskStatus::Pending {
                self.queues.request(queue, amounts);
            }
        }
        // A pod that waits for its place does not hold it yet.
        let holds = outcome.status != TaskStatus::Pipelined;
        if let (Some(node), Some(placement)) = (node, placement) {
            match task.cards_on(&node.name) {
                TaskGpuRequest::Whole(_) if holds && !placement.cards.is_empty() => {
                    let cards = self.cards.entry(node.name.clone()).or_default();
                    for card in &placement.cards {
                        let holder = Holder {
                            name: task.name.clone(),
                            bytes: node.size_of(card),
                        };
                        cards.entry(card.clone()).or_default().push(holder);
                    }
                }
                TaskGpuRequest::Whole(count) if holds => {
                    let holders = self.whole.entry(node.name.clone()).or_default();
                    holders.push((&task.name, *count));
                }
                TaskGpuRequest::Shared { .. } => {
                    let name = task.name.clone();
                    let cards = self.cards.entry(node.name.clone()).or_default();
                    for card in &placement.cards {
                        let holders = cards.entry(card.clone()).or_default();
                        let size = node.size_of(card);
                        let bytes = share_of(task, size);
                        let key = (node.name.clone(), card.clone());
                        let limits = self.limits.entry(key).or_default();
                        *limits = limits.plus(task.ceiling(size, bytes));
                        if holds {
                            holders.push(Holder {
                                name: name.clone(),
                                bytes,
                            });
                        }
                    }
                }
                TaskGpuRequest::None | TaskGpuRequest::Whole(_) | TaskGpuRequest::Partitions(_) => {
                }
            }
        }
        self.outcomes.insert(&task.name, outcome);
        self.charged.insert(&task.name, charged);
    }

    /// The cards of a pod in numbers, where it is.
    pub fn charged(&self, task: &Task) -> Option<CardCharge> {
        self.charged.get(task.name.as_str()).copied()
    }

    /// A node by name.
    pub fn node(&self, name: &str) -> Option<&'a Node> {
        self.nodes.get(name).copied()
    }

    /// A pod and its job.
    pub fn task(&self, name: &str) -> Option<(&'a Job, &'a Task)> {
        let mut all = self.cluster.jobs.iter().map(Arc::as_ref).flat_map(|job| {
            let tasks = job.tasks.iter();
            tasks.map(move |task| (job, task))
        });
        all.find(|(_, task)| task.name == name)
    }

    /// The status of a pod after the decisions.
    pub fn status(&self, task: &Task) -> TaskStatus {
        self.outcomes
            .get(task.name.as_str())
            .map_or(task.status, |outcome| outcome.status)
    }

    /// The held cards of a node by display name, with their holders.
    pub fn shared(&self, node: &str) -> Vec<(String, &[Holder])> {
        let cards = self.cards.get(node).into_iter().flatten();
        cards
            .filter(|(_, holders)| !holders.is_empty())
            .map(|(card, holders)| (self.card_name(node, card), holders.as_slice()))
            .collect()
    }

    /// What the limits on a card add up to, by its display name. Pods that wait for their place count, too.
    pub fn limits_on(&self, node: &str, card: &str) -> Bytes {
        let all = self.limits.iter();
        let here = all.filter(|((on, name), _)| on == node && self.card_name(node, name) == card);
        here.map(|(_, limits)| *limits).sum()
    }

    /// The pods that hold whole cards of a node, with how many.
    pub fn whole(&self, node: &str) -> &[(&'a str, i64)] {
        self.whole.get(node).map_or(&[], Vec::as_slice)
    }

    /// The display name of a card: that of its group, or a number on its node.
    pub fn card_name(&self, node: &str, card: &str) -> String {
        let known = self.names.get(&(node.to_owned(), card.to_owned()));
        known.cloned().unwrap_or_else(|| card.to_owned())
    }

    /// Numbers the cards that the objects do not name.
    fn name_cards(&mut self) {
        let tasks = self.cluster.jobs.iter().flat_map(|job| &job.tasks);
        let mut given: BTreeSet<(&str, &str)> = tasks
            .flat_map(|task| {
                let node = task.node.as_deref().unwrap_or_default();
                task.on.iter().map(move |card| (node, card.as_str()))
            })
            .collect();
        for node in &self.cluster.nodes {
            let cards = node.listed.iter();
            given.extend(cards.map(|card| (node.name.as_str(), card.name.as_str())));
        }
        for (node, cards) in &self.cards {
            let mut unnamed: Vec<&String> = cards
                .keys()
                .filter(|card| !given.contains(&(node.as_str(), card.as_str())))
                .collect();
            unnamed.sort_by_key(|card| (card.len(), card.as_str()));
            for (placement, card) in unnamed.into_iter().enumerate() {
                let key = (node.clone(), card.clone());
                self.names.insert(key, format!("card-{}", placement + 1));
            }
        }
    }

    /// The memory of the smallest and of the largest cards.
    pub const fn card_sizes(&self) -> (Bytes, Bytes) {
        self.card_sizes
    }
}

fn card_sizes(cluster: &Cluster) -> (Bytes, Bytes) {
    let sizes = || cluster.nodes.iter().flat_map(Node::card_sizes);
    let (least, most) = (sizes().min(), sizes().max());
    (least.unwrap_or_default(), most.unwrap_or_default())
}

/// The bytes that a pod takes of a card of this size if it shares it.
pub fn share_of(task: &Task, card: Bytes) -> Bytes {
    let capacity = CardCapacity {
        total: card,
        reserved: Bytes::ZERO,
    };
    match &task.cards {
        TaskGpuRequest::Shared { share, .. } => share.bytes_of(capacity),
        TaskGpuRequest::None | TaskGpuRequest::Whole(_) | TaskGpuRequest::Partitions(_) => {
            Bytes::ZERO
        }
    }
}

fn capacity(node: &Node) -> ResourceAmounts {
    let partitions = TaskGpuRequest::Partitions(node.partitions.clone()).count(node.card_memory);
    let cards = node.card_count().saturating_add(node.claimable_cards) as f64 + partitions;
    ResourceAmounts::new(node.cpu_millis as f64, node.memory as f64, cards)
}
