//! Memory that this process holds together with others of its account. Each hold in the account is remembered, to be
//! dropped when this process releases the memory.
//!
//! All holders know a piece of memory by its key. The hold in the account is two words here, which only the account
//! understands. Memory can have several keys, because the driver may return a new handle each time.

use crate::contexts::ContextId;
use crate::fallible_map::FallibleMap;
use crate::handles::PhysicalId;

/// The account's two words.
pub type Hold = [u64; 2];

/// A piece of memory, as this process has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldMemory {
    /// Physical memory that handles and mappings refer to.
    Physical(PhysicalId),
    /// Plain memory of this process, by its address.
    Linear(u64),
    /// Plain memory of another process, by the address at which it was opened.
    Opened(u64),
    /// It was released, and a descriptor keeps it.
    DescriptorOnly(u64),
    /// It ended with its context.
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct SharedMemoryEntry {
    memory: HeldMemory,
    context: Option<ContextId>,
    key: u64,
    hold: Hold,
}

/// The shared memory of a process.
#[derive(Debug, Default)]
pub struct SharedMemoryTable {
    all: FallibleMap<u64, SharedMemoryEntry>,
    next: u64,
}

impl SharedMemoryTable {
    /// Records memory under a key, with its hold in the account. False if there is no room.
    pub fn enter(
        &mut self,
        memory: HeldMemory,
        context: Option<ContextId>,
        key: u64,
        hold: Hold,
    ) -> bool {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let shared = SharedMemoryEntry {
            memory,
            context,
            key,
            hold,
        };
        self.all.enter(number, shared)
    }

    /// A key by which others know the memory.
    #[must_use]
    pub fn key_of(&self, memory: HeldMemory) -> Option<u64> {
        let mut all = self.all.iter();
        all.find_map(|(_, shared)| (shared.memory == memory).then_some(shared.key))
    }

    /// Whether others know the memory by this key.
    #[must_use]
    pub fn is_known(&self, memory: HeldMemory, key: u64) -> bool {
        let mut all = self.all.iter();
        all.any(|(_, shared)| shared.memory == memory && shared.key == key)
    }

    /// Removes one entry of memory that was released.
    pub fn take(&mut self, memory: HeldMemory) -> Option<Hold> {
        let found = self.all.remove_where(|_, shared| shared.memory == memory);
        found.map(|(_, shared)| shared.hold)
    }

    /// Gives memory another name.
    pub fn rename(&mut self, from: HeldMemory, to: HeldMemory) {
        let all = self.all.values_mut();
        let of_it = all.filter(|shared| shared.memory == from);
        of_it.for_each(|shared| {
            shared.memory = to;
            shared.context = None;
        });
    }

    /// A context has ended, and all that was in it.
    pub(crate) fn ended(&mut self, context: ContextId) {
        let all = self.all.values_mut();
        let inside = all.filter(|shared| shared.context == Some(context));
        inside.for_each(|shared| shared.memory = HeldMemory::Ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ContextId = ContextId::first();

    #[test]
    fn memory_can_have_several_keys() {
        let mut shares = SharedMemoryTable::default();
        let memory = HeldMemory::Physical(7);
        for key in [1, 2] {
            assert!(shares.enter(memory, None, key, [key, 0]));
            assert!(shares.is_known(memory, key));
        }
        assert!(shares.key_of(memory).is_some());
        let taken = [shares.take(memory), shares.take(memory)];
        assert!(taken.contains(&Some([1, 0])) && taken.contains(&Some([2, 0])));
        assert_eq!((shares.take(memory), shares.key_of(memory)), (None, None));
    }

    #[test]
    fn what_is_in_a_context_ends_with_it() {
        let mut shares = SharedMemoryTable::default();
        shares.enter(HeldMemory::Linear(0x1000), Some(HERE), 1, [1, 0]);
        shares.enter(HeldMemory::Physical(0), None, 2, [2, 0]);
        shares.ended(HERE);
        assert_eq!(shares.take(HeldMemory::Ended), Some([1, 0]));
        assert_eq!(shares.take(HeldMemory::Ended), None);
        assert_eq!(shares.take(HeldMemory::Physical(0)), Some([2, 0]));
    }
}
