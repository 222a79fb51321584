//! How a task changes its state: it is evicted, bound, or gets a reservation.

use crate::cluster::TaskStatus;
use crate::node_resources::{CardAssignment, CardKey};
use crate::numa::ZoneAssignment;
use crate::session::{Session, SessionCheckpoint, TaskState};

impl Session<'_> {
    /// A key for a card of a node that nobody shares yet, of this size class if sizes are known.
    pub(crate) fn new_card(&mut self, node: usize, class: usize) -> CardKey {
        let key = self.next_key();
        self.stocks[node].sizes.know(key, class);
        key
    }

    /// A new key.
    pub(super) fn next_key(&mut self) -> CardKey {
        self.next_card += 1;
        self.next_card
    }

    /// Evicts a task that runs; one that only waits for its place loses it.
    pub(crate) fn evict(&mut self, task: usize) {
        let standing = self.standings[task].clone();
        let evicted = match (standing.status, standing.leaves) {
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
                ..standing
            },
        };
        self.set(task, evicted);
    }

    /// What a task would take of the zones of a node; `None` if the node would not admit it.
    pub(crate) fn zones_for(&self, task: usize, node: usize) -> Option<ZoneAssignment> {
        let zones = &self.stocks[node].zones;
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
        let standing = &self.standings[task];
        let is_leaving = standing.status == TaskStatus::Releasing;
        let place = standing.node;
        let stays = is_leaving
            && place == Some(node)
            && standing.cards == cards
            && (zones.is_empty() || standing.zones == zones);
        let standing = match standing.was {
            Some(status @ (TaskStatus::Running | TaskStatus::Binding)) if stays => TaskState {
                status,
                node: place,
                cards,
                zones: standing.zones.clone(),
                leaves: None,
                was: None,
            },
            was => TaskState {
                status: TaskStatus::Pipelined,
                node: Some(node),
                zones,
                leaves: place
                    .filter(|_| is_leaving)
                    .map(|place| (place, standing.cards.clone())),
                cards,
                was,
            },
        };
        self.set(task, standing);
    }

    /// Turns what was placed since `mark` into reservations of the same places.
    pub(crate) fn wait_instead(&mut self, mark: SessionCheckpoint) {
        for task in self.changed_since(mark) {
            if self.standings[task].status == TaskStatus::Binding {
                let status = TaskStatus::Pipelined;
                let standing = self.standings[task].clone();
                self.set(task, TaskState { status, ..standing });
            }
        }
    }
}
