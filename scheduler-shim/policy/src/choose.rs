//! Chooses a node, and its cards, among those that fit.
//!
//! Each rule has its own band of the score, far enough above the next that no sum of lesser rules outweighs
//! a greater one. Equal nodes go by name, equal cards by key: the same cluster gives the same choice.

use std::borrow::Cow;
use std::cmp::Ordering;

use apportion_abi::Bytes;

use crate::affinity_filter::{others, waits_for_affinity};
use crate::caches::node_ranking::FreeRange;
use crate::caches::topology_spread::TopologySpread;
use crate::charges::wants_cards;
use crate::cluster::{
    NumaPolicy, PlacementStrategy, PreferredTerm, SharedCardPreference, TaskGpuRequest,
};
use crate::fragmentation::tidiness;
use crate::node_resources::{
    CardAsk, CardAssignment, CardKey, CardShareRequest, NodeState, ResourceRequest, SharedCard,
};

use crate::fit::{cheapest_request, fits, has_node_quota};
use crate::requests::request_anywhere;
use crate::session::Session;
use crate::task_state::Presence;
use crate::topology_spread::{spread_score, topology_spread};
use crate::transitions::zones_for;

/// The score of the fullest node.
pub(crate) const DENSITY: f64 = 9.0;
/// A pod without cards on a node without cards.
const KIND: f64 = 10.0;
const ZONES: f64 = 100.0;
/// The pod fits what is idle.
const AVAILABLE: f64 = 1_000.0;
/// A shared card has room.
const SHARED: f64 = 10_000.0;
/// All preferences of the pod. Parts count by their weights, and one in a thousand outweighs the above.
const PREFERRED: f64 = 100_000_000.0;
/// One step of closeness to the preferred domain.
pub(crate) const DOMAIN: f64 = 1_000_000_000.0;

/// The cards chosen for a pod, and whether others must leave first.
#[derive(Clone, Debug)]
pub(crate) struct ChosenCards {
    pub(crate) cards: CardAssignment,
    pub(crate) must_wait: bool,
}

/// A card that a share could go to.
enum ShareCandidate {
    /// One that is shared, and what the share would take of it.
    Shared(CardKey, SharedCard, CardAsk),
    /// One that nobody shares: its size class, and whether others must leave first.
    Unshared(usize, bool),
}

/// The nodes that fit a task, best first.
pub(crate) fn ranked(
    session: &Session<'_>,
    task: usize,
    nodes: &[usize],
    closeness: impl Fn(usize) -> Option<f64>,
) -> Vec<usize> {
    // Each node costs one unit of effort, so a search over many nodes stops at its bound.
    session.spend(nodes.len());
    let anywhere = request_anywhere(session.facts(), task);
    // The charge of such a request is the same on every node, so it is checked once.
    if anywhere.is_some() && !has_node_quota(session, task, 0) {
        return Vec::new();
    }
    let wants_cards = wants_cards(session.facts(), task);
    // Density is relative to the fullest and the emptiest of these nodes, so both are found before any is scored.
    let range = free_range(session, wants_cards, nodes);
    let spread = topology_spread(session, task);
    let mut ranked: Vec<(f64, usize)> = Vec::new();
    for &node in nodes {
        let request = match &anywhere {
            Some(request) => Cow::Borrowed(request),
            None => Cow::Owned(cheapest_request(session, task, node)),
        };
        let fits = fits(session, task, node, &request)
            && (anywhere.is_some() || has_node_quota(session, task, node));
        // Outside the preferred domains there is no closeness, and no place.
        if fits && let Some(closeness) = closeness(node) {
            let preferred = preference(session, task, node, spread.as_deref()) * PREFERRED;
            let score = score(session, task, node, &request) + preferred;
            let density = density(session, wants_cards, range, node);
            ranked.push((score + density + closeness, node));
        }
    }
    ranked.sort_by(|left, right| {
        // Nodes of equal score keep their order by name. Two runs on one cluster must decide alike.
        let by_score = right.0.total_cmp(&left.0);
        by_score.then_with(|| left.1.cmp(&right.1))
    });
    ranked.into_iter().map(|(_, node)| node).collect()
}

/// The score of a node for a task, without preferences and density.
pub(crate) fn score(
    session: &Session<'_>,
    task: usize,
    node: usize,
    request: &ResourceRequest,
) -> f64 {
    let settings = session.facts().settings();
    let node_state = session.state().node(node);
    let has_no_cards = node_state.total.cards == 0 && node_state.mig.is_none();
    let mut score = 0.0;
    if settings.keeps_kinds_apart && has_no_cards && !wants_cards(session.facts(), task) {
        score += KIND;
    }
    score += alignment(session, task, node) * ZONES;
    if settings.prefers_free && node_state.fits_now(request) {
        score += AVAILABLE;
    }
    score + shared_card_score(session, task, node, request) * SHARED
}

/// How well a task would use the shared cards of a node, from 0 to 1.
fn shared_card_score(
    session: &Session<'_>,
    task: usize,
    node: usize,
    request: &ResourceRequest,
) -> f64 {
    let settings = session.facts().settings();
    match settings.shared_cards {
        SharedCardPreference::NoMatter => 0.0,
        SharedCardPreference::LeastFragments if wants_cards(session.facts(), task) => {
            tidiness(session, node, request)
        }
        SharedCardPreference::LeastFragments => 0.0,
        SharedCardPreference::BestFit | SharedCardPreference::Any => {
            let Some(fullest) = fullest_that_fits(session, node, request) else {
                return 0.0;
            };
            let fullness_counts = settings.shared_cards == SharedCardPreference::BestFit
                && settings.cards == PlacementStrategy::Binpack;
            // Half of the band for any card with room, the other half by how full the best of them is.
            if fullness_counts {
                0.5 + fullest / 2.0
            } else {
                1.0
            }
        }
    }
}

/// How full the share would leave the fullest of the shared cards that have room; `None` if none has.
fn fullest_that_fits(session: &Session<'_>, node: usize, request: &ResourceRequest) -> Option<f64> {
    let node_state = session.state().node(node);
    node_state
        .cards_that_fit(request.share?)
        .map(|(key, card, ask)| tightness(session, node_state.size(key), card, ask.bytes))
        .max_by(f64::total_cmp)
}

/// How well a node meets a pod's preferences, from -1 to 1.
fn preference(
    session: &Session<'_>,
    task: usize,
    node: usize,
    spread: Option<&TopologySpread>,
) -> f64 {
    let facts = session.facts();
    let prefers = &facts.task(task).task.prefers;
    let all: i64 = prefers.iter().map(|one| one.weight.abs()).sum();
    let mut met = 0.0;
    for (index, one) in prefers.iter().enumerate() {
        let part = match &one.term {
            PreferredTerm::Label(label) => part_of(facts.node(node).labels.contains_key(label)),
            PreferredTerm::Near(_) => part_of(is_near(session, task, index, node)),
            PreferredTerm::Even(_) => spread_score(session, spread, index, node),
        };
        met += one.weight as f64 * part;
    }
    met / all.max(1) as f64
}

/// A preference that is met or not has no other parts.
fn part_of(is_met: bool) -> f64 {
    if is_met { 1.0 } else { 0.0 }
}

/// Whether a pod that the task prefers to be near is in the node's domain.
fn is_near(session: &Session<'_>, task: usize, preference: usize, node: usize) -> bool {
    let part = session.facts().affinity_terms().of_task(task);
    let term = part.and_then(|part| part.prefers[preference]);
    term.is_some_and(|term| others(session, task, term, node, Presence::Stays) > 0)
}

/// 1 if the pod would get one NUMA zone, less if it would get more.
///
/// On a node that aligns nothing, the pod counts as spread over all zones. A node that reports no zones counts
/// as having as many as any node.
fn alignment(session: &Session<'_>, task: usize, node: usize) -> f64 {
    let most_zones = session.facts().most_zones();
    if most_zones == 0 {
        return 0.0;
    }
    let asked = session.facts().task(task).task;
    let wants_cards = matches!(asked.cards, TaskGpuRequest::Whole(count) if count > 0);
    let is_aligned =
        |node: &NodeState| asked.is_guaranteed || (wants_cards && node.zones.aligns_cards());
    if !session.state().nodes().iter().any(is_aligned) {
        return 0.0;
    }
    let node_state = session.state().node(node);
    let zones = &node_state.zones;
    let span = match zones.count() {
        0 => most_zones,
        count if zones.policy == NumaPolicy::None || !is_aligned(node_state) => count,
        _ => match zones_for(session, task, node) {
            Some(zones) => zones.len().max(1),
            None => return 0.0,
        },
    };
    1.0 / span as f64
}

/// The least and the most that nodes have free of the resource they are packed by; nodes without it don't
/// count.
fn free_range(session: &Session<'_>, wants_cards: bool, nodes: &[usize]) -> FreeRange {
    let mut range = FreeRange {
        least: f64::MAX,
        most: 0.0,
    };
    for &node in nodes {
        if overall(session, wants_cards, node) > 0.0 {
            let free = free(session, wants_cards, node);
            range.least = range.least.min(free);
            range.most = range.most.max(free);
        }
    }
    range
}

/// The strategy by which nodes are chosen.
pub(crate) fn packing(session: &Session<'_>, wants_cards: bool) -> PlacementStrategy {
    if wants_cards {
        session.facts().settings().gpu_nodes
    } else {
        session.facts().settings().cpu_nodes
    }
}

/// What a node's fullness adds to its score: at most [`DENSITY`].
pub(crate) fn density(
    session: &Session<'_>,
    wants_cards: bool,
    range: FreeRange,
    node: usize,
) -> f64 {
    let free = free(session, wants_cards, node);
    let overall = overall(session, wants_cards, node);
    let FreeRange { least, most } = range;
    match packing(session, wants_cards) {
        PlacementStrategy::ByName => 0.0,
        PlacementStrategy::Spread if overall == 0.0 => 0.0,
        PlacementStrategy::Spread => free / overall,
        PlacementStrategy::Binpack if overall == 0.0 || most == 0.0 => 0.0,
        PlacementStrategy::Binpack if least == most => DENSITY,
        PlacementStrategy::Binpack => DENSITY * (1.0 - (free - least) / (most - least)),
    }
}

/// What a node has free of the resource that it is packed by.
pub(crate) fn free(session: &Session<'_>, wants_cards: bool, node: usize) -> f64 {
    let node_state = session.state().node(node);
    let free = if wants_cards {
        node_state.cards_soon()
    } else {
        node_state.idle.cpu + node_state.releasing.cpu
    };
    free as f64
}

/// What a node has of the resource that it is packed by.
pub(crate) fn overall(session: &Session<'_>, wants_cards: bool, node: usize) -> f64 {
    let total = &session.state().node(node).total;
    let overall = if wants_cards { total.cards } else { total.cpu };
    overall as f64
}

/// Cards of a node for a pod; `None` if there are too few.
pub(crate) fn cards_for(
    session: &mut Session<'_>,
    task: usize,
    node: usize,
    request: &ResourceRequest,
    only_wait: bool,
) -> Option<ChosenCards> {
    let must_wait = only_wait
        || !session.state().node(node).fits_now(request)
        || waits_for_affinity(session, task, node);
    match request.share {
        Some(share) => shared_cards(session, task, node, share, must_wait),
        None => {
            let sizes = &session.state().node(node).sizes;
            let whole = if sizes.is_listed() {
                sizes.take(request.resources.cards, !must_wait)?
            } else {
                Vec::new()
            };
            let shared = Vec::new();
            let cards = CardAssignment { shared, whole };
            Some(ChosenCards { cards, must_wait })
        }
    }
}

fn shared_cards(
    session: &mut Session<'_>,
    task: usize,
    node: usize,
    share: CardShareRequest,
    must_wait: bool,
) -> Option<ChosenCards> {
    let node_state = session.state().node(node);
    let mut candidates: Vec<ShareCandidate> = node_state
        .cards_that_fit(share)
        .map(|(key, card, ask)| ShareCandidate::Shared(key, card, ask))
        .collect();
    let openings = if node_state.sizes.is_listed() {
        node_state.sizes.openings(&share)
    } else {
        let unshared = usize::try_from(node_state.cards_soon()).unwrap_or(0);
        vec![(0, false); unshared]
    };
    let openings = openings.into_iter();
    candidates.extend(openings.map(|(class, waits)| ShareCandidate::Unshared(class, waits)));
    let own = &session.state().task(task).cards.shared;
    candidates.sort_by(|left, right| order_cards(session, node, own, left, right));
    candidates.truncate(share.devices);
    if candidates.len() < share.devices {
        return None;
    }
    let mut chosen = ChosenCards {
        cards: CardAssignment::default(),
        must_wait,
    };
    for candidate in candidates {
        let key = match candidate {
            ShareCandidate::Shared(key, card, ask) => {
                let size = session.state().node(node).size(key);
                chosen.must_wait |= !card.fits_now(size, ask);
                key
            }
            ShareCandidate::Unshared(class, waits) => {
                chosen.must_wait |= waits;
                session.new_card(node, class)
            }
        };
        chosen.cards.shared.push(key);
    }
    Some(chosen)
}

/// How full the share would leave the card: 1 if nothing is left, 0 if as much as the largest card has.
fn tightness(session: &Session<'_>, size: Bytes, card: SharedCard, ask: Bytes) -> f64 {
    let left = size.0.saturating_sub(card.stays()).saturating_sub(ask.0);
    let largest = session.facts().card_sizes().largest().max(size).0.max(1);
    1.0 - left as f64 / largest as f64
}

fn order_cards(
    session: &Session<'_>,
    node: usize,
    own: &[CardKey],
    left: &ShareCandidate,
    right: &ShareCandidate,
) -> Ordering {
    let node_state = session.state().node(node);
    let spread = session.facts().settings().cards == PlacementStrategy::Spread;
    let rank = |candidate: &ShareCandidate| match candidate {
        ShareCandidate::Unshared(class, waits) => {
            let index = CardKey::try_from(*class).unwrap_or(CardKey::MAX);
            (if spread { -1.0 } else { 1.0 }, *waits, index)
        }
        ShareCandidate::Shared(key, card, ask) => {
            let size = node_state.size(*key);
            let emptiness = match session.facts().settings().cards {
                PlacementStrategy::Binpack => -tightness(session, size, *card, ask.bytes),
                PlacementStrategy::Spread => card.fullness(size),
                PlacementStrategy::ByName => 0.0,
            };
            (emptiness, !own.contains(key), *key)
        }
    };
    let (left, right) = (rank(left), rank(right));
    left.0
        .total_cmp(&right.0)
        .then_with(|| left.1.cmp(&right.1))
        .then_with(|| left.2.cmp(&right.2))
}
