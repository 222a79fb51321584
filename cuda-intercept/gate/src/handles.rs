//! Virtual memory: physical memory that lives as long as a handle or a mapping refers to it.
//!
//! `cuMemRelease` does not free memory that is still mapped, and `cuMemUnmap` does not free memory that still has a
//! handle. If only one of the two were counted, a program could hold memory unseen. Each physical memory has a number
//! of its own here, because the driver reuses a handle's value as soon as the handle is released, mapped or not.
//!
//! Memory of another process (an imported handle) and memory outside cards costs nothing here. Its references are
//! counted all the same, so that retaining and unmapping it work.

use crate::Card;
use crate::fallible_map::FallibleMap;

/// The number of a physical memory in these tables.
pub type PhysicalId = u64;

/// How a program names physical memory.
#[derive(Clone, Copy, Debug)]
pub enum PhysicalName {
    /// A handle that `cuMemCreate` or an import returned.
    Handle(u64),
    /// An address at which it is mapped.
    At(u64),
}

#[derive(Clone, Copy, Debug)]
struct PhysicalMemory {
    /// Where it is charged, if it is.
    charged: Option<(Card, u64)>,
    references: u32,
    /// Whether other processes may also hold it.
    is_shared: bool,
}

#[derive(Clone, Copy, Debug)]
struct HandleEntry {
    physical: PhysicalId,
    count: u32,
}

#[derive(Clone, Copy, Debug)]
struct MappingEntry {
    physical: PhysicalId,
    bytes: u64,
}

/// A reference that was dropped, and what to uncharge if it was the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DroppedReference {
    /// The card and the bytes.
    pub charge: Option<(Card, u64)>,
    /// The memory, if this was the last reference of this process to it.
    pub last_of: Option<PhysicalId>,
    /// Whether other processes may still hold it.
    pub is_shared: bool,
}

/// A handle reference that is being released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingRelease {
    handle: u64,
    physical: PhysicalId,
}

/// A mapping that is being removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingUnmap {
    address: u64,
    bytes: u64,
    physical: PhysicalId,
}

#[derive(Debug, Default)]
pub(crate) struct VmmHandles {
    physical: FallibleMap<PhysicalId, PhysicalMemory>,
    handles: FallibleMap<u64, HandleEntry>,
    mappings: FallibleMap<u64, MappingEntry>,
    next: PhysicalId,
}

impl VmmHandles {
    /// Records a new handle for new physical memory, and returns the number of that.
    pub(crate) fn create(&mut self, handle: u64, charged: Option<(Card, u64)>) -> PhysicalId {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let physical = PhysicalMemory {
            charged,
            references: 1,
            is_shared: false,
        };
        if self.physical.enter(id, physical) {
            let handle_entry = HandleEntry {
                physical: id,
                count: 1,
            };
            self.handles.enter(handle, handle_entry);
        }
        id
    }

    /// Records an imported handle: one more reference if the handle is known. Otherwise returns the new memory.
    pub(crate) fn import(&mut self, handle: u64) -> Option<PhysicalId> {
        match self.handles.get(handle).map(|known| known.physical) {
            Some(physical) => {
                self.refer(handle, physical);
                None
            }
            None => {
                let id = self.create(handle, None);
                self.shared(id);
                Some(id)
            }
        }
    }

    /// Records that other processes may also hold this memory.
    pub(crate) fn shared(&mut self, id: PhysicalId) {
        if let Some(memory) = self.physical.get_mut(id) {
            memory.is_shared = true;
        }
    }

    /// Adds a reference to a memory.
    pub(crate) fn hold(&mut self, id: PhysicalId) {
        self.count_up(id);
    }

    /// Drops such a reference.
    pub(crate) fn let_go(&mut self, id: PhysicalId) -> DroppedReference {
        self.drop_reference(id)
    }

    /// A memory, and where it is charged.
    pub(crate) fn memory(&self, named: PhysicalName) -> Option<(PhysicalId, Option<(Card, u64)>)> {
        let id = match named {
            PhysicalName::Handle(handle) => self.handles.get(handle)?.physical,
            PhysicalName::At(address) => self.mapped_at(address)?,
        };
        Some((id, self.physical.get(id)?.charged))
    }

    /// Whether this process refers to a memory.
    pub(crate) fn refers_to(&self, id: PhysicalId) -> bool {
        self.physical.get(id).is_some()
    }

    /// Records the handle that the driver returned for the memory mapped at `address`.
    pub(crate) fn retain(&mut self, handle: u64, address: u64) {
        match self.mapped_at(address) {
            Some(physical) => self.refer(handle, physical),
            None => {
                self.import(handle);
            }
        }
    }

    fn mapped_at(&self, address: u64) -> Option<PhysicalId> {
        match self.mappings.get(address) {
            Some(mapping) => Some(mapping.physical),
            None => self
                .mappings
                .iter()
                .find(|(start, mapping)| {
                    (*start..start.saturating_add(mapping.bytes)).contains(&address)
                })
                .map(|(_, m)| m.physical),
        }
    }

    fn refer(&mut self, handle: u64, physical: PhysicalId) {
        match self.handles.get_mut(handle) {
            Some(known) if known.physical == physical => {
                known.count = known.count.saturating_add(1);
            }
            Some(_) | None => {
                let entry = HandleEntry { physical, count: 1 };
                if !self.handles.enter(handle, entry) {
                    return;
                }
            }
        }
        self.count_up(physical);
    }

    fn count_up(&mut self, physical: PhysicalId) {
        if let Some(memory) = self.physical.get_mut(physical) {
            memory.references = memory.references.saturating_add(1);
        }
    }

    /// Removes a reference of a handle, before the driver is asked to release it.
    pub(crate) fn release(&mut self, handle: u64) -> Option<PendingRelease> {
        let entry = self.handles.get_mut(handle)?;
        let physical = entry.physical;
        entry.count = entry.count.saturating_sub(1);
        if entry.count == 0 {
            self.handles.remove(handle);
        }
        Some(PendingRelease { handle, physical })
    }

    /// The driver did not release it.
    pub(crate) fn still_held(&mut self, released: PendingRelease) {
        self.refer(released.handle, released.physical);
        self.drop_reference(released.physical);
    }

    /// The driver released it.
    pub(crate) fn released(&mut self, released: PendingRelease) -> DroppedReference {
        self.drop_reference(released.physical)
    }

    pub(crate) fn map(&mut self, address: u64, bytes: u64, handle: u64) {
        let Some(physical) = self.handles.get(handle).map(|entry| entry.physical) else {
            return;
        };
        if self
            .mappings
            .enter(address, MappingEntry { physical, bytes })
        {
            self.count_up(physical);
        }
    }

    /// Removes one mapping in a range, before the driver is asked to unmap it.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Option<PendingUnmap> {
        let exact = self
            .mappings
            .get(address)
            .is_some_and(|mapping| mapping.bytes == bytes);
        let found = if exact {
            self.mappings.remove(address).map(|m| (address, m))
        } else {
            let end = address.saturating_add(bytes);
            self.mappings
                .remove_where(|start, _| (address..end).contains(&start))
        };
        found.map(|(address, mapping)| PendingUnmap {
            address,
            bytes: mapping.bytes,
            physical: mapping.physical,
        })
    }

    /// The driver did not unmap it.
    pub(crate) fn still_mapped(&mut self, unmapped: PendingUnmap) {
        let PendingUnmap {
            address,
            bytes,
            physical,
        } = unmapped;
        self.mappings
            .enter(address, MappingEntry { physical, bytes });
    }

    /// The driver unmapped it.
    pub(crate) fn unmapped(&mut self, unmapped: PendingUnmap) -> DroppedReference {
        self.drop_reference(unmapped.physical)
    }

    fn drop_reference(&mut self, id: PhysicalId) -> DroppedReference {
        let nothing = DroppedReference {
            charge: None,
            last_of: None,
            is_shared: false,
        };
        let Some(memory) = self.physical.get_mut(id) else {
            return nothing;
        };
        memory.references = memory.references.saturating_sub(1);
        if memory.references > 0 {
            return nothing;
        }
        let gone = self.physical.remove(id);
        DroppedReference {
            charge: gone.and_then(|memory| memory.charged),
            last_of: Some(id),
            is_shared: gone.is_some_and(|memory| memory.is_shared),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const PAID: Option<(Card, u64)> = Some((0, 2 * MIB));
    const HELD: Option<(Card, u64)> = None;

    fn release(handles: &mut VmmHandles, handle: u64) -> Option<Option<(Card, u64)>> {
        let released = handles.release(handle)?;
        Some(handles.released(released).charge)
    }

    fn unmap(handles: &mut VmmHandles, address: u64, bytes: u64) -> Option<Option<(Card, u64)>> {
        let unmapped = handles.unmap(address, bytes)?;
        Some(handles.unmapped(unmapped).charge)
    }

    #[test]
    fn a_mapping_keeps_released_memory_charged() {
        let mut handles = VmmHandles::default();
        handles.create(7, Some((0, 2 * MIB)));
        handles.map(0x1000, 2 * MIB, 7);
        assert_eq!(release(&mut handles, 7), Some(HELD));
        assert_eq!(unmap(&mut handles, 0x1000, 2 * MIB), Some(PAID));
    }

    #[test]
    fn a_handle_value_that_is_used_again_is_other_memory() {
        let mut handles = VmmHandles::default();
        handles.create(7, Some((0, 2 * MIB)));
        handles.map(0x1000, 2 * MIB, 7);
        release(&mut handles, 7);
        handles.create(7, Some((1, 4 * MIB)));
        assert_eq!(unmap(&mut handles, 0x1000, 2 * MIB), Some(PAID));
        assert_eq!(release(&mut handles, 7), Some(Some((1, 4 * MIB))));
    }

    #[test]
    fn a_retained_handle_keeps_unmapped_memory_charged() {
        let mut handles = VmmHandles::default();
        handles.create(7, Some((0, 2 * MIB)));
        handles.map(0x1000, 2 * MIB, 7);
        release(&mut handles, 7);
        handles.retain(9, 0x1008);
        assert_eq!(unmap(&mut handles, 0x1000, 2 * MIB), Some(HELD));
        assert_eq!(release(&mut handles, 9), Some(PAID));
    }

    #[test]
    fn an_imported_handle_costs_nothing() {
        let mut handles = VmmHandles::default();
        handles.import(5);
        handles.map(0x1000, 2 * MIB, 5);
        assert_eq!(release(&mut handles, 5), Some(HELD));
        assert_eq!(unmap(&mut handles, 0x1000, 2 * MIB), Some(HELD));
    }

    #[test]
    fn one_unmap_can_end_many_mappings() {
        let mut handles = VmmHandles::default();
        handles.create(7, Some((0, 2 * MIB)));
        handles.map(0x1000, MIB, 7);
        handles.map(0x1000 + MIB, MIB, 7);
        release(&mut handles, 7);
        assert_eq!(unmap(&mut handles, 0x1000, 2 * MIB), Some(HELD));
        assert_eq!(unmap(&mut handles, 0x1000, 2 * MIB), Some(PAID));
        assert_eq!(unmap(&mut handles, 0x1000, 2 * MIB), None);
    }

    #[test]
    fn a_release_that_failed_changes_nothing() {
        let mut handles = VmmHandles::default();
        handles.create(7, Some((0, 2 * MIB)));
        if let Some(released) = handles.release(7) {
            handles.still_held(released);
        }
        assert_eq!(release(&mut handles, 7), Some(PAID));
    }
}
