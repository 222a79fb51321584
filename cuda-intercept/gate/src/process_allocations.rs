//! Everything that a process holds, in one place: the state behind the hooks' lock.

use crate::Card;
use crate::arrays::{ArrayAllocation, ArrayTable, RemovedArray};
use crate::bindings::{BindingHolder, BindingRegion, BindingTable};
use crate::context_settings::ContextSettings;
use crate::contexts::{ContextId, ContextReserve, ContextTable, EndingContext};
use crate::deferred_frees::DeferredFrees;
use crate::descriptors::ExportedDescriptors;
use crate::graphs::GraphTable;
use crate::handles::{
    DroppedReference, PendingRelease, PendingUnmap, PhysicalId, PhysicalName, VmmHandles,
};
use crate::linear::{LinearTable, RemovedLinear};
use crate::loaded_images::LoadedImages;
use crate::pools::{PoolTable, RemovedPooled};
use crate::shared_memory::{HeldMemory, Hold, SharedMemoryTable};

/// The kind of memory at an address that is to be freed.
#[derive(Clone, Copy, Debug)]
pub enum FreeTarget {
    /// Plain, pitched or managed memory.
    Linear(RemovedLinear),
    /// Memory of a pool.
    Pooled(RemovedPooled),
}

/// Everything that a process holds.
#[derive(Debug, Default)]
pub struct ProcessAllocations {
    contexts: ContextTable,
    linear: LinearTable,
    arrays: ArrayTable,
    handles: VmmHandles,
    holds: BindingTable,
    /// Stream-ordered pools.
    pub pools: PoolTable,
    /// Graphs that allocate.
    pub graphs: GraphTable,
    /// Frees that wait for a stream.
    pub deferred_frees: DeferredFrees,
    /// Modules and libraries.
    pub loads: LoadedImages,
    /// The limits that were set for contexts.
    pub settings: ContextSettings,
    /// Memory that other processes may hold too.
    pub shares: SharedMemoryTable,
    /// Descriptors that keep memory.
    pub descriptors: ExportedDescriptors,
}

impl ProcessAllocations {
    /// Records a context for which `reserve` was charged. False if it is already recorded; then the charge is not
    /// needed.
    pub fn open_context(
        &mut self,
        handle: u64,
        card: Card,
        device: i32,
        reserve: u64,
        is_primary: bool,
    ) -> bool {
        self.contexts
            .open(handle, card, device, reserve, is_primary)
    }

    /// The device that a context is on.
    #[must_use]
    pub fn device_of(&self, context: u64) -> Option<i32> {
        self.contexts.device(context)
    }

    /// The context with this handle and its card.
    #[must_use]
    pub fn context(&self, handle: u64) -> Option<(ContextId, Card)> {
        self.contexts.find(handle)
    }

    /// The handle of a device's primary context, if it is recorded.
    #[must_use]
    pub fn primary(&self, device: i32) -> Option<u64> {
        self.contexts.primary(device)
    }

    /// Whether any context on a device is recorded.
    #[must_use]
    pub fn has_context_on(&self, device: i32) -> bool {
        self.contexts.is_any_on(device)
    }

    /// Marks a recorded context as the primary one of its device. False if it is not recorded.
    pub fn name_primary(&mut self, device: i32, handle: u64) -> bool {
        self.contexts.name_primary(device, handle)
    }

    /// Takes the turn to retain the primary context of a device. False if another thread has it, unless the caller
    /// `has_waited_long` of waiting.
    pub fn begin_retain(&mut self, device: i32, thread: i32, has_waited_long: bool) -> bool {
        self.contexts.begin_retain(device, thread, has_waited_long)
    }

    /// Ends a turn, unless another thread has taken it over.
    pub fn end_retain(&mut self, device: i32, thread: i32) {
        self.contexts.end_retain(device, thread);
    }

    /// The driver is about to be asked to end a context.
    pub fn end_context(&mut self, handle: u64) -> Option<EndingContext> {
        self.contexts.begin_end(handle)
    }

    /// The driver did not end it.
    pub fn context_lives(&mut self, ended: EndingContext) {
        self.contexts.lives(ended);
    }

    /// The driver ended it. Returns the bytes to uncharge on its card, for its reserve and everything that was in it.
    /// If several threads report this, one gets the bytes.
    pub fn context_ended(&mut self, ended: EndingContext) -> u64 {
        let Some(mut freed) = self.contexts.remove(ended) else {
            return 0;
        };
        while let Some(taken) = self.linear.take_of(ended.id) {
            freed = freed.saturating_add(taken.cost);
        }
        self.shares.ended(ended.id);
        while let Some(taken) = self.arrays.take_of(ended.id) {
            freed = freed.saturating_add(taken.cost);
        }
        freed
            .saturating_add(self.loads.ended(ended.id))
            .saturating_add(self.settings.ended(ended.id))
    }

    /// A context was recorded, with all libraries in it. Returns what they cost there.
    pub fn libraries_in(&mut self, context: u64) -> u64 {
        match self.contexts.find(context) {
            Some((id, card)) => self.loads.opened(id, card),
            None => 0,
        }
    }

    /// The next context after `after`, in the order of recording, or the first.
    #[must_use]
    pub fn context_after(&self, after: Option<ContextId>) -> Option<(ContextId, Card)> {
        self.contexts.after(after)
    }

    /// The charge for a new context on a card.
    #[must_use]
    pub fn reserve_for(&self, card: Card, reserve: ContextReserve) -> u64 {
        match self.contexts.reserves(card) {
            0 => reserve.first,
            _ => reserve.further,
        }
    }

    /// Raises the reserve of a context that was charged as a further one but is the only one by now. Returns what
    /// that costs.
    pub fn top_up(&mut self, handle: u64, reserve: ContextReserve) -> u64 {
        self.contexts.top_up(handle, reserve)
    }

    /// The sum of the reserves for contexts on a card.
    #[must_use]
    pub fn reserves(&self, card: Card) -> u64 {
        self.contexts.reserves(card)
    }

    /// Records an allocation. Returns what it costs, now that its address is known.
    pub fn enter(&mut self, address: u64, bytes: u64, card: Card, context: ContextId) -> u64 {
        self.linear.enter(address, bytes, card, context)
    }

    /// Removes an allocation, before the driver is asked to free it.
    pub fn take(&mut self, address: u64) -> Option<FreeTarget> {
        let plain = self.linear.take(address).map(FreeTarget::Linear);
        plain.or_else(|| self.pools.take(address).map(FreeTarget::Pooled))
    }

    /// Records an array. Returns what it costs among the others.
    pub fn enter_array(&mut self, handle: u64, array: ArrayAllocation) -> u64 {
        self.arrays.enter(handle, array)
    }

    /// Removes an array, before the driver is asked to destroy it.
    pub fn take_array(&mut self, handle: u64) -> Option<RemovedArray> {
        self.arrays.take(handle)
    }

    /// Records a new handle, charged or not.
    pub fn create_handle(&mut self, handle: u64, charged: Option<(Card, u64)>) {
        let _ = self.handles.create(handle, charged);
    }

    /// Records an imported handle. Returns its memory, unless that was known.
    pub fn import_handle(&mut self, handle: u64) -> Option<PhysicalId> {
        self.handles.import(handle)
    }

    /// A physical memory, and where it is charged.
    #[must_use]
    pub fn memory_of(&self, named: PhysicalName) -> Option<(PhysicalId, Option<(Card, u64)>)> {
        self.handles.memory(named)
    }

    /// Records that other processes may also hold this memory.
    pub fn share_memory(&mut self, id: PhysicalId) {
        self.handles.shared(id);
    }

    /// The multicast object behind a handle, recorded now if it is new.
    pub fn multicast(&mut self, handle: u64) -> Option<BindingHolder> {
        let known = self
            .memory_of(PhysicalName::Handle(handle))
            .map(|(id, _)| id);
        let id = known.or_else(|| self.import_handle(handle));
        id.map(BindingHolder::Multicast)
    }

    /// Memory is held in a region. Returns what that drops of the earlier hold there.
    pub fn hold(
        &mut self,
        holder: BindingHolder,
        place: BindingRegion,
        context: Option<ContextId>,
        physical: PhysicalId,
    ) -> Option<DroppedReference> {
        self.handles.hold(physical);
        let before = self.holds.enter(holder, place, context, physical);
        before.map(|id| self.handles.let_go(id))
    }

    /// A region is dropped. Returns what that releases. Call it until there is nothing.
    pub fn let_go(
        &mut self,
        holder: BindingHolder,
        place: BindingRegion,
    ) -> Option<DroppedReference> {
        let taken = self.holds.take(holder, place);
        taken.map(|id| self.handles.let_go(id))
    }

    /// Like `let_go`, for a whole holder.
    pub fn let_go_of(&mut self, holder: BindingHolder) -> Option<DroppedReference> {
        let taken = self.holds.take_of(holder);
        taken.map(|id| self.handles.let_go(id))
    }

    /// Like `let_go`, for all arrays in a context that ended.
    pub fn let_go_in(&mut self, ended: EndingContext) -> Option<DroppedReference> {
        let taken = self.holds.take_in(ended.id);
        taken.map(|id| self.handles.let_go(id))
    }

    /// The memory of this process that contains an address.
    #[must_use]
    pub fn memory_at(&self, address: u64) -> Option<HeldMemory> {
        let plain = self
            .linear
            .at(address)
            .map(|found| HeldMemory::Linear(found.0));
        plain.or_else(|| {
            self.memory_of(PhysicalName::At(address))
                .map(|(id, _)| HeldMemory::Physical(id))
        })
    }

    /// The allocation that contains an address: its start, its bytes, its card and its context.
    #[must_use]
    pub fn allocation_at(&self, address: u64) -> Option<(u64, u64, Card, ContextId)> {
        self.linear.at(address)
    }

    /// Records memory under a key by which others know it, with its hold in the account. False if the memory was
    /// released meanwhile, or there is no room. Opened memory belongs to the `current` context.
    pub fn share(
        &mut self,
        memory: HeldMemory,
        current: Option<u64>,
        key: u64,
        hold: Hold,
    ) -> bool {
        let context = match memory {
            HeldMemory::Physical(id) => self.handles.refers_to(id).then_some(None),
            HeldMemory::Linear(address) => self.linear.at(address).map(|found| Some(found.3)),
            HeldMemory::Opened(_) => Some(current.and_then(|handle| Some(self.context(handle)?.0))),
            HeldMemory::DescriptorOnly(_) | HeldMemory::Ended => None,
        };
        context.is_some_and(|context| self.shares.enter(memory, context, key, hold))
    }

    /// Records the handle that the driver returned for the memory mapped at `address`.
    pub fn retain_handle(&mut self, handle: u64, address: u64) {
        self.handles.retain(handle, address);
    }

    /// Removes a reference, before the driver is asked to release it.
    pub fn release_handle(&mut self, handle: u64) -> Option<PendingRelease> {
        self.handles.release(handle)
    }

    /// The driver did not release it.
    pub fn handle_lives(&mut self, released: PendingRelease) {
        self.handles.still_held(released);
    }

    /// The driver released it.
    pub fn handle_released(&mut self, released: PendingRelease) -> DroppedReference {
        self.handles.released(released)
    }

    /// Records a mapping.
    pub fn map(&mut self, address: u64, bytes: u64, handle: u64) {
        self.handles.map(address, bytes, handle);
    }

    /// Removes one mapping in a range, before the driver is asked to unmap the range.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Option<PendingUnmap> {
        self.handles.unmap(address, bytes)
    }

    /// The driver did not unmap it.
    pub fn mapping_lives(&mut self, unmapped: PendingUnmap) {
        self.handles.still_mapped(unmapped);
    }

    /// The driver unmapped it.
    pub fn unmapped(&mut self, unmapped: PendingUnmap) -> DroppedReference {
        self.handles.unmapped(unmapped)
    }
}
