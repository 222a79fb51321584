//! How a pool ends: with its last allocation.
//!
//! The driver forgets the name of a pool that is destroyed and lets the allocations from it live until they
//! are freed; only then is its memory taken back. Nobody can ask what such a pool reserves, so it stays
//! charged for what it was, and all of that is given back with the last allocation. For that every
//! allocation from a pool is entered by its address.
//!
//! A last free that is only asked for, in the order of a stream, is over when the stream gets there: see
//! `late`.
//!
//! A driver may give a new pool the handle of one that is destroyed, so here pools go by numbers of our
//! own.

use crate::map::Map;

use super::{Growth, Pool, PoolId, Pools, Settled};

/// A pool that the driver is asked to destroy.
#[derive(Clone, Copy, Debug)]
pub struct Doomed {
    pool: u64,
    id: PoolId,
}

/// An allocation from a pool that was taken out of the books.
#[derive(Clone, Copy, Debug)]
pub struct Pooled {
    address: u64,
    home: Home,
}

/// Where an allocation came from.
#[derive(Clone, Copy, Debug)]
struct Home {
    pool: u64,
    id: PoolId,
}

#[derive(Debug)]
struct Ending {
    pool: Pool,
    /// Whether the driver has done it.
    is_destroyed: bool,
}

/// What outlives the names of pools.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// Pools that are destroyed or being destroyed.
    ending: Map<PoolId, Ending>,
    /// Live allocations by address.
    allocations: Map<u64, Home>,
}

impl Pools {
    /// The allocation that a growth was for has been made, at an address; or not. Says what is to be given
    /// back for a pool that was only waiting for it, or for what was freed unseen at this address before.
    #[must_use]
    pub fn made(&mut self, growth: Growth, address: Option<u64>) -> Settled {
        let home = Home {
            pool: growth.pool,
            id: growth.id,
        };
        let Some(address) = address else {
            return self.let_go(home);
        };
        let stale = self.take(address);
        self.ends.allocations.enter(address, home);
        stale.map_or(Settled::Even, |stale| self.freed(stale))
    }

    /// Takes an allocation out, before the driver is asked to free it.
    pub fn take(&mut self, address: u64) -> Option<Pooled> {
        let home = self.ends.allocations.remove(address)?;
        Some(Pooled { address, home })
    }

    /// The driver did not free it.
    pub fn lives(&mut self, pooled: Pooled) {
        self.ends.allocations.enter(pooled.address, pooled.home);
    }

    /// The driver freed it: says what is to be given back if its pool was only waiting for it.
    #[must_use]
    pub fn freed(&mut self, pooled: Pooled) -> Settled {
        self.let_go(pooled.home)
    }

    /// Notes that the driver is about to be asked to destroy a pool.
    pub fn begin_destroy(&mut self, pool: u64) -> Option<Doomed> {
        let entry = self.by_handle.remove(pool)?;
        let id = entry.id;
        let ending = Ending {
            pool: entry,
            is_destroyed: false,
        };
        self.ends.ending.enter(id, ending);
        Some(Doomed { pool, id })
    }

    /// The driver did not destroy it.
    pub fn survives(&mut self, doomed: Doomed) {
        if let Some(ending) = self.ends.ending.remove(doomed.id) {
            self.by_handle.enter(doomed.pool, ending.pool);
        }
    }

    /// The driver destroyed it: says what is to be given back if no allocation from it lives.
    #[must_use]
    pub fn destroyed(&mut self, doomed: Doomed) -> Settled {
        if let Some(ending) = self.ends.ending.get_mut(doomed.id) {
            ending.is_destroyed = true;
        }
        self.end(doomed.id)
    }

    /// The driver says that there is no such pool, nor then what was allocated from it.
    #[must_use]
    pub fn vanished(&mut self, pool: u64) -> Settled {
        let Some(gone) = self.by_handle.remove(pool) else {
            return Settled::Even;
        };
        self.ends.allocations.retain(|home| home.id != gone.id);
        gone.gone()
    }

    /// One allocation less.
    fn let_go(&mut self, home: Home) -> Settled {
        let named = self.by_handle.get_mut(home.pool);
        match named.filter(|pool| pool.id == home.id) {
            Some(pool) => {
                pool.live = pool.live.saturating_sub(1);
                Settled::Even
            }
            None => {
                if let Some(ending) = self.ends.ending.get_mut(home.id) {
                    ending.pool.live = ending.pool.live.saturating_sub(1);
                }
                self.end(home.id)
            }
        }
    }

    /// Takes a pool out that is over.
    fn end(&mut self, id: PoolId) -> Settled {
        let ending = self.ends.ending.get(id);
        let is_over = ending.is_some_and(|ending| ending.is_destroyed && ending.pool.live == 0);
        let over = is_over.then(|| self.ends.ending.remove(id)).flatten();
        over.map_or(Settled::Even, |over| over.pool.gone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROWN: u64 = 32 << 20;
    const ALL: Settled = Settled::GiveBack(0, GROWN);

    /// A pool with the handle 1 that has grown for two allocations, at 100 and at 200.
    fn pools() -> Pools {
        let mut pools = Pools::default();
        pools.enter(1, Some(0));
        grow(&mut pools, 100);
        grow(&mut pools, 200);
        pools
    }

    fn grow(pools: &mut Pools, address: u64) {
        let growth = pools.begin(1, GROWN);
        let epoch = pools.look(1).unwrap();
        let _ = pools.settle(1, epoch, GROWN, growth);
        pools.looked(1);
        assert_eq!(pools.made(growth.unwrap(), Some(address)), Settled::Even);
    }

    fn free(pools: &mut Pools, address: u64) -> Settled {
        let taken = pools.take(address).unwrap();
        pools.freed(taken)
    }

    #[test]
    fn a_destroyed_pool_is_given_back_with_its_last_allocation() {
        let mut pools = pools();
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(pools.destroyed(doomed), Settled::Even);
        assert_eq!(free(&mut pools, 200), Settled::Even);
        assert_eq!(free(&mut pools, 100), ALL);
        assert!(pools.take(100).is_none());
    }

    #[test]
    fn an_empty_pool_is_given_back_when_it_is_destroyed() {
        let mut pools = pools();
        assert_eq!(free(&mut pools, 200), Settled::Even);
        assert_eq!(free(&mut pools, 100), Settled::Even);
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(pools.destroyed(doomed), ALL);
    }

    #[test]
    fn a_last_free_while_the_pool_is_being_destroyed_gives_back_once() {
        let mut pools = pools();
        assert_eq!(free(&mut pools, 200), Settled::Even);
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(free(&mut pools, 100), Settled::Even);
        assert_eq!(pools.destroyed(doomed), ALL);
    }

    #[test]
    fn a_pool_that_survives_is_as_it_was() {
        let mut pools = pools();
        let doomed = pools.begin_destroy(1).unwrap();
        pools.survives(doomed);
        assert_eq!(pools.charged_on(0), GROWN);
        assert_eq!(free(&mut pools, 100), Settled::Even);
    }

    #[test]
    fn an_allocation_that_lives_on_after_a_refused_free_keeps_its_pool() {
        let mut pools = pools();
        assert_eq!(free(&mut pools, 200), Settled::Even);
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(pools.destroyed(doomed), Settled::Even);
        let taken = pools.take(100).unwrap();
        pools.lives(taken);
        assert_eq!(free(&mut pools, 100), ALL);
    }

    #[test]
    fn a_growth_under_way_keeps_a_pool_that_is_destroyed_meanwhile() {
        let mut pools = Pools::default();
        pools.enter(1, Some(0));
        let growth = pools.begin(1, GROWN).unwrap();
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(pools.destroyed(doomed), Settled::Even);
        assert_eq!(pools.made(growth, Some(100)), Settled::Even);
        assert_eq!(free(&mut pools, 100), ALL);
    }

    #[test]
    fn a_new_pool_with_the_handle_of_a_destroyed_one_is_another() {
        let mut pools = pools();
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(pools.destroyed(doomed), Settled::Even);
        pools.enter(1, Some(0));
        grow(&mut pools, 300);
        assert_eq!(free(&mut pools, 300), Settled::Even);
        assert_eq!(free(&mut pools, 100), Settled::Even);
        assert_eq!(free(&mut pools, 200), ALL);
        assert_eq!(pools.charged_on(0), GROWN);
    }

    #[test]
    fn an_address_that_comes_again_was_freed_unseen() {
        let mut pools = pools();
        assert_eq!(free(&mut pools, 200), Settled::Even);
        let doomed = pools.begin_destroy(1).unwrap();
        assert_eq!(pools.destroyed(doomed), Settled::Even);
        pools.enter(1, Some(0));
        let growth = pools.begin(1, GROWN).unwrap();
        assert_eq!(pools.made(growth, Some(100)), ALL);
    }

    #[test]
    fn what_was_in_a_pool_that_vanished_is_no_ones() {
        let mut pools = pools();
        assert_eq!(pools.vanished(1), ALL);
        assert!(pools.take(100).is_none());
        assert_eq!(pools.vanished(1), Settled::Even);
    }
}
