//! Contexts, the code that is loaded into them and the memory that is allocated in them.

use crate::machine::Machine;
use crate::process::{AllocationOrigin, CardContext, MachineAllocation, PrimaryRetention};
use crate::wire::MachineReply;
use crate::{ContextLimit, CudaRefusal, Pid};

impl Machine {
    pub(crate) fn create_context(
        &mut self,
        pid: Pid,
        card: usize,
    ) -> Result<MachineReply, CudaRefusal> {
        let context = self.name();
        self.open_context(pid, card, context)
    }

    pub(crate) fn retain_primary(
        &mut self,
        pid: Pid,
        card: usize,
    ) -> Result<MachineReply, CudaRefusal> {
        self.card(card)?;
        let name = self.name();
        let fresh = PrimaryRetention {
            context: name,
            retained: 0,
        };
        let primary = self.process(pid)?.primaries.entry(card).or_insert(fresh);
        let context = primary.context;
        if !self.process(pid)?.contexts.contains_key(&context) {
            self.open_context(pid, card, context)?;
        }
        if let Some(primary) = self.process(pid)?.primaries.get_mut(&card) {
            primary.retained += 1;
        }
        Ok(MachineReply::Created(context))
    }

    pub(crate) fn release_primary(
        &mut self,
        pid: Pid,
        card: usize,
    ) -> Result<MachineReply, CudaRefusal> {
        let primary = self.process(pid)?.primaries.get_mut(&card);
        let primary = primary
            .filter(|primary| primary.retained > 0)
            .ok_or(CudaRefusal::InvalidContext)?;
        primary.retained -= 1;
        let (last, context) = (primary.retained == 0, primary.context);
        // A reset may already have ended the context that is still retained.
        if last && self.process(pid)?.contexts.contains_key(&context) {
            self.close_context(pid, context)?;
        }
        Ok(MachineReply::Value(u64::from(!last)))
    }

    /// Ends the context even if it is retained. Each holder must still release it.
    pub(crate) fn reset_primary(
        &mut self,
        pid: Pid,
        card: usize,
    ) -> Result<MachineReply, CudaRefusal> {
        self.card(card)?;
        let Some(primary) = self.process(pid)?.primaries.get(&card) else {
            return Ok(MachineReply::Done);
        };
        let context = primary.context;
        if self.process(pid)?.contexts.contains_key(&context) {
            self.close_context(pid, context)?;
        }
        Ok(MachineReply::Done)
    }

    /// Destroys a context. A primary context can only be released.
    pub(crate) fn destroy_context(
        &mut self,
        pid: Pid,
        context: u64,
    ) -> Result<MachineReply, CudaRefusal> {
        let mut primaries = self.process(pid)?.primaries.values();
        if primaries.any(|primary| primary.context == context) {
            return Err(CudaRefusal::InvalidContext);
        }
        self.close_context(pid, context)?;
        Ok(MachineReply::Done)
    }

    pub(crate) fn limit_context(
        &mut self,
        pid: Pid,
        context: u64,
        limit: ContextLimit,
        value: u64,
    ) -> Result<MachineReply, CudaRefusal> {
        let card = self.context(pid, context)?.card;
        let cost = limit.cost(value, self.card(card)?.config.multiprocessors);
        let owner = self.context(pid, context)?;
        let before = owner.limit_bytes();
        let stood = owner.limits.get(&limit).copied().unwrap_or(0);
        let stands = match limit {
            ContextLimit::Local | ContextLimit::Hidden => cost.max(stood),
            ContextLimit::MallocHeap | ContextLimit::PrintfFifo | ContextLimit::Stack => cost,
        };
        owner.limits.insert(limit, stands);
        let after = owner.limit_bytes();
        if after <= before {
            self.cards[card].give(pid, before - after);
        } else if let Err(refusal) = self.take_or_trim(pid, card, after - before) {
            self.context(pid, context)?.limits.insert(limit, stood);
            return Err(refusal);
        }
        Ok(MachineReply::Done)
    }

    pub(crate) fn load_module(
        &mut self,
        pid: Pid,
        context: u64,
        bytes: u64,
    ) -> Result<MachineReply, CudaRefusal> {
        let module = self.name();
        let owner = self.context(pid, context)?;
        let (card, before) = (owner.card, owner.code_bytes());
        owner.modules.insert(module, bytes.max(1));
        let more = owner.code_bytes() - before;
        if let Err(refusal) = self.take_or_trim(pid, card, more) {
            self.context(pid, context)?.modules.remove(&module);
            return Err(refusal);
        }
        Ok(MachineReply::Created(module))
    }

    pub(crate) fn grow_module(
        &mut self,
        pid: Pid,
        context: u64,
        module: u64,
        bytes: u64,
    ) -> Result<MachineReply, CudaRefusal> {
        let owner = self.context(pid, context)?;
        let (card, before) = (owner.card, owner.code_bytes());
        let held = owner
            .modules
            .get_mut(&module)
            .ok_or(CudaRefusal::InvalidValue)?;
        let had = std::mem::replace(held, bytes.max(1));
        // A module that has grown beyond the limit for shared blocks moves to blocks of its own.
        let after = owner.code_bytes();
        if after <= before {
            self.cards[card].give(pid, before - after);
        } else if let Err(refusal) = self.take_or_trim(pid, card, after - before) {
            self.context(pid, context)?.modules.insert(module, had);
            return Err(refusal);
        }
        Ok(MachineReply::Done)
    }

    pub(crate) fn unload_module(
        &mut self,
        pid: Pid,
        context: u64,
        module: u64,
    ) -> Result<MachineReply, CudaRefusal> {
        let context = self.context(pid, context)?;
        let (card, before) = (context.card, context.code_bytes());
        context
            .modules
            .remove(&module)
            .ok_or(CudaRefusal::InvalidValue)?;
        let freed = before - context.code_bytes();
        self.cards[card].give(pid, freed);
        Ok(MachineReply::Done)
    }

    pub(crate) fn allocate(
        &mut self,
        pid: Pid,
        context: u64,
        bytes: u64,
    ) -> Result<MachineReply, CudaRefusal> {
        if bytes == 0 {
            return Err(CudaRefusal::InvalidValue);
        }
        let (name, block) = (self.name(), self.name());
        let owner = self.context(pid, context)?;
        let placement = match owner.arena.place(bytes) {
            Some(placement) => placement,
            None => {
                let grown = owner
                    .arena
                    .block_bytes(bytes)
                    .ok_or(CudaRefusal::OutOfMemory)?;
                let card = owner.card;
                self.take_or_trim(pid, card, grown)?;
                self.context(pid, context)?.arena.grow(block, grown, bytes)
            }
        };
        let allocation = MachineAllocation {
            home: AllocationOrigin::Context(context),
            placement,
            bytes,
        };
        self.process(pid)?.allocations.insert(name, allocation);
        Ok(MachineReply::Allocated {
            allocation: name,
            placement,
        })
    }

    pub(crate) fn free(&mut self, pid: Pid, name: u64) -> Result<MachineReply, CudaRefusal> {
        let process = self.process(pid)?;
        let allocation = process
            .allocations
            .remove(&name)
            .ok_or(CudaRefusal::InvalidValue)?;
        match allocation.home {
            AllocationOrigin::Context(id) => {
                let context = self.context(pid, id)?;
                context.arena.remove(allocation.placement, allocation.bytes);
                let (card, empty) = (context.card, context.arena.trim(0));
                self.lose(pid, Some(card), empty);
            }
            AllocationOrigin::Pool(id) => {
                let pool = process
                    .pools
                    .get_mut(&id)
                    .ok_or(CudaRefusal::InvalidValue)?;
                pool.left(&allocation);
                self.end_pool(pid, id)?;
            }
        }
        Ok(MachineReply::Done)
    }

    fn open_context(
        &mut self,
        pid: Pid,
        card: usize,
        name: u64,
    ) -> Result<MachineReply, CudaRefusal> {
        let config = &self.card(card)?.config;
        let (first, further) = (config.context_bytes, config.further_context_bytes);
        let bytes = if self.process(pid)?.is_on(card) {
            further
        } else {
            first
        };
        self.take_or_trim(pid, card, bytes)?;
        self.process(pid)?
            .contexts
            .insert(name, CardContext::new(card, bytes));
        Ok(MachineReply::Created(name))
    }

    /// Ends a context. The card's default pool and graph pool end with the last context there.
    fn close_context(&mut self, pid: Pid, name: u64) -> Result<(), CudaRefusal> {
        let context = self
            .process(pid)?
            .contexts
            .remove(&name)
            .ok_or(CudaRefusal::InvalidContext)?;
        let card = context.card;
        self.cards[card].give(pid, context.bytes() - context.arena.reserved());
        self.empty(
            pid,
            AllocationOrigin::Context(name),
            Some(card),
            context.arena,
        );
        let process = self.process(pid)?;
        if process.is_on(card) {
            return Ok(());
        }
        let own = [
            process.default_pools.remove(&card),
            process.graph_pools.remove(&card),
        ];
        for id in own.into_iter().flatten() {
            if let Some(pool) = self.process(pid)?.pools.remove(&id) {
                self.empty(pid, AllocationOrigin::Pool(id), Some(card), pool.arena);
            }
        }
        Ok(())
    }

    fn context(&mut self, pid: Pid, context: u64) -> Result<&mut CardContext, CudaRefusal> {
        self.process(pid)?
            .contexts
            .get_mut(&context)
            .ok_or(CudaRefusal::InvalidContext)
    }
}
