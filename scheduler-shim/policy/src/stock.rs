//! What a node has to give, counted.
//!
//! Whole cards are a count. A card that is shared is known by a key and carries three sums of bytes: held,
//! releasing (its holders are being ended) and reserved (promised to pods that wait for those to leave).
//! The counts of idle and of releasing cards follow from the sums, so that taking back what was added
//! restores them exactly.

use std::collections::BTreeMap;
use std::rc::Rc;

use apportion_abi::Bytes;

use crate::cluster::MigStrategy;
use crate::numa::ZoneStock;

/// Amounts of everything that a node has, except for shares of cards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stock {
    /// Processor time, in milli-CPU.
    pub cpu: i64,
    /// Memory, in bytes.
    pub memory: i64,
    /// Places for pods.
    pub pods: i64,
    /// Whole cards.
    pub cards: i64,
    /// Partitions of cards, by profile.
    pub partitions: Vec<i64>,
}

impl Stock {
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

/// The key of a shared card; unique in the session.
pub(crate) type CardKey = u32;

/// A card of which shares are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shared {
    held: u64,
    releasing: u64,
    reserved: u64,
}

impl Shared {
    /// Whether it is one card less to give now.
    fn is_occupied(self) -> bool {
        self.held + self.releasing > 0
    }

    /// How many cards more are to be had once everyone has left who is leaving.
    fn freed(self) -> i64 {
        if self.is_occupied() {
            i64::from(self.held + self.reserved == 0)
        } else {
            -i64::from(self.reserved > 0)
        }
    }

    /// What stays or will be on it, of `whole`: the choice of a card must be the same before and after
    /// those have left who are leaving.
    pub(crate) fn fullness(self, whole: Bytes) -> f64 {
        (self.held + self.reserved) as f64 / whole.0 as f64
    }

    /// Whether `ask` fits beside what stays, on a card that somebody stays on.
    pub(crate) fn has_room(self, whole: Bytes, ask: Bytes) -> bool {
        self.held + self.reserved > 0 && self.held + self.reserved + ask.0 <= whole.0
    }

    /// Whether `ask` fits beside everything that is there now.
    pub(crate) fn has_room_now(self, whole: Bytes, ask: Bytes) -> bool {
        self.is_occupied() && self.held + self.releasing + ask.0 <= whole.0
    }
}

/// In which way something is on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It stays.
    Held,
    /// It is leaving.
    Releasing,
    /// It waits for others to leave.
    Reserved,
}

/// What one pod takes of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Need {
    /// Whole cards, partitions and everything but cards.
    pub(crate) stock: Stock,
    /// Of each card that it shares.
    pub(crate) share: Option<NeedOfCards>,
    /// Cards that a claim holds for all the pods that name it.
    pub(crate) claimed: Vec<CardKey>,
}

/// A share of some cards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NeedOfCards {
    /// Bytes of each.
    pub(crate) bytes: Bytes,
    /// Of how many.
    pub(crate) devices: usize,
}

/// One node during a session.
#[derive(Clone, Debug)]
pub(crate) struct NodeStock {
    pub(crate) total: Stock,
    pub(crate) idle: Stock,
    /// What is being released, less what is reserved.
    pub(crate) releasing: Stock,
    pub(crate) card_memory: Bytes,
    pub(crate) mig: Option<MigStrategy>,
    /// How many parts of a card a partition of each profile is.
    pub(crate) parts: Rc<Vec<f64>>,
    pub(crate) shared: BTreeMap<CardKey, Shared>,
    /// Pods of the old kind that keep partitions from it.
    pub(crate) legacy: usize,
    pub(crate) zones: ZoneStock,
}

impl NodeStock {
    /// Idle and releasing together: what a pod that waits can count on.
    pub(crate) fn soon(&self) -> Stock {
        let mut soon = self.idle.clone();
        soon.add(&self.releasing, 1);
        soon
    }

    /// Whole cards that a pod that waits can count on.
    pub(crate) fn cards_soon(&self) -> i64 {
        self.idle.cards + self.releasing.cards
    }

    /// Puts something on the node (`count` 1) or takes it off (-1).
    pub(crate) fn book(&mut self, need: &Need, cards: &[CardKey], hold: Hold, count: i64) {
        match hold {
            Hold::Held => self.idle.add(&need.stock, -count),
            Hold::Releasing => {
                self.idle.add(&need.stock, -count);
                self.releasing.add(&need.stock, count);
            }
            Hold::Reserved => self.releasing.add(&need.stock, -count),
        }
        if let Some(share) = need.share {
            for &card in cards {
                self.book_card(card, share.bytes, hold, count);
            }
        }
        for &card in &need.claimed {
            self.book_card(card, self.card_memory, hold, count);
        }
    }

    fn book_card(&mut self, card: CardKey, bytes: Bytes, hold: Hold, count: i64) {
        let before = self.shared.get(&card).copied().unwrap_or_default();
        let mut after = before;
        let sum = match hold {
            Hold::Held => &mut after.held,
            Hold::Releasing => &mut after.releasing,
            Hold::Reserved => &mut after.reserved,
        };
        *sum = if count > 0 {
            sum.saturating_add(bytes.0)
        } else {
            sum.saturating_sub(bytes.0)
        };
        self.idle.cards += i64::from(before.is_occupied()) - i64::from(after.is_occupied());
        self.releasing.cards += after.freed() - before.freed();
        if after == Shared::default() {
            self.shared.remove(&card);
        } else {
            self.shared.insert(card, after);
        }
    }

    /// The shared cards with room for `ask` once everyone has left who is leaving.
    pub(crate) fn with_room(&self, ask: Bytes) -> impl Iterator<Item = (CardKey, Shared)> {
        let whole = self.card_memory;
        let cards = self.shared.iter().map(|(&key, &card)| (key, card));
        cards.filter(move |(_, card)| card.has_room(whole, ask))
    }

    /// Whether `need` fits into what is idle.
    pub(crate) fn fits_now(&self, need: &Need) -> bool {
        self.fits(need, None)
    }

    /// Whether `need` fits once everyone has left who is leaving.
    pub(crate) fn fits_soon(&self, need: &Need) -> bool {
        self.fits(need, Some(&self.releasing))
    }

    fn fits(&self, need: &Need, more: Option<&Stock>) -> bool {
        let has = |of: fn(&Stock) -> i64| of(&self.idle) + more.map_or(0, of);
        let asks = &need.stock;
        let has_host = asks.cpu <= has(|stock| stock.cpu)
            && asks.memory <= has(|stock| stock.memory)
            && asks.pods <= has(|stock| stock.pods);
        if !has_host {
            return false;
        }
        let cards = has(|stock| stock.cards);
        let Some(share) = need.share else {
            return asks.cards.saturating_add(self.unused(&need.claimed)) <= cards
                && self.has_partitions(&asks.partitions, more);
        };
        let whole = usize::try_from(cards).unwrap_or(0);
        share.bytes <= self.card_memory
            && (whole >= share.devices
                || whole + self.with_room(share.bytes).take(share.devices).count() >= share.devices)
    }

    /// The cards of a claim on which nobody stays; they have to be had like any other.
    fn unused(&self, claimed: &[CardKey]) -> i64 {
        let is_unused = |card: &&CardKey| {
            let card = self.shared.get(card);
            card.is_none_or(|card| card.held + card.reserved == 0)
        };
        i64::try_from(claimed.iter().filter(is_unused).count()).unwrap_or(i64::MAX)
    }

    fn has_partitions(&self, asked: &[i64], more: Option<&Stock>) -> bool {
        let of = |stock: &Stock, place: usize| stock.partitions.get(place).copied().unwrap_or(0);
        asked.iter().enumerate().all(|(place, asked)| {
            *asked <= of(&self.idle, place) + more.map_or(0, |more| of(more, place))
        })
    }

    /// The room on shared cards, in cards.
    pub(crate) fn room_of_shared(&self) -> f64 {
        let whole = self.card_memory.0.max(1) as f64;
        self.shared
            .values()
            .map(|card| f64::max(0.0, whole - (card.held + card.reserved) as f64) / whole)
            .sum()
    }

    /// Idle cards and the room on shared ones, in cards and in bytes.
    pub(crate) fn idle_gpus(&self) -> (f64, u64) {
        let rooms = self.shared.values().filter(|card| card.is_occupied());
        let room: u64 = rooms
            .map(|card| {
                self.card_memory
                    .0
                    .saturating_sub(card.held + card.releasing)
            })
            .sum();
        self.cards_and_bytes(&self.idle, room)
    }

    /// Cards that are being released and the parts of shared ones that are.
    pub(crate) fn releasing_gpus(&self) -> (f64, u64) {
        let parts = self.shared.values().filter(|card| card.freed() == 0);
        let part: u64 = parts
            .map(|card| card.releasing.saturating_sub(card.reserved))
            .sum();
        self.cards_and_bytes(&self.releasing, part)
    }

    fn cards_and_bytes(&self, stock: &Stock, bytes: u64) -> (f64, u64) {
        let whole = u64::try_from(stock.cards).unwrap_or(0);
        let partitions = stock.partitions.iter().zip(self.parts.iter());
        let partitions: f64 = partitions.map(|(count, parts)| *count as f64 * parts).sum();
        let shares = bytes as f64 / self.card_memory.0.max(1) as f64;
        (
            stock.cards as f64 + partitions + shares,
            whole
                .saturating_mul(self.card_memory.0)
                .saturating_add(bytes),
        )
    }
}
