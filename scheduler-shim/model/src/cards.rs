//! The cards of nodes one by one: which there are, which pods are on them, and what is held by nothing that the
//! policy decides on.
//!
//! For a running cluster agents report this, for a cluster in files [`GpuNode`](super::gpu_nodes) objects do. Without
//! either, the cards of a node are only counted.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

pub use apportion_abi::names::{ANNOTATION_CARDS as CARDS, ANNOTATION_RECEIVED as RECEIVED};
use apportion_abi::{Bytes, OvercommitFactor, SHARE_UNIT, Share};
use apportion_groups::ObjectView;
use apportion_policy::Cluster;
use apportion_policy::cluster::{
    Job, ListedCard, Node, PodSet, SubGroupSet, Task, TaskGpuRequest, TaskStatus,
};

use super::{pods, resize};

/// KAI's words for the kind of cards that a pod got.
pub const FRACTION: &str = "Fraction";
/// KAI's word for whole cards.
pub const REGULAR: &str = "Regular";

/// What a pod has of one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardShare {
    /// The UUID of the card.
    pub card: String,
    /// How much of its memory.
    pub bytes: Bytes,
    /// How much of it the pod may use, if that is more. It is not written on pods: their request says it.
    pub limit: Option<Bytes>,
}

impl fmt::Display for CardShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.card, self.bytes.0)
    }
}

impl FromStr for CardShare {
    type Err = NotACardShare;

    fn from_str(text: &str) -> Result<Self, NotACardShare> {
        let (card, bytes) = text.split_once('=').ok_or(NotACardShare)?;
        Ok(Self {
            card: card.to_owned(),
            bytes: Bytes(bytes.parse().map_err(|_| NotACardShare)?),
            limit: None,
        })
    }
}

/// A text that is not `UUID=BYTES`.
#[derive(Debug)]
pub struct NotACardShare;

/// The annotation that says which cards a pod got.
pub fn annotation(shares: &[CardShare]) -> String {
    let texts: Vec<String> = shares.iter().map(CardShare::to_string).collect();
    texts.join(",")
}

/// The shares of cards that are written on a pod.
pub fn written(pod: ObjectView<'_>) -> Option<Vec<CardShare>> {
    let texts = pod.annotation(CARDS)?.split(',');
    texts.map(|text| text.parse().ok()).collect()
}

/// What a pod requests of cards. A bound pod keeps what it got, whatever its request says since. How much of a card
/// that is, its agent says.
pub fn reserved(
    pod: ObjectView<'_>,
    asked: Result<TaskGpuRequest, String>,
) -> Result<TaskGpuRequest, String> {
    let got = pods::node(pod).and(written(pod));
    let Some(got) = got.filter(|got| !got.is_empty()) else {
        return asked;
    };
    if pod.annotation(RECEIVED) == Some(FRACTION)
        && let Some(resize) = resize::pending(pod)
    {
        let before = resize::cards_for(pod, &resize.allocated);
        let before = before
            .ok()
            .filter(|cards| matches!(cards, TaskGpuRequest::Shared { .. }));
        return Ok(before.unwrap_or_else(|| request_of(&got)));
    }
    match (pod.annotation(RECEIVED), &asked) {
        (Some(FRACTION), Ok(TaskGpuRequest::Shared { .. })) => asked,
        (Some(FRACTION), _) => Ok(request_of(&got)),
        (Some(REGULAR), _) => Ok(TaskGpuRequest::Whole(i64::try_from(got.len()).unwrap_or(0))),
        _ => asked,
    }
}

/// The larger amount of each card, and the larger limit.
pub fn larger(mut shares: Vec<CardShare>, others: &[CardShare]) -> Vec<CardShare> {
    for share in &mut shares {
        if let Some(other) = others.iter().find(|other| other.card == share.card) {
            share.bytes = share.bytes.max(other.bytes);
            share.limit = share.limit.max(other.limit);
        }
    }
    shares
}

/// The largest limit among the shares that a pod has, if they have any.
pub fn largest_limit(shares: &[CardShare]) -> Option<Share> {
    let limits = shares.iter().filter_map(|share| share.limit);
    limits.max().map(held)
}

/// What is held of a card, as a share. Shares are whole units, use by others is not: it is rounded up, because no
/// byte of it can be given to others.
fn held(bytes: Bytes) -> Share {
    Share::Memory(bytes.rounded_up(SHARE_UNIT))
}

/// A request for the cards that a pod has, with the largest amount for each. Amounts differ only for a fraction of
/// unequal cards.
pub fn request_of(shares: &[CardShare]) -> TaskGpuRequest {
    let most = shares.iter().map(|share| share.bytes).max();
    TaskGpuRequest::Shared {
        share: held(most.unwrap_or(Bytes::ZERO)),
        devices: u32::try_from(shares.len()).unwrap_or(u32::MAX),
    }
}

/// What is known about cards.
#[derive(Clone, Debug, Default)]
pub struct CardInventory {
    /// The cards of nodes.
    pub listed: BTreeMap<String, Vec<ListedCard>>,
    /// How far the limits on a card may exceed it, by node, where the agent says so.
    pub overcommit: BTreeMap<String, OvercommitFactor>,
    /// The cards of pods, by namespace and name.
    pub on: BTreeMap<String, Vec<String>>,
    /// Whether shares need slots, as in a running cluster; in files no webhook has added them yet.
    pub takes_slots: bool,
    /// Whether nodes say which pods with cards they take, as in a running cluster.
    pub has_agents: bool,
}

impl CardInventory {
    /// Sets the cards of a node, and what its agent says about limits.
    pub fn list(&self, node: &mut Node) {
        let listed = self.listed.get(&node.name);
        node.listed = listed.cloned().unwrap_or_default();
        node.overcommit = self.overcommit.get(&node.name).copied();
    }

    /// Removes the whole cards of a foreign pod from its node: those that it is known to be on, else the largest.
    pub fn withdraw(&self, node: &mut Node, pod: &str, count: i64) {
        node.cards = (node.cards - count).max(0);
        let count = usize::try_from(count).unwrap_or(0);
        let on = self.on.get(pod).map_or(&[][..], Vec::as_slice);
        node.listed
            .sort_by_key(|card| (on.contains(&card.name), card.is_healthy, card.memory));
        let left = node.listed.len().saturating_sub(count);
        let removed = node.listed.split_off(left);
        // Keep one unhealthy card: an empty list would mean an unknown number of cards, not none.
        if node.listed.is_empty() {
            let dead = removed.into_iter().take(1);
            node.listed.extend(dead.map(|card| ListedCard {
                is_healthy: false,
                ..card
            }));
        }
    }
}

/// What is held of cards by nothing that the policy decides on: by card, and whether it is about to be released.
pub type ForeignHoldings<'a> = BTreeMap<(&'a str, bool), ForeignHolding>;

/// What is held of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeignHolding {
    /// How much of its memory.
    pub bytes: Bytes,
    /// What the limits of the shares among it add up to. Memory without a share has none.
    pub limits: Bytes,
}

impl ForeignHolding {
    /// Adds a share.
    pub fn add(&mut self, bytes: Bytes, limit: Bytes) {
        self.bytes = self.bytes.plus(bytes);
        self.limits = self.limits.plus(limit);
    }
}

/// Adds foreign holdings of a node's cards as pods that nobody may move.
pub fn add_strangers(cluster: &mut Cluster, node: &str, held: ForeignHoldings<'_>) {
    let Some(known) = cluster.nodes.iter_mut().find(|known| known.name == node) else {
        return;
    };
    known.pods += i64::try_from(held.len()).unwrap_or(0);
    cluster.jobs.push(Arc::new(Job {
        name: format!("{node} holders without a pod"),
        root: SubGroupSet {
            sets: vec![PodSet {
                name: "default".to_owned(),
                ..PodSet::default()
            }],
            ..SubGroupSet::default()
        },
        tasks: held
            .into_iter()
            .map(|((card, is_leaving), holding)| stranger(node, card, is_leaving, holding))
            .collect(),
        ..Job::default()
    }));
}

fn stranger(node: &str, card: &str, is_leaving: bool, holding: ForeignHolding) -> Task {
    let (kind, status) = if is_leaving {
        ("leaving", TaskStatus::Releasing)
    } else {
        ("without a pod", TaskStatus::Running)
    };
    Task {
        name: format!("{node}/{card} {kind}"),
        set: "default".to_owned(),
        status,
        node: Some(node.to_owned()),
        on: vec![card.to_owned()],
        cards: TaskGpuRequest::Shared {
            share: held(holding.bytes),
            devices: 1,
        },
        foreign_limits: Some(holding.limits),
        ..Task::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(cards: &[(&str, u64)]) -> Node {
        Node {
            listed: cards
                .iter()
                .map(|&(name, mib)| ListedCard {
                    name: name.to_owned(),
                    memory: Bytes::from_mib(mib),
                    is_healthy: true,
                })
                .collect(),
            ..Node::default()
        }
    }

    fn names(node: &Node) -> Vec<&str> {
        node.listed.iter().map(|card| card.name.as_str()).collect()
    }

    #[test]
    fn what_is_held_counts_in_full_units() {
        let holding = ForeignHolding {
            bytes: Bytes(300 * Bytes::MIB + 1),
            limits: Bytes::ZERO,
        };
        let stranger = stranger("node", "card", false, holding);
        assert_eq!(
            stranger.ceiling(Bytes::from_mib(1000), Bytes(1)),
            Bytes::ZERO
        );
        let TaskGpuRequest::Shared { share, .. } = stranger.cards else {
            unreachable!("it holds a part of a card");
        };
        assert_eq!(share, Share::Memory(Bytes::from_mib(302)));
    }

    #[test]
    fn a_foreign_pod_takes_the_cards_that_it_is_on_and_else_the_largest() {
        let mut known = CardInventory::default();
        known.on.insert("a/b".to_owned(), vec!["small".to_owned()]);
        let mut node = node(&[("large", 3), ("middle", 2), ("small", 1), ("other", 1)]);
        known.withdraw(&mut node, "a/b", 1);
        known.withdraw(&mut node, "c/d", 1);
        assert_eq!(names(&node), ["other", "middle"]);
        known.withdraw(&mut node, "c/d", 2);
        assert_eq!(node.card_count(), 0);
        assert_eq!(node.listed.len(), 1, "{node:?}");
    }
}
