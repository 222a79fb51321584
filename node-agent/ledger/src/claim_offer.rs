//! What resource claims can get of a card.
//!
//! The scheduler subtracts the allocated claims from a device's capacity itself. So the capacity that is published is
//! what the card has, less what others hold of it: shares of annotations, whole cards, programs outside of pods, claims
//! whose processes are still running after their end, and memory without an allocation.

use apportion_abi::{Bytes, CardUuid, SHARE_UNIT, whole_units};

use crate::card::Health;
use crate::ledger::Ledger;

/// Memory without an allocation changes all the time. So it counts in steps of this size.
const UNMANAGED_STEP: Bytes = Bytes::from_mib(64);

/// A card as it is offered to claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimOffer {
    /// The card.
    pub card: CardUuid,
    /// What a claim for the whole card gets.
    pub whole: Bytes,
    /// What all claims together can have now.
    pub offered: Bytes,
    /// Whether the card can be allocated.
    pub health: Health,
}

impl Ledger {
    /// What claims can get of each card. A card of unknown size is left out.
    #[must_use]
    pub fn claim_offers(&self) -> Vec<ClaimOffer> {
        let offers = self.cards.iter().map(|(card, known)| {
            let allocatable = known.capacity.allocatable();
            let withheld = self.withheld(*card).plus(rounded_up(known.unmanaged));
            ClaimOffer {
                card: *card,
                whole: whole_units(allocatable),
                offered: whole_units(allocatable.minus(withheld)),
                health: known.health,
            }
        });
        offers.filter(|offer| offer.whole.0 >= SHARE_UNIT).collect()
    }

    /// What is held of a card beside the limits of claims.
    fn withheld(&self, card: CardUuid) -> Bytes {
        self.grants(card)
            .map(|(allocation, grant)| {
                let is_claim = allocation.claim().is_some();
                // A claim that has a whole card takes its last bytes, too, which are less than a unit.
                let own = if is_claim { grant.limit } else { Bytes::ZERO };
                grant.firm().minus(own)
            })
            .sum()
    }
}

fn rounded_up(bytes: Bytes) -> Bytes {
    Bytes(bytes.0.next_multiple_of(UNMANAGED_STEP.0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use apportion_abi::{BurstTerms, CardCapacity, CardRequest};

    use super::*;
    use crate::{
        AllocationId, AllocationOwner, ClaimOwner, EpochMillis, LedgerEffect, LedgerEvent,
        OffenderPolicy, PlacementProposal,
    };

    const CARD: CardUuid = CardUuid([1; 16]);

    fn apply(ledger: &mut Ledger, event: LedgerEvent) -> Option<AllocationId> {
        let effects = ledger.apply(EpochMillis(1), event);
        effects.into_iter().find_map(|effect| match effect {
            LedgerEffect::Answer(answer) => answer.ok(),
            _ => None,
        })
    }

    /// A ledger with one card of a thousand and one MiB.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(1, OffenderPolicy::Observe);
        let capacity = CardCapacity {
            total: Bytes::from_mib(1011),
            reserved: Bytes::from_mib(10),
        };
        apply(
            &mut ledger,
            LedgerEvent::CardFound {
                card: CARD,
                capacity,
            },
        );
        ledger
    }

    fn given(ledger: &mut Ledger, key: &str, mib: u64, owner: AllocationOwner) -> AllocationId {
        let proposal = PlacementProposal {
            key: key.to_owned(),
            name: key.to_owned(),
            asks: vec![CardRequest {
                card: CARD,
                bytes: Bytes::from_mib(mib),
            }],
            ceilings: Vec::new(),
            terms: BurstTerms::default(),
            ttl: Duration::from_secs(1),
            idle_after: None,
        };
        let id = apply(ledger, LedgerEvent::Allocate(proposal)).unwrap();
        apply(
            ledger,
            LedgerEvent::Commit {
                id: id.clone(),
                owner,
            },
        )
        .unwrap()
    }

    fn claim(pods: &[&str]) -> ClaimOwner {
        let pods: BTreeMap<_, _> = pods
            .iter()
            .map(|pod| ((*pod).to_owned(), format!("team/{pod}")))
            .collect();
        ClaimOwner {
            uid: "c".into(),
            name: "team/gpu".into(),
            pods,
        }
    }

    fn offered(ledger: &Ledger) -> u64 {
        ledger.claim_offers()[0].offered.as_mib()
    }

    #[test]
    fn claims_share_what_others_do_not_hold() {
        let mut ledger = ledger();
        assert_eq!(
            ledger.claim_offers()[0].whole,
            Bytes::from_mib(1000),
            "whole units"
        );
        given(&mut ledger, "pod", 300, AllocationOwner::Pod("p".into()));
        assert_eq!(offered(&ledger), 700);
        let owner = AllocationOwner::Claim(claim(&["p"]));
        let id = given(&mut ledger, &ClaimOwner::key("c"), 400, owner);
        assert_eq!(
            offered(&ledger),
            700,
            "the scheduler subtracts claims itself"
        );
        apply(&mut ledger, LedgerEvent::Release { id: id.clone() });
        assert_eq!(
            offered(&ledger),
            300,
            "a claim that has ended holds what it still uses"
        );
        assert!(
            ledger
                .apply(EpochMillis(1), LedgerEvent::Emptied { id })
                .len()
                > 1
        );
        assert_eq!(offered(&ledger), 700);
    }

    #[test]
    fn pods_of_a_claim_are_added_and_another_claim_is_refused() {
        let mut ledger = ledger();
        let owner = AllocationOwner::Claim(claim(&["p"]));
        let id = given(&mut ledger, &ClaimOwner::key("c"), 400, owner);
        let more = AllocationOwner::Claim(claim(&["q"]));
        apply(
            &mut ledger,
            LedgerEvent::Commit {
                id: id.clone(),
                owner: more,
            },
        )
        .unwrap();
        let pods = ledger
            .allocation(&id)
            .and_then(|of| of.claim())
            .map(|claim| claim.pods.len());
        assert_eq!(pods, Some(2));
        let other = AllocationOwner::Claim(ClaimOwner {
            uid: "d".into(),
            ..claim(&["r"])
        });
        assert_eq!(
            apply(&mut ledger, LedgerEvent::Commit { id, owner: other }),
            None
        );
    }
}
