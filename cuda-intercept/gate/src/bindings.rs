//! What holds physical memory besides handles and mapped addresses: tiles of sparse arrays, and the multicast objects
//! and logical endpoints that memory is bound to. Released memory stays on the card while any of them holds it.
//!
//! A hold is identified by its holder and a region in it. It ends when a region that contains it is dropped, when
//! other memory takes exactly its region, or with its holder. If a program drops parts of a region, the whole stays
//! held until the rest is dropped.

use crate::contexts::ContextId;
use crate::fallible_map::FallibleMap;
use crate::handles::PhysicalId;

/// What keeps physical memory alive beside its handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BindingHolder {
    /// An array, with mipmaps or without.
    Array(u64),
    /// A multicast object.
    Multicast(PhysicalId),
    /// A logical endpoint, by its number.
    Endpoint(u32),
}

/// A region of its holder: a box on a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BindingRegion {
    /// The part of the holder; no region spans two.
    pub plane: [u32; 3],
    /// The corner where the box starts.
    pub start: [u64; 3],
    /// The size of the box.
    pub extent: [u64; 3],
}

impl BindingRegion {
    fn contains(&self, other: &Self) -> bool {
        let end = |place: &Self, side: usize| {
            let (start, extent) = (place.start.get(side), place.extent.get(side));
            start
                .zip(extent)
                .map(|(start, extent)| start.saturating_add(*extent))
        };
        self.plane == other.plane
            && (0..3).all(|side| {
                self.start.get(side) <= other.start.get(side) && end(other, side) <= end(self, side)
            })
    }
}

#[derive(Clone, Copy, Debug)]
struct BoundMemory {
    physical: PhysicalId,
    context: Option<ContextId>,
}

/// The holds of a process.
#[derive(Debug, Default)]
pub(crate) struct BindingTable(FallibleMap<(BindingHolder, BindingRegion), BoundMemory>);

impl BindingTable {
    /// Records a hold, in a context if its holder is in one. Returns what was in exactly this region.
    pub(crate) fn enter(
        &mut self,
        holder: BindingHolder,
        place: BindingRegion,
        context: Option<ContextId>,
        physical: PhysicalId,
    ) -> Option<PhysicalId> {
        let before = self.0.remove((holder, place)).map(|held| held.physical);
        self.0
            .enter((holder, place), BoundMemory { physical, context });
        before
    }

    /// Removes one hold in a region.
    pub(crate) fn take(
        &mut self,
        holder: BindingHolder,
        place: BindingRegion,
    ) -> Option<PhysicalId> {
        self.take_where(|of, at, _| of == holder && place.contains(&at))
    }

    /// Removes one hold of a holder.
    pub(crate) fn take_of(&mut self, holder: BindingHolder) -> Option<PhysicalId> {
        self.take_where(|of, _, _| of == holder)
    }

    /// Removes one hold in a context.
    pub(crate) fn take_in(&mut self, context: ContextId) -> Option<PhysicalId> {
        self.take_where(|_, _, held| held.context == Some(context))
    }

    fn take_where(
        &mut self,
        chosen: impl Fn(BindingHolder, BindingRegion, &BoundMemory) -> bool,
    ) -> Option<PhysicalId> {
        let found = self.0.remove_where(|(of, at), held| chosen(of, at, held));
        found.map(|(_, held)| held.physical)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ContextId = ContextId::first();
    const ARRAY: BindingHolder = BindingHolder::Array(7);

    fn tile(level: u32, x: u64, width: u64) -> BindingRegion {
        BindingRegion {
            plane: [0, level, 0],
            start: [x, 0, 0],
            extent: [width, 64, 1],
        }
    }

    #[test]
    fn a_place_is_let_go_of_with_the_place_around_it() {
        let mut holds = BindingTable::default();
        for (level, x, physical) in [(0, 0, 1), (0, 64, 2), (1, 0, 3)] {
            assert_eq!(holds.enter(ARRAY, tile(level, x, 64), None, physical), None);
        }
        assert_eq!(holds.take(ARRAY, tile(0, 0, 32)), None);
        assert_eq!(holds.take(BindingHolder::Array(8), tile(0, 0, 128)), None);
        let mut taken = [(); 3].map(|()| holds.take(ARRAY, tile(0, 0, 128)));
        taken.sort_unstable();
        assert_eq!(taken, [None, Some(1), Some(2)]);
        assert_eq!(holds.take_of(ARRAY), Some(3));
    }

    #[test]
    fn other_memory_in_a_place_takes_the_first_s() {
        let mut holds = BindingTable::default();
        assert_eq!(holds.enter(ARRAY, tile(0, 0, 64), Some(HERE), 1), None);
        assert_eq!(holds.enter(ARRAY, tile(0, 0, 64), Some(HERE), 2), Some(1));
        assert_eq!((holds.take_in(HERE), holds.take_in(HERE)), (Some(2), None));
    }
}
