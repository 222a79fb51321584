//! Whole cards, as devices of the kubelet.
//!
//! The kubelet is offered one device for each card. A device id is not tied to a card: the kubelet picks any device,
//! and names the pod only when a container of it starts. The scheduler may have reserved other cards for that pod.
//! So only the number of available devices matters. The card behind a device is chosen late, and is the device's
//! usual card if possible.
//!
//! # How many are available
//! One for each card that nobody holds anything on, and one for each card that is reserved for a pod which the
//! kubelet has not admitted yet. A device that a pod holds stays healthy, because the kubelet still counts it
//! against the node. It becomes unhealthy only if its card is.
//!
//! # Holds
//! From the kubelet's `Allocate` for a device until its pod is known, an idle card is reserved in the ledger under
//! the device's name, so that no share lands on it. There may be no idle card while one is about to come: it is
//! reserved for a pod that may be this one, or its last pod is leaving. Then the device is handed out without a
//! card, and the pod's start decides. Two pods never get one card: the ledger decides that, and nothing in this
//! module can change it.
//!
//! # Nothing here is saved
//! The kubelet knows which pod has which devices, and the ledger knows which pod has which cards. The lowest device
//! of a pod stands for its first card, and so on.

mod assign;
mod foreign;
mod table;

use std::fmt;
use std::str::FromStr;

use apportion_abi::{Bytes, CardUuid};

use crate::allocation::{Allocation, AllocationOwner, AllocationPhase};

use crate::card::Health;
use crate::event::{AllocationRefusal, LedgerEffect};
use crate::ids::AllocationId;
use crate::ledger::Ledger;

pub use assign::{WholeCardPlan, WholeCardRefusal};
pub use table::{WholeCardOffer, WholeCardTable, WholeCardUpdate};

/// The prefix of the keys of holds.
const HOLD: &str = "whole/";

/// The number of a whole card's device, from one. It is written `w-0001`, which is also the kubelet's device id and
/// the name of the CDI device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WholeCardId(pub u16);

impl WholeCardId {
    /// The key of the reservation that holds a card for it.
    #[must_use]
    pub fn hold_key(self) -> String {
        format!("{HOLD}{self}")
    }

    fn of_hold(key: &str) -> Option<Self> {
        key.strip_prefix(HOLD)?.parse().ok()
    }
}

impl fmt::Display for WholeCardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w-{:04}", self.0)
    }
}

impl FromStr for WholeCardId {
    type Err = String;

    /// Accepts only what `Display` writes, so that a device has one name.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("w-");
        let number: Option<u16> = digits.and_then(|digits| digits.parse().ok());
        let id = number.filter(|number| *number > 0).map(Self);
        id.filter(|id| id.to_string() == text)
            .ok_or_else(|| format!("{text:?} is not a whole GPU of this agent"))
    }
}

impl Ledger {
    pub(crate) fn given_whole(&mut self, id: &AllocationId) -> Vec<LedgerEffect> {
        let Some(allocation) = self.allocations.get(id) else {
            return vec![LedgerEffect::Answer(Err(
                AllocationRefusal::UnknownAllocation(id.clone()),
            ))];
        };
        if allocation.is_whole {
            return vec![LedgerEffect::Answer(Ok(id.clone()))];
        }
        if !self.takes_all(allocation) {
            let why = "a share is not a whole GPU";
            return vec![LedgerEffect::Answer(Err(AllocationRefusal::Malformed(why)))];
        }
        if let Some(allocation) = self.allocations.get_mut(id) {
            allocation.is_whole = true;
        }
        vec![LedgerEffect::Save, LedgerEffect::Answer(Ok(id.clone()))]
    }

    /// Whether a healthy card has no grant and no unmanaged memory.
    #[must_use]
    pub fn is_idle(&self, card: CardUuid) -> bool {
        self.card(card).is_some_and(|found| {
            found.health == Health::Healthy
                && found.unmanaged == Bytes::ZERO
                && found.capacity.allocatable() > Bytes::ZERO
        }) && self.grants(card).next().is_none()
    }

    /// Whether the allocation takes all of each of its cards.
    fn takes_all(&self, allocation: &Allocation) -> bool {
        !allocation.grants.is_empty()
            && allocation.grants.iter().all(|grant| {
                let card = self.card(grant.card);
                grant.burst.is_none()
                    && card.is_some_and(|card| grant.limit >= card.capacity.allocatable())
            })
    }

    /// The allocations that are or may become a pod's whole cards, with the pod's UID, oldest first. A share of a
    /// full card looks the same until it is delivered.
    fn whole_of_pods(&self) -> impl Iterator<Item = (&Allocation, &str)> {
        let all = self.allocations().into_iter();
        all.filter_map(|allocation| {
            let pod = match &allocation.state {
                AllocationPhase::Allocated(AllocationOwner::Pod(pod)) => pod.as_str(),
                AllocationPhase::Reserved { .. }
                    if WholeCardId::of_hold(&allocation.key).is_none()
                        && !allocation.is_of_claim() =>
                {
                    allocation.key.split('/').next()?
                }
                AllocationPhase::Reserved { .. }
                | AllocationPhase::Allocated(
                    AllocationOwner::Process(_) | AllocationOwner::Claim(_),
                )
                | AllocationPhase::Draining => {
                    return None;
                }
            };
            let is_ours = !foreign::is_of_others(allocation);
            (is_ours && (allocation.is_whole || self.takes_all(allocation)))
                .then_some((allocation, pod))
        })
    }

    /// The reservations that hold cards for devices.
    fn holds(&self) -> impl Iterator<Item = (WholeCardId, &Allocation)> {
        let all = self.allocations.values();
        all.filter_map(|allocation| match allocation.state {
            AllocationPhase::Reserved { .. } => {
                Some((WholeCardId::of_hold(&allocation.key)?, allocation))
            }
            AllocationPhase::Allocated(_) | AllocationPhase::Draining => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_one_name() {
        assert_eq!("w-0001".parse(), Ok(WholeCardId(1)));
        for text in ["w-0", "w-1", "w-00001", "s-0001", "GPU-1", ""] {
            assert!(text.parse::<WholeCardId>().is_err(), "{text}");
        }
        assert_eq!(
            WholeCardId::of_hold(&WholeCardId(7).hold_key()),
            Some(WholeCardId(7))
        );
    }
}
