//! Which cards of a node, by UUID, and how many bytes of each.
//!
//! A pod gets the cards that the policy names. Where the policy only counted cards, the smallest idle card that
//! suffices is opened. All pods that start on a node in one round draw from the same idle cards.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::{Bytes, CardCapacity, Share};
use apportion_policy::TaskPlacement;
use apportion_policy::cluster::{Task, TaskGpuRequest, limit_of};

use super::agents::{AgentCard, AgentStatus};
use super::model::ClusterModel;
use apportion_model::cards::CardShare;

/// How many bytes a pod takes of a card.
pub(crate) fn bytes(cards: &TaskGpuRequest, card: &AgentCard) -> Bytes {
    let capacity = CardCapacity {
        total: card.allocatable,
        reserved: Bytes::ZERO,
    };
    match cards {
        TaskGpuRequest::Shared { share, .. } => share.bytes_of(capacity),
        TaskGpuRequest::Whole(_) => card.allocatable,
        TaskGpuRequest::None | TaskGpuRequest::Partitions(_) => Bytes::ZERO,
    }
}

/// What a pod gets of a card that it shares: what it is guaranteed, and up to what it may burst.
pub(crate) fn share(task: &Task, card: &AgentCard) -> CardShare {
    let bytes = bytes(&task.cards, card);
    CardShare {
        card: card.uuid.clone(),
        bytes,
        limit: task.limit_above(card.allocatable, bytes),
    }
}

/// Up to what a pod may burst on a card of which it has so many bytes, if that is more.
pub(crate) fn limit(limit: Option<Share>, bytes: Bytes, card: &AgentCard) -> Option<Bytes> {
    let limit = limit_of(limit?, card.allocatable);
    (limit > bytes).then_some(limit)
}

/// The cards in use on all nodes, and the idle cards that were opened for a name of the policy in this round.
#[derive(Debug, Default)]
pub(crate) struct CardAssigner {
    opened: BTreeMap<(String, String), String>,
    taken: BTreeSet<(String, String)>,
}

impl CardAssigner {
    /// Collects the cards in use.
    pub(crate) fn of(model: &ClusterModel, tasks: &[&Task]) -> Self {
        let mut assigner = Self::default();
        for (node, agent) in model.agents.all() {
            let held = agent.status.held.iter().flat_map(|held| &held.shares);
            for share in held {
                assigner.taken.insert((node.clone(), share.card.clone()));
            }
            let used = agent.status.cards.iter();
            for card in used.filter(|card| card.unmanaged > Bytes::ZERO) {
                assigner.taken.insert((node.clone(), card.uuid.clone()));
            }
        }
        for task in tasks {
            let node = task.node.iter().filter(|_| task.status.is_active());
            for (node, card) in node.flat_map(|node| task.on.iter().map(move |card| (node, card))) {
                assigner.taken.insert((node.clone(), card.clone()));
            }
        }
        for start in model.pending_binds.all() {
            for share in &start.cards {
                assigner
                    .taken
                    .insert((start.node.clone(), share.card.clone()));
            }
        }
        assigner
    }

    /// The cards for a pod at its place, with bytes; `None` if there are fewer than the policy assumed.
    pub(crate) fn take(
        &mut self,
        status: &AgentStatus,
        task: &Task,
        placement: &TaskPlacement,
    ) -> Option<Vec<CardShare>> {
        match task.cards_on(&placement.node) {
            TaskGpuRequest::None | TaskGpuRequest::Partitions(_) => Some(Vec::new()),
            TaskGpuRequest::Whole(count) => {
                let mut named = placement
                    .cards
                    .iter()
                    .filter(|name| status.card(name).is_some());
                let uuids: Option<Vec<String>> = (0..*count)
                    .map(|_| match named.next() {
                        Some(name) => Some(name.clone()),
                        None => self.open(status, &placement.node, 0),
                    })
                    .collect();
                uuids?
                    .into_iter()
                    .map(|card| {
                        let bytes = status.card(&card)?.allocatable;
                        Some(CardShare {
                            card,
                            bytes,
                            limit: None,
                        })
                    })
                    .collect()
            }
            TaskGpuRequest::Shared { .. } => {
                let names = placement.cards.iter();
                names
                    .map(|name| {
                        let card = self.named(status, task, &placement.node, name)?;
                        Some(share(task, status.card(&card)?))
                    })
                    .collect()
            }
        }
    }

    fn named(
        &mut self,
        status: &AgentStatus,
        task: &Task,
        node: &str,
        name: &str,
    ) -> Option<String> {
        if status.card(name).is_some() {
            return Some(name.to_owned());
        }
        let key = (node.to_owned(), name.to_owned());
        if let Some(opened) = self.opened.get(&key) {
            return Some(opened.clone());
        }
        let least = match &task.cards {
            TaskGpuRequest::Shared { share, .. } => share.bytes_of(CardCapacity {
                total: status.card_memory()?,
                reserved: Bytes::ZERO,
            }),
            TaskGpuRequest::None | TaskGpuRequest::Whole(_) | TaskGpuRequest::Partitions(_) => {
                Bytes::ZERO
            }
        };
        let opened = self.open(status, node, least.0)?;
        self.opened.insert(key, opened.clone());
        Some(opened)
    }

    /// Takes the smallest idle card that has enough memory.
    fn open(&mut self, status: &AgentStatus, node: &str, least: u64) -> Option<String> {
        let card = status
            .healthy()
            .filter(|card| {
                let key = (node.to_owned(), card.uuid.clone());
                card.allocatable.0 >= least && !self.taken.contains(&key)
            })
            .min_by_key(|card| card.allocatable)?;
        let uuid = card.uuid.clone();
        self.taken.insert((node.to_owned(), uuid.clone()));
        Some(uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_more_than_the_request_and_at_most_the_card() {
        let card = AgentCard {
            uuid: "GPU-1".to_owned(),
            allocatable: Bytes::from_mib(8001),
            unmanaged: Bytes::ZERO,
            burst: Bytes::ZERO,
            is_healthy: true,
        };
        let limit = |mib: u64| {
            let task = Task {
                cards: TaskGpuRequest::Shared {
                    share: Share::Memory(Bytes::from_mib(3000)),
                    devices: 1,
                },
                limit: Some(Share::Memory(Bytes::from_mib(mib))),
                ..Task::default()
            };
            let share = share(&task, &card);
            assert_eq!(share.bytes, Bytes::from_mib(3000));
            share.limit.map(Bytes::as_mib)
        };
        assert_eq!(limit(4000), Some(4000));
        assert_eq!(limit(12_000), Some(8000));
        assert_eq!(limit(3001), None, "it is rounded down to the request");
    }
}
