//! Virtual memory handles: physical memory that lives as long as a process refers to it by a handle or a mapping. It is
//! counted for the process that created it. When that one is gone, it is counted for another one that still refers to
//! it.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::Machine;
use crate::process::{AllocationOrigin, MachineAllocation};
use crate::wire::MachineReply;
use crate::{CudaRefusal, MachineLocation, Pid};

const GRANULE: u64 = 2 << 20;

/// Physical memory and its references.
#[derive(Debug)]
pub(crate) struct Physical {
    location: MachineLocation,
    bytes: u64,
    holder: Pid,
    references: BTreeMap<Pid, HandleReferences>,
    /// The number of the holder's open descriptors that keep it alive.
    descriptors: u32,
}

#[derive(Debug, Default)]
struct HandleReferences {
    handles: u32,
    mappings: u32,
}

/// How a request changes the references of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReferenceChange {
    Retain,
    Release,
    Map,
    Unmap,
}

impl Machine {
    pub(crate) fn create_handle(
        &mut self,
        pid: Pid,
        location: MachineLocation,
        bytes: u64,
    ) -> Result<MachineReply, CudaRefusal> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            return Err(CudaRefusal::InvalidValue);
        }
        self.process(pid)?;
        if let MachineLocation::Card(card) = location {
            self.card(card)?;
            self.take_or_trim(pid, card, bytes)?;
        }
        let references = BTreeMap::from([(
            pid,
            HandleReferences {
                handles: 1,
                mappings: 0,
            },
        )]);
        let id = self.name();
        self.physical.insert(
            id,
            Physical {
                location,
                bytes,
                holder: pid,
                references,
                descriptors: 0,
            },
        );
        Ok(MachineReply::Created(id))
    }

    pub(crate) fn import_handle(&mut self, pid: Pid, id: u64) -> Result<MachineReply, CudaRefusal> {
        self.process(pid)?;
        let physical = self
            .physical
            .get_mut(&id)
            .ok_or(CudaRefusal::InvalidValue)?;
        physical.references.entry(pid).or_default().handles += 1;
        Ok(MachineReply::Imported {
            location: physical.location,
            bytes: physical.bytes,
        })
    }

    /// Changes the references of a process. A mapping can be retained too: that is how a program gets a handle from an
    /// address.
    pub(crate) fn refer(
        &mut self,
        pid: Pid,
        id: u64,
        step: ReferenceChange,
    ) -> Result<MachineReply, CudaRefusal> {
        let physical = self
            .physical
            .get_mut(&id)
            .ok_or(CudaRefusal::InvalidValue)?;
        let held = physical
            .references
            .get_mut(&pid)
            .ok_or(CudaRefusal::InvalidValue)?;
        match step {
            ReferenceChange::Retain => held.handles += 1,
            ReferenceChange::Map if held.handles > 0 => held.mappings += 1,
            ReferenceChange::Release if held.handles > 0 => held.handles -= 1,
            ReferenceChange::Unmap if held.mappings > 0 => held.mappings -= 1,
            ReferenceChange::Map | ReferenceChange::Release | ReferenceChange::Unmap => {
                return Err(CudaRefusal::InvalidValue);
            }
        }
        if held.handles == 0 && held.mappings == 0 {
            self.drop_references(id, pid);
        }
        Ok(MachineReply::Done)
    }

    /// Creates a descriptor of memory. It keeps the memory for as long as it is open and its creator lives.
    pub(crate) fn export_handle(&mut self, pid: Pid, id: u64) -> Result<MachineReply, CudaRefusal> {
        let physical = self
            .physical
            .get_mut(&id)
            .ok_or(CudaRefusal::InvalidValue)?;
        if !physical.references.contains_key(&pid) {
            return Err(CudaRefusal::InvalidValue);
        }
        physical.descriptors += 1;
        Ok(MachineReply::Done)
    }

    /// The last copy of a descriptor was closed.
    pub fn descriptor_closed(&mut self, id: u64) {
        let Some(physical) = self.physical.get_mut(&id) else {
            return;
        };
        physical.descriptors = physical.descriptors.saturating_sub(1);
        if physical.descriptors == 0 && physical.references.is_empty() {
            let holder = physical.holder;
            self.drop_references(id, holder);
        }
    }

    /// Removes a process's references and descriptors from every handle.
    pub(crate) fn drop_all_references(&mut self, pid: Pid) {
        let ids: Vec<u64> = self.physical.keys().copied().collect();
        for id in ids {
            if let Some(physical) = self.physical.get_mut(&id)
                && physical.holder == pid
            {
                physical.descriptors = 0;
            }
            self.drop_references(id, pid);
        }
    }

    /// Makes the block of a context's allocation shareable with other processes. It is counted as before.
    pub(crate) fn share_block(
        &mut self,
        pid: Pid,
        allocation: u64,
    ) -> Result<MachineReply, CudaRefusal> {
        let process = self.process(pid)?;
        let known = process.allocations.get(&allocation);
        let MachineAllocation {
            home: AllocationOrigin::Context(context),
            placement,
            ..
        } = *known.ok_or(CudaRefusal::InvalidValue)?
        else {
            return Err(CudaRefusal::InvalidValue);
        };
        let context = process.contexts.get(&context);
        let card = context.ok_or(CudaRefusal::InvalidContext)?.card;
        if let Some(known) = self.shared_blocks.get(&placement.block) {
            return Ok(MachineReply::Created(*known));
        }
        let references = HandleReferences {
            handles: 1,
            mappings: 0,
        };
        let physical = Physical {
            location: MachineLocation::Card(card),
            bytes: placement.block_bytes,
            holder: pid,
            references: BTreeMap::from([(pid, references)]),
            descriptors: 0,
        };
        let id = self.name();
        self.physical.insert(id, physical);
        self.shared_blocks.insert(placement.block, id);
        Ok(MachineReply::Created(id))
    }

    pub(crate) fn drop_references(&mut self, id: u64, pid: Pid) {
        let Some(physical) = self.physical.get_mut(&id) else {
            return;
        };
        physical.references.remove(&pid);
        let heir = physical.references.keys().next().copied();
        let (holder, bytes, location) = (physical.holder, physical.bytes, physical.location);
        match heir {
            Some(heir) if holder == pid => {
                physical.holder = heir;
                if let MachineLocation::Card(card) = location {
                    self.cards[card].pass(holder, heir, bytes);
                }
            }
            Some(_) => {}
            None if physical.descriptors > 0 => {}
            None => {
                self.physical.remove(&id);
                if let MachineLocation::Card(card) = location {
                    self.cards[card].give(holder, bytes);
                }
            }
        }
    }

    /// Whether a process holds memory that others hold too, or could open.
    pub(crate) fn shares_memory(&self, pid: Pid) -> bool {
        let blocks: BTreeSet<u64> = self.shared_blocks.values().copied().collect();
        self.physical.iter().any(|(id, physical)| {
            let is_held = physical.holder == pid || physical.references.contains_key(&pid);
            let has_others = physical.references.keys().any(|other| *other != pid);
            is_held && (has_others || physical.descriptors > 0 || blocks.contains(id))
        })
    }

    /// The bytes of handles that are counted for a process on a card, to check that no memory is lost.
    #[cfg(test)]
    pub(crate) fn handle_bytes(&self, pid: Pid, card: usize) -> u64 {
        self.physical
            .values()
            .filter(|physical| {
                physical.holder == pid && physical.location == MachineLocation::Card(card)
            })
            .map(|physical| physical.bytes)
            .sum()
    }
}
