//! Chooses a node, and its cards, among those that fit.
//!
//! Each rule has its own band of the score, far enough above the next that no sum of lesser rules outweighs
//! a greater one. Equal nodes go by name, equal cards by key: the same cluster gives the same choice.

use std::cmp::Ordering;

use apportion_abi::Bytes;

use crate::affinity_filter::{others, waits_for_affinity};
use crate::charges::wants_cards;
use crate::cluster::{
    NumaPolicy, PlacementStrategy, PreferredTerm, SharedCardPreference, TaskGpuRequest,
};
use crate::fit::{fits, has_node_quota};
use crate::fragmentation::tidiness;
use crate::inter_pod_affinity::Presence;
use crate::node_resources::{
    CardAssignment, CardKey, CardShareRequest, NodeState, ResourceRequest, SharedCard,
};
use crate::requests::{need_anywhere, need_to_place};
use crate::session::Session;
use crate::session::caches::TopologySpread;
use crate::topology_spread::{evenness, spread};
use crate::transitions::zones_for;

/// The score of the fullest node.
pub(crate) const DENSITY: f64 = 9.0;
/// A pod without cards on a node without cards.
const KIND: f64 = 10.0;
/// Few NUMA zones.
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
    Shared(CardKey, SharedCard, Bytes),
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
    session.spend(nodes.len());
    let wants_cards = wants_cards(session, task);
    let range = density_range(session, wants_cards, nodes);
    let anywhere = need_anywhere(session, task);
    // A charge that is the same on every node is checked once.
    let is_checked = anywhere.is_some();
    if is_checked && !has_node_quota(session, task, 0) {
        return Vec::new();
    }
    let evenness = evenness(session, task);
    let rank = |&node: &usize| {
        let here = match &anywhere {
            Some(_) => None,
            None => Some(need_to_place(session, task, node)),
        };
        let need = anywhere.as_ref().or(here.as_ref())?;
        let fits =
            fits(session, task, node, need) && (is_checked || has_node_quota(session, task, node));
        if !fits {
            return None;
        }
        let preferred = preference(session, task, node, evenness.as_deref()) * PREFERRED;
        let density = density(session, wants_cards, range, node);
        let score = score(session, task, node, need) + preferred;
        Some((score + density + closeness(node)?, node))
    };
    let mut ranked: Vec<(f64, usize)> = nodes.iter().filter_map(rank).collect();
    ranked.sort_by(|left, right| {
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
    need: &ResourceRequest,
) -> f64 {
    let settings = session.settings;
    let node_state = &session.node_states[node];
    let band = |applies: bool, score: f64| if applies { score } else { 0.0 };
    let has_no_cards = node_state.total.cards == 0 && node_state.mig.is_none();
    let is_kind = !wants_cards(session, task) && has_no_cards;
    // Half of the band for any card with room, the other half by how full the best of them is.
    let fit = || {
        let rooms = need.share.map(|share| node_state.with_room(share));
        let fullest = rooms
            .into_iter()
            .flatten()
            .map(|(key, card, ask)| tightness(session, node_state.size(key), card, ask))
            .max_by(f64::total_cmp)?;
        let counts = settings.shared_cards == SharedCardPreference::BestFit
            && settings.cards == PlacementStrategy::Binpack;
        Some(if counts { 0.5 + fullest / 2.0 } else { 1.0 })
    };
    let shared = match settings.shared_cards {
        SharedCardPreference::BestFit | SharedCardPreference::Any => fit(),
        SharedCardPreference::NoMatter => None,
        SharedCardPreference::LeastFragments => {
            (wants_cards(session, task)).then(|| tidiness(session, node, need))
        }
    };
    band(settings.keeps_kinds_apart && is_kind, KIND)
        + alignment(session, task, node) * ZONES
        + band(
            settings.prefers_free && node_state.fits_now(need),
            AVAILABLE,
        )
        + shared.unwrap_or(0.0) * SHARED
}

/// How well a node meets a pod's preferences, from -1 to 1.
fn preference(
    session: &Session<'_>,
    task: usize,
    node: usize,
    evenness: Option<&TopologySpread>,
) -> f64 {
    let prefers = &session.tasks[task].task.prefers;
    let all: i64 = prefers.iter().map(|one| one.weight.abs()).sum();
    let one_if = |holds: bool| if holds { 1.0 } else { 0.0 };
    let searches = session
        .inter_pod_affinity
        .part(task)
        .map(|part| &part.prefers);
    let is_near = |place: usize| {
        let search = searches.and_then(|searches| searches[place]);
        let others = |search| others(session, task, search, node, Presence::Stays);
        search.is_some_and(|search| others(search) > 0)
    };
    let part = |place: usize, wish: &PreferredTerm| match wish {
        PreferredTerm::Label(label) => one_if(session.nodes[node].labels.contains_key(label)),
        PreferredTerm::Near(_) => one_if(is_near(place)),
        PreferredTerm::Even(_) => spread(session, evenness, place, node),
    };
    let given: f64 = (prefers.iter().enumerate())
        .map(|(place, one)| one.weight as f64 * part(place, &one.wish))
        .sum();
    given / all.max(1) as f64
}

/// 1 if the pod would get one NUMA zone, less if it would get more.
///
/// On a node that aligns nothing, the pod counts as spread over all zones. A node that reports no zones counts
/// as having as many as any node.
fn alignment(session: &Session<'_>, task: usize, node: usize) -> f64 {
    let zones = &session.node_states[node].zones;
    let facts = session.tasks[task].task;
    let wants_cards = matches!(facts.cards, TaskGpuRequest::Whole(count) if count > 0);
    let wants =
        |node: &NodeState| facts.is_guaranteed || (wants_cards && node.zones.aligns_cards());
    if session.most_zones == 0 || !session.node_states.iter().any(wants) {
        return 0.0;
    }
    let span = match zones.count() {
        0 => session.most_zones,
        count if zones.policy == NumaPolicy::None || !wants(&session.node_states[node]) => count,
        _ => match zones_for(session, task, node) {
            Some(zones) => zones.len().max(1),
            None => return 0.0,
        },
    };
    1.0 / span as f64
}

/// The least and the most that nodes have free of the resource they are packed by; nodes without it don't
/// count.
fn density_range(session: &Session<'_>, wants_cards: bool, nodes: &[usize]) -> (f64, f64) {
    let having = nodes
        .iter()
        .filter(|&&node| overall(session, wants_cards, node) > 0.0);
    having.fold((f64::MAX, 0.0), |(least, most), &node| {
        let free = free(session, wants_cards, node);
        (least.min(free), f64::max(most, free))
    })
}

/// The strategy by which nodes are chosen.
pub(crate) fn packing(session: &Session<'_>, wants_cards: bool) -> PlacementStrategy {
    if wants_cards {
        session.settings.gpu_nodes
    } else {
        session.settings.cpu_nodes
    }
}

pub(crate) fn density(
    session: &Session<'_>,
    wants_cards: bool,
    (least, most): (f64, f64),
    node: usize,
) -> f64 {
    let (free, overall) = (
        free(session, wants_cards, node),
        overall(session, wants_cards, node),
    );
    match packing(session, wants_cards) {
        PlacementStrategy::ByName => 0.0,
        PlacementStrategy::Spread if overall == 0.0 => 0.0,
        PlacementStrategy::Spread => free / overall,
        PlacementStrategy::Binpack if overall == 0.0 || most == 0.0 => 0.0,
        PlacementStrategy::Binpack if least == most => DENSITY,
        PlacementStrategy::Binpack => DENSITY * (1.0 - (free - least) / (most - least)),
    }
}

pub(crate) fn free(session: &Session<'_>, wants_cards: bool, node: usize) -> f64 {
    let node_state = &session.node_states[node];
    let free = if wants_cards {
        node_state.cards_soon()
    } else {
        node_state.idle.cpu + node_state.releasing.cpu
    };
    free as f64
}

pub(crate) fn overall(session: &Session<'_>, wants_cards: bool, node: usize) -> f64 {
    let total = &session.node_states[node].total;
    let overall = if wants_cards { total.cards } else { total.cpu };
    overall as f64
}

/// Cards of a node for a pod; `None` if there are too few.
pub(crate) fn cards_for(
    session: &mut Session<'_>,
    task: usize,
    node: usize,
    need: &ResourceRequest,
    only_wait: bool,
) -> Option<ChosenCards> {
    let must_wait = only_wait
        || !session.node_states[node].fits_now(need)
        || waits_for_affinity(session, task, node);
    match need.share {
        Some(share) => shared_cards(session, task, node, share, must_wait),
        None => {
            let sizes = &session.node_states[node].sizes;
            let whole = if sizes.is_listed() {
                sizes.take(need.node_state.cards, !must_wait)?
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
    let node_state = &session.node_states[node];
    let mut candidates: Vec<ShareCandidate> = node_state
        .with_room(share)
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
    let own = &session.task_states[task].cards.shared;
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
                let size = session.node_states[node].size(key);
                chosen.must_wait |= !card.has_room_now(size, ask);
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
    let largest = session.card_sizes.1.max(size).0.max(1);
    1.0 - left as f64 / largest as f64
}

fn order_cards(
    session: &Session<'_>,
    node: usize,
    own: &[CardKey],
    left: &ShareCandidate,
    right: &ShareCandidate,
) -> Ordering {
    let node_state = &session.node_states[node];
    let spread = session.settings.cards == PlacementStrategy::Spread;
    let rank = |candidate: &ShareCandidate| match candidate {
        ShareCandidate::Unshared(class, waits) => {
            let place = CardKey::try_from(*class).unwrap_or(CardKey::MAX);
            (if spread { -1.0 } else { 1.0 }, *waits, place)
        }
        ShareCandidate::Shared(key, card, ask) => {
            let size = node_state.size(*key);
            let emptiness = match session.settings.cards {
                PlacementStrategy::Binpack => -tightness(session, size, *card, *ask),
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
