//! How a task changes its state: it is evicted, bound, or gets a reservation.

use crate::claim_devices::ClaimDevices;
use crate::cluster::{KaiBehavior, TaskStatus};
use crate::node_resources::CardAssignment;
use crate::numa::ZoneAssignment;

use crate::requests::zone_request;
use crate::session::Session;
use crate::state::undo_log::Checkpoint;
use crate::task_state::TaskState;

/// Evicts a task that runs; one that only waits for its place loses it.
pub(crate) fn evict(session: &mut Session<'_>, task: usize) {
    let mut state = session.state().task(task).clone();
    let evicted = match (state.status, state.leaves.take()) {
        (TaskStatus::Pipelined, None) => TaskState::default(),
        (TaskStatus::Pipelined, Some((node, cards))) => TaskState {
            status: TaskStatus::Releasing,
            node: Some(node),
            cards,
            devices: state.leaves_devices,
            was: Some(TaskStatus::Pipelined),
            ..TaskState::default()
        },
        (was, _) => TaskState {
            status: TaskStatus::Releasing,
            was: Some(was),
            leaves: None,
            leaves_devices: ClaimDevices::default(),
            ..state
        },
    };
    session.set(task, evicted);
}

/// What a task would take of the zones of a node; `None` if the node would not admit it.
pub(crate) fn zones_for(session: &Session<'_>, task: usize, node: usize) -> Option<ZoneAssignment> {
    let zones = &session.state().node(node).zones;
    if zones.count() == 0 {
        return Some(ZoneAssignment::new());
    }
    zones.assign(&zone_request(session.facts(), task, node, zones.scope))
}

/// Starts a task on resources that are idle.
pub(crate) fn bind(
    session: &mut Session<'_>,
    task: usize,
    node: usize,
    cards: CardAssignment,
    devices: ClaimDevices,
) {
    let zones = zones_for(session, task, node).unwrap_or_default();
    session.set(
        task,
        TaskState {
            status: TaskStatus::Binding,
            node: Some(node),
            cards,
            zones,
            devices,
            leaves: None,
            leaves_devices: ClaimDevices::default(),
            was: None,
        },
    );
}

/// Reserves a place for a task. If it is evicted from the same place in this session, it stays
/// instead.
pub(crate) fn reserve(
    session: &mut Session<'_>,
    task: usize,
    node: usize,
    cards: CardAssignment,
    devices: ClaimDevices,
) {
    let zones = zones_for(session, task, node).unwrap_or_default();
    let state = session.state().task(task);
    let is_leaving = state.status == TaskStatus::Releasing;
    let node_before = state.node;
    let stays = is_leaving
        && node_before == Some(node)
        && state.cards == cards
        && state.devices == devices
        && (zones.is_empty() || state.zones == zones);
    let state = match state.was {
        Some(status @ (TaskStatus::Running | TaskStatus::Binding)) if stays => TaskState {
            status,
            node: node_before,
            cards,
            zones: state.zones.clone(),
            devices: state.devices.clone(),
            leaves: None,
            leaves_devices: ClaimDevices::default(),
            was: None,
        },
        // It was moved before, and now it is moved back.
        Some(TaskStatus::Pipelined) if stays => restored(session, task),
        was => TaskState {
            status: TaskStatus::Pipelined,
            node: Some(node),
            zones,
            leaves: node_before
                .filter(|_| is_leaving)
                .map(|place| (place, state.cards.clone())),
            leaves_devices: if is_leaving {
                state.devices.clone()
            } else {
                ClaimDevices::default()
            },
            cards,
            devices,
            was,
        },
    };
    session.set(task, state);
}

/// A task that was moved, as it was before the move.
fn restored(session: &Session<'_>, task: usize) -> TaskState {
    let state = session.state();
    let moved = state.committed(task).filter(|state| state.leaves.is_some());
    match moved {
        Some(moved) if session.facts().settings().goes(KaiBehavior::KeepsMove) => moved.clone(),
        _ => state.initial(task).clone(),
    }
}

/// Turns what was placed since `mark` into reservations of the same places.
pub(crate) fn wait_instead(session: &mut Session<'_>, mark: Checkpoint) {
    for task in session.state().changed_since(mark) {
        if session.state().task(task).status == TaskStatus::Binding {
            let status = TaskStatus::Pipelined;
            let state = session.state().task(task).clone();
            session.set(task, TaskState { status, ..state });
        }
    }
}
