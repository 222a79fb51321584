//! Which whole-card devices the kubelet has handed out, and which can be offered.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apportion_abi::CardUuid;

use super::{WholeCardId, WholeCardRefusal};
use crate::allocation::AllocationPhase;
use crate::card::Health;
use crate::ids::AllocationId;
use crate::ledger::Ledger;
use crate::slots::SlotTable;
use crate::time::EpochMillis;
use crate::topology::GpuTopology;

/// How long the kubelet may take from `Allocate` until it reports the device's pod.
const SETTLES_IN: Duration = Duration::from_secs(10);

/// A device as it is listed to the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeCardOffer {
    /// Its device id.
    pub id: WholeCardId,
    /// The card behind it now, if any.
    pub card: Option<CardUuid>,
    /// Whether it is reported as healthy: it is available, or it is held and its card works.
    pub is_offered: bool,
}

/// The state of a device that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WholeCardState {
    /// The kubelet allocated it and has not reported the pod.
    Handed { since: EpochMillis },
    /// This pod holds it, by UID.
    Held { pod: String },
}

/// The devices in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WholeCardTable {
    states: BTreeMap<WholeCardId, WholeCardState>,
}

/// What follows from a report of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WholeCardUpdate {
    /// Holds that are no longer needed.
    pub release: Vec<AllocationId>,
    /// Pods that have all their devices but not all their cards.
    pub give: Vec<String>,
}

impl WholeCardTable {
    /// Restores the devices that an earlier agent handed out, from their holds in the ledger.
    #[must_use]
    pub fn resume(ledger: &Ledger) -> Self {
        let holds = ledger.holds();
        let states = holds.map(|(id, hold)| {
            let since = hold.created;
            (id, WholeCardState::Handed { since })
        });
        Self {
            states: states.collect(),
        }
    }

    /// Records which pod, by UID, holds which devices; of all pods if `is_complete`. Contested devices have no
    /// certain pod and keep their state.
    #[must_use]
    pub fn polled(
        &mut self,
        now: EpochMillis,
        ledger: &Ledger,
        held: &BTreeMap<WholeCardId, String>,
        contested: &BTreeSet<WholeCardId>,
        is_complete: bool,
    ) -> WholeCardUpdate {
        let before = self.clone();
        self.states.retain(|id, states| match states {
            WholeCardState::Handed { since } => !is_complete || now < since.after(SETTLES_IN),
            WholeCardState::Held { .. } => {
                !is_complete || held.contains_key(id) || contested.contains(id)
            }
        });
        for (id, pod) in held {
            let pod = pod.clone();
            self.states.insert(*id, WholeCardState::Held { pod });
        }
        // The kubelet admits a pod container by container. A pod has all its devices once their number stops
        // growing.
        let pods: BTreeSet<&String> = held.values().collect();
        WholeCardUpdate {
            release: self.needless_holds(ledger),
            give: pods
                .iter()
                .filter(|pod| {
                    let ids = self.ids_of(pod);
                    ids == before.ids_of(pod) && ledger.cards_of(pod).len() < ids.len()
                })
                .map(|pod| (*pod).clone())
                .collect(),
        }
    }

    fn needless_holds(&self, ledger: &Ledger) -> Vec<AllocationId> {
        let needless = ledger.holds().filter(|(id, _)| match self.states.get(id) {
            Some(WholeCardState::Handed { .. }) => false,
            Some(WholeCardState::Held { pod }) => {
                ledger.cards_of(pod).len() >= self.ids_of(pod).len()
            }
            None => true,
        });
        needless.map(|(_, hold)| hold.id.clone()).collect()
    }

    /// The devices of a pod.
    #[must_use]
    pub fn ids_of(&self, pod: &str) -> BTreeSet<WholeCardId> {
        let states = self.states.iter();
        states
            .filter(|(_, state)| matches!(state, WholeCardState::Held { pod: its } if its == pod))
            .map(|(id, _)| *id)
            .collect()
    }

    /// The number of devices that pods hold.
    #[must_use]
    pub fn held(&self) -> usize {
        let held = self.states.values();
        held.filter(|of| matches!(of, WholeCardState::Held { .. }))
            .count()
    }

    /// The kubelet allocates devices. Returns the cards to hold for them.
    ///
    /// # Errors
    /// If there is no such device, or not enough cards.
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
        let new: Vec<WholeCardId> = ids
            .iter()
            .filter(|id| !ledger.holds().any(|(of, _)| of == **id))
            .copied()
            .collect();
        let mut holds = BTreeMap::new();
        // First choice: the device's usual card, if it is idle.
        for id in &new {
            let card = usual.get(id).copied().flatten();
            if let Some(card) = card.filter(|card| ledger.is_idle(*card)) {
                holds.insert(*id, card);
            }
        }
        // The other devices get the idle cards that fit these best.
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
        // Devices without a card need one that is about to become free. If there are too few, nothing is handed out.
        let before = self.states.clone();
        self.states.extend(
            ids.iter()
                .map(|id| (*id, WholeCardState::Handed { since: now })),
        );
        let on_their_way = self.awaited(ledger, slots).len() + leaving(ledger);
        let promised = self.bare(ledger).filter(|id| !holds.contains_key(id));
        if !bare.is_empty() && promised.count() > on_their_way {
            self.states = before;
            return Err(WholeCardRefusal::no_card(ledger, topology, ids.len()));
        }
        Ok(holds.into_iter().collect())
    }

    /// All devices, as the kubelet is told of them.
    #[must_use]
    pub fn offers(
        &self,
        ledger: &Ledger,
        slots: &SlotTable,
        topology: &GpuTopology,
    ) -> Vec<WholeCardOffer> {
        self.usual(ledger, slots, topology)
            .into_iter()
            .map(
                |(id, card): (WholeCardId, Option<CardUuid>)| WholeCardOffer {
                    id,
                    card,
                    is_offered: if self.states.contains_key(&id) {
                        !card.as_ref().is_some_and(|card| {
                            let found = ledger.card(*card);
                            found.is_none_or(|card| card.health != Health::Healthy)
                        })
                    } else {
                        card.is_some()
                    },
                },
            )
            .collect()
    }

    /// Each device with its card: its holder's card, the card held for it, or an available card, if possible the one
    /// with the same number.
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
        let ids = own.keys().chain(self.states.keys());
        let mut all: BTreeMap<WholeCardId, Option<CardUuid>> = ids.map(|id| (*id, None)).collect();
        all.extend(self.mapped(ledger).map(|(id, card)| (id, Some(card))));

        let mut to_be_had = idle(ledger, topology);
        to_be_had.extend(self.awaited(ledger, slots));
        // Some of these cards are promised to devices that were handed out without one.
        let mut left = to_be_had.len().saturating_sub(self.bare(ledger).count());
        let is_nobodys = |id: &WholeCardId| !self.states.contains_key(id);
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

    /// The devices in use whose cards are known.
    fn mapped<'a>(
        &'a self,
        ledger: &'a Ledger,
    ) -> impl Iterator<Item = (WholeCardId, CardUuid)> + 'a {
        let pods: BTreeSet<&String> = self
            .states
            .values()
            .filter_map(|states| match states {
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
        let ids = self.states.keys().copied();
        ids.filter(move |id| !with.contains(id))
    }

    /// The cards of pods that have not got their devices yet.
    fn awaited(&self, ledger: &Ledger, slots: &SlotTable) -> Vec<CardUuid> {
        let mut skip: BTreeMap<&str, usize> = BTreeMap::new();
        let mut awaited = Vec::new();
        for (allocation, pod) in ledger.whole_of_pods() {
            if slots.deliver(&allocation.id) {
                continue;
            }
            let has = skip.entry(pod).or_insert_with(|| self.ids_of(pod).len());
            let cards = allocation.grants.iter().map(|grant| grant.card);
            let without: Vec<_> = cards
                .skip(*has)
                .filter(|card| {
                    let found = ledger.card(*card);
                    found.is_some_and(|card| card.health == Health::Healthy)
                })
                .collect();
            *has = has.saturating_sub(allocation.grants.len());
            awaited.extend(without);
        }
        awaited
    }
}

/// The cards on which nobody holds anything.
pub(super) fn idle(ledger: &Ledger, topology: &GpuTopology) -> BTreeSet<CardUuid> {
    let cards = topology.cards().iter().copied();
    cards.filter(|card| ledger.is_idle(*card)).collect()
}

/// The number of whole cards that are released but still in use.
fn leaving(ledger: &Ledger) -> usize {
    let all = ledger.allocations.values();
    let leaving = all.filter(|of| of.is_whole && of.state == AllocationPhase::Draining);
    leaving.map(|allocation| allocation.grants.len()).sum()
}
