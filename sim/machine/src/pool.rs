//! Stream-ordered memory pools: what they take from the card, how much of it is in use, and when they give it back.
//!
//! All streams of the machine are always empty, so a stream-ordered free takes effect at once. Freed memory stays
//! reserved until a synchronization, a trim, or until the card has too little free memory. A destroyed pool can no
//! longer be named, and keeps its memory until its last allocation is freed.

use serde::{Deserialize, Serialize};

use crate::arena::Arena;
use crate::machine::Machine;
use crate::process::{AllocationOrigin, MachineAllocation};
use crate::wire::MachineReply;
use crate::{CudaRefusal, MachineLocation, Pid};

/// A pool grows by this much.
const GRANULE: u64 = 32 << 20;

/// The location of a pool's memory.
pub type PoolLocation = MachineLocation;

/// An attribute of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolAttribute {
    /// How much a synchronization leaves reserved.
    ReleaseThreshold,
    /// The memory taken from the card.
    Reserved,
    /// The most of it since this was last set to zero.
    ReservedHigh,
    /// The allocated memory.
    Used,
    /// The most of it since this was last set to zero.
    UsedHigh,
    /// The most that the pool may reserve. Zero for no bound.
    MaxBytes,
}

/// A pool of one process.
#[derive(Debug)]
pub(crate) struct ProcessPool {
    pub(crate) location: PoolLocation,
    pub(crate) arena: Arena,
    max_bytes: u64,
    threshold: u64,
    used: u64,
    used_high: u64,
    reserved_high: u64,
    is_destroyed: bool,
}

impl ProcessPool {
    pub(crate) fn new(location: PoolLocation, max_bytes: u64) -> Self {
        Self {
            location,
            arena: Arena::new(GRANULE, u64::MAX),
            max_bytes,
            threshold: 0,
            used: 0,
            used_high: 0,
            reserved_high: 0,
            is_destroyed: false,
        }
    }

    /// The card that the pool's memory is on, if it is on one.
    pub(crate) fn card(&self) -> Option<usize> {
        match self.location {
            MachineLocation::Card(card) => Some(card),
            MachineLocation::Host => None,
        }
    }

    fn entered(&mut self, bytes: u64) {
        self.used += bytes;
        self.used_high = self.used_high.max(self.used);
        self.reserved_high = self.reserved_high.max(self.arena.reserved());
    }

    /// Removes an allocation. Its memory stays reserved.
    pub(crate) fn left(&mut self, allocation: &MachineAllocation) {
        self.arena.remove(allocation.placement, allocation.bytes);
        self.used = self.used.saturating_sub(allocation.bytes);
    }

    /// Whether the pool was destroyed and has no allocations left.
    fn is_over(&self) -> bool {
        self.is_destroyed && self.used == 0
    }

    fn get(&self, attribute: PoolAttribute) -> u64 {
        match attribute {
            PoolAttribute::ReleaseThreshold => self.threshold,
            PoolAttribute::Reserved => self.arena.reserved(),
            PoolAttribute::ReservedHigh => self.reserved_high,
            PoolAttribute::Used => self.used,
            PoolAttribute::UsedHigh => self.used_high,
            PoolAttribute::MaxBytes => self.max_bytes,
        }
    }

    /// Sets an attribute. The high-water marks can only be set to zero, which resets them to the current value.
    fn set(&mut self, attribute: PoolAttribute, value: u64) -> Result<(), CudaRefusal> {
        match (attribute, value) {
            (PoolAttribute::ReleaseThreshold, _) => self.threshold = value,
            (PoolAttribute::ReservedHigh, 0) => self.reserved_high = self.arena.reserved(),
            (PoolAttribute::UsedHigh, 0) => self.used_high = self.used,
            (PoolAttribute::ReservedHigh | PoolAttribute::UsedHigh, _)
            | (PoolAttribute::Reserved | PoolAttribute::Used | PoolAttribute::MaxBytes, _) => {
                return Err(CudaRefusal::InvalidValue);
            }
        }
        Ok(())
    }
}

impl Machine {
    pub(crate) fn default_pool(
        &mut self,
        pid: Pid,
        card: usize,
    ) -> Result<MachineReply, CudaRefusal> {
        self.card(card)?;
        if let Some(pool) = self.process(pid)?.default_pools.get(&card) {
            return Ok(MachineReply::Created(*pool));
        }
        let id = self.name();
        let process = self.process(pid)?;
        process.default_pools.insert(card, id);
        process
            .pools
            .insert(id, ProcessPool::new(MachineLocation::Card(card), 0));
        Ok(MachineReply::Created(id))
    }

    /// The pool of a card's graphs. It keeps freed memory for the next launch, even at a synchronization.
    pub(crate) fn graph_pool(
        &mut self,
        pid: Pid,
        card: usize,
    ) -> Result<MachineReply, CudaRefusal> {
        self.card(card)?;
        if let Some(pool) = self.process(pid)?.graph_pools.get(&card) {
            return Ok(MachineReply::Created(*pool));
        }
        let id = self.name();
        let mut pool = ProcessPool::new(MachineLocation::Card(card), 0);
        pool.threshold = u64::MAX;
        let process = self.process(pid)?;
        process.graph_pools.insert(card, id);
        process.pools.insert(id, pool);
        Ok(MachineReply::Created(id))
    }

    pub(crate) fn create_pool(
        &mut self,
        pid: Pid,
        location: PoolLocation,
        max_bytes: u64,
    ) -> Result<MachineReply, CudaRefusal> {
        if let MachineLocation::Card(card) = location {
            self.card(card)?;
        }
        let id = self.name();
        self.process(pid)?
            .pools
            .insert(id, ProcessPool::new(location, max_bytes));
        Ok(MachineReply::Created(id))
    }

    /// Destroys a pool. Default pools cannot be destroyed.
    pub(crate) fn destroy_pool(&mut self, pid: Pid, id: u64) -> Result<MachineReply, CudaRefusal> {
        let process = self.process(pid)?;
        if process.default_pools.values().any(|default| *default == id) {
            return Err(CudaRefusal::InvalidValue);
        }
        self.pool(pid, id)?.is_destroyed = true;
        self.end_pool(pid, id)?;
        Ok(MachineReply::Done)
    }

    /// Takes back the memory of a destroyed pool once it has no allocations left.
    pub(crate) fn end_pool(&mut self, pid: Pid, id: u64) -> Result<(), CudaRefusal> {
        let mut pools = self
            .process(pid)?
            .pools
            .extract_if(id..=id, |_, pool| pool.is_over());
        let over = pools.next().map(|(_, pool)| pool);
        drop(pools);
        if let Some(pool) = over {
            self.empty(pid, AllocationOrigin::Pool(id), pool.card(), pool.arena);
        }
        Ok(())
    }

    pub(crate) fn pool_allocate(
        &mut self,
        pid: Pid,
        id: u64,
        bytes: u64,
    ) -> Result<MachineReply, CudaRefusal> {
        if bytes == 0 {
            return Err(CudaRefusal::InvalidValue);
        }
        let name = self.name();
        let block = self.name();
        let pool = self.pool(pid, id)?;
        let placement = match pool.arena.place(bytes) {
            Some(placement) => placement,
            None => {
                let grown = pool
                    .arena
                    .block_bytes(bytes)
                    .ok_or(CudaRefusal::OutOfMemory)?;
                let reserved = pool.arena.reserved().saturating_add(grown);
                if pool.max_bytes > 0 && reserved > pool.max_bytes.next_multiple_of(GRANULE) {
                    return Err(CudaRefusal::OutOfMemory);
                }
                if let Some(card) = pool.card() {
                    self.take_or_trim(pid, card, grown)?;
                }
                self.pool(pid, id)?.arena.grow(block, grown, bytes)
            }
        };
        self.pool(pid, id)?.entered(bytes);
        let allocation = MachineAllocation {
            home: AllocationOrigin::Pool(id),
            placement,
            bytes,
        };
        self.process(pid)?.allocations.insert(name, allocation);
        Ok(MachineReply::Allocated {
            allocation: name,
            placement,
        })
    }

    pub(crate) fn pool_trim(
        &mut self,
        pid: Pid,
        id: u64,
        keep: u64,
    ) -> Result<MachineReply, CudaRefusal> {
        let pool = self.pool(pid, id)?;
        let card = pool.card();
        let trimmed = pool.arena.trim(keep);
        self.lose(pid, card, trimmed);
        Ok(MachineReply::Done)
    }

    pub(crate) fn pool_get(
        &mut self,
        pid: Pid,
        id: u64,
        attribute: PoolAttribute,
    ) -> Result<MachineReply, CudaRefusal> {
        Ok(MachineReply::Value(self.pool(pid, id)?.get(attribute)))
    }

    pub(crate) fn pool_set(
        &mut self,
        pid: Pid,
        id: u64,
        attribute: PoolAttribute,
        value: u64,
    ) -> Result<MachineReply, CudaRefusal> {
        self.pool(pid, id)?
            .set(attribute, value)
            .map(|()| MachineReply::Done)
    }

    /// Shrinks every pool of a process to its release threshold.
    pub(crate) fn synchronize(&mut self, pid: Pid) -> Result<MachineReply, CudaRefusal> {
        let pools: Vec<(u64, u64)> = self
            .process(pid)?
            .pools
            .iter()
            .filter(|(_, pool)| !pool.is_destroyed)
            .map(|(id, pool)| (*id, pool.threshold))
            .collect();
        for (id, threshold) in pools {
            self.pool_trim(pid, id, threshold)?;
        }
        Ok(MachineReply::Done)
    }

    /// Gives back all unused memory of a process's pools on a card.
    pub(crate) fn trim_pools(&mut self, pid: Pid, card: usize) -> Result<(), CudaRefusal> {
        let process = self.process(pid)?;
        let pools: Vec<u64> = process
            .pools
            .iter()
            .filter(|(_, pool)| pool.card() == Some(card) && !pool.is_destroyed)
            .map(|(id, _)| *id)
            .collect();
        for id in pools {
            self.pool_trim(pid, id, 0)?;
        }
        Ok(())
    }

    fn pool(&mut self, pid: Pid, id: u64) -> Result<&mut ProcessPool, CudaRefusal> {
        self.process(pid)?
            .pools
            .get_mut(&id)
            .filter(|pool| !pool.is_destroyed)
            .ok_or(CudaRefusal::InvalidValue)
    }
}
