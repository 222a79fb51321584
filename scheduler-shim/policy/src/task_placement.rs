//! The place of a pod, by the names of its node, cards and NUMA zones.

use crate::card_naming::{CardNaming, cards_by_name};
use crate::cluster::ZoneAmounts;
use crate::session::Session;
use crate::task_state::TaskState;

/// Where a pod goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskPlacement {
    /// The node.
    pub node: String,
    /// Its cards, where they are known one by one. Where cards are counted, only those that it shares: names in use
    /// or new names, equal for the same card.
    pub cards: Vec<String>,
    /// What it gets of the node's NUMA zones, by zone name.
    pub zones: Vec<(String, ZoneAmounts)>,
}

/// Where a task is or will be.
pub(crate) fn placement_of(
    session: &Session<'_>,
    task: usize,
    state: &TaskState,
    names: &mut CardNaming,
) -> Option<TaskPlacement> {
    let node = state.node?;
    Some(TaskPlacement {
        node: session.facts().node(node).name.clone(),
        cards: cards_by_name(session, task, state, names),
        zones: state
            .zones
            .iter()
            .filter_map(|(zone, amounts)| {
                let name = session.state().node(node).zones.name(*zone)?;
                Some((name.to_owned(), *amounts))
            })
            .collect(),
    })
}
