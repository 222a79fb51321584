//! Whole cards as the kubelet's devices: which are offered and handed out, and their CDI specs.

use std::sync::Arc;

use apportion_abi::{CardUuid, Share};
use apportion_ledger::{
    AllocationId, AllocationOwner, AllocationPhase, Ledger, WholeCardId, WholeCardRefusal,
    WholeCardUpdate,
};
use apportion_runtime_class::Grant;
use apportion_runtime_class::cdi::CdiSpecLabel;
use tonic::Status;

use super::{ContainerGrants, GrantSource};
use crate::agent::cards::CardInventory;
use crate::agent::clock::now;
use crate::delivery::{GrantDelivery, WholeCardDelivery};
use crate::kubelet::snapshot::KubeletSnapshot;
use crate::kubelet::whole_card_plugin::WholeCardOffers;

/// The devices of a container that is about to start, and the cards for them.
pub(in crate::agent) struct ContainerDevices<'a> {
    pub(in crate::agent) pod: &'a str,
    pub(in crate::agent) ids: Vec<WholeCardId>,
    pub(in crate::agent) cards: Vec<CardUuid>,
}

impl ContainerDevices<'_> {
    /// The allocation of the first card, and the grant of all; `None` if the pod has lost one of them.
    fn grant(&self, source: GrantSource<'_>) -> Option<(AllocationId, Grant)> {
        let ledger = source.ledger;
        let allocation = ledger.whole_with(self.pod, *self.cards.first()?)?.clone();
        let mut cards = Vec::new();
        for card in &self.cards {
            let id = ledger.whole_with(self.pod, *card)?;
            let limit = ledger.allocation(id)?.grant(*card)?.limit;
            cards.push(source.cards.granted(*card, limit));
        }
        if cards.len() != self.ids.len() {
            return None;
        }
        let folder = source.accounts.folder_of(&allocation);
        let grant = Grant {
            id: allocation.0.clone(),
            account: folder.display().to_string(),
            library: String::new(),
            share: Share::Whole,
            cards,
            is_elastic: false,
            driver_limit: None,
        };
        Some((allocation, grant))
    }
}

impl ContainerGrants {
    /// Handles the kubelet's `Allocate` for devices. Returns the cards to hold for them, or why there are none.
    pub(in crate::agent) fn hand(
        &mut self,
        ids: &[WholeCardId],
        ledger: &Ledger,
        cards: &CardInventory,
    ) -> Result<Result<Vec<(WholeCardId, CardUuid)>, WholeCardRefusal>, Status> {
        let unavailable = || Status::unavailable("whole GPUs are not served");
        let delivery = self.delivery.as_mut().ok_or_else(unavailable)?;
        let whole = delivery.whole.as_mut().ok_or_else(unavailable)?;
        let topology = cards.topology();
        Ok(whole
            .table
            .hand(now(), ledger, &delivery.slots, &topology, ids))
    }

    /// Writes the CDI specs of a container's devices. The first spec adds all cards; the others add no devices or
    /// mounts.
    pub(in crate::agent) fn describe(
        &mut self,
        devices: ContainerDevices<'_>,
        source: GrantSource<'_>,
    ) -> Result<(), Status> {
        let gone = || Status::internal("the pod's GPUs are no longer allocated to it");
        let (allocation, grant) = devices.grant(source).ok_or_else(gone)?;
        let delivery = self.delivery.as_mut().ok_or_else(gone)?;
        let labels: Vec<CdiSpecLabel> = devices
            .ids
            .iter()
            .map(|id| CdiSpecLabel {
                slot: id.to_string(),
                pod: devices.pod.to_owned(),
                allocation: allocation.0.clone(),
            })
            .collect();
        delivery.write_whole(&labels, &grant).map_err(|problem| {
            Status::internal(format!(
                "failed to write the grant of whole GPUs: {problem}"
            ))
        })?;
        if let Some(whole) = &mut delivery.whole {
            let described = devices.ids.into_iter().map(|id| (id, allocation.clone()));
            whole.written.extend(described);
        }
        Ok(())
    }

    /// Records the devices of a kubelet snapshot. Returns what the ledger has to do; `None` if no whole cards are
    /// served.
    pub(in crate::agent) fn whole_cards_polled(
        &mut self,
        kubelet: &KubeletSnapshot,
        ledger: &Ledger,
    ) -> Option<WholeCardUpdate> {
        let whole = self.delivery.as_mut()?.whole.as_mut()?;
        let pods = kubelet.whole.pods.iter();
        let held = pods.flat_map(|(pod, holder)| holder.ids.iter().map(|id| (*id, pod.clone())));
        let (held, contested) = (held.collect(), kubelet.whole.contested_ids());
        let is_complete = kubelet.is_complete;
        Some((whole.table).polled(now(), ledger, &held, &contested, is_complete))
    }

    /// Removes the CDI specs of an allocation that is gone.
    pub(in crate::agent) fn whole_gone(&mut self, id: &AllocationId) {
        let Some(delivery) = &mut self.delivery else {
            return;
        };
        let Some(whole) = &mut delivery.whole else {
            return;
        };
        let of_it = whole
            .written
            .extract_if(.., |_, allocation| allocation == id);
        let gone: Vec<WholeCardId> = of_it.map(|(device, _)| device).collect();
        for device in gone {
            delivery.remove(&device.to_string());
        }
    }

    /// Updates the devices that are listed to the kubelet.
    pub(in crate::agent) fn offer_wholes(&self, ledger: &Ledger, cards: &CardInventory) {
        let Some(delivery) = &self.delivery else {
            return;
        };
        let Some(whole) = &delivery.whole else {
            return;
        };
        let topology = cards.topology();
        let offers = WholeCardOffers {
            offers: whole.table.offers(ledger, &delivery.slots, &topology),
            topology,
        };
        whole.offers.send_if_modified(|known| {
            let is_other = **known != offers;
            if is_other {
                *known = Arc::new(offers);
            }
            is_other
        });
    }
}

/// Whether a CDI spec on disk belongs to a pod that still has its cards. If so, it is kept.
pub(super) fn finds(delivery: &mut GrantDelivery, label: &CdiSpecLabel, ledger: &Ledger) -> bool {
    let id = AllocationId(label.allocation.clone());
    let owner = AllocationPhase::Allocated(AllocationOwner::Pod(label.pod.clone()));
    let is_its = ledger.allocation(&id).is_some_and(|of| of.state == owner);
    let (Ok(device), Some(whole)) = (label.slot.parse(), &mut delivery.whole) else {
        return false;
    };
    let whole: &mut WholeCardDelivery = whole;
    if is_its {
        whole.written.insert(device, id);
    }
    is_its
}
