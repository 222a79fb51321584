//! Which cards pods get, by name.
//!
//! While a plan is made, unshared cards of one size are interchangeable. At the end, pods that start at once get
//! the cards that nobody is on now, in the order of their names. A pod that waits for others to leave learns its
//! cards when they have left.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::TaskStatus;
use crate::node_resources::CardKey;
use crate::session::Session;
use crate::task_state::TaskState;

/// The names that the plan gave out on one node.
#[derive(Debug, Default)]
struct NodeCardNames {
    opened: BTreeMap<CardKey, String>,
    whole: BTreeMap<usize, Vec<String>>,
}

/// Tasks by their node.
type ByNode = Vec<Vec<usize>>;

/// The names that the plan gave out, computed for each node on first use.
#[derive(Debug, Default)]
pub(crate) struct CardNaming {
    by_node: BTreeMap<usize, NodeCardNames>,
    /// The tasks of each node now, and when the session opened.
    tasks: Option<(ByNode, ByNode)>,
    /// The largest number in a name that an earlier session gave.
    last: Option<u64>,
}

/// Prefix of the name of a card that is only counted and was unused before; a number follows.
const NEW: &str = "new-";

impl CardNaming {
    fn on(&mut self, session: &Session<'_>, node: usize) -> &NodeCardNames {
        let tasks = &mut self.tasks;
        self.by_node.entry(node).or_insert_with(|| {
            if !session.state().node(node).sizes.is_listed() {
                return NodeCardNames::default();
            }
            let (now, before) = tasks.get_or_insert_with(|| {
                let nodes = session.facts().nodes().len();
                let states = session.state().before_and_after();
                let (before, now): (Vec<_>, Vec<_>) = states.unzip();
                (by_node(nodes, &now), by_node(nodes, &before))
            });
            names_on(session, node, &now[node], &before[node])
        })
    }
}

fn by_node(nodes: usize, states: &[&TaskState]) -> ByNode {
    let mut by_node = vec![Vec::new(); nodes];
    for (task, state) in states.iter().enumerate() {
        if let Some(node) = state.node {
            by_node[node].push(task);
        }
    }
    by_node
}

/// The names of the cards of a node, given the tasks there now and when the session opened.
fn names_on(session: &Session<'_>, node: usize, now: &[usize], before: &[usize]) -> NodeCardNames {
    let mut names = NodeCardNames::default();
    let mut free = unoccupied(session, node, before);
    for &task in now {
        let state = session.state().task(task);
        if state.status != TaskStatus::Binding || session.state().initial(task) == state {
            continue;
        }
        for &key in &state.cards.shared {
            let class = session.state().node(node).sizes.class_of(key);
            let is_named =
                session.state().card_names().contains_key(&key) || names.opened.contains_key(&key);
            let name = class
                .filter(|_| !is_named)
                .and_then(|class| free[class].pop());
            names.opened.extend(name.map(|name| (key, name)));
        }
        let counts = state.cards.whole.iter().enumerate();
        let own = counts.flat_map(|(class, &count)| (0..count).map(move |_| class));
        let own: Vec<String> = own.filter_map(|class| free[class].pop()).collect();
        names.whole.insert(task, own);
    }
    names
}

/// The largest number of a new card in an earlier session, so that no name is given twice.
fn last_new(session: &Session<'_>) -> u64 {
    let names = session.state().card_names().values();
    let numbers = names.filter_map(|name| name.strip_prefix(NEW)?.parse::<CardKey>().ok());
    numbers.max().map_or(0, u64::from)
}

/// The cards of a node that were unoccupied when the session opened, by size class. They are taken from the
/// end.
fn unoccupied(session: &Session<'_>, node: usize, before: &[usize]) -> Vec<Vec<String>> {
    let here = before
        .iter()
        .filter(|task| session.state().initial(**task).status.is_active());
    let occupied: BTreeSet<&String> = here
        .flat_map(|&task| &session.facts().task(task).task.on)
        .collect();
    let sizes = &session.state().node(node).sizes;
    let mut free = vec![Vec::new(); sizes.count()];
    let listed = session.facts().node(node).listed.iter();
    for card in listed.filter(|card| card.is_healthy && !occupied.contains(&card.name)) {
        if let Some(class) = sizes.class_of_listed(card) {
            free[class].push(card.name.clone());
        }
    }
    for names in &mut free {
        names.sort_unstable_by(|left, right| right.cmp(left));
    }
    free
}

/// The names of a task's cards in the given state.
pub(crate) fn cards_by_name(
    session: &Session<'_>,
    task: usize,
    state: &TaskState,
    naming: &mut CardNaming,
) -> Vec<String> {
    let Some(node) = state.node else {
        return Vec::new();
    };
    let last = *naming.last.get_or_insert_with(|| last_new(session));
    let names = naming.on(session, node);
    let known = session.state().card_names();
    let mut cards = Vec::with_capacity(state.cards.shared.len());
    for key in &state.cards.shared {
        let name = known.get(key).or(names.opened.get(key)).cloned();
        cards.push(name.unwrap_or_else(|| format!("{NEW}{}", last + u64::from(*key))));
    }
    if let Some(whole) = names.whole.get(&task) {
        cards.extend(whole.iter().cloned());
        return cards;
    }
    // A pod that stays where it was keeps the cards that it named.
    let is_alone = !state.cards.whole.is_empty();
    let stays =
        state.status != TaskStatus::Pipelined && state.node == session.state().initial(task).node;
    if session.state().node(node).sizes.is_listed() && is_alone && stays {
        cards.extend(session.facts().task(task).task.on.iter().cloned());
    }
    cards
}
