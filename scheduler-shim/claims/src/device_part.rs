//! Which part of a device a claim has: what queues are charged for.
//!
//! A device that one claim has for itself counts as one. A share counts as the part that it consumes of the device:
//! of the capacity of which it consumes the largest part.

use std::collections::BTreeMap;

use crate::amount::CapacityMap;
use crate::capacity::{self, CapacityAnswer};
use crate::inventory::{DeviceInventory, KnownSlice};
use crate::objects::{
    AllocatedDevice, AllocationMode, Device, DeviceClass, DeviceRequest, DeviceSelector,
    RequestTerms, ResourceClaim,
};

impl DeviceInventory {
    /// How many devices a claim counts for, of the classes that `counts` names.
    ///
    /// With an allocation, its devices are counted. Before, the first alternative of each request is: a share as a
    /// part of the smallest device that could hold it, and a request for all devices as one, as in KAI. Devices that
    /// a claim only looks after (`adminAccess`) do not count.
    #[must_use]
    pub fn charge(&self, claim: &ResourceClaim, counts: impl Fn(&str) -> bool) -> f64 {
        let requests = &claim.spec.devices.requests;
        if let Some(allocation) = &claim.status.allocation {
            let results = allocation.devices.results.iter();
            let own = results.filter(|result| {
                let terms = terms_of(requests, &result.request);
                result.admin_access != Some(true)
                    && terms.is_some_and(|terms| counts(&terms.device_class_name))
            });
            return own.map(|result| self.part_given(result)).sum();
        }
        let first = requests.iter().filter_map(|request| {
            request
                .exactly
                .as_ref()
                .or_else(|| request.first_available.first())
        });
        let counted = first.filter(|terms| !terms.admin_access && counts(&terms.device_class_name));
        let parts = counted.map(|terms| {
            let count = match terms.allocation_mode {
                AllocationMode::ExactCount => terms.count.unwrap_or(1).max(0),
                AllocationMode::All => 1,
                AllocationMode::Unknown(_) => 0,
            };
            count as f64 * self.part_asked(terms)
        });
        parts.sum()
    }

    /// How many devices of each node belong to a class that `counts` names.
    #[must_use]
    pub fn devices_of_nodes(&self, counts: impl Fn(&str) -> bool) -> BTreeMap<&str, usize> {
        let classes: Vec<&DeviceClass> = self
            .classes()
            .filter(|class| counts(&class.metadata.name))
            .collect();
        let mut found = BTreeMap::new();
        for known in self.slices() {
            let Some(node) = known.slice.spec.node_name.as_deref() else {
                continue;
            };
            let devices = 0..known.slice.spec.devices.len();
            let counted = devices.filter(|&device| {
                let mut classes = classes.iter();
                classes.any(|class| self.is_selected(&class.spec.selectors, known, device))
            });
            *found.entry(node).or_default() += counted.count();
        }
        found
    }

    fn part_given(&self, result: &AllocatedDevice) -> f64 {
        let slices = self.of_pool(crate::inventory::PoolName {
            driver: &result.driver,
            pool: &result.pool,
        });
        let mut devices = slices.flat_map(|known| &known.slice.spec.devices);
        let device = devices.find(|device| device.name == result.device);
        match device {
            Some(device) if result.share_id.is_some() => part(device, &result.consumed_capacity),
            Some(_) | None => 1.0,
        }
    }

    fn part_asked(&self, terms: &RequestTerms) -> f64 {
        let Some(class) = self.class(&terms.device_class_name) else {
            return 1.0;
        };
        let mut largest = None;
        for known in self.slices() {
            for (place, device) in known.slice.spec.devices.iter().enumerate() {
                let selects = |all: &[DeviceSelector]| self.is_selected(all, known, place);
                if !selects(&class.spec.selectors) || !selects(&terms.selectors) {
                    continue;
                }
                if !device.allow_multiple_allocations {
                    return 1.0;
                }
                let answer = capacity::check(device, terms.capacity.as_ref(), None, None);
                if let Ok(CapacityAnswer::Enough(consumed)) = answer {
                    let part = part(device, &consumed);
                    largest = Some(part.max(largest.unwrap_or(part)));
                }
            }
        }
        largest.unwrap_or(1.0)
    }

    /// Whether conditions hold for a device. One that cannot be evaluated does not.
    fn is_selected(&self, selectors: &[DeviceSelector], known: &KnownSlice, device: usize) -> bool {
        selectors.iter().all(|selector| {
            let cel = selector.cel.as_ref();
            cel.is_some_and(|cel| self.value(&cel.expression, known, device) == Ok(true))
        })
    }
}

/// The terms of a request by its name in an allocation, which has `/` and the alternative if there was one.
fn terms_of<'a>(requests: &'a [DeviceRequest], name: &str) -> Option<&'a RequestTerms> {
    let (request, alternative) = match name.split_once('/') {
        Some((request, alternative)) => (request, Some(alternative)),
        None => (name, None),
    };
    let found = requests.iter().find(|one| one.name == request)?;
    match alternative {
        None => found.exactly.as_ref(),
        Some(name) => found.first_available.iter().find(|one| one.name == name),
    }
}

/// The largest part that is consumed of any capacity; one if the device has none.
fn part(device: &Device, consumed: &CapacityMap) -> f64 {
    let parts = consumed.iter().filter_map(|(name, amount)| {
        let has = device.capacity.get(name)?.value.0.billionths();
        (has > 0).then(|| amount.0.billionths() as f64 / has as f64)
    });
    let largest = parts.fold(None, |largest: Option<f64>, part| {
        Some(largest.map_or(part, |largest| largest.max(part)))
    });
    largest.unwrap_or(1.0)
}
