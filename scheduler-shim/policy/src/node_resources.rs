//! The resources of a node, as counts.
//!
//! Whole cards are a count, one per size where a node's cards are known one by one. A shared card has a key and
//! three sums of bytes: held, releasing (its holders are being evicted) and reserved (promised to pods that wait
//! for those). The counts of idle and releasing cards follow from the sums, so undoing a change restores them
//! exactly.

use std::collections::BTreeMap;
use std::rc::Rc;

use apportion_abi::{Bytes, OvercommitFactor};

use crate::cluster::MigStrategy;
use crate::numa::NumaZones;

mod card;
mod sizes;

pub(crate) use card::{CardAsk, CardAssignment, CardKey, CardShareRequest, SharedCard};
pub(crate) use sizes::CardSizes;

/// Amounts of everything that a node has, except for shares of cards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeResources {
    /// Processor time, in milli-CPU.
    pub cpu: i64,
    /// Memory, in bytes.
    pub memory: i64,
    /// How many more pods the node may run.
    pub pods: i64,
    /// Whole cards.
    pub cards: i64,
    /// Partitions of cards, by profile.
    pub partitions: Vec<i64>,
}

impl NodeResources {
    /// Adds `count` times `other`.
    pub(crate) fn add(&mut self, other: &Self, count: i64) {
        self.cpu += other.cpu * count;
        self.memory += other.memory * count;
        self.pods += other.pods * count;
        self.cards += other.cards * count;
        for (mine, other) in self.partitions.iter_mut().zip(&other.partitions) {
            *mine += other * count;
        }
    }
}

/// How a pod holds resources of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldState {
    Held,
    Releasing,
    /// It waits for others to leave.
    Reserved,
}

/// What one pod takes of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ResourceRequest {
    /// Whole cards, partitions and everything but cards.
    pub(crate) resources: NodeResources,
    /// Its share of each card, if it shares cards.
    pub(crate) share: Option<CardShareRequest>,
    /// Cards that a claim holds for all the pods that name it.
    pub(crate) claimed: Vec<CardKey>,
}

/// One node during a session.
#[derive(Clone, Debug)]
pub(crate) struct NodeState {
    pub(crate) total: NodeResources,
    pub(crate) idle: NodeResources,
    /// What is being released, less what is reserved.
    pub(crate) releasing: NodeResources,
    /// The memory of each card, where cards are only counted.
    pub(crate) card_memory: Bytes,
    /// How far the limits on a card may exceed the card.
    pub(crate) overcommit: Option<OvercommitFactor>,
    pub(crate) mig: Option<MigStrategy>,
    /// How many cards a partition of each profile counts for.
    pub(crate) parts: Rc<Vec<f64>>,
    pub(crate) shared: BTreeMap<CardKey, SharedCard>,
    /// Its cards by size, where they are known one by one.
    pub(crate) sizes: CardSizes,
    /// Legacy MIG pods, which keep partitions from other pods.
    pub(crate) legacy: usize,
    pub(crate) zones: NumaZones,
}

impl NodeState {
    /// Idle and releasing together: what a pod that waits can count on.
    pub(crate) fn soon(&self) -> NodeResources {
        let mut soon = self.idle.clone();
        soon.add(&self.releasing, 1);
        soon
    }

    /// Whole cards that a pod that waits can count on.
    pub(crate) fn cards_soon(&self) -> i64 {
        self.idle.cards + self.releasing.cards
    }

    /// The size of a card.
    pub(crate) fn size(&self, card: CardKey) -> Bytes {
        self.sizes.size(card).unwrap_or(self.card_memory)
    }

    /// The size of its largest cards.
    pub(crate) fn largest(&self) -> Bytes {
        self.sizes.all().last().unwrap_or(self.card_memory)
    }

    /// Adds a pod's resources to the node (`count` 1) or removes them (-1).
    pub(crate) fn update_used(
        &mut self,
        request: &ResourceRequest,
        cards: &CardAssignment,
        hold: HoldState,
        count: i64,
    ) {
        let (idle, releasing) = match hold {
            HoldState::Held => (-count, 0),
            HoldState::Releasing => (-count, count),
            HoldState::Reserved => (0, -count),
        };
        self.idle.add(&request.resources, idle);
        self.releasing.add(&request.resources, releasing);
        if self.sizes.is_listed() {
            for (class, assigned) in cards.whole.iter().enumerate() {
                self.sizes
                    .update_used(class, idle * assigned, releasing * assigned);
            }
            // Unhealthy cards are not counted, so taking one changes no count.
            let dead = request.resources.cards - cards.whole.iter().sum::<i64>();
            self.idle.cards -= idle * dead;
            self.releasing.cards -= releasing * dead;
        }
        if let Some(share) = request.share {
            for &card in &cards.shared {
                let size = self.size(card);
                self.update_card(card, [share.on(size), share.ceiling(size)], hold, count);
            }
        }
        for &card in &request.claimed {
            self.update_card(card, [self.size(card); 2], hold, count);
        }
    }

    /// Changes what is held of a card, and what the limits on it add up to.
    fn update_card(
        &mut self,
        card: CardKey,
        [bytes, limit]: [Bytes; 2],
        hold: HoldState,
        count: i64,
    ) {
        let before = self.shared.get(&card).copied().unwrap_or_default();
        let mut after = before;
        after.memory.update(bytes, hold, count);
        after.limits.update(limit, hold, count);
        let class = self.sizes.class_of(card);
        if class.is_some() || !self.sizes.is_listed() {
            let idle = i64::from(before.is_occupied()) - i64::from(after.is_occupied());
            let releasing = after.freed() - before.freed();
            self.idle.cards += idle;
            self.releasing.cards += releasing;
            self.sizes.update_used(class.unwrap_or(0), idle, releasing);
        }
        if after == SharedCard::default() {
            self.shared.remove(&card);
        } else {
            self.shared.insert(card, after);
        }
    }

    /// The shared cards with room for a share when all leaving pods are gone, and what it would take of each.
    pub(crate) fn cards_that_fit(
        &self,
        share: CardShareRequest,
    ) -> impl Iterator<Item = (CardKey, SharedCard, CardAsk)> {
        let counted = (!self.sizes.is_listed()).then(|| share.of(self.card_memory));
        self.shared.iter().filter_map(move |(&key, &card)| {
            let is_it = |only| self.sizes.class_of(key) == Some(only);
            if !share.only.is_none_or(is_it) {
                return None;
            }
            let size = self.size(key);
            let bytes = match counted {
                Some(bytes) => bytes?,
                None => share.of(size).filter(|_| self.can_be_had(key))?,
            };
            let ask = CardAsk {
                bytes,
                limit: self.bounded_limit(&share, size),
            };
            card.fits_when_freed(size, ask).then_some((key, card, ask))
        })
    }

    /// The limit of a share that may use more than it is guaranteed, and what the limits on a card of this size may add up
    /// to. Agents bound nothing else.
    fn bounded_limit(&self, share: &CardShareRequest, size: Bytes) -> Option<(Bytes, Bytes)> {
        let (overcommit, limit) = (self.overcommit?, share.ceiling(size));
        (limit > share.on(size)).then(|| (limit, overcommit.of(size)))
    }

    /// Whether a card can be allocated.
    fn can_be_had(&self, card: CardKey) -> bool {
        !self.sizes.is_listed() || self.sizes.class_of(card).is_some()
    }

    /// Whether `need` fits into what is idle.
    pub(crate) fn fits_now(&self, request: &ResourceRequest) -> bool {
        self.fits(request, None)
    }

    /// Whether `need` fits when all leaving pods are gone.
    pub(crate) fn fits_soon(&self, request: &ResourceRequest) -> bool {
        self.fits(request, Some(&self.releasing))
    }

    fn fits(&self, request: &ResourceRequest, more: Option<&NodeResources>) -> bool {
        let has = |of: fn(&NodeResources) -> i64| of(&self.idle) + more.map_or(0, of);
        let asks = &request.resources;
        let has_host = asks.cpu <= has(|node_state| node_state.cpu)
            && asks.memory <= has(|node_state| node_state.memory)
            && asks.pods <= has(|node_state| node_state.pods);
        if !has_host {
            return false;
        }
        let only_now = more.is_none();
        let Some(share) = request.share else {
            let cards = if self.sizes.is_listed() {
                self.sizes.whole(only_now)
            } else {
                has(|node_state| node_state.cards)
            };
            return asks.cards.saturating_add(self.unused(&request.claimed)) <= cards
                && self.has_partitions(&asks.partitions, more);
        };
        let openable = match (self.sizes.is_listed(), share.of(self.card_memory)) {
            (true, _) => self.sizes.openable(&share, only_now),
            (false, Some(_)) => has(|node_state| node_state.cards),
            (false, None) => return false,
        };
        let openable = usize::try_from(openable).unwrap_or(0);
        openable >= share.devices
            || openable + self.cards_that_fit(share).take(share.devices).count() >= share.devices
    }

    /// The cards of a claim on which nobody stays; they must be free like any other.
    fn unused(&self, claimed: &[CardKey]) -> i64 {
        i64::try_from(
            claimed
                .iter()
                .filter(|card| {
                    let card = self.shared.get(card);
                    card.is_none_or(|card| card.stays() == 0)
                })
                .count(),
        )
        .unwrap_or(i64::MAX)
    }

    fn has_partitions(&self, asked: &[i64], more: Option<&NodeResources>) -> bool {
        let of = |node_state: &NodeResources, index: usize| {
            node_state.partitions.get(index).copied().unwrap_or(0)
        };
        asked.iter().enumerate().all(|(index, asked)| {
            *asked <= of(&self.idle, index) + more.map_or(0, |more| of(more, index))
        })
    }

    /// The room on shared cards, in cards.
    pub(crate) fn free_on_shared_cards(&self) -> f64 {
        self.free_per_card(|card| card.stays())
    }

    /// Idle cards and the room on shared ones, in cards.
    pub(crate) fn idle_gpus(&self) -> f64 {
        let free = self.free_per_card(|card| {
            if card.is_occupied() {
                card.here()
            } else {
                u64::MAX
            }
        });
        self.cards_and(&self.idle, free)
    }

    /// Cards that are being released and the parts of shared ones that are.
    pub(crate) fn releasing_gpus(&self) -> f64 {
        let cards = self.shared.iter().filter(|(key, _)| self.can_be_had(**key));
        let parts = cards.filter(|(_, card)| card.freed() == 0);
        let part = parts.map(|(&key, card)| {
            let part = card.leaves();
            self.in_cards(key, part)
        });
        self.cards_and(&self.releasing, part.sum())
    }

    /// Cards, whole and in parts, that are free or being released.
    pub(crate) fn free_gpus(&self) -> f64 {
        self.idle_gpus() + self.releasing_gpus()
    }

    /// What is left of the shared cards after `assigned`, in cards.
    fn free_per_card(&self, assigned: impl Fn(SharedCard) -> u64) -> f64 {
        let cards = self.shared.iter().filter(|(key, _)| self.can_be_had(**key));
        cards
            .map(|(&key, &card)| {
                let left = self.size(key).0.saturating_sub(assigned(card));
                self.in_cards(key, left)
            })
            .sum()
    }

    /// Bytes of a card as a part of it.
    fn in_cards(&self, card: CardKey, bytes: u64) -> f64 {
        bytes as f64 / self.size(card).0.max(1) as f64
    }

    fn cards_and(&self, node_state: &NodeResources, shares: f64) -> f64 {
        let partitions = node_state.partitions.iter().zip(self.parts.iter());
        let partitions: f64 = partitions.map(|(count, parts)| *count as f64 * parts).sum();
        node_state.cards as f64 + partitions + shares
    }
}
