//! Stream-ordered pools: counted by what they reserve, not by what is allocated from them.
//!
//! A freed block stays in its pool until the driver trims it, so only the driver knows what a pool costs. An
//! allocation first charges the most by which the pool can grow ([`worst_growth`]), and calls the driver. Then it
//! reads what the pool reserves and *settles*: it charges or uncharges the difference.
//!
//! Several threads can do this at once. Each growth that is under way stays charged until it is over. A reading is
//! accepted as it is only if no growth began or ended on the pool meanwhile; otherwise it may only raise the charge.
//!
//! A thread queries all pools of the process, including one that another thread is about to destroy, and the driver
//! need not survive a query for a destroyed pool. So a thread that queries registers first ([`PoolTable::begin_settling`]), and
//! a thread that destroys waits for the queries. `retired` describes how a pool ends.

use core::cmp::Ordering;

use crate::Card;
use crate::fallible_map::FallibleMap;

mod retired;

pub use retired::{EndingPool, RemovedPooled};

/// The unit in which a pool grows.
pub const GROWTH: u64 = 32 << 20;

/// The most by which a pool can grow for one request.
#[must_use]
pub const fn worst_growth(bytes: u64) -> u64 {
    match bytes.checked_next_multiple_of(GROWTH) {
        Some(whole) => whole,
        None => u64::MAX,
    }
}

/// The effect of a settlement on the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolSettlement {
    /// The reserved memory is what was charged.
    Even,
    /// This many bytes are to be uncharged.
    GiveBack(Card, u64),
    /// This many bytes were taken without a charge.
    Take(Card, u64),
}

/// The number of a pool. It is never reused, unlike the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PoolId(u64);

/// A growth that is under way.
#[derive(Clone, Copy, Debug)]
pub struct PoolGrowth {
    pool: u64,
    id: PoolId,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct PoolEntry {
    id: PoolId,
    /// `None` if nothing is charged for the pool: its memory is on the host, or on a card that is not in the account.
    card: Option<Card>,
    /// The charge for what the pool reserves.
    charged: u64,
    /// The charge for growth that is under way.
    growing: u64,
    /// Counts beginnings and ends of growth, to detect a stale reading.
    epoch: u64,
    /// How many threads are querying the driver about the pool.
    lookers: u32,
    /// How many allocations from the pool exist or are being made.
    live: u64,
}

/// The pools of a process.
#[derive(Debug, Default)]
pub struct PoolTable {
    by_handle: FallibleMap<u64, PoolEntry>,
    ends: retired::RetiredPools,
    last: u64,
}

impl PoolTable {
    /// Records a pool, if it is new.
    pub fn enter(&mut self, pool: u64, card: Option<Card>) {
        if self.by_handle.get(pool).is_none() {
            self.last = self.last.wrapping_add(1);
            let empty = PoolEntry {
                id: PoolId(self.last),
                card,
                charged: 0,
                growing: 0,
                epoch: 0,
                lookers: 0,
                live: 0,
            };
            self.by_handle.enter(pool, empty);
        }
    }

    /// The card that a pool is charged to; `None` if the pool is unknown.
    #[must_use]
    pub fn card(&self, pool: u64) -> Option<Option<Card>> {
        self.by_handle.get(pool).map(|pool| pool.card)
    }

    /// A growth begins, for an allocation that is about to be requested; it has been charged. Ends with
    /// [`PoolTable::settle`] and then [`PoolTable::made`].
    pub fn begin(&mut self, pool: u64, bytes: u64) -> Option<PoolGrowth> {
        let entry = self.by_handle.get_mut(pool)?;
        entry.growing = entry.growing.saturating_add(bytes);
        entry.epoch = entry.epoch.wrapping_add(1);
        entry.live = entry.live.saturating_add(1);
        let id = entry.id;
        Some(PoolGrowth { pool, id, bytes })
    }

    /// The driver is about to be queried about a pool. Returns what to pass to [`PoolTable::settle`] with the answer.
    /// `None` if there is no such pool; then the driver must not be queried. Ends with [`PoolTable::end_settling`].
    #[must_use]
    pub fn begin_settling(&mut self, pool: u64) -> Option<u64> {
        let pool = self.by_handle.get_mut(pool)?;
        pool.lookers = pool.lookers.saturating_add(1);
        Some(pool.epoch)
    }

    /// The driver has answered the query.
    pub fn end_settling(&mut self, pool: u64) {
        if let Some(pool) = self.by_handle.get_mut(pool) {
            pool.lookers = pool.lookers.saturating_sub(1);
        }
    }

    /// Whether the driver is being queried about a pool.
    #[must_use]
    pub fn is_settling(&self, pool: u64) -> bool {
        self.by_handle
            .get(pool)
            .is_some_and(|pool| pool.lookers > 0)
    }

    /// The driver reported what the pool reserves. `ended` is the growth that is over. The growth of a pool that was
    /// destroyed meanwhile stays charged until that pool ends.
    pub fn settle(
        &mut self,
        pool: u64,
        epoch: u64,
        reserved: u64,
        ended: Option<PoolGrowth>,
    ) -> PoolSettlement {
        let Some(pool) = self.by_handle.get_mut(pool) else {
            return PoolSettlement::Even;
        };
        let Some(card) = pool.card else {
            return PoolSettlement::Even;
        };
        let ended = ended
            .filter(|growth| growth.id == pool.id)
            .map_or(0, |growth| growth.bytes);
        let before = pool.total();
        let current = pool.epoch == epoch;
        pool.charged = if current {
            reserved
        } else {
            // This reading may predate what the ended growth reserved.
            reserved.max(pool.charged).saturating_add(ended)
        };
        pool.growing = pool.growing.saturating_sub(ended);
        if ended > 0 {
            pool.epoch = pool.epoch.wrapping_add(1);
        }
        let after = pool.total();
        match after.cmp(&before) {
            Ordering::Equal => PoolSettlement::Even,
            Ordering::Greater => PoolSettlement::Take(card, after.saturating_sub(before)),
            Ordering::Less => PoolSettlement::GiveBack(card, before.saturating_sub(after)),
        }
    }

    /// The charge for all pools on a card.
    #[must_use]
    pub fn charged_on(&self, card: Card) -> u64 {
        let here = self
            .by_handle
            .iter()
            .filter(|(_, pool)| pool.card == Some(card));
        here.map(|(_, pool)| pool.charged).sum()
    }

    /// The charge for what a pool reserves.
    #[must_use]
    pub fn reserved(&self, pool: u64) -> u64 {
        self.by_handle.get(pool).map_or(0, |pool| pool.charged)
    }

    /// The first pool after `after` that has a charge, in an order that is stable while no pool is recorded.
    #[must_use]
    pub fn charged_after(&self, after: Option<u64>) -> Option<u64> {
        let charged = self.by_handle.iter().filter(|(_, pool)| pool.charged > 0);
        charged
            .map(|(handle, _)| handle)
            .filter(|handle| after.is_none_or(|after| *handle > after))
            .min()
    }
}

impl PoolEntry {
    const fn total(&self) -> u64 {
        self.charged.saturating_add(self.growing)
    }

    /// The effect of the pool's end on the account.
    const fn gone(&self) -> PoolSettlement {
        match self.card {
            Some(card) => PoolSettlement::GiveBack(card, self.total()),
            None => PoolSettlement::Even,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pool() -> PoolTable {
        let mut pools = PoolTable::default();
        pools.enter(1, Some(0));
        pools
    }

    #[test]
    fn what_a_pool_did_not_grow_by_is_given_back() {
        let mut pools = pool();
        let growth = pools.begin(1, 64 * MIB);
        let epoch = pools.begin_settling(1).unwrap_or_default();
        let settled = pools.settle(1, epoch, 32 * MIB, growth);
        assert_eq!(settled, PoolSettlement::GiveBack(0, 32 * MIB));
    }

    #[test]
    fn growth_that_is_under_way_stays_charged() {
        let mut pools = pool();
        let first = pools.begin(1, 32 * MIB);
        let _second = pools.begin(1, 32 * MIB);
        let epoch = pools.begin_settling(1).unwrap_or_default();
        assert_eq!(
            pools.settle(1, epoch, 32 * MIB, first),
            PoolSettlement::Even
        );
    }

    #[test]
    fn a_stale_reading_gives_nothing_back() {
        let mut pools = pool();
        let first = pools.begin(1, 32 * MIB);
        let epoch = pools.begin_settling(1).unwrap_or_default();
        let _second = pools.begin(1, 32 * MIB);
        let settled = pools.settle(1, epoch, 0, first);
        assert_eq!(settled, PoolSettlement::Even);
    }

    #[test]
    fn a_trim_is_given_back_when_it_is_seen() {
        let mut pools = pool();
        let growth = pools.begin(1, 32 * MIB);
        let epoch = pools.begin_settling(1).unwrap_or_default();
        let _ = pools.settle(1, epoch, 32 * MIB, growth);
        let epoch = pools.begin_settling(1).unwrap_or_default();
        assert_eq!(pools.charged_after(None), Some(1));
        assert_eq!(
            pools.settle(1, epoch, 0, None),
            PoolSettlement::GiveBack(0, 32 * MIB)
        );
        assert_eq!(pools.charged_after(None), None);
    }

    #[test]
    fn a_pool_is_looked_at_until_all_have_looked() {
        let mut pools = pool();
        let _ = (pools.begin_settling(1), pools.begin_settling(1));
        pools.end_settling(1);
        assert!(pools.is_settling(1));
        pools.end_settling(1);
        assert!(!pools.is_settling(1));
        assert_eq!(pools.begin_settling(2), None);
    }
}
