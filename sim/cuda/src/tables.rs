//! What this process has: contexts by handle, memory by address. The machine knows the same objects by name and by
//! size. The tables translate between the two.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::array::Arrays;
use crate::capture::StreamCaptures;
use crate::coredump::CoreDumps;
use crate::error::{CONTEXT_IS_DESTROYED, CudaError, INVALID_CONTEXT, INVALID_VALUE};
use crate::event::Events;
use crate::executables::ExecutableGraphs;
use crate::functions::Functions;
use crate::graphs::Graphs;
use crate::green_contexts::Greens;
use crate::legacy_launches::Blocks;
use crate::libraries::Libraries;
use crate::linking::Links;
use crate::mipmaps::Mipmaps;
use crate::modules::Modules;
use crate::multicast::Multicasts;
use crate::notifications::Notifications;
use crate::pools::MemoryPools;
use crate::resources::Descriptions;
use crate::stream::Streams;
use crate::texture_refs::TextureReferences;
use crate::textures::Textures;
use crate::tiles::Tiles;
use crate::user_objects::UserObjects;
use crate::virtual_memory::VirtualMemory;

/// All tables of a process.
#[derive(Debug, Default)]
pub(crate) struct ProcessTables {
    handles: u64,
    pub(crate) contexts: HashMap<u64, Context>,
    pub(crate) primaries: HashMap<i32, PrimaryContext>,
    /// The limits of contexts that the program has set.
    pub(crate) limits: HashMap<(u64, u32), usize>,
    /// Pairs of contexts, where the first has access to the second.
    pub(crate) peers: HashSet<(u64, u64)>,
    pub(crate) ranges: BTreeMap<u64, MemoryRange>,
    pub(crate) arrays: Arrays,
    pub(crate) events: Events,
    pub(crate) executables: ExecutableGraphs,
    pub(crate) captures: StreamCaptures,
    pub(crate) core_dumps: CoreDumps,
    pub(crate) functions: Functions,
    pub(crate) graphs: Graphs,
    pub(crate) descriptions: Descriptions,
    pub(crate) greens: Greens,
    pub(crate) blocks_of: Blocks,
    pub(crate) libraries: Libraries,
    pub(crate) links: Links,
    pub(crate) mipmaps: Mipmaps,
    pub(crate) modules: Modules,
    pub(crate) multicasts: Multicasts,
    pub(crate) notifications: Notifications,
    pub(crate) pools: MemoryPools,
    pub(crate) references: TextureReferences,
    pub(crate) streams: Streams,
    pub(crate) textures: Textures,
    pub(crate) tiles: Tiles,
    pub(crate) user_objects: UserObjects,
    pub(crate) virtual_memory: VirtualMemory,
    blocks: HashMap<u64, MappedBlock>,
    /// Whether any pool has been used since the last synchronisation.
    pools_touched: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    /// The machine's name of the context.
    pub(crate) name: u64,
    pub(crate) device: i32,
    pub(crate) flags: u32,
    pub(crate) api_version: u32,
    pub(crate) cache_config: u32,
    pub(crate) is_alive: bool,
}

/// The primary context of a device. Its handle stays when the context goes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PrimaryContext {
    pub(crate) handle: u64,
    pub(crate) flags: u32,
}

/// Memory with an address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryRange {
    pub(crate) bytes: u64,
    pub(crate) kind: MemoryKind,
    pub(crate) device: i32,
    /// The context's handle. Zero for memory without a context.
    pub(crate) context: u64,
    /// Unique in the process, never reused.
    pub(crate) serial: u64,
}

/// What kind of memory it is, and its machine name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    Device {
        allocation: u64,
    },
    Managed {
        allocation: u64,
    },
    Pooled {
        allocation: u64,
        pool: u64,
    },
    Host {
        flags: u32,
    },
    Registered {
        flags: u32,
    },
    /// A variable of a module. Its memory is counted with the module.
    Variable,
    /// The address of a graph's allocation node. Its memory is counted when the node runs.
    Graph,
    /// Memory of another process.
    Opened {
        name: u64,
        /// The block that contains it, and the address of the block's mapping.
        block: u64,
        base: u64,
    },
    /// A mapping of physical memory, and its access rights.
    Mapped {
        handle: u64,
        access: u32,
    },
}

#[derive(Debug)]
struct MappedBlock {
    base: u64,
    bytes: u64,
    /// The file with its bytes, once other processes can open them.
    file: Option<OwnedFd>,
}

/// Handles look like pointers to objects of this size. They are never pointers.
const HANDLE_STRIDE: u64 = 0x40;
const FIRST_HANDLE: u64 = 0x5100_0000_0000;

/// The number of a handle, which no other handle has.
pub(crate) const fn number_of(handle: u64) -> u64 {
    handle.wrapping_sub(FIRST_HANDLE) / HANDLE_STRIDE
}

impl ProcessTables {
    /// A handle or serial number that was never used.
    pub(crate) fn fresh(&mut self) -> u64 {
        self.handles += 1;
        FIRST_HANDLE + self.handles * HANDLE_STRIDE
    }

    /// Records that a pool was used.
    pub(crate) fn touch_pools(&mut self) {
        self.pools_touched = true;
    }

    /// Whether a pool was used since the last call.
    pub(crate) fn take_pools_touched(&mut self) -> bool {
        std::mem::take(&mut self.pools_touched)
    }

    /// A context. Fails if it does not exist.
    pub(crate) fn context(&self, handle: u64) -> Result<&Context, CudaError> {
        let context = self.contexts.get(&handle).ok_or(INVALID_CONTEXT)?;
        if context.is_alive {
            Ok(context)
        } else {
            Err(CONTEXT_IS_DESTROYED)
        }
    }

    /// Removes a context from the tables.
    pub(crate) fn end_context(&mut self, handle: u64) {
        if let Some(context) = self.contexts.get_mut(&handle) {
            context.is_alive = false;
        }
        self.limits.retain(|(context, _), _| *context != handle);
        self.peers
            .retain(|(context, peer)| *context != handle && *peer != handle);
        self.pools.forget_names();
    }

    pub(crate) fn context_mut(&mut self, handle: u64) -> Result<&mut Context, CudaError> {
        self.context(handle)?;
        self.contexts.get_mut(&handle).ok_or(INVALID_CONTEXT)
    }

    /// The memory range that contains an address.
    pub(crate) fn range_of(&self, address: u64) -> Result<(u64, MemoryRange), CudaError> {
        let found = self.ranges.range(..=address).next_back();
        let (base, range) = found.ok_or(INVALID_VALUE)?;
        if address - base < range.bytes {
            Ok((*base, *range))
        } else {
            Err(INVALID_VALUE)
        }
    }

    /// Enters a variable of a module, by the machine's name of the context.
    pub(crate) fn enter_variable(&mut self, address: u64, bytes: u64, context: u64) {
        let mut contexts = self.contexts.iter();
        let owner = contexts.find(|(_, known)| known.name == context);
        let (context, device) = owner.map_or((0, 0), |(handle, known)| (*handle, known.device));
        let serial = self.fresh();
        let range = MemoryRange {
            bytes,
            kind: MemoryKind::Variable,
            device,
            context,
            serial,
        };
        self.ranges.insert(address, range);
    }

    /// Whether the driver knows all bytes of a range and all may be accessed.
    pub(crate) fn covers(&self, address: u64, bytes: u64) -> bool {
        let Ok((base, range)) = self.range_of(address) else {
            return false;
        };
        if let MemoryKind::Mapped { access: 0, .. } = range.kind {
            return false;
        }
        let here = range.bytes - (address - base);
        // A range may continue in an adjacent mapping, but never in another allocation.
        let goes_on = matches!(range.kind, MemoryKind::Mapped { .. });
        bytes <= here || (goes_on && self.covers(address + here, bytes - here))
    }

    /// The same, except that memory unknown to the driver is allowed: it is the program's own.
    pub(crate) fn may_touch(&self, address: u64, bytes: u64) -> bool {
        self.range_of(address).is_err() || self.covers(address, bytes)
    }

    /// The address of a block's mapping. Maps the block if that has not happened yet.
    pub(crate) fn block(
        &mut self,
        block: u64,
        bytes: u64,
        map: impl FnOnce(u64) -> Result<u64, CudaError>,
    ) -> Result<u64, CudaError> {
        if let Some(known) = self.blocks.get(&block) {
            return Ok(known.base);
        }
        let base = map(bytes)?;
        let file = None;
        self.blocks.insert(block, MappedBlock { base, bytes, file });
        Ok(base)
    }

    /// The block that contains an address, and the file with its bytes. If the block was private until now, `make`
    /// creates the file.
    pub(crate) fn shared_block(
        &mut self,
        address: u64,
        make: impl FnOnce(u64, u64) -> Result<OwnedFd, CudaError>,
    ) -> Result<(u64, u64, RawFd), CudaError> {
        let mut blocks = self.blocks.values_mut();
        let block = blocks
            .find(|block| (block.base..block.base + block.bytes).contains(&address))
            .ok_or(INVALID_VALUE)?;
        let file = match block.file.take() {
            Some(file) => file,
            None => make(block.base, block.bytes)?,
        };
        let descriptor = block.file.insert(file).as_raw_fd();
        Ok((block.base, block.bytes, descriptor))
    }

    /// Forgets blocks and all memory in them. Returns the address ranges that are free now.
    pub(crate) fn lose_blocks(&mut self, gone: &[u64]) -> Vec<(u64, u64)> {
        let mut freed = Vec::new();
        for block in gone {
            let Some(MappedBlock { base, bytes, .. }) = self.blocks.remove(block) else {
                continue;
            };
            let inside: Vec<u64> = self
                .ranges
                .range(base..base + bytes)
                .map(|(address, _)| *address)
                .collect();
            for address in inside {
                self.ranges.remove(&address);
            }
            freed.push((base, bytes));
        }
        freed
    }
}

impl Context {
    pub(crate) fn new(name: u64, device: i32, flags: u32, api_version: u32) -> Self {
        Self {
            name,
            device,
            flags,
            api_version,
            cache_config: 0,
            is_alive: true,
        }
    }
}

impl MemoryKind {
    pub(crate) fn device(allocation: u64) -> Self {
        Self::Device { allocation }
    }

    pub(crate) fn managed(allocation: u64) -> Self {
        Self::Managed { allocation }
    }
}
