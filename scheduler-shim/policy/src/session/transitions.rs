//! How a task changes its state: it is evicted, bound, or gets a reservation.

use crate::cluster::TaskStatus;
use crate::node_resources::{CardAssignment, CardKey};
use crate::numa::ZoneAssignment;
use crate::session::{Session, SessionCheckpoint, TaskState};

impl Session<'_> {
    /// A key for a card of a node that nobody shares yet, of this size class if sizes are known.
    pub(crate) fn new_card(&mut self, node: usize, class: usize) -> CardKey {
        let key = self.next_key();
        self.node_states[node].sizes.know(key, class);
        key
    }

    /// A new key.
    pub(super) fn next_key(&mut self) -> CardKey {
        self.next_card += 1;
        self.next_card
    }

    /// Evicts a task that runs; one that only waits for its place loses it.
    pub(crate) fn evict(&mut self, task: usize) {
        let state = self.task_states[task].clone();
        let evicted = match (state.status, state.leaves) {
            (TaskStatus::Pipelined, None) => TaskState::default(),
            (TaskStatus::Pipelined, Some((node, cards))) => TaskState {
                status: TaskStatus::Releasing,
                node: Some(node),
                cards,
                was: Some(TaskStatus::Pipelined),
                ..TaskState::default()
            },
            (was, _) => TaskState {
                status: TaskStatus::Releasing,
                was: Some(was),
                leaves: None,
                ..state
            },
        };
        self.set(task, evicted);
    }

    /// What a task would take of the zones of a node; `None` if the node would not admit it.
    pub(crate) fn zones_for(&self, task: usize, node: usize) -> Option<ZoneAssignment> {
        let zones = &self.node_states[node].zones;
        if zones.count() == 0 {
            return Some(ZoneAssignment::new());
        }
        zones.place(&self.zone_request(task, node))
    }

    /// Starts a task on resources that are idle.
    pub(crate) fn bind(&mut self, task: usize, node: usize, cards: CardAssignment) {
        let zones = self.zones_for(task, node).unwrap_or_default();
        self.set(
            task,
            TaskState {
                status: TaskStatus::Binding,
                node: Some(node),
                cards,
                zones,
                leaves: None,
                was: None,
            },
        );
    }

    /// Reserves a place for a task. If it was tentatively evicted from the same place, it stays instead.
    pub(crate) fn reserve(&mut self, task: usize, node: usize, cards: CardAssignment) {
        let zones = self.zones_for(task, node).unwrap_or_default();
        let state = &self.task_states[task];
        let is_leaving = state.status == TaskStatus::Releasing;
        let place = state.node;
        let stays = is_leaving
            && place == Some(node)
            && state.cards == cards
            && (zones.is_empty() || state.zones == zones);
        let state = match state.was {
            Some(status @ (TaskStatus::Running | TaskStatus::Binding)) if stays => TaskState {
                status,
                node: place,
                cards,
                zones: state.zones.clone(),
                leaves: None,
                was: None,
            },
            was => TaskState {
                status: TaskStatus::Pipelined,
                node: Some(node),
                zones,
                leaves: place
                    .filter(|_| is_leaving)
                    .map(|place| (place, state.cards.clone())),
                cards,
                was,
            },
        };
        self.set(task, state);
    }

    /// Turns what was placed since `mark` into reservations of the same places.
    pub(crate) fn wait_instead(&mut self, mark: SessionCheckpoint) {
        for task in self.changed_since(mark) {
            if self.task_states[task].status == TaskStatus::Binding {
                let status = TaskStatus::Pipelined;
                let state = self.task_states[task].clone();
                self.set(task, TaskState { status, ..state });
            }
        }
    }
}
