//! Where tasks are when a session opens, and on which cards.
//!
//! A pod may name the cards that it is on. Where the cards of its node are known one by one, a known name is that
//! card. Any other name is some card of the node, the same one for all pods that use the name. Pods that name no
//! card come last and take what the others leave.

use std::collections::BTreeMap;

use crate::claim_devices::ClaimDevices;
use crate::cluster::{TaskGpuRequest, TaskStatus};
use crate::node_resources::{CardAssignment, CardKey, CardShareRequest, SharedCard};
use crate::requests::request_on;
use crate::snapshot::ClusterSnapshot;
use crate::state::SessionState;
use crate::task_state::TaskState;

/// The keys of named cards, by node.
type KeysByName = BTreeMap<(usize, String), CardKey>;

/// Puts every task on its node and cards, and divides the cluster among the queues.
pub(super) fn add_all(facts: &ClusterSnapshot<'_>, state: &mut SessionState) {
    know_claimed_cards(facts, state);
    for (number, task) in facts.tasks().iter().enumerate() {
        let status = task.task.status;
        let node = task.task.node.as_ref().filter(|_| status.is_active());
        state.tasks[number] = TaskState {
            status,
            node: node.and_then(|name| facts.find_node(name)),
            ..TaskState::default()
        };
    }
    let keys = know_named_cards(facts, state);
    let mut tasks: Vec<usize> = (0..facts.tasks().len()).collect();
    tasks.sort_by_key(|&task| names_no_card(facts, state, task));
    for task in tasks {
        let mut placed = std::mem::take(&mut state.tasks[task]);
        if let Some(node) = placed.node {
            placed.cards = cards_on(facts, state, &keys, task, node);
            placed.devices = devices_of(facts, task, node);
            let zones = &mut state.totals.node_mut(node).zones;
            let held = facts.task(task).task.zones.iter();
            placed.zones = held
                .filter_map(|(name, amounts)| Some((zones.find(name)?, *amounts)))
                .collect();
            // `available` excludes it already, and `replace` is about to take it again.
            if placed.status != TaskStatus::Releasing {
                zones.update_used(&placed.zones, -1);
            }
        }
        state.replace(facts, task, placed);
        add_request(facts, state, task);
    }
    let division = facts.settings().division;
    let queues = state.totals.queues_mut();
    queues.divide(division, facts.total());
}

/// Records the sizes of the cards that claims have. The snapshot gave them the first keys.
fn know_claimed_cards(facts: &ClusterSnapshot<'_>, state: &mut SessionState) {
    for given in facts
        .claims()
        .iter()
        .filter_map(|facts| facts.given.as_ref())
    {
        for (&key, size) in given.cards.iter().zip(&given.sizes) {
            let sizes = &mut state.totals.node_mut(given.node).sizes;
            let class = size.and_then(|size| sizes.class(size));
            sizes.know(key, class.unwrap_or(0));
            state.cards.last = state.cards.last.max(key);
        }
    }
}

/// Gives keys to the cards that tasks name, in the order of nodes and names.
fn know_named_cards(facts: &ClusterSnapshot<'_>, state: &mut SessionState) -> KeysByName {
    let mut keys = KeysByName::new();
    for (task, placed) in facts.tasks().iter().zip(&state.tasks) {
        if let Some(node) = placed.node {
            let names = task.task.on.iter();
            keys.extend(names.map(|name| ((node, name.clone()), 0)));
        }
    }
    for ((node, name), key) in &mut keys {
        *key = state.cards.next();
        state.cards.names.insert(*key, name.clone());
        know_size(facts, state, *node, name, *key);
    }
    keys
}

/// Records the size of a card, if its name is known.
fn know_size(
    facts: &ClusterSnapshot<'_>,
    state: &mut SessionState,
    node: usize,
    name: &str,
    key: CardKey,
) {
    let mut listed = facts.node(node).listed.iter();
    let Some(card) = listed.find(|card| card.name == name) else {
        return;
    };
    let sizes = &mut state.totals.node_mut(node).sizes;
    match sizes.class_of_listed(card) {
        Some(class) => sizes.know(key, class),
        None => sizes.know_dead(key, card.memory),
    }
}

/// Whether a task has cards of its node, and names none that is known.
fn names_no_card(facts: &ClusterSnapshot<'_>, state: &SessionState, task: usize) -> bool {
    let node = state.task(task).node;
    let is_listed = node.is_some_and(|node| state.node(node).sizes.is_listed());
    let cards = node.map(|node| facts.cards_on(task, node));
    let task = facts.task(task).task;
    let has_cards = match cards.unwrap_or(&task.cards) {
        TaskGpuRequest::Shared { .. } => true,
        TaskGpuRequest::Whole(_) => is_listed,
        TaskGpuRequest::None | TaskGpuRequest::Partitions(_) => false,
    };
    has_cards
        && !task.on.iter().any(|name| {
            let listed = node.into_iter().flat_map(|node| &facts.node(node).listed);
            !is_listed || listed.into_iter().any(|card| card.name == *name)
        })
}

/// The cards that a task has on its node.
fn cards_on(
    facts: &ClusterSnapshot<'_>,
    state: &mut SessionState,
    keys: &KeysByName,
    task: usize,
    node: usize,
) -> CardAssignment {
    let names = facts.task(task).task.on.iter();
    let named = names.filter_map(|name| keys.get(&(node, name.clone())));
    let named: Vec<CardKey> = named.copied().collect();
    let request = request_on(facts, task, node);
    let mut cards = CardAssignment::default();
    match request.share {
        Some(share) => {
            for &key in &named {
                assume_size(state, node, share, key);
            }
            cards.shared = named;
            while cards.shared.len() < share.devices {
                let card = unnamed_card(state, node, share);
                cards.shared.push(card);
            }
        }
        None if state.node(node).sizes.is_listed() => {
            cards.whole = whole_cards(state, &named, node, request.resources.cards);
        }
        None => {}
    }
    cards
}

/// Gives a card of an unknown name one of the sizes of its node.
fn assume_size(state: &mut SessionState, node: usize, share: CardShareRequest, key: CardKey) {
    let sizes = &state.node(node).sizes;
    if !sizes.is_listed() || sizes.size(key).is_some() {
        return;
    }
    let class = sizes
        .openings(&share)
        .first()
        .map(|(class, _)| *class)
        .unwrap_or(sizes.count().saturating_sub(1));
    state.totals.know_card(node, key, class);
}

/// How many cards of each size a pod has alone: those that it names, then the smallest of the rest.
fn whole_cards(state: &SessionState, named: &[CardKey], node: usize, count: i64) -> Vec<i64> {
    let sizes = &state.node(node).sizes;
    let mut whole = vec![0; sizes.count()];
    let mut left = count;
    for &key in named.iter().filter(|key| sizes.size(**key).is_some()) {
        left -= 1;
        if let Some(class) = sizes.class_of(key) {
            whole[class] += 1;
        }
    }
    let left = left.max(0);
    let remaining = (0..=left).rev().find_map(|count| sizes.take(count, true));
    for (mine, more) in whole.iter_mut().zip(remaining.unwrap_or_default()) {
        *mine += more;
    }
    whole
}

/// A card for a share that names none: a new one, or the emptiest if none is idle.
fn unnamed_card(state: &mut SessionState, node: usize, share: CardShareRequest) -> CardKey {
    let node_state = state.node(node);
    let assignment = if node_state.sizes.is_listed() {
        let openings = node_state.sizes.openings(&share);
        openings.first().map(|(class, _)| *class)
    } else {
        (node_state.idle.cards > 0).then_some(0)
    };
    if let Some(class) = assignment {
        return state.new_card(node, class);
    }
    let fullness = |key: CardKey, card: SharedCard| card.fullness(node_state.size(key));
    let emptiest = node_state
        .cards_that_fit(share)
        .min_by(|left, right| fullness(left.0, left.1).total_cmp(&fullness(right.0, right.1)));
    let last = node_state.sizes.count().saturating_sub(1);
    match emptiest {
        Some((card, ..)) => card,
        None => state.new_card(node, last),
    }
}

/// Adds what a task holds or waits for to the request of its queue.
fn add_request(facts: &ClusterSnapshot<'_>, state: &mut SessionState, task: usize) {
    let task_facts = facts.task(task);
    let status = state.task(task).status;
    let charge = state.charge(facts, task).filter(|_| status.is_allocated());
    let amounts = match charge {
        Some(charge) => charge,
        None if status == TaskStatus::Pending => task_facts.wants,
        None => return,
    };
    if let Some(queue) = facts.job(task_facts.job).payer {
        state.totals.queues_mut().request(queue, amounts);
    }
}

/// The devices that the claims of a task have on its node.
fn devices_of(facts: &ClusterSnapshot<'_>, task: usize, node: usize) -> ClaimDevices {
    if facts.allocator().is_none() {
        return ClaimDevices::default();
    }
    let claims = facts.claims_on(task, node).unwrap_or_default();
    let devices = claims.iter().filter_map(|&claim| {
        let grant = facts.claim(claim).claim.allocation.clone()?;
        Some((claim, grant))
    });
    ClaimDevices(devices.collect())
}
