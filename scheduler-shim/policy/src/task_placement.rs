//! The place of a pod, by the names of its node, cards and NUMA zones.

use std::sync::Arc;

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
    /// Its claims that get devices with it.
    pub claims: Vec<NewAllocation>,
}

/// Devices for a claim that had none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NewAllocation {
    /// The claim, by the name that the cluster has for it.
    pub claim: String,
    /// The allocation for the status of the claim, as JSON.
    pub allocation: String,
    /// The devices, as a person reads them.
    pub devices: Vec<String>,
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
        claims: new_allocations(session, state),
    })
}

fn new_allocations(session: &Session<'_>, state: &TaskState) -> Vec<NewAllocation> {
    let devices = state.devices.0.iter().filter_map(|(claim, grant)| {
        let claim = session.facts().claim(*claim).claim;
        let had = claim.allocation.as_ref();
        let is_new = had.is_none_or(|had| !Arc::ptr_eq(had, grant));
        is_new.then(|| NewAllocation {
            claim: claim.name.clone(),
            allocation: grant.text(),
            devices: grant.devices(),
        })
    });
    devices.collect()
}
