//! Descriptors that keep memory: while one is open anywhere, its memory stays on the card, even if every process has
//! released it. Then its charge is adrift, until the last of its descriptors is closed.
//!
//! Each is identified by the key that marks it. Whether the mark is still there can be seen through another open file
//! of the same inode, called a probe here, which the descriptors of one inode share. If the kernel gives no probe,
//! the number that the descriptor had is checked.

use crate::Card;
use crate::fallible_map::FallibleMap;
use crate::shared_memory::HeldMemory;

/// An inode: its device and its number.
pub type Inode = (u64, u64);

/// A descriptor for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportedDescriptor {
    /// The key that marks it.
    pub key: u64,
    /// The number that it had.
    pub number: i32,
    /// The inode that it is open on.
    pub inode: Inode,
    /// Another open file of the same inode.
    pub probe: Option<i32>,
}

/// The descriptors of a process.
#[derive(Debug, Default)]
pub struct ExportedDescriptors {
    all: FallibleMap<u64, (HeldMemory, ExportedDescriptor)>,
    unmapped: FallibleMap<u64, (Card, u64)>,
    next: u64,
}

impl ExportedDescriptors {
    fn number(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// A probe of an inode, if there is one.
    #[must_use]
    pub fn probe(&self, inode: Inode) -> Option<i32> {
        let mut all = self
            .all
            .iter()
            .filter(|(_, (_, known))| known.inode == inode);
        all.find_map(|(_, (_, known))| known.probe)
    }

    /// Records a descriptor for memory. False if its key is known, or there is no room.
    pub fn enter(&mut self, memory: HeldMemory, descriptor: ExportedDescriptor) -> bool {
        if self
            .all
            .iter()
            .any(|(_, known)| known.1.key == descriptor.key)
        {
            return false;
        }
        let number = self.number();
        self.all.enter(number, (memory, descriptor))
    }

    /// Memory was released whose charge a descriptor may keep. Returns its name while it is adrift; `None` if it has
    /// no descriptor.
    pub fn set_unmapped(&mut self, memory: HeldMemory, charge: (Card, u64)) -> Option<HeldMemory> {
        if !self.all.iter().any(|(_, (of, _))| *of == memory) {
            return None;
        }
        let number = self.number();
        if !self.unmapped.enter(number, charge) {
            return None;
        }
        let unmapped = HeldMemory::DescriptorOnly(number);
        let of_it = self.all.values_mut().filter(|(of, _)| *of == memory);
        of_it.for_each(|(of, _)| *of = unmapped);
        Some(unmapped)
    }

    /// The next descriptor after a number whose memory is adrift.
    #[must_use]
    pub fn unmapped_after(&self, after: u64) -> Option<(u64, ExportedDescriptor)> {
        let later = self
            .all
            .iter()
            .filter(|(at, (of, _))| *at > after && matches!(of, HeldMemory::DescriptorOnly(_)));
        later
            .map(|(at, (_, known))| (at, *known))
            .min_by_key(|next| next.0)
    }

    /// A descriptor is closed everywhere. Returns its probe if no other needs that, and the memory for which it was
    /// the last.
    pub fn closed(
        &mut self,
        number: u64,
    ) -> (Option<ExportedDescriptor>, Option<(HeldMemory, Card, u64)>) {
        let Some((memory, gone)) = self.all.remove(number) else {
            return (None, None);
        };
        let is_needed = self
            .all
            .iter()
            .any(|(_, (_, known))| known.probe == gone.probe);
        let useless = (!is_needed && gone.probe.is_some()).then_some(gone);
        let is_held = self.all.iter().any(|(_, (of, _))| *of == memory);
        let freed = match memory {
            HeldMemory::DescriptorOnly(at) if !is_held => self.unmapped.remove(at),
            _ => None,
        };
        (useless, freed.map(|(card, bytes)| (memory, card, bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: HeldMemory = HeldMemory::Physical(7);

    fn descriptor(key: u64, inode: u64) -> ExportedDescriptor {
        ExportedDescriptor {
            key,
            number: 3,
            inode: (1, inode),
            probe: Some(inode as i32),
        }
    }

    #[test]
    fn a_charge_is_adrift_until_the_last_descriptor_is_closed() {
        let mut all = ExportedDescriptors::default();
        assert_eq!(all.set_unmapped(MEMORY, (0, 100)), None);
        assert!(all.enter(MEMORY, descriptor(1, 10)) && all.enter(MEMORY, descriptor(2, 11)));
        assert!(!all.enter(MEMORY, descriptor(1, 10)), "it is known");
        assert_eq!(all.unmapped_after(0), None);
        let name = all.set_unmapped(MEMORY, (0, 100)).unwrap();
        let (first, known) = all.unmapped_after(0).unwrap();
        assert_eq!(known, descriptor(1, 10));
        let (second, _) = all.unmapped_after(first).unwrap();
        assert_eq!(all.closed(first), (Some(descriptor(1, 10)), None));
        assert_eq!(
            all.closed(second),
            (Some(descriptor(2, 11)), Some((name, 0, 100)))
        );
        assert_eq!(all.closed(second), (None, None));
    }

    #[test]
    fn descriptors_of_one_inode_share_a_probe() {
        let mut all = ExportedDescriptors::default();
        all.enter(MEMORY, descriptor(1, 10));
        all.enter(HeldMemory::Physical(8), descriptor(2, 10));
        assert_eq!((all.probe((1, 10)), all.probe((1, 11))), (Some(10), None));
        all.set_unmapped(MEMORY, (0, 100));
        let (number, _) = all.unmapped_after(0).unwrap();
        assert_eq!(all.closed(number).0, None, "another needs it");
    }
}
