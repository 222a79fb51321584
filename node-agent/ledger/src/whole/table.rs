//! Which devices are handed out and which can be had.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apportion_abi::CardUuid;

use super::{WholeCardId, WholeCardRefusal};
use crate::allocation::{AllocationId, AllocationPhase};
use crate::card::Health;
use crate::event::EpochMillis;
use crate::ledger::Ledger;
use crate::slots::SlotTable;
use crate::topology::GpuTopology;

/// How long the kubelet may take from asking for a device to saying whose it is.
const SETTLES_IN: Duration = Duration::from_secs(10);

/// A device as the kubelet is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeCardOffer {
    /// Its name.
    pub id: WholeCardId,
    /// The card that stands behind it now, where one does.
    pub card: Option<CardUuid>,
    /// Whether it can be had, or is held and works.
    pub is_offered: bool,
}

/// How far a device has come that is not nobody's.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WholeCardState {
    /// The kubelet asked for it and has not said for whom.
    Handed { since: EpochMillis },
    /// It is this pod's, by UID.
    Held { pod: String },
}

/// The devices that somebody has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WholeCardTable {
    standing: BTreeMap<WholeCardId, WholeCardState>,
}

/// What follows from what the kubelet said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WholeCardUpdate {
    /// Holds that are needed no more.
    pub release: Vec<AllocationId>,
    /// Pods that have all their devices and not all their cards.
    pub give: Vec<String>,
}

impl WholeCardTable {
    /// What an earlier agent handed out.
    #[must_use]
    pub fn resume(ledger: &Ledger) -> Self {
        let handed = |since| WholeCardState::Handed { since };
        let holds = ledger.holds();
        let standing = holds.map(|(id, hold)| (id, handed(hold.created)));
        Self {
            standing: standing.collect(),
        }
    }

    /// Enters which pod, by UID, has which devices, for all pods if `is_complete`. Whose the contested ones
    /// are cannot be said; they stay as they are.
    #[must_use]
    pub fn seen(
        &mut self,
        now: EpochMillis,
        ledger: &Ledger,
        held: &BTreeMap<WholeCardId, String>,
        contested: &BTreeSet<WholeCardId>,
        is_complete: bool,
    ) -> WholeCardUpdate {
        let before = self.clone();
        self.standing.retain(|id, standing| match standing {
            WholeCardState::Handed { since } => !is_complete || now < since.after(SETTLES_IN),
            WholeCardState::Held { .. } => {
                !is_complete || held.contains_key(id) || contested.contains(id)
            }
        });
        for (id, pod) in held {
            let pod = pod.clone();
            self.standing.insert(*id, WholeCardState::Held { pod });
        }
        // A pod is admitted container by container: it has all its devices when it got no more.
        let pods: BTreeSet<&String> = held.values().collect();
        let is_waiting = |pod: &&&String| {
            let ids = self.ids_of(pod);
            ids == before.ids_of(pod) && ledger.cards_of(pod).len() < ids.len()
        };
        WholeCardUpdate {
            release: self.needless_holds(ledger),
            give: pods
                .iter()
                .filter(is_waiting)
                .map(|pod| (*pod).clone())
                .collect(),
        }
    }

    fn needless_holds(&self, ledger: &Ledger) -> Vec<AllocationId> {
        let is_needless = |id: &WholeCardId| match self.standing.get(id) {
            Some(WholeCardState::Handed { .. }) => false,
            Some(WholeCardState::Held { pod }) => {
                ledger.cards_of(pod).len() >= self.ids_of(pod).len()
            }
            None => true,
        };
        let needless = ledger.holds().filter(|(id, _)| is_needless(id));
        needless.map(|(_, hold)| hold.id.clone()).collect()
    }

    /// The devices of a pod.
    #[must_use]
    pub fn ids_of(&self, pod: &str) -> BTreeSet<WholeCardId> {
        let is_its = |standing: &WholeCardState| matches!(standing, WholeCardState::Held { pod: its } if its == pod);
        let its = self.standing.iter();
        its.filter(|(_, standing)| is_its(standing))
            .map(|(id, _)| *id)
            .collect()
    }

    /// How many devices pods hold.
    #[must_use]
    pub fn held(&self) -> usize {
        let held = self.standing.values();
        held.filter(|of| matches!(of, WholeCardState::Held { .. }))
            .count()
    }

    /// The kubelet hands devices out: which cards to hold for them.
    ///
    /// # Errors
    /// If there are no such devices or no cards for them.
    pub fn hand(
        &mut self,
        now: EpochMillis,
        ledger: &Ledger,
        slots: &SlotTable,
        topology: &GpuTopology,
        ids: &[WholeCardId],
    ) -> Result<Vec<(WholeCardId, CardUuid)>, WholeCardRefusal> {
        let usual = self.usual(ledger, slots, topology);
        let unknown = ids.iter().find(|id| !usual.contains_key(id));
        if let Some(unknown) = unknown {
            return Err(WholeCardRefusal::Unknown(*unknown));
        }
        let has_hold = |id: &&WholeCardId| ledger.holds().any(|(of, _)| of == **id);
        let new: Vec<WholeCardId> = ids.iter().filter(|id| !has_hold(id)).copied().collect();
        let mut holds = BTreeMap::new();
        for id in &new {
            let card = usual.get(id).copied().flatten();
            if let Some(card) = card.filter(|card| ledger.is_idle(*card)) {
                holds.insert(*id, card);
            }
        }
        let taken: BTreeSet<CardUuid> = holds.values().copied().collect();
        let best = topology.best(&idle(ledger, topology), &taken, new.len());
        let mut others = best.into_iter().filter(|card| !taken.contains(card));
        let mut bare = Vec::new();
        for id in new {
            if holds.contains_key(&id) {
                continue;
            }
            match others.next() {
                Some(card) => drop(holds.insert(id, card)),
                None => bare.push(id),
            }
        }
        let before = self.standing.clone();
        let handed = |id: &WholeCardId| (*id, WholeCardState::Handed { since: now });
        self.standing.extend(ids.iter().map(handed));
        let on_their_way = self.awaited(ledger, slots).len() + leaving(ledger);
        let promised = self.bare(ledger).filter(|id| !holds.contains_key(id));
        if !bare.is_empty() && promised.count() > on_their_way {
            self.standing = before;
            return Err(WholeCardRefusal::no_card(ledger, topology, ids.len()));
        }
        Ok(holds.into_iter().collect())
    }

    /// Every device, as the kubelet is to be told of it.
    #[must_use]
    pub fn offers(
        &self,
        ledger: &Ledger,
        slots: &SlotTable,
        topology: &GpuTopology,
    ) -> Vec<WholeCardOffer> {
        let is_ill = |card: &CardUuid| {
            let found = ledger.card(*card);
            found.is_none_or(|card| card.health != Health::Healthy)
        };
        let offer = |(id, card): (WholeCardId, Option<CardUuid>)| WholeCardOffer {
            id,
            card,
            is_offered: match self.standing.contains_key(&id) {
                true => !card.as_ref().is_some_and(is_ill),
                false => card.is_some(),
            },
        };
        self.usual(ledger, slots, topology)
            .into_iter()
            .map(offer)
            .collect()
    }

    /// Each device with its card: that of its holder, that which is held for it, or one that is to be had,
    /// if possible the card of the same number.
    fn usual(
        &self,
        ledger: &Ledger,
        slots: &SlotTable,
        topology: &GpuTopology,
    ) -> BTreeMap<WholeCardId, Option<CardUuid>> {
        let numbers = 1_u16..;
        let own: BTreeMap<WholeCardId, CardUuid> = numbers
            .map(WholeCardId)
            .zip(topology.cards().iter().copied())
            .collect();
        let ids = own.keys().chain(self.standing.keys());
        let mut all: BTreeMap<WholeCardId, Option<CardUuid>> = ids.map(|id| (*id, None)).collect();
        all.extend(self.mapped(ledger).map(|(id, card)| (id, Some(card))));

        let mut to_be_had = idle(ledger, topology);
        to_be_had.extend(self.awaited(ledger, slots));
        let mut left = to_be_had.len().saturating_sub(self.bare(ledger).count());
        let is_nobodys = |id: &WholeCardId| !self.standing.contains_key(id);
        for (id, card) in own.iter().filter(|(id, _)| is_nobodys(id)) {
            if left > 0 && to_be_had.remove(card) {
                all.insert(*id, Some(*card));
                left -= 1;
            }
        }
        let rest: Vec<WholeCardId> = all
            .iter()
            .filter(|(id, card)| card.is_none() && is_nobodys(id))
            .map(|(id, _)| *id)
            .collect();
        for (id, card) in rest.into_iter().zip(to_be_had).take(left) {
            all.insert(id, Some(card));
        }
        all
    }

    /// The devices that somebody has, with the cards that are settled.
    fn mapped<'a>(
        &'a self,
        ledger: &'a Ledger,
    ) -> impl Iterator<Item = (WholeCardId, CardUuid)> + 'a {
        let pods: BTreeSet<&String> = self
            .standing
            .values()
            .filter_map(|standing| match standing {
                WholeCardState::Held { pod } => Some(pod),
                WholeCardState::Handed { .. } => None,
            })
            .collect();
        let held = ledger.holds().filter_map(|(id, hold)| {
            let card = hold.grants.first()?.card;
            Some((id, card))
        });
        let given = pods
            .into_iter()
            .flat_map(|pod| self.ids_of(pod).into_iter().zip(ledger.cards_of(pod)));
        held.chain(given)
    }

    /// The devices that were handed out without a card.
    fn bare<'a>(&'a self, ledger: &'a Ledger) -> impl Iterator<Item = WholeCardId> + 'a {
        let with: BTreeSet<WholeCardId> = self.mapped(ledger).map(|(id, _)| id).collect();
        let ids = self.standing.keys().copied();
        ids.filter(move |id| !with.contains(id))
    }

    /// The cards of pods that have yet to get their devices.
    fn awaited(&self, ledger: &Ledger, slots: &SlotTable) -> Vec<CardUuid> {
        let mut skip: BTreeMap<&str, usize> = BTreeMap::new();
        let mut awaited = Vec::new();
        for (allocation, pod) in ledger.whole_of_pods() {
            if slots.deliver(&allocation.id) {
                continue;
            }
            let has = skip.entry(pod).or_insert_with(|| self.ids_of(pod).len());
            let cards = allocation.grants.iter().map(|grant| grant.card);
            let is_healthy = |card: &CardUuid| {
                let found = ledger.card(*card);
                found.is_some_and(|card| card.health == Health::Healthy)
            };
            let without: Vec<_> = cards.skip(*has).filter(is_healthy).collect();
            *has = has.saturating_sub(allocation.grants.len());
            awaited.extend(without);
        }
        awaited
    }
}

/// The cards that nobody has anything of.
pub(super) fn idle(ledger: &Ledger, topology: &GpuTopology) -> BTreeSet<CardUuid> {
    let cards = topology.cards().iter().copied();
    cards.filter(|card| ledger.is_idle(*card)).collect()
}

/// How many cards are given back and not yet empty.
fn leaving(ledger: &Ledger) -> usize {
    let all = ledger.allocations.values();
    let leaving = all.filter(|of| of.is_whole && of.state == AllocationPhase::Draining);
    leaving.map(|allocation| allocation.grants.len()).sum()
}
