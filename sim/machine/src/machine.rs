//! The machine as a whole: applies each process's requests to the cards.

use std::collections::BTreeMap;

use crate::arena::Arena;
use crate::card::SimulatedCard;
use crate::nvml_limits::GroupLimits;
use crate::nvml_state::NvmlState;
use crate::process::{AllocationOrigin, MachineProcess};
use crate::rules::FaultRules;
use crate::virtual_memory::{Physical, ReferenceChange};
use crate::wire::{MachineAnswer, MachineReply};
use crate::{
    CallAdmission, CardFacts, ConfigError, CudaRefusal, DriverGeneration, MachineConfig,
    MachineFacts, MachineLocation, MachineRequest, PeerIdentity, Pid,
};

/// Cards, processes and their objects.
#[derive(Debug)]
pub struct Machine {
    pub(crate) driver: DriverGeneration,
    pub(crate) cards: Vec<SimulatedCard>,
    pub(crate) processes: BTreeMap<Pid, MachineProcess>,
    pub(crate) physical: BTreeMap<u64, Physical>,
    /// The handles of blocks that other processes can open.
    pub(crate) shared_blocks: BTreeMap<u64, u64>,
    pub(crate) nvml: NvmlState,
    pub(crate) group_limits: GroupLimits,
    pub(crate) checkpoint_mib_per_second: u32,
    rules: FaultRules,
    names: u64,
    lost_blocks: Vec<u64>,
}

impl Machine {
    /// A machine without processes.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn new(config: MachineConfig) -> Result<Self, ConfigError> {
        let config = config.validate()?;
        let mut rules = FaultRules::default();
        config.rules.into_iter().for_each(|rule| rules.add(rule));
        Ok(Self {
            driver: config.driver,
            nvml: NvmlState::of(&config.cards),
            cards: config.cards.into_iter().map(SimulatedCard::new).collect(),
            processes: BTreeMap::new(),
            physical: BTreeMap::new(),
            shared_blocks: BTreeMap::new(),
            group_limits: GroupLimits::default(),
            checkpoint_mib_per_second: config.checkpoint_mib_per_second,
            rules,
            names: 0,
            lost_blocks: Vec::new(),
        })
    }

    /// Adds a process. A known one stays as it is.
    pub fn process_came(&mut self, pid: Pid, peer: PeerIdentity) {
        self.processes
            .entry(pid)
            .or_insert_with(|| MachineProcess::new(peer));
    }

    /// Removes a process with everything that it alone holds.
    pub fn process_gone(&mut self, pid: Pid) {
        self.drop_all_references(pid);
        self.processes.remove(&pid);
        for card in &mut self.cards {
            card.forget(pid);
        }
    }

    /// What the rules say about a call before it is made.
    pub fn admit(&mut self, function: &str) -> CallAdmission {
        self.rules.admit(function)
    }

    /// Carries out a request, or refuses it and changes nothing.
    pub fn apply(&mut self, pid: Pid, request: MachineRequest) -> MachineAnswer {
        let reply = self
            .perform(pid, request)
            .unwrap_or_else(MachineReply::Refused);
        MachineAnswer {
            reply,
            gone: std::mem::take(&mut self.lost_blocks),
        }
    }

    fn perform(&mut self, pid: Pid, request: MachineRequest) -> Result<MachineReply, CudaRefusal> {
        match request {
            MachineRequest::Hello => Ok(MachineReply::Facts(self.facts())),
            MachineRequest::Touch => Ok(MachineReply::Done),
            MachineRequest::PrimaryRetain(card) => self.retain_primary(pid, card),
            MachineRequest::PrimaryRelease(card) => self.release_primary(pid, card),
            MachineRequest::PrimaryReset(card) => self.reset_primary(pid, card),
            MachineRequest::ContextCreate(card) => self.create_context(pid, card),
            MachineRequest::ContextDestroy(context) => self.destroy_context(pid, context),
            MachineRequest::ContextLimit {
                context,
                limit,
                bytes,
            } => self.limit_context(pid, context, limit, bytes),
            MachineRequest::ModuleLoad { context, bytes } => self.load_module(pid, context, bytes),
            MachineRequest::ModuleGrow {
                context,
                module,
                bytes,
            } => self.grow_module(pid, context, module, bytes),
            MachineRequest::ModuleUnload { context, module } => {
                self.unload_module(pid, context, module)
            }
            MachineRequest::Allocate { context, bytes } => self.allocate(pid, context, bytes),
            MachineRequest::Free(allocation) => self.free(pid, allocation),
            MachineRequest::HandleCreate { location, bytes } => {
                self.create_handle(pid, location, bytes)
            }
            MachineRequest::HandleRetain(handle) => {
                self.refer(pid, handle, ReferenceChange::Retain)
            }
            MachineRequest::HandleRelease(handle) => {
                self.refer(pid, handle, ReferenceChange::Release)
            }
            MachineRequest::HandleImport(handle) => self.import_handle(pid, handle),
            MachineRequest::HandleExport { handle, .. } => self.export_handle(pid, handle),
            MachineRequest::BlockShare(allocation) => self.share_block(pid, allocation),
            MachineRequest::Map(handle) => self.refer(pid, handle, ReferenceChange::Map),
            MachineRequest::Unmap(handle) => self.refer(pid, handle, ReferenceChange::Unmap),
            MachineRequest::DefaultPool(card) => self.default_pool(pid, card),
            MachineRequest::GraphPool(card) => self.graph_pool(pid, card),
            MachineRequest::PoolCreate {
                location,
                max_bytes,
            } => self.create_pool(pid, location, max_bytes),
            MachineRequest::PoolDestroy(pool) => self.destroy_pool(pid, pool),
            MachineRequest::PoolAllocate { pool, bytes } => self.pool_allocate(pid, pool, bytes),
            MachineRequest::PoolTrim { pool, keep } => self.pool_trim(pid, pool, keep),
            MachineRequest::PoolGet(pool, attribute) => self.pool_get(pid, pool, attribute),
            MachineRequest::PoolSet(pool, attribute, value) => {
                self.pool_set(pid, pool, attribute, value)
            }
            MachineRequest::Synchronize => self.synchronize(pid),
            MachineRequest::MemoryInfo(card) => self.memory_info(pid, card),
            MachineRequest::HighWater(card) => {
                let card = self.cards.get_mut(card).ok_or(CudaRefusal::InvalidDevice)?;
                Ok(MachineReply::Value(card.take_high()))
            }
            // The server carries these out step by step, because they take time.
            MachineRequest::AwaitOrder { .. }
            | MachineRequest::OrderDone(_)
            | MachineRequest::ProcessLock { .. }
            | MachineRequest::ProcessCheckpoint(_)
            | MachineRequest::ProcessRestore(_)
            | MachineRequest::ProcessUnlock(_) => Err(CudaRefusal::NotSupported),
            MachineRequest::ProcessState(of) => self.process_state(pid, of),
            MachineRequest::RestoreThread(of) => self.restore_thread(pid, of),
            MachineRequest::HostCopies(of) => self.host_copies(pid, of),
            MachineRequest::AddRule(rule) => {
                self.rules.add(rule);
                Ok(MachineReply::Done)
            }
            MachineRequest::ClearRules => {
                self.rules.clear();
                Ok(MachineReply::Done)
            }
            MachineRequest::Nvml(request) => Ok(MachineReply::Nvml(self.answer_nvml(pid, request))),
        }
    }

    fn facts(&self) -> MachineFacts {
        MachineFacts {
            cuda_version: self.driver.cuda_version(),
            cards: self
                .cards
                .iter()
                .map(|card| CardFacts {
                    model: card.config.model.clone(),
                    uuid: card.config.uuid.clone(),
                    uuid_bytes: card.config.uuid_bytes().unwrap_or_default(),
                    usable: card.usable(),
                    pci_bus: card.config.pci_bus,
                    compute_capability: card.config.compute_capability,
                    multiprocessors: card.config.multiprocessors,
                })
                .collect(),
            watched: self.rules.functions(),
        }
    }

    fn memory_info(&self, pid: Pid, card: usize) -> Result<MachineReply, CudaRefusal> {
        let left = self.driver_memory_left(pid, card).unwrap_or(u64::MAX);
        let limit = self.driver_limit(pid, card).unwrap_or(u64::MAX);
        let card = self.card(card)?;
        Ok(MachineReply::Memory {
            free: card.free().min(left),
            total: card.usable().min(limit),
        })
    }

    /// A name that was never used in this machine.
    pub(crate) fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    pub(crate) fn card(&self, card: usize) -> Result<&SimulatedCard, CudaRefusal> {
        self.cards.get(card).ok_or(CudaRefusal::InvalidDevice)
    }

    pub(crate) fn process(&mut self, pid: Pid) -> Result<&mut MachineProcess, CudaRefusal> {
        self.processes
            .get_mut(&pid)
            .ok_or(CudaRefusal::InvalidContext)
    }

    /// Takes memory of a card. If there is not enough, first trims the process's pools.
    pub(crate) fn take_or_trim(
        &mut self,
        pid: Pid,
        card: usize,
        bytes: u64,
    ) -> Result<(), CudaRefusal> {
        if self.take(pid, card, bytes).is_ok() {
            return Ok(());
        }
        self.trim_pools(pid, card)?;
        self.take(pid, card, bytes)
    }

    fn take(&mut self, pid: Pid, card: usize, bytes: u64) -> Result<(), CudaRefusal> {
        if self
            .driver_memory_left(pid, card)
            .is_some_and(|left| bytes > left)
        {
            return Err(CudaRefusal::OutOfMemory);
        }
        self.cards[card].take(pid, bytes)
    }

    /// Gives a process's blocks back, unless others hold them, and adds them to the answer's lost blocks.
    pub(crate) fn lose(&mut self, pid: Pid, card: Option<usize>, blocks: Vec<(u64, u64)>) {
        for (block, bytes) in blocks {
            match (self.shared_blocks.remove(&block), card) {
                (Some(handle), _) => self.drop_references(handle, pid),
                (None, Some(card)) => self.cards[card].give(pid, bytes),
                (None, None) => {}
            }
            self.lost_blocks.push(block);
        }
    }

    /// Ends an arena and all allocations in it.
    pub(crate) fn empty(
        &mut self,
        pid: Pid,
        home: AllocationOrigin,
        card: Option<usize>,
        arena: Arena,
    ) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process
                .allocations
                .retain(|_, allocation| allocation.home != home);
        }
        self.lose(pid, card, arena.into_blocks());
    }
}

impl MachineLocation {
    /// The card, unless the location is the host.
    #[must_use]
    pub fn card(self) -> Option<usize> {
        match self {
            Self::Card(card) => Some(card),
            Self::Host => None,
        }
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
