//! The messages between the simulated driver and its CUDA library: one request for each step that the machine must know
//! of. Calls that move no memory send nothing.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{
    BlockPlacement, CudaRefusal, FaultRule, GateOrder, GateReport, NvmlReply, NvmlRequest, Pid,
    PoolAttribute, PoolLocation,
};

/// A request and the driver function that makes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineCall {
    /// The exported name of the function, for the rules; only on the first request of a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Cow<'static, str>>,
    /// The request.
    pub request: MachineRequest,
}

/// The driver's lock on a memory descriptor: its start and its length in bytes.
pub const EXPORTED: (i64, i64) = (i64::MAX - 4, 2);

/// What a process asks of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineRequest {
    /// Asks for the machine's facts: [`MachineReply::Facts`].
    Hello,
    /// Does nothing, so that the rules see the call.
    Touch,
    /// Retains the primary context of a card: [`MachineReply::Created`].
    PrimaryRetain(usize),
    /// Releases it; the last release destroys it.
    PrimaryRelease(usize),
    /// Destroys it even if it is retained.
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
    /// Loads more of a module's code into the card's memory.
    ModuleGrow {
        /// The context that it was loaded into.
        context: u64,
        /// The module.
        module: u64,
        /// The new size of code and variables, in bytes.
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
        /// The number of bytes.
        bytes: u64,
    },
    /// Frees an allocation of [`MachineRequest::Allocate`] or [`MachineRequest::PoolAllocate`].
    Free(u64),
    /// Creates physical memory without an address: [`MachineReply::Created`].
    HandleCreate {
        /// Its location.
        location: MachineLocation,
        /// The number of bytes.
        bytes: u64,
    },
    /// Takes one more reference to a handle of this process.
    HandleRetain(u64),
    /// Drops a reference.
    HandleRelease(u64),
    /// Gets a reference to a handle of another process: [`MachineReply::Imported`].
    HandleImport(u64),
    /// A descriptor of a handle's memory was created. It has a lock at [`EXPORTED`] and keeps the memory alive.
    HandleExport {
        /// The handle.
        handle: u64,
        /// The descriptor's number in the process.
        descriptor: i32,
    },
    /// The handle by which other processes open the block of an allocation: [`MachineReply::Created`]. The block itself
    /// is this process's reference to it.
    BlockShare(u64),
    /// Maps a handle. The mapping is a reference.
    Map(u64),
    /// Unmaps it.
    Unmap(u64),
    /// The default pool of a card: [`MachineReply::Created`].
    DefaultPool(usize),
    /// The pool of a card's graphs, which keeps its memory until it is trimmed: [`MachineReply::Created`].
    GraphPool(usize),
    /// Creates a pool: [`MachineReply::Created`].
    PoolCreate {
        /// The location of its memory.
        location: PoolLocation,
        /// The most that it may hold. Zero for no bound.
        max_bytes: u64,
    },
    /// Destroys a pool and what is in it.
    PoolDestroy(u64),
    /// Allocates from a pool: [`MachineReply::Allocated`].
    PoolAllocate {
        /// The pool.
        pool: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// Gives unused memory of a pool back to the card.
    PoolTrim {
        /// The pool.
        pool: u64,
        /// How much the pool may keep.
        keep: u64,
    },
    /// Reads an attribute: [`MachineReply::Value`].
    PoolGet(u64, PoolAttribute),
    /// Writes an attribute.
    PoolSet(u64, PoolAttribute, u64),
    /// A synchronization: pools shrink to their release threshold.
    Synchronize,
    /// Free and total bytes of a card: [`MachineReply::Memory`].
    MemoryInfo(usize),
    /// The most that all processes together have held on a card since the last such request: [`MachineReply::Value`].
    HighWater(usize),
    /// The restore thread of the asking process waits for its next order: [`MachineReply::Order`].
    AwaitOrder {
        /// The thread's id.
        thread: i32,
    },
    /// The restore thread has carried out its last order.
    OrderDone(GateReport),
    /// `cuCheckpointProcessGetState`: [`MachineReply::Value`], a `CUprocessState`.
    ProcessState(Pid),
    /// `cuCheckpointProcessGetRestoreThreadId`: [`MachineReply::Value`].
    RestoreThread(Pid),
    /// `cuCheckpointProcessLock`.
    ProcessLock {
        /// The process to lock.
        process: Pid,
        /// How long its calls in flight may take, in milliseconds. Zero for as long as they need.
        timeout_ms: u32,
    },
    /// `cuCheckpointProcessCheckpoint`.
    ProcessCheckpoint(Pid),
    /// `cuCheckpointProcessRestore`.
    ProcessRestore(Pid),
    /// `cuCheckpointProcessUnlock`.
    ProcessUnlock(Pid),
    /// The bytes of a process that a checkpoint has copied to the host: [`MachineReply::Value`].
    HostCopies(Pid),
    /// Puts a rule in force.
    AddRule(FaultRule),
    /// Removes all rules.
    ClearRules,
    /// The NVML side of the machine.
    Nvml(NvmlRequest),
}

/// What the machine answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineReply {
    /// The request was carried out; there is nothing to return.
    Done,
    /// Refused. Nothing has changed.
    Refused(CudaRefusal),
    /// To [`MachineRequest::Hello`].
    Facts(MachineFacts),
    /// The name of a new object.
    Created(u64),
    /// A new allocation.
    Allocated {
        /// Its name.
        allocation: u64,
        /// Its location.
        placement: BlockPlacement,
    },
    /// An imported handle.
    Imported {
        /// The location of its memory.
        location: MachineLocation,
        /// Its size.
        bytes: u64,
    },
    /// One number.
    Value(u64),
    /// To [`MachineRequest::MemoryInfo`].
    Memory {
        /// The bytes that could be allocated now.
        free: u64,
        /// The memory for programs, in bytes.
        total: u64,
    },
    /// To [`MachineRequest::AwaitOrder`].
    Order(GateOrder),
    /// To [`MachineRequest::Nvml`].
    Nvml(NvmlReply),
}

/// A reply, and the blocks that the process has lost through the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineAnswer {
    /// The reply proper.
    pub reply: MachineReply,
    /// The lost blocks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<u64>,
}

/// The location of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineLocation {
    /// On a card.
    Card(usize),
    /// In the host. It costs no card memory.
    Host,
}

/// A limit of a context whose value takes memory of the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ContextLimit {
    /// The heap of `malloc` in kernels.
    MallocHeap,
    /// The buffer of `printf` in kernels.
    PrintfFifo,
    /// The stack of each thread, for as many threads as the card can run.
    Stack,
    /// The local memory of each thread of the kernels launched so far, in the same allocation as the stacks. No program
    /// sets it, and it never shrinks.
    Local,
    /// Memory that the driver takes for kernels without an announcing call. It never shrinks.
    Hidden,
}

/// What a client learns about the machine when it connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// The CUDA version of the driver.
    pub cuda_version: i32,
    /// The cards in PCI order.
    pub cards: Vec<CardFacts>,
    /// The functions that the rules watch.
    pub watched: Vec<String>,
}

/// What a client learns about a card when it connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardFacts {
    /// The product name.
    pub model: String,
    /// `GPU-…`.
    pub uuid: String,
    /// The same as 16 bytes.
    pub uuid_bytes: [u8; 16],
    /// The memory for programs, in bytes.
    pub usable: u64,
    /// The PCI bus.
    pub pci_bus: u32,
    /// The compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// How many multiprocessors there are.
    pub multiprocessors: u32,
}
