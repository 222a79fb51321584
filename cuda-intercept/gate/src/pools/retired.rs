//! How a pool ends: with its last allocation.
//!
//! The driver forgets the handle of a destroyed pool, but its allocations live until they are freed. Only then is the
//! pool's memory freed. Such a pool cannot be queried, so its last charge stays, and all of it is uncharged with the
//! last allocation. For that, every allocation from a pool is recorded by its address.
//!
//! If the last free is only queued in a stream, it is over when the stream gets there: see `deferred_frees`.
//!
//! A driver may give a new pool the handle of a destroyed one. So pools have numbers of our own here.

use crate::fallible_map::FallibleMap;

use super::{PoolEntry, PoolGrowth, PoolId, PoolSettlement, PoolTable};

/// A pool that the driver is asked to destroy.
#[derive(Clone, Copy, Debug)]
pub struct EndingPool {
    pool: u64,
    id: PoolId,
}

/// A pool allocation that was removed from the table.
#[derive(Clone, Copy, Debug)]
pub struct RemovedPooled {
    address: u64,
    home: PoolOrigin,
}

/// The pool that an allocation came from.
#[derive(Clone, Copy, Debug)]
struct PoolOrigin {
    pool: u64,
    id: PoolId,
}

#[derive(Debug)]
struct RetiredPool {
    pool: PoolEntry,
    /// Whether the driver has destroyed it.
    is_destroyed: bool,
}

/// What outlives the handles of pools.
#[derive(Debug, Default)]
pub(super) struct RetiredPools {
    /// Pools that are destroyed or being destroyed.
    ending: FallibleMap<PoolId, RetiredPool>,
    /// Live allocations by address.
    allocations: FallibleMap<u64, PoolOrigin>,
}

impl PoolTable {
    /// The allocation for which the pool grew was made at an address, or failed. Returns what to uncharge for a pool
    /// that was only waiting for it, or for an allocation at this address whose free was not seen.
    #[must_use]
    pub fn made(&mut self, growth: PoolGrowth, address: Option<u64>) -> PoolSettlement {
        let home = PoolOrigin {
            pool: growth.pool,
            id: growth.id,
        };
        let Some(address) = address else {
            return self.let_go(home);
        };
        let stale = self.take(address);
        self.ends.allocations.enter(address, home);
        stale.map_or(PoolSettlement::Even, |stale| self.freed(stale))
    }

    /// Removes an allocation, before the driver is asked to free it.
    pub fn take(&mut self, address: u64) -> Option<RemovedPooled> {
        let home = self.ends.allocations.remove(address)?;
        Some(RemovedPooled { address, home })
    }

    /// The driver did not free it.
    pub fn lives(&mut self, pooled: RemovedPooled) {
        self.ends.allocations.enter(pooled.address, pooled.home);
    }

    /// The driver freed it. Returns what to uncharge if its pool was only waiting for it.
    #[must_use]
    pub fn freed(&mut self, pooled: RemovedPooled) -> PoolSettlement {
        self.let_go(pooled.home)
    }

    /// The driver is about to be asked to destroy a pool.
    pub fn begin_destroy(&mut self, pool: u64) -> Option<EndingPool> {
        let entry = self.by_handle.remove(pool)?;
        let id = entry.id;
        let ending = RetiredPool {
            pool: entry,
            is_destroyed: false,
        };
        self.ends.ending.enter(id, ending);
        Some(EndingPool { pool, id })
    }

    /// The driver did not destroy it.
    pub fn survives(&mut self, doomed: EndingPool) {
        if let Some(ending) = self.ends.ending.remove(doomed.id) {
            self.by_handle.enter(doomed.pool, ending.pool);
        }
    }

    /// The driver destroyed it. Returns what to uncharge if no allocation from it is left.
    #[must_use]
    pub fn destroyed(&mut self, doomed: EndingPool) -> PoolSettlement {
        if let Some(ending) = self.ends.ending.get_mut(doomed.id) {
            ending.is_destroyed = true;
        }
        self.end(doomed.id)
    }

    /// The driver reports that there is no such pool. So its allocations are gone too.
    #[must_use]
    pub fn vanished(&mut self, pool: u64) -> PoolSettlement {
        let Some(gone) = self.by_handle.remove(pool) else {
            return PoolSettlement::Even;
        };
        self.ends.allocations.retain(|home| home.id != gone.id);
        gone.gone()
    }

    /// Counts one allocation less.
    fn let_go(&mut self, home: PoolOrigin) -> PoolSettlement {
        let named = self.by_handle.get_mut(home.pool);
        match named.filter(|pool| pool.id == home.id) {
            Some(pool) => {
                pool.live = pool.live.saturating_sub(1);
                PoolSettlement::Even
            }
            None => {
                if let Some(ending) = self.ends.ending.get_mut(home.id) {
                    ending.pool.live = ending.pool.live.saturating_sub(1);
                }
                self.end(home.id)
            }
        }
    }

    /// Removes a pool that has ended.
    fn end(&mut self, id: PoolId) -> PoolSettlement {
        let ending = self.ends.ending.get(id);
        let is_over = ending.is_some_and(|ending| ending.is_destroyed && ending.pool.live == 0);
        let over = is_over.then(|| self.ends.ending.remove(id)).flatten();
        over.map_or(PoolSettlement::Even, |over| over.pool.gone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROWN: u64 = 32 << 20;
    const ALL: PoolSettlement = PoolSettlement::GiveBack(0, GROWN);

    /// A pool with the handle 1 that has grown for two allocations, at 100 and at 200.
    fn pools() -> PoolTable {
        let mut pools = PoolTable::default();
        pools.enter(1, Some(0));
        grow(&mut pools, 100);
        grow(&mut pools, 200);
        pools
    }

    fn grow(pools: &mut PoolTable, address: u64) {
        let growth = pools.begin(1, GROWN);
        let epoch = pools.begin_settling(1).unwrap();
        let _ = pools.settle(1, epoch, GROWN, growth);
        pools.end_settling(1);
        assert_eq!(
            pools.made(growth.unwrap(), Some(address)),
            PoolSettlement::Even
        );
    }

    fn free(pools: &mut PoolTable, address: u64) -> PoolSettlement {
        let taken = pools.take(address).unwrap();
        pools.freed(taken)
    }

    #[test]
    fn a_destroyed_pool_is_given_back_with_its_last_allocation() {
        let mut pools = pools();
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(pools.destroyed(doomed), PoolSettlement::Even);
        assert_eq!(free(&mut pools, 200), PoolSettlement::Even);
        assert_eq!(free(&mut pools, 100), ALL);
        assert!(pools.take(100).is_none());
    }

    #[test]
    fn an_empty_pool_is_given_back_when_it_is_destroyed() {
        let mut pools = pools();
        assert_eq!(free(&mut pools, 200), PoolSettlement::Even);
        assert_eq!(free(&mut pools, 100), PoolSettlement::Even);
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(pools.destroyed(doomed), ALL);
    }

    #[test]
    fn a_last_free_while_the_pool_is_being_destroyed_gives_back_once() {
        let mut pools = pools();
        assert_eq!(free(&mut pools, 200), PoolSettlement::Even);
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(free(&mut pools, 100), PoolSettlement::Even);
        assert_eq!(pools.destroyed(doomed), ALL);
    }

    #[test]
    fn a_pool_that_survives_is_as_it_was() {
        let mut pools = pools();
        let doomed = pools.begin_destroy(1).unwrap();
        pools.survives(doomed);
        assert_eq!(pools.charged_on(0), GROWN);
        assert_eq!(free(&mut pools, 100), PoolSettlement::Even);
    }

    #[test]
    fn an_allocation_that_lives_on_after_a_refused_free_keeps_its_pool() {
        let mut pools = pools();
        assert_eq!(free(&mut pools, 200), PoolSettlement::Even);
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(pools.destroyed(doomed), PoolSettlement::Even);
        let taken = pools.take(100).unwrap();
        pools.lives(taken);
        assert_eq!(free(&mut pools, 100), ALL);
    }

    #[test]
    fn a_growth_under_way_keeps_a_pool_that_is_destroyed_meanwhile() {
        let mut pools = PoolTable::default();
        pools.enter(1, Some(0));
        let growth = pools.begin(1, GROWN).unwrap();
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(pools.destroyed(doomed), PoolSettlement::Even);
        assert_eq!(pools.made(growth, Some(100)), PoolSettlement::Even);
        assert_eq!(free(&mut pools, 100), ALL);
    }

    #[test]
    fn a_new_pool_with_the_handle_of_a_destroyed_one_is_another() {
        let mut pools = pools();
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(pools.destroyed(doomed), PoolSettlement::Even);
        pools.enter(1, Some(0));
        grow(&mut pools, 300);
        assert_eq!(free(&mut pools, 300), PoolSettlement::Even);
        assert_eq!(free(&mut pools, 100), PoolSettlement::Even);
        assert_eq!(free(&mut pools, 200), ALL);
        assert_eq!(pools.charged_on(0), GROWN);
    }

    #[test]
    fn an_address_that_comes_again_was_freed_unseen() {
        let mut pools = pools();
        assert_eq!(free(&mut pools, 200), PoolSettlement::Even);
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(pools.destroyed(doomed), PoolSettlement::Even);
        pools.enter(1, Some(0));
        let growth = pools.begin(1, GROWN).unwrap();
        assert_eq!(pools.made(growth, Some(100)), ALL);
    }

    #[test]
    fn what_was_in_a_pool_that_vanished_is_no_ones() {
        let mut pools = pools();
        assert_eq!(pools.vanished(1), ALL);
        assert!(pools.take(100).is_none());
        assert_eq!(pools.vanished(1), PoolSettlement::Even);
    }
}
