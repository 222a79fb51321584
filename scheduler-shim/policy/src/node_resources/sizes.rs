//! The cards of a node whose cards are known one by one: how many of each size are available.
//!
//! Cards of one size are interchangeable, so unshared cards stay a count per size. Which of them a pod gets is
//! settled at the end. A card to which a task is pinned is not interchangeable, and is a class of its own. An unhealthy
//! card is not available, and the pods on it take nothing from others.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::Bytes;

use super::card::{CardKey, CardShareRequest};
use crate::cluster::ListedCard;

/// Cards of one size.
#[derive(Clone, Debug)]
struct SizeClass {
    size: Bytes,
    /// The name of its only card, if tasks are pinned to that.
    pinned: Option<String>,
    total: i64,
    idle: i64,
    /// Cards that are being released, less those that are reserved.
    releasing: i64,
}

impl SizeClass {
    /// How many are available now, and how many when all leaving pods are gone.
    fn had(&self) -> (i64, i64) {
        let soon = (self.idle + self.releasing).max(0);
        (self.idle.clamp(0, soon), soon)
    }
}

/// The size of a card, and its size class if it is available.
#[derive(Clone, Copy, Debug)]
struct ClassifiedCard {
    size: Bytes,
    class: Option<usize>,
}

/// The cards of a node by size, the smallest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct CardSizes {
    is_listed: bool,
    classes: Vec<SizeClass>,
    known: BTreeMap<CardKey, ClassifiedCard>,
}

impl CardSizes {
    /// The cards of a node, and the names of those to which tasks are pinned.
    pub(crate) fn of(cards: &[ListedCard], pinned: &BTreeSet<&str>) -> Self {
        let mut counts: BTreeMap<(Bytes, Option<&str>), i64> = BTreeMap::new();
        for card in cards.iter().filter(|card| card.is_healthy) {
            let name = pinned.get(card.name.as_str()).copied();
            *counts.entry((card.memory, name)).or_default() += 1;
        }
        Self {
            is_listed: !cards.is_empty(),
            classes: counts
                .into_iter()
                .map(|((size, pinned), total)| SizeClass {
                    size,
                    pinned: pinned.map(str::to_owned),
                    total,
                    idle: total,
                    releasing: 0,
                })
                .collect(),
            known: BTreeMap::new(),
        }
    }

    /// Whether the cards are known one by one.
    pub(crate) fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// How many sizes there are.
    pub(crate) fn count(&self) -> usize {
        self.classes.len()
    }

    /// The sizes, the smallest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = Bytes> {
        self.classes.iter().map(|class| class.size)
    }

    /// The class of cards of a size. One of a single card is only named if there is no other.
    pub(crate) fn class(&self, size: Bytes) -> Option<usize> {
        self.classes.iter().position(|class| class.size == size)
    }

    /// The class of a card.
    pub(crate) fn class_of_listed(&self, card: &ListedCard) -> Option<usize> {
        self.pinned_class(&card.name)
            .or_else(|| self.class(card.memory))
            .filter(|_| card.is_healthy)
    }

    /// The class of a card to which tasks are pinned.
    pub(crate) fn pinned_class(&self, name: &str) -> Option<usize> {
        let is_it = |class: &SizeClass| class.pinned.as_deref() == Some(name);
        self.classes.iter().position(is_it)
    }

    /// Records the size class of an available card.
    pub(crate) fn know(&mut self, card: CardKey, class: usize) {
        if let Some(found) = self.classes.get(class) {
            let (size, class) = (found.size, Some(class));
            self.known.insert(card, ClassifiedCard { size, class });
        }
    }

    /// Records a card that can't be allocated.
    pub(crate) fn know_dead(&mut self, card: CardKey, size: Bytes) {
        self.known
            .insert(card, ClassifiedCard { size, class: None });
    }

    /// The size of a card.
    pub(crate) fn size(&self, card: CardKey) -> Option<Bytes> {
        self.known.get(&card).map(|known| known.size)
    }

    /// The size class of a card; `None` if it can't be allocated.
    pub(crate) fn class_of(&self, card: CardKey) -> Option<usize> {
        self.known.get(&card)?.class
    }

    /// Changes what is idle and what is being released of a size.
    pub(crate) fn update_used(&mut self, class: usize, idle: i64, releasing: i64) {
        if let Some(class) = self.classes.get_mut(class) {
            class.idle += idle;
            class.releasing += releasing;
        }
    }

    /// How many whole cards are available, now or when all leaving pods are gone.
    pub(crate) fn whole(&self, only_now: bool) -> i64 {
        let had = self.classes.iter().map(SizeClass::had);
        had.map(|(now, soon)| if only_now { now } else { soon })
            .sum()
    }

    /// The classes whose cards can hold the share, with their indices.
    fn fitting_classes(
        &self,
        share: &CardShareRequest,
    ) -> impl Iterator<Item = (usize, &SizeClass)> {
        let classes = self.classes.iter().enumerate();
        classes.filter(|(index, class)| share.takes(*index) && share.of(class.size).is_some())
    }

    /// How many cards a share could open.
    pub(crate) fn openable(&self, share: &CardShareRequest, only_now: bool) -> i64 {
        self.fitting_classes(share)
            .map(|(_, class)| class.had())
            .map(|(now, soon)| if only_now { now } else { soon })
            .sum()
    }

    /// How many cards could ever hold the share.
    pub(crate) fn fitting(&self, share: &CardShareRequest) -> i64 {
        let fitting = self.fitting_classes(share);
        fitting.map(|(_, class)| class.total).sum()
    }

    /// The cards that a share could open: the size class, and whether others must leave first.
    pub(crate) fn openings(&self, share: &CardShareRequest) -> Vec<(usize, bool)> {
        let most = i64::try_from(share.devices).unwrap_or(i64::MAX);
        self.fitting_classes(share)
            .flat_map(|(index, class)| {
                let (now, soon) = class.had();
                (0..soon.min(most)).map(move |number| (index, number >= now))
            })
            .collect()
    }

    /// The `count` smallest cards that are available, by size class; `None` if there are too few.
    pub(crate) fn take(&self, count: i64, only_now: bool) -> Option<Vec<i64>> {
        let mut left = count;
        let assigned: Vec<i64> = self
            .classes
            .iter()
            .map(|class| {
                let (now, soon) = class.had();
                let assigned = left.min(if only_now { now } else { soon });
                left -= assigned;
                assigned
            })
            .collect();
        (left == 0).then_some(assigned)
    }
}
