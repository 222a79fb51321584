//! How much free capacity is useless to the pods of the cluster.
//!
//! Free capacity on a node is lost to a pod if it is too small, or on too few cards. Weighted by how much each kind
//! of pod requests, the loss is the node's fragmentation. A pod goes where it adds the least to it: fragmentation
//! gradient descent. Kinds are coarse, with bytes as parts of the smallest card, so that there are few of them.
//! This is a preference; it does not decide whether a pod fits.

use std::collections::BTreeMap;

use crate::caches::pod_mix::{PodKind, PodMix};
use crate::cluster::TaskGpuRequest;
use crate::node_resources::{CardKey, ResourceRequest};
use crate::session::Session;
use crate::snapshot::ClusterSnapshot;

/// Requests are rounded up to this many parts of a card.
const PARTS: f64 = 100.0;
/// The most kinds that count; the rarest are ignored.
const KINDS: usize = 32;
/// The most cards by which one pod changes a node's fragments.
const MOST: f64 = 16.0;
/// Slack for parts of cards.
const SLACK: f64 = 1e-9;

/// What is free on a node.
#[derive(Clone, Debug)]
struct FreeCards {
    /// Cards that nobody shares.
    whole: i64,
    /// Free parts of shared cards.
    parts: BTreeMap<CardKey, f64>,
}

/// The mix of the pods that run and that wait.
fn pod_mix(session: &Session<'_>) -> PodMix {
    let mut counts: BTreeMap<PodKind, u64> = BTreeMap::new();
    for (task, facts) in session.facts().tasks().iter().enumerate() {
        if session.state().task(task).status.is_alive()
            && let Some(kind) = pod_kind(session.facts(), &facts.task.cards)
        {
            *counts.entry(kind).or_default() += kind.parts * kind.cards;
        }
    }
    let mut counts: Vec<(PodKind, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(kind, count)| (std::cmp::Reverse(*count), *kind));
    counts.truncate(KINDS);
    let all: u64 = counts.iter().map(|(_, count)| count).sum();
    let weighed = counts.into_iter();
    PodMix(
        weighed
            .map(|(kind, count)| (kind, count as f64 / all.max(1) as f64))
            .collect(),
    )
}

/// The fragmented capacity, in cards, for this mix of pods.
fn fragments(mix: &PodMix, free: &FreeCards) -> f64 {
    let whole = free.whole.max(0) as f64;
    let sum: f64 = free.parts.values().sum();
    mix.0
        .iter()
        .map(|&(kind, weight)| {
            let part = kind.parts as f64 / PARTS;
            let too_small = |free: &&f64| **free + SLACK < part;
            let lost: f64 = free.parts.values().filter(too_small).sum();
            let small = free.parts.values().filter(too_small).count();
            let usable = whole + (free.parts.len() - small) as f64;
            // A kind that needs more cards than there are has no use for any of them.
            let useless = if usable < kind.cards as f64 {
                whole + sum
            } else {
                lost
            };
            weight * useless
        })
        .sum()
}

impl FreeCards {
    /// What is left after a pod takes the cards with the smallest holes.
    fn without(
        mut self,
        request: &ResourceRequest,
        part_of: impl Fn(CardKey) -> Option<f64>,
        part: f64,
    ) -> Self {
        self.whole -= request.resources.cards;
        let Some(share) = request.share else {
            return self;
        };
        let mut free_parts: Vec<(f64, CardKey)> = self
            .parts
            .iter()
            .filter_map(|(&key, &free): (&CardKey, &f64)| Some((free - part_of(key)?, key)))
            .collect();
        free_parts.retain(|(left, _)| *left >= -SLACK);
        free_parts.sort_by(|left, right| left.0.total_cmp(&right.0));
        free_parts.truncate(share.devices);
        let opened = share.devices - free_parts.len();
        self.parts
            .extend(free_parts.into_iter().map(|(left, key)| (key, left)));
        for number in 0..opened {
            self.whole -= 1;
            let key = CardKey::MAX - CardKey::try_from(number).unwrap_or(0);
            self.parts.insert(key, 1.0 - part);
        }
        self
    }
}

/// The kind of a pod that asks for these cards, if it asks for any.
fn pod_kind(facts: &ClusterSnapshot<'_>, cards: &TaskGpuRequest) -> Option<PodKind> {
    let one = cards.count(facts.card_sizes().smallest());
    let (parts, count) = match cards {
        TaskGpuRequest::Whole(count) => (PARTS, *count as f64),
        TaskGpuRequest::Shared { devices, .. } => {
            let devices = f64::from((*devices).max(1));
            ((one / devices * PARTS).ceil().min(PARTS), devices)
        }
        TaskGpuRequest::None | TaskGpuRequest::Partitions(_) => return None,
    };
    // Both are whole numbers and not negative, or there is nothing to ask for.
    (count > 0.0).then_some(PodKind {
        parts: parts as u64,
        cards: count as u64,
    })
}

/// How little a pod adds to a node's fragments: 1 if it removes the most, 0 if it adds the most.
pub(crate) fn tidiness(session: &Session<'_>, node: usize, request: &ResourceRequest) -> f64 {
    let node_state = session.state().node(node);
    let mix = session.caches().pod_mix(|| pod_mix(session));
    let free_parts = node_state
        .shared
        .iter()
        .filter(|(_, card)| card.stays() > 0);
    let free = FreeCards {
        whole: node_state.cards_soon(),
        parts: free_parts
            .map(|(&key, &card)| (key, 1.0 - card.fullness(node_state.size(key)).min(1.0)))
            .collect(),
    };
    let largest = node_state.largest();
    let of_largest = request.share.map_or(0.0, |share| {
        share.on(largest).0 as f64 / largest.0.max(1) as f64
    });
    let before = fragments(mix, &free);
    let after = fragments(
        mix,
        &free.without(
            request,
            |card| {
                let size = node_state.size(card);
                let bytes = request.share?.of(size)?;
                Some(bytes.0 as f64 / size.0.max(1) as f64)
            },
            of_largest,
        ),
    );
    0.5 - (after - before).clamp(-MOST, MOST) / (2.0 * MOST)
}
