//! The words between the simulated driver and its CUDA library: one request for each step that a
//! machine has to know of. A call that moves no memory never gets here.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{
    BlockPlacement, CudaRefusal, FaultRule, NvmlReply, NvmlRequest, PoolAttribute, PoolLocation,
};

/// A request and the driver function that makes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineCall {
    /// The exported name of the function, for the rules; only on the first request of a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Cow<'static, str>>,
    /// What it asks.
    pub request: MachineRequest,
}

/// Where the driver's own lock lies on a descriptor of memory: so many bytes, from so far on.
pub const EXPORTED: (i64, i64) = (i64::MAX - 4, 2);

/// What a process asks of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineRequest {
    /// What there is: answered with [`MachineReply::Facts`].
    Hello,
    /// Nothing, but the rules shall see the call.
    Touch,
    /// Retains the primary context of a card: [`MachineReply::Created`].
    PrimaryRetain(usize),
    /// Releases it; the last release destroys it.
    PrimaryRelease(usize),
    /// Destroys it whoever retains it.
    PrimaryReset(usize),
    /// Creates a context on a card: [`MachineReply::Created`].
    ContextCreate(usize),
    /// Destroys a context and what is in it.
    ContextDestroy(u64),
    /// Sets a limit that costs memory.
    ContextLimit {
        /// The context.
        context: u64,
        /// Which limit.
        limit: ContextLimit,
        /// The new value in bytes.
        bytes: u64,
    },
    /// Loads code of that size: [`MachineReply::Created`].
    ModuleLoad {
        /// The context that it is loaded into.
        context: u64,
        /// Code and variables, in bytes.
        bytes: u64,
    },
    /// Brings more of a module's code into the card's memory.
    ModuleGrow {
        /// The context that it was loaded into.
        context: u64,
        /// The module.
        module: u64,
        /// Code and variables, in bytes, as there are now.
        bytes: u64,
    },
    /// Unloads it.
    ModuleUnload {
        /// The context that it was loaded into.
        context: u64,
        /// The module.
        module: u64,
    },
    /// Allocates memory in a context: [`MachineReply::Allocated`].
    Allocate {
        /// The context.
        context: u64,
        /// How much.
        bytes: u64,
    },
    /// Frees what [`MachineRequest::Allocate`] or [`MachineRequest::PoolAllocate`] gave.
    Free(u64),
    /// Creates physical memory without an address: [`MachineReply::Created`].
    HandleCreate {
        /// Where.
        location: MachineLocation,
        /// How much.
        bytes: u64,
    },
    /// Takes one more reference to a handle of this process.
    HandleRetain(u64),
    /// Gives a reference back.
    HandleRelease(u64),
    /// Gets a reference to a handle of another process: [`MachineReply::Imported`].
    HandleImport(u64),
    /// A descriptor was made of a handle's memory, with a lock on it at [`EXPORTED`], and keeps that.
    HandleExport {
        /// The handle.
        handle: u64,
        /// The descriptor's number in the process.
        descriptor: i32,
    },
    /// The handle by which other processes get at the block that an allocation lies in:
    /// [`MachineReply::Created`]. The block itself is this process's reference to it.
    BlockShare(u64),
    /// Maps a handle: a reference of its own.
    Map(u64),
    /// Unmaps it.
    Unmap(u64),
    /// The default pool of a card: [`MachineReply::Created`].
    DefaultPool(usize),
    /// The pool of a card's graphs, which keeps what it has until it is trimmed: [`MachineReply::Created`].
    GraphPool(usize),
    /// Creates a pool: [`MachineReply::Created`].
    PoolCreate {
        /// Where its memory is.
        location: PoolLocation,
        /// The most that it may hold; zero for as much as there is.
        max_bytes: u64,
    },
    /// Destroys a pool and what is in it.
    PoolDestroy(u64),
    /// Allocates from a pool: [`MachineReply::Allocated`].
    PoolAllocate {
        /// The pool.
        pool: u64,
        /// How much.
        bytes: u64,
    },
    /// Gives unused memory of a pool back to the card.
    PoolTrim {
        /// The pool.
        pool: u64,
        /// How much it may keep.
        keep: u64,
    },
    /// Reads an attribute: [`MachineReply::Value`].
    PoolGet(u64, PoolAttribute),
    /// Writes an attribute.
    PoolSet(u64, PoolAttribute, u64),
    /// A point of synchronisation: pools shrink to their release threshold.
    Synchronize,
    /// Free and total bytes of a card: [`MachineReply::Memory`].
    MemoryInfo(usize),
    /// The most that all processes together have held of a card since this was last asked:
    /// [`MachineReply::Value`].
    HighWater(usize),
    /// Puts a rule in force.
    AddRule(FaultRule),
    /// Ends all rules.
    ClearRules,
    /// The NVML side of the machine.
    Nvml(NvmlRequest),
}

/// What the machine answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineReply {
    /// Done.
    Done,
    /// Refused, and nothing changed.
    Refused(CudaRefusal),
    /// To [`MachineRequest::Hello`].
    Facts(MachineFacts),
    /// The name of a new object.
    Created(u64),
    /// A new allocation.
    Allocated {
        /// Its name.
        allocation: u64,
        /// Where it lies.
        placement: BlockPlacement,
    },
    /// An imported handle.
    Imported {
        /// The card that its memory is on, if it is on one.
        location: MachineLocation,
        /// Its size.
        bytes: u64,
    },
    /// One number.
    Value(u64),
    /// To [`MachineRequest::MemoryInfo`].
    Memory {
        /// What could be allocated now.
        free: u64,
        /// What there is.
        total: u64,
    },
    /// To [`MachineRequest::Nvml`].
    Nvml(NvmlReply),
}

/// A reply, and the blocks that the process has lost by the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineAnswer {
    /// The reply proper.
    pub reply: MachineReply,
    /// Blocks that are no longer there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<u64>,
}

/// Where memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineLocation {
    /// On a card.
    Card(usize),
    /// In the host, where it costs no card anything.
    Host,
}

/// A limit of a context whose value takes memory of the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ContextLimit {
    /// The heap of `malloc` in kernels.
    MallocHeap,
    /// The buffer of `printf` in kernels.
    PrintfFifo,
    /// The stack of each thread, for as many threads as the card can hold.
    Stack,
    /// What each thread of the kernels that were launched needs, in the same memory as the stacks; no
    /// program sets it, and it never shrinks.
    Local,
    /// What the driver takes for kernels without a call that says so; it never shrinks.
    Hidden,
}

/// What the machine is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// The CUDA version of the driver.
    pub cuda_version: i32,
    /// The cards in PCI order.
    pub cards: Vec<CardFacts>,
    /// The functions whose every call the rules want to see.
    pub watched: Vec<String>,
}

/// What a card is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardFacts {
    /// The product name.
    pub model: String,
    /// `GPU-…`.
    pub uuid: String,
    /// The same as 16 bytes.
    pub uuid_bytes: [u8; 16],
    /// What programs can have, in bytes.
    pub usable: u64,
    /// The PCI bus.
    pub pci_bus: u32,
    /// The compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// How many multiprocessors there are.
    pub multiprocessors: u32,
}
