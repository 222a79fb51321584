//! Where tasks are when a session opens, and on which cards.
//!
//! A pod may name the cards that it is on. Where the cards of its node are known one by one, a known name is that
//! card. Any other name is some card of the node, the same one for all pods that use the name. Pods that name no
//! card come last and take what the others leave.

use std::collections::BTreeMap;

use crate::charges::charge;
use crate::cluster::{TaskGpuRequest, TaskStatus};
use crate::node_resources::{CardAssignment, CardKey, CardShareRequest};
use crate::requests::need;
use crate::session::Session;
use crate::session::facts::{TaskState, find};

/// Puts every task on its node and cards.
pub(super) fn place_all(session: &mut Session<'_>) {
    let mut keys: BTreeMap<(usize, String), CardKey> = BTreeMap::new();
    for (task, facts) in session.tasks.iter().enumerate() {
        let status = facts.task.status;
        let node = facts.task.node.as_ref().filter(|_| status.is_active());
        let node = node.and_then(|name| find(&session.nodes, name));
        session.task_states[task] = TaskState {
            status,
            node,
            ..TaskState::default()
        };
        for card in node.map(|_| &facts.task.on).into_iter().flatten() {
            keys.insert((node.unwrap_or_default(), card.clone()), 0);
        }
    }
    for ((node, name), key) in &mut keys {
        *key = session.next_key();
        session.card_names.insert(*key, name.clone());
        know(session, *node, name, *key);
    }
    let mut tasks: Vec<usize> = (0..session.tasks.len()).collect();
    tasks.sort_by_key(|&task| names_no_card(session, task));
    for task in tasks {
        let mut state = std::mem::take(&mut session.task_states[task]);
        if let Some(node) = state.node {
            state.cards = taken(session, &keys, task, node);
            let zones = &mut session.node_states[node].zones;
            let held = session.tasks[task].task.zones.iter();
            state.zones = held
                .filter_map(|(name, amounts)| Some((zones.find(name)?, *amounts)))
                .collect();
            // `available` excludes it already, and `replace` is about to take it again.
            if state.status != TaskStatus::Releasing {
                zones.update_used(&state.zones, -1);
            }
        }
        session.replace(task, state);
        request(session, task);
    }
}

/// Records the size of a card, if its name is known.
fn know(session: &mut Session<'_>, node: usize, name: &str, key: CardKey) {
    let mut listed = session.nodes[node].listed.iter();
    let Some(card) = listed.find(|card| card.name == name) else {
        return;
    };
    let sizes = &mut session.node_states[node].sizes;
    match sizes.class(card.memory).filter(|_| card.is_healthy) {
        Some(class) => sizes.know(key, class),
        None => sizes.know_dead(key, card.memory),
    }
}

fn names_no_card(session: &Session<'_>, task: usize) -> bool {
    let facts = session.tasks[task].task;
    let node = session.task_states[task].node;
    let is_listed = node.is_some_and(|node| session.node_states[node].sizes.is_listed());
    let wants = match facts.cards {
        TaskGpuRequest::Shared { .. } => true,
        TaskGpuRequest::Whole(_) => is_listed,
        TaskGpuRequest::None | TaskGpuRequest::Partitions(_) => false,
    };
    let listed = || {
        node.into_iter()
            .flat_map(|node| &session.nodes[node].listed)
    };
    let is_named = |name: &String| !is_listed || listed().any(|card| card.name == *name);
    wants && !facts.on.iter().any(is_named)
}

/// The cards that a task has on its node.
fn taken(
    session: &mut Session<'_>,
    keys: &BTreeMap<(usize, String), CardKey>,
    task: usize,
    node: usize,
) -> CardAssignment {
    let facts = session.tasks[task].task;
    let named = facts.on.iter();
    let named = named.filter_map(|name| keys.get(&(node, name.clone())));
    let named: Vec<CardKey> = named.copied().collect();
    let need = need(session, task, node);
    let mut taken = CardAssignment::default();
    match need.share {
        Some(share) => {
            for &key in &named {
                place(session, node, share, key);
            }
            taken.shared = named;
            while taken.shared.len() < share.devices {
                let card = unnamed_card(session, node, share);
                taken.shared.push(card);
            }
        }
        None if session.node_states[node].sizes.is_listed() => {
            taken.whole = whole(session, &named, node, need.node_state.cards);
        }
        None => {}
    }
    taken
}

/// Gives a card of an unknown name one of the sizes of its node.
fn place(session: &mut Session<'_>, node: usize, share: CardShareRequest, key: CardKey) {
    let sizes = &session.node_states[node].sizes;
    if !sizes.is_listed() || sizes.size(key).is_some() {
        return;
    }
    let class = sizes.openings(&share).first().map(|(class, _)| *class);
    let class = class.unwrap_or(sizes.count().saturating_sub(1));
    session.node_states[node].sizes.know(key, class);
}

/// How many cards of each size a pod has alone: those that it names, then the smallest of the rest.
fn whole(session: &Session<'_>, named: &[CardKey], node: usize, count: i64) -> Vec<i64> {
    let sizes = &session.node_states[node].sizes;
    let mut whole = vec![0; sizes.count()];
    let mut left = count;
    for &key in named.iter().filter(|key| sizes.size(**key).is_some()) {
        left -= 1;
        if let Some(class) = sizes.class_of(key) {
            whole[class] += 1;
        }
    }
    let left = left.max(0);
    let rest = (0..=left).rev().find_map(|count| sizes.take(count, true));
    for (mine, more) in whole.iter_mut().zip(rest.unwrap_or_default()) {
        *mine += more;
    }
    whole
}

/// A card for a share that names none: a new one, or the emptiest if none is idle.
fn unnamed_card(session: &mut Session<'_>, node: usize, share: CardShareRequest) -> CardKey {
    let node_state = &session.node_states[node];
    let initial_states = if node_state.sizes.is_listed() {
        node_state.sizes.openings(&share).first().copied()
    } else {
        (node_state.idle.cards > 0).then_some((0, false))
    };
    if let Some((class, _)) = initial_states {
        return session.new_card(node, class);
    }
    let roomy = node_state.with_room(share);
    let emptiest = roomy.min_by(|left, right| {
        let fullness = |card: &(CardKey, crate::node_resources::SharedCard, _)| {
            let (key, card, _) = card;
            card.fullness(node_state.size(*key))
        };
        fullness(left).total_cmp(&fullness(right))
    });
    let last = node_state.sizes.count().saturating_sub(1);
    match emptiest {
        Some((card, ..)) => card,
        None => session.new_card(node, last),
    }
}

/// Adds what a task holds or waits for to the request of its queue.
fn request(session: &mut Session<'_>, task: usize) {
    let facts = &session.tasks[task];
    let status = session.task_states[task].status;
    let amounts = match charge(session, task).filter(|_| status.is_allocated()) {
        Some(charge) => charge,
        None if status == TaskStatus::Pending => facts.wants,
        None => return,
    };
    if let Some(queue) = session.queues.find(&session.jobs[facts.job].job.queue) {
        session.queues.request(queue, amounts);
    }
}
