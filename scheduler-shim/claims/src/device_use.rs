//! Which devices claims have, and how much of those that several claims share.

use std::collections::HashMap;

use apportion_kubernetes::Quantity;

use crate::objects::{AllocatedDevice, AllocationResult};

/// What claims have of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceUse {
    /// Claims that have it for themselves.
    pub(crate) owners: usize,
    /// Claims that have a share of it.
    pub(crate) shares: usize,
    /// What the shares consume, by capacity.
    pub(crate) consumed: HashMap<String, Quantity>,
}

impl DeviceUse {
    /// Whether anybody has it or a part of it.
    pub(crate) fn is_used(&self) -> bool {
        self.owners > 0 || self.shares > 0
    }

    /// How much of a capacity is consumed.
    pub(crate) fn consumed(&self, capacity: &str) -> Quantity {
        self.consumed.get(capacity).copied().unwrap_or_default()
    }
}

/// The devices of one pool, by name.
type PoolUse = HashMap<String, DeviceUse>;

/// What claims have of all devices: by driver, pool and device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    used: HashMap<String, HashMap<String, PoolUse>>,
}

impl DeviceUsage {
    /// Counts the devices and counters of an allocation as used.
    pub fn add(&mut self, allocation: &AllocationResult) {
        for result in own(allocation) {
            let pools = self.used.entry(result.driver.clone()).or_default();
            let devices = pools.entry(result.pool.clone()).or_default();
            let used = devices.entry(result.device.clone()).or_default();
            if result.share_id.is_none() {
                used.owners += 1;
                continue;
            }
            used.shares += 1;
            for (name, amount) in &result.consumed_capacity {
                let consumed = used.consumed.entry(name.clone()).or_default();
                *consumed += amount.0;
            }
        }
    }

    /// Takes an allocation back that was counted.
    pub fn remove(&mut self, allocation: &AllocationResult) {
        for result in own(allocation) {
            let Some(pools) = self.used.get_mut(&result.driver) else {
                continue;
            };
            let Some(devices) = pools.get_mut(&result.pool) else {
                continue;
            };
            let Some(used) = devices.get_mut(&result.device) else {
                continue;
            };
            if result.share_id.is_none() {
                used.owners = used.owners.saturating_sub(1);
            } else {
                used.shares = used.shares.saturating_sub(1);
                for (name, amount) in &result.consumed_capacity {
                    if let Some(consumed) = used.consumed.get_mut(name) {
                        *consumed = *consumed - amount.0;
                    }
                }
                used.consumed.retain(|_, consumed| !consumed.is_zero());
            }
            if !used.is_used() {
                devices.remove(&result.device);
            }
            if devices.is_empty() {
                pools.remove(&result.pool);
            }
            if pools.is_empty() {
                self.used.remove(&result.driver);
            }
        }
    }

    /// What claims have of a device.
    pub(crate) fn of(&self, driver: &str, pool: &str, device: &str) -> Option<&DeviceUse> {
        self.used.get(driver)?.get(pool)?.get(device)
    }
}

/// The devices that an allocation takes from others: not those that it only looks after.
fn own(allocation: &AllocationResult) -> impl Iterator<Item = &AllocatedDevice> {
    let results = allocation.devices.results.iter();
    results.filter(|result| result.admin_access != Some(true))
}
