//! Counters that devices of a pool share, such as the slices of a card that partitions consume (KEP-4815).

use std::collections::BTreeMap;

use apportion_kubernetes::Quantity;

use crate::device_use::DeviceUsage;
use crate::objects::Device;
use crate::pool::DevicePool;

/// Amounts by the set and the name of a counter.
type CounterAmounts<'a> = BTreeMap<(&'a str, &'a str), Quantity>;

/// The counters of a pool: what is left, and what is being given.
#[derive(Debug)]
pub(crate) struct CounterState<'a> {
    left: CounterAmounts<'a>,
    giving: CounterAmounts<'a>,
}

impl<'a> CounterState<'a> {
    /// What the allocated devices leave.
    pub(crate) fn new(pool: &DevicePool<'a>, usage: &DeviceUsage) -> Self {
        let sets = pool.counters.iter();
        let mut left: CounterAmounts<'a> = sets
            .flat_map(|(set, counters)| {
                let counters = counters.counters.iter();
                counters.map(move |(name, counter)| ((*set, name.as_str()), counter.value.0))
            })
            .collect();
        let slices = pool.slices.iter().chain(&pool.elsewhere);
        for device in slices.flat_map(|known| &known.slice.spec.devices) {
            let used = usage.of(pool.name.driver, pool.name.pool, &device.name);
            if !used.is_some_and(super::device_use::DeviceUse::is_used) {
                continue;
            }
            for (counter, amount) in consumption(device) {
                if let Some(left) = left.get_mut(&counter) {
                    // It may fall below zero, which counts as nothing.
                    *left = *left - amount;
                }
            }
        }
        Self {
            left,
            giving: BTreeMap::new(),
        }
    }

    /// Gives a device what it consumes, if no counter is exceeded.
    pub(crate) fn add(&mut self, device: &'a Device) -> bool {
        for (counter, amount) in consumption(device) {
            let giving = self.giving.entry(counter).or_default();
            *giving += amount;
        }
        let mut left = self.left.iter();
        let is_enough = left.all(|(counter, left)| {
            let giving = self.giving.get(counter).copied().unwrap_or_default();
            giving <= *left
        });
        if !is_enough {
            self.remove(device);
        }
        is_enough
    }

    /// Takes back what a device was given.
    pub(crate) fn remove(&mut self, device: &'a Device) {
        for (counter, amount) in consumption(device) {
            if let Some(giving) = self.giving.get_mut(&counter) {
                *giving = *giving - amount;
            }
        }
    }
}

fn consumption(device: &Device) -> impl Iterator<Item = ((&str, &str), Quantity)> {
    let sets = device.consumes_counters.iter();
    sets.flat_map(|set| {
        let counters = set.counters.iter();
        counters.map(|(name, counter)| ((set.counter_set.as_str(), name.as_str()), counter.value.0))
    })
}
