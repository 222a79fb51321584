//! The CDI specs of resource claims, and what is offered to claims.

use std::sync::Arc;

use apportion_abi::Share;
use apportion_ledger::{AllocationId, Ledger};
use apportion_runtime_class::cdi::CdiSpecLabel;
use tonic::Status;

use super::{ContainerGrants, GrantSource};
use crate::agent::cards::CardInventory;
use crate::claims::device_offers::{DeviceOffer, DeviceOffers};
use crate::delivery::GrantDelivery;

/// The name of a claim's CDI device.
fn device_of(uid: &str) -> String {
    format!("c-{uid}")
}

impl ContainerGrants {
    /// Refuses claims where they cannot be delivered.
    pub(in crate::agent) fn can_serve_claims(&self) -> Result<(), Status> {
        let delivery = self.delivery.as_ref();
        let delivery = delivery.filter(|delivery| delivery.claims.is_some());
        match delivery {
            None => Err(Status::unavailable("resource claims are not served")),
            Some(delivery) if !delivery.has_cdi() => Err(Status::failed_precondition(
                "the container runtime reads no CDI specs, which resource claims need",
            )),
            Some(_) => Ok(()),
        }
    }

    /// Writes the CDI spec of a claim's grant. Returns its device name.
    pub(in crate::agent) fn write_claim(
        &mut self,
        id: &AllocationId,
        source: GrantSource<'_>,
    ) -> Result<String, Status> {
        let gone = || Status::internal(format!("allocation {id} no longer exists"));
        let allocation = source.ledger.allocation(id).ok_or_else(gone)?;
        let claim = allocation.claim().ok_or_else(gone)?;
        if !allocation.is_whole {
            self.check(
                id,
                &format!("ResourceClaim {}", claim.name),
                source.accounts,
            )?;
        }
        let delivery = self.delivery.as_mut().ok_or_else(gone)?;
        let device = device_of(&claim.uid);
        let label = CdiSpecLabel {
            slot: device.clone(),
            pod: claim.uid.clone(),
            allocation: id.0.clone(),
        };
        let mut grant = source.grant(allocation, delivery.library());
        let written = if allocation.is_whole {
            grant.library.clear();
            grant.share = Share::Whole;
            delivery.write_whole(&[label], &grant)
        } else {
            delivery.write(&label, &grant)
        };
        written.map_err(|problem| {
            let name = &claim.name;
            Status::internal(format!(
                "failed to write the grant of ResourceClaim {name}: {problem}"
            ))
        })?;
        if let Some(claims) = &mut delivery.claims {
            claims.written.insert(device.clone(), id.clone());
        }
        Ok(device)
    }

    /// Removes the CDI spec of a claim whose allocation is gone.
    pub(in crate::agent) fn claim_gone(&mut self, id: &AllocationId) {
        let Some(delivery) = &mut self.delivery else {
            return;
        };
        let Some(claims) = &mut delivery.claims else {
            return;
        };
        let of_it = claims
            .written
            .extract_if(.., |_, allocation| allocation == id);
        let gone: Vec<String> = of_it.map(|(device, _)| device).collect();
        for device in gone {
            delivery.remove(&device);
        }
    }

    /// Updates what is offered to claims.
    pub(in crate::agent) fn offer_claims(&self, ledger: &Ledger, cards: &CardInventory) {
        let delivery = self.delivery.as_ref();
        let Some(claims) = delivery.and_then(|delivery| delivery.claims.as_ref()) else {
            return;
        };
        let topology = cards.topology();
        let offers = ledger.claim_offers().into_iter();
        let devices = offers.filter_map(|offer| {
            let found = cards.find(offer.card)?;
            Some(DeviceOffer {
                offer,
                index: found.index,
                minor: found.minor,
                model: found.model.clone(),
                numa: topology.numa(offer.card),
                identity: found.identity.clone(),
            })
        });
        let (driver_version, cuda_version) = cards.versions();
        let offers = DeviceOffers {
            devices: devices.collect(),
            has_other_owner: self.rival.is_some(),
            driver_version: driver_version.to_owned(),
            cuda_version,
        };
        claims.offers.send_if_modified(|known| {
            let is_other = **known != offers;
            if is_other {
                *known = Arc::new(offers);
            }
            is_other
        });
    }
}

/// Whether a CDI spec on disk belongs to a claim that still has its allocation. If so, it is kept.
pub(super) fn finds(delivery: &mut GrantDelivery, label: &CdiSpecLabel, ledger: &Ledger) -> bool {
    let id = AllocationId(label.allocation.clone());
    let claim = ledger.allocation(&id).and_then(|of| of.claim());
    let is_its =
        claim.is_some_and(|claim| claim.uid == label.pod && device_of(&claim.uid) == label.slot);
    match &mut delivery.claims {
        Some(claims) if is_its => {
            claims.written.insert(label.slot.clone(), id);
            true
        }
        _ => false,
    }
}
