//! The ways in which a task changes its standing: it is evicted, bound, or has a place kept for it.

use crate::cluster::Status;
use crate::numa::Zones;
use crate::session::{Mark, Session, Standing};
use crate::stock::{CardKey, Taken};

impl Session<'_> {
    /// A key for a card of a node that nobody shares yet, of the size at that place where sizes are known.
    pub(crate) fn new_card(&mut self, node: usize, class: usize) -> CardKey {
        let key = self.next_key();
        self.stocks[node].sizes.know(key, class);
        key
    }

    /// A key that no card has.
    pub(super) fn next_key(&mut self) -> CardKey {
        self.next_card += 1;
        self.next_card
    }

    /// Ends a task that runs; one that only waits for its place loses it.
    pub(crate) fn evict(&mut self, task: usize) {
        let standing = self.standings[task].clone();
        let evicted = match (standing.status, standing.leaves) {
            (Status::Pipelined, None) => Standing::default(),
            (Status::Pipelined, Some((node, cards))) => Standing {
                status: Status::Releasing,
                node: Some(node),
                cards,
                was: Some(Status::Pipelined),
                ..Standing::default()
            },
            (was, _) => Standing {
                status: Status::Releasing,
                was: Some(was),
                leaves: None,
                ..standing
            },
        };
        self.set(task, evicted);
    }

    /// What a task would take of the zones of a node; none when the node would not admit it.
    pub(crate) fn zones_for(&self, task: usize, node: usize) -> Option<Zones> {
        let zones = &self.stocks[node].zones;
        if zones.count() == 0 {
            return Some(Zones::new());
        }
        zones.place(&self.zone_request(task, node))
    }

    /// Starts a task on resources that are idle.
    pub(crate) fn bind(&mut self, task: usize, node: usize, cards: Taken) {
        let zones = self.zones_for(task, node).unwrap_or_default();
        self.set(
            task,
            Standing {
                status: Status::Binding,
                node: Some(node),
                cards,
                zones,
                leaves: None,
                was: None,
            },
        );
    }

    /// Reserves a place for a task; one that was evicted from there in what is being tried stays instead.
    pub(crate) fn reserve(&mut self, task: usize, node: usize, cards: Taken) {
        let zones = self.zones_for(task, node).unwrap_or_default();
        let standing = &self.standings[task];
        let is_leaving = standing.status == Status::Releasing;
        let place = standing.node;
        let stays = is_leaving
            && place == Some(node)
            && standing.cards == cards
            && (zones.is_empty() || standing.zones == zones);
        let standing = match standing.was {
            Some(status @ (Status::Running | Status::Binding)) if stays => Standing {
                status,
                node: place,
                cards,
                zones: standing.zones.clone(),
                leaves: None,
                was: None,
            },
            was => Standing {
                status: Status::Pipelined,
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
    pub(crate) fn wait_instead(&mut self, mark: Mark) {
        for task in self.changed_since(mark) {
            if self.standings[task].status == Status::Binding {
                let status = Status::Pipelined;
                let standing = self.standings[task].clone();
                self.set(task, Standing { status, ..standing });
            }
        }
    }
}
