//! Plans the cards of a pod once it is known which pod holds the devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use apportion_abi::CardUuid;

use super::WholeCardId;
use super::table::idle;
use crate::allocation::{AllocationOwner, AllocationPhase};
use crate::ids::AllocationId;
use crate::ledger::Ledger;
use crate::topology::GpuTopology;

/// The steps that give a pod its cards, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeCardPlan {
    /// Holds to release first, to make room.
    pub release: Vec<AllocationId>,
    /// The key and the cards of the allocation to make, if one is needed.
    pub ask: Option<(String, Vec<CardUuid>)>,
    /// Reservations for the pod, to be committed.
    pub commit: Vec<AllocationId>,
}

/// Why a device cannot get a card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WholeCardRefusal {
    /// There is no such device.
    #[error("this node has no whole GPU {0}")]
    Unknown(WholeCardId),
    /// There are not enough idle cards.
    #[error("asked for {}; {idle} of {cards} GPUs are idle{}", CardCount(*asked), HolderList(holders))]
    NoCard {
        /// How many were requested.
        asked: usize,
        /// How many are idle.
        idle: usize,
        /// How many the node has.
        cards: usize,
        /// The names of all allocations.
        holders: Vec<String>,
    },
}

/// The most holders that a refusal names.
const NAMED: usize = 4;

struct CardCount(usize);

impl fmt::Display for CardCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("a whole GPU"),
            count => write!(f, "{count} whole GPUs"),
        }
    }
}

struct HolderList<'a>(&'a [String]);

impl fmt::Display for HolderList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let named = self.0.iter().take(NAMED).map(String::as_str);
        write!(
            f,
            "; the others are held by {}",
            named.collect::<Vec<_>>().join(", ")
        )?;
        match self.0.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl WholeCardRefusal {
    pub(super) fn no_card(ledger: &Ledger, topology: &GpuTopology, asked: usize) -> Self {
        let holders: BTreeSet<_> = ledger.allocations.values().map(|of| &of.name).collect();
        Self::NoCard {
            asked,
            idle: idle(ledger, topology).len(),
            cards: topology.cards().len(),
            holders: holders.into_iter().cloned().collect(),
        }
    }
}

impl Ledger {
    /// The whole cards that a pod has or has reserved, in the order of its devices.
    #[must_use]
    pub fn cards_of(&self, pod: &str) -> Vec<CardUuid> {
        let its = self.whole_of_pods().filter(|(_, of)| *of == pod);
        its.flat_map(|(allocation, _)| allocation.grants.iter().map(|grant| grant.card))
            .collect()
    }

    /// The pod's allocation that contains this card.
    #[must_use]
    pub fn whole_with(&self, pod: &str, card: CardUuid) -> Option<&AllocationId> {
        let mut its = self.whole_of_pods().filter(|(_, of)| *of == pod);
        its.find(|(allocation, _)| allocation.grant(card).is_some())
            .map(|(allocation, _)| &allocation.id)
    }

    /// Plans the cards for a pod's devices: first those reserved for the pod, then those held for the devices, then
    /// idle ones.
    ///
    /// # Errors
    /// If there are not enough idle cards.
    pub fn plan_whole(
        &self,
        topology: &GpuTopology,
        pod: &str,
        ids: &BTreeSet<WholeCardId>,
    ) -> Result<WholeCardPlan, WholeCardRefusal> {
        let holds: BTreeMap<WholeCardId, _> =
            self.holds().filter(|(id, _)| ids.contains(id)).collect();
        let has = self.cards_of(pod);
        let lacking: Vec<WholeCardId> = ids.iter().skip(has.len()).copied().collect();
        let mut ask = Vec::new();
        if !lacking.is_empty() {
            let held: Vec<Option<CardUuid>> = lacking
                .iter()
                .map(|id| Some(holds.get(id)?.grants.first()?.card))
                .collect();
            let must: BTreeSet<CardUuid> = has
                .into_iter()
                .chain(held.iter().copied().flatten())
                .collect();
            let mut free = idle(self, topology);
            free.extend(&must);
            // Devices without a held card get the idle cards that fit the others best.
            let missing = held.iter().filter(|card| card.is_none()).count();
            let best = topology.best(&free, &must, must.len() + missing);
            let mut others = best.into_iter().filter(|card| !must.contains(card));
            let cards: Option<Vec<_>> = held
                .into_iter()
                .map(|card| card.or_else(|| others.next()))
                .collect();
            ask = cards.ok_or_else(|| WholeCardRefusal::no_card(self, topology, lacking.len()))?;
        }
        Ok(WholeCardPlan {
            release: holds.values().map(|hold| hold.id.clone()).collect(),
            ask: lacking
                .first()
                .filter(|_| !ask.is_empty())
                .map(|id| (format!("{pod}/{id}"), ask)),
            commit: self.reserved_for(pod),
        })
    }

    fn reserved_for(&self, pod: &str) -> Vec<AllocationId> {
        let its = self.whole_of_pods().filter(|(allocation, of)| {
            *of == pod
                && allocation.state
                    != AllocationPhase::Allocated(AllocationOwner::Pod(pod.to_owned()))
        });
        its.map(|(allocation, _)| allocation.id.clone()).collect()
    }
}
