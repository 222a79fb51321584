//! Code images in contexts: what modules and libraries take of a card.
//!
//! The driver packs small images together, and gives a large one its own blocks. So a context is charged for the sum
//! of its small images in whole blocks. A module belongs to the context that it was loaded into, and ends with it. A
//! library belongs to no context. It is charged in every existing context, and in each new one until it is unloaded,
//! because any of them may use it without a call that a hook sees.

use crate::Card;
use crate::contexts::ContextId;
use crate::fallible_map::FallibleMap;
use crate::linear::{SMALL, worst_case};

/// A module or library that a context has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedModule {
    /// The context that it is in.
    pub context: ContextId,
    /// The bytes that it takes.
    pub bytes: u64,
}

/// What images take in one context.
#[derive(Clone, Copy, Debug)]
struct ImageHeap {
    card: Card,
    /// The sum of the small images.
    small: u64,
    /// The sum of the large images' blocks.
    large: u64,
}

/// The images of a process.
#[derive(Debug, Default)]
pub struct LoadedImages {
    modules: FallibleMap<u64, LoadedModule>,
    /// What a library takes in each context.
    libraries: FallibleMap<u64, u64>,
    /// Kernels without a context, and their libraries.
    kernels: FallibleMap<u64, u64>,
    heaps: FallibleMap<ContextId, ImageHeap>,
}

impl LoadedImages {
    /// Puts a small image into blocks that are already charged. False if they have no room.
    pub fn fill(&mut self, context: ContextId, bytes: u64) -> bool {
        let Some(heap) = self.heaps.get_mut(context) else {
            return false;
        };
        let filled = ImageHeap {
            small: heap.small.saturating_add(bytes),
            ..*heap
        };
        let fits = bytes <= SMALL && filled.cost() == heap.cost();
        if fits {
            *heap = filled;
        }
        fits
    }

    /// Adds an image. Returns what it costs; the caller has charged at most `worst_case`.
    pub fn add(&mut self, context: ContextId, card: Card, bytes: u64) -> u64 {
        let empty = ImageHeap {
            card,
            small: 0,
            large: 0,
        };
        let mut heap = self.heaps.get(context).copied().unwrap_or(empty);
        let before = heap.cost();
        if bytes > SMALL {
            heap.large = heap.large.saturating_add(worst_case(bytes))
        } else {
            heap.small = heap.small.saturating_add(bytes)
        }
        if self.heaps.enter(context, heap) {
            heap.cost().saturating_sub(before)
        } else {
            worst_case(bytes)
        }
    }

    /// Removes an image. Returns what to uncharge, and on which card.
    pub fn remove(&mut self, context: ContextId, bytes: u64) -> Option<(Card, u64)> {
        let heap = self.heaps.get_mut(context)?;
        let before = heap.cost();
        if bytes > SMALL {
            heap.large = heap.large.saturating_sub(worst_case(bytes))
        } else {
            heap.small = heap.small.saturating_sub(bytes)
        }
        Some((heap.card, before.saturating_sub(heap.cost())))
    }

    /// What images take on a card.
    #[must_use]
    pub fn on(&self, card: Card) -> u64 {
        let heaps = self.heaps.iter().filter(|(_, heap)| heap.card == card);
        heaps.fold(0, |sum, (_, heap)| sum.saturating_add(heap.cost()))
    }

    /// Records the handle of a module whose image was added.
    pub fn name(&mut self, handle: u64, module: LoadedModule) {
        self.modules.enter(handle, module);
    }

    /// Removes a module's handle, before the driver is asked to unload it.
    pub fn take(&mut self, handle: u64) -> Option<LoadedModule> {
        self.modules.remove(handle)
    }

    /// Records the handle of a library whose image was added to every context.
    pub fn name_library(&mut self, handle: u64, bytes: u64) {
        self.libraries.enter(handle, bytes);
    }

    /// Removes a library's handle, before the driver is asked to unload it. Returns what it takes in each context.
    pub fn take_library(&mut self, handle: u64) -> Option<u64> {
        self.libraries.remove(handle)
    }

    /// Records a kernel that the driver returned.
    pub fn name_kernel(&mut self, kernel: u64, library: u64) {
        self.kernels.enter(kernel, library);
    }

    /// Whether a handle is that of a kernel, not of a function.
    #[must_use]
    pub fn is_kernel(&self, handle: u64) -> bool {
        self.kernels.get(handle).is_some()
    }

    /// Forgets the kernels of a library that is about to be unloaded.
    pub fn forget_kernels(&mut self, library: u64) {
        self.kernels.retain(|of| *of != library);
    }

    /// The most that all libraries together can take in a new context.
    #[must_use]
    pub fn in_new_context(&self) -> u64 {
        let all = self.libraries.iter().map(|(_, bytes)| worst_case(*bytes));
        all.fold(0, u64::saturating_add)
    }

    /// A context was created, with all libraries in it. Returns what they cost there.
    pub fn opened(&mut self, context: ContextId, card: Card) -> u64 {
        let mut heap = ImageHeap {
            card,
            small: 0,
            large: 0,
        };
        for (_, bytes) in self.libraries.iter() {
            if *bytes > SMALL {
                heap.large = heap.large.saturating_add(worst_case(*bytes))
            } else {
                heap.small = heap.small.saturating_add(*bytes)
            }
        }
        if heap.cost() > 0 && self.heaps.enter(context, heap) {
            heap.cost()
        } else {
            0
        }
    }

    /// A context has ended, with everything loaded into it. Returns what to uncharge.
    pub fn ended(&mut self, context: ContextId) -> u64 {
        self.modules.retain(|module| module.context != context);
        self.heaps.remove(context).map_or(0, |heap| heap.cost())
    }
}

impl ImageHeap {
    const fn cost(&self) -> u64 {
        worst_case(self.small).saturating_add(self.large)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK;

    const HERE: ContextId = ContextId::first();
    const MIB: u64 = 1 << 20;

    #[test]
    fn small_images_share_blocks_and_large_ones_have_their_own() {
        let mut loads = LoadedImages::default();
        assert!(!loads.fill(HERE, MIB), "nothing is charged yet");
        assert_eq!(loads.add(HERE, 0, MIB), BLOCK);
        assert!(loads.fill(HERE, MIB));
        assert!(!loads.fill(HERE, 1));
        assert_eq!(loads.add(HERE, 0, 5 * MIB), 3 * BLOCK);
        assert_eq!(loads.remove(HERE, 5 * MIB), Some((0, 3 * BLOCK)));
        assert_eq!(loads.remove(HERE, MIB), Some((0, 0)));
        assert_eq!(loads.remove(HERE, MIB), Some((0, BLOCK)));
    }

    #[test]
    fn a_module_ends_with_its_context() {
        let mut loads = LoadedImages::default();
        let module = LoadedModule {
            context: HERE,
            bytes: 100,
        };
        assert_eq!(loads.add(HERE, 0, 100), BLOCK);
        loads.name(7, module);
        assert_eq!(loads.ended(HERE), BLOCK);
        assert_eq!((loads.take(7), loads.remove(HERE, 100)), (None, None));
    }

    #[test]
    fn a_library_is_in_every_context_that_comes() {
        let mut loads = LoadedImages::default();
        assert_eq!(loads.opened(HERE, 0), 0);
        for (handle, bytes) in [(1, 100), (2, 3 * MIB)] {
            loads.name_library(handle, bytes);
        }
        assert_eq!(loads.in_new_context(), 3 * BLOCK);
        assert_eq!(loads.opened(HERE, 0), 3 * BLOCK);
        assert_eq!(loads.take_library(2), Some(3 * MIB));
        assert_eq!(loads.remove(HERE, 3 * MIB), Some((0, 2 * BLOCK)));
    }
}
