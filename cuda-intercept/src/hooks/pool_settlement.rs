//! Settles the charges of memory pools: what a pool reserves is what it is charged for.
//!
//! The driver grows and trims pools by itself. So the hooks ask it how much a pool reserves: after an allocation, at
//! every synchronisation, and before a charge is refused.

use apportion_gate::{Card, PoolGrowth, device_of_graphs};

use crate::driver::{self, PoolReading};
use crate::process::{self, ProcessState};

use super::{deferred_free, exported_descriptors};

/// Reads how much a pool reserves and settles its charge. `ended` is a growth step that is over.
pub(super) fn settle(process: &ProcessState, pool: u64, ended: Option<PoolGrowth>) {
    let Some(epoch) = process.allocations.lock().pools.begin_settling(pool) else {
        return;
    };
    let read = driver::pool_reserved(pool);
    let settled = {
        let mut allocations = process.allocations.lock();
        allocations.pools.end_settling(pool);
        match read {
            PoolReading::Reserves(reserved) => {
                allocations.pools.settle(pool, epoch, reserved, ended)
            }
            // Assume that the pool has grown by as much as it could.
            PoolReading::Unknown => allocations
                .pools
                .settle(pool, epoch.wrapping_sub(1), 0, ended),
            PoolReading::NoPool => allocations.pools.vanished(pool),
        }
    };
    process.settle(settled);
}

/// Calls `act` for every pool that has a charge.
fn each_charged(process: &ProcessState, act: impl Fn(u64)) {
    let mut last = None;
    loop {
        let next = process.allocations.lock().pools.charged_after(last);
        let Some(pool) = next else { return };
        act(pool);
        last = Some(pool);
    }
}

/// Settles all pools of this process.
pub(super) fn settle_all() {
    if let Some(process) = process::current() {
        deferred_free::uncharge_freed(process, None);
        exported_descriptors::uncharge_closed(process);
        each_charged(process, |pool| settle(process, pool, None));
    }
}

/// Trims the pools on a card. True if anything was given back.
pub(super) fn trim_all(process: &ProcessState, card: Card) -> bool {
    let has_uncharged = deferred_free::uncharge_freed(process, Some(card))
        | exported_descriptors::uncharge_closed(process);
    let before = process.allocations.lock().pools.charged_on(card);
    each_charged(process, |pool| {
        let is_here = process.allocations.lock().pools.card(pool) == Some(Some(card));
        if is_here
            && process
                .allocations
                .lock()
                .pools
                .begin_settling(pool)
                .is_some()
        {
            driver::trim(pool);
            let mut allocations = process.allocations.lock();
            allocations.pools.end_settling(pool);
            if let Some(device) = device_of_graphs(pool) {
                allocations.graphs.trimmed(device);
            }
            drop(allocations);
            settle(process, pool, None);
        }
    });
    has_uncharged || process.allocations.lock().pools.charged_on(card) < before
}
