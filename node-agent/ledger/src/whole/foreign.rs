//! Cards that another device plugin gave to a pod.
//!
//! The ledger records them so that no other pod gets part of them until the pod has left. That holds even if the
//! plugin is gone, or the pod has not used its card yet. The kubelet counts these devices under the other plugin's
//! resource, so they are not in the [`WholeCardTable`](super::WholeCardTable). If somebody already has a share of
//! such a card, it was allocated twice before the agent could know. The ledger keeps the first allocation.

use apportion_abi::{BurstTerms, CardUuid};

use crate::allocation::{
    Allocation, AllocationOwner, AllocationPhase, CardGrant, SuspensionCause, SuspensionPhase,
};

use crate::event::{AllocationRefusal, LedgerEffect, NoticeKind};
use crate::ids::AllocationId;
use crate::ledger::Ledger;
use crate::time::EpochMillis;

/// The prefix of the keys of such allocations.
const TAKEN: &str = "other-plugin/";

/// Whether another device plugin made the allocation.
pub(super) fn is_of_others(allocation: &Allocation) -> bool {
    allocation.key.starts_with(TAKEN)
}

impl Ledger {
    pub(crate) fn taken_whole(
        &mut self,
        now: EpochMillis,
        pod: &str,
        name: String,
        cards: &[CardUuid],
    ) -> Vec<LedgerEffect> {
        let key = format!("{TAKEN}{pod}");
        let free = cards
            .iter()
            .filter(|card| self.grants(**card).next().is_none());
        let grants: Vec<CardGrant> = free
            .filter_map(|card| {
                let mut grant = CardGrant::new(*card, self.card(*card)?.capacity.allocatable());
                // What its processes already use is no offence.
                grant.allowed = apportion_abi::Bytes(u64::MAX);
                Some(grant)
            })
            .collect();
        let known = self.allocations.values_mut().find(|of| of.key == key);
        match known {
            Some(known) if grants.is_empty() => vec![LedgerEffect::Answer(Ok(known.id.clone()))],
            Some(known) => {
                known.grants.extend(grants);
                vec![
                    LedgerEffect::Save,
                    LedgerEffect::Answer(Ok(known.id.clone())),
                ]
            }
            None if grants.is_empty() => {
                let why = "its GPUs belong to another allocation";
                vec![LedgerEffect::Answer(Err(AllocationRefusal::Malformed(why)))]
            }
            None => self.enter_taken(now, pod, key, name, grants),
        }
    }

    fn enter_taken(
        &mut self,
        now: EpochMillis,
        pod: &str,
        key: String,
        name: String,
        grants: Vec<CardGrant>,
    ) -> Vec<LedgerEffect> {
        let id: AllocationId = self.next_id();
        let allocation = Allocation {
            id: id.clone(),
            key,
            name,
            state: AllocationPhase::Allocated(AllocationOwner::Pod(pod.to_owned())),
            created: now,
            grants,
            terms: BurstTerms::default(),
            is_whole: true,
            suspension: SuspensionPhase::Running,
            suspension_cause: SuspensionCause::Client,
            idle_after: None,
            moved: now,
        };
        self.allocations.insert(id.clone(), allocation);
        vec![
            LedgerEffect::OpenAccount(id.clone()),
            LedgerEffect::Save,
            self.notice(NoticeKind::Committed, &id),
            LedgerEffect::Answer(Ok(id)),
        ]
    }
}
