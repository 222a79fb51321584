//! One process's objects: what it has created and not destroyed. All of it ends with the process. Only virtual memory
//! handles are stored elsewhere, because other processes may share them.

use std::collections::{BTreeMap, HashMap};

use crate::arena::Arena;
use crate::checkpoint::ProcessCheckpoint;
use crate::pool::ProcessPool;
use crate::{BlockPlacement, ContextLimit};

const MIB: u64 = 1 << 20;

/// What the host knows about a process besides its pid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The path of its control group below the mount, e.g. `/user.slice`.
    pub cgroup: String,
    /// The user that it runs as.
    pub uid: u32,
}

/// A process that the machine serves.
#[derive(Debug)]
pub(crate) struct MachineProcess {
    pub(crate) peer: PeerIdentity,
    pub(crate) contexts: BTreeMap<u64, CardContext>,
    pub(crate) primaries: BTreeMap<usize, PrimaryRetention>,
    pub(crate) pools: BTreeMap<u64, ProcessPool>,
    pub(crate) default_pools: BTreeMap<usize, u64>,
    pub(crate) graph_pools: BTreeMap<usize, u64>,
    pub(crate) allocations: HashMap<u64, MachineAllocation>,
    pub(crate) checkpoint: ProcessCheckpoint,
}

/// The primary context of a card. Its name stays the same when the context ends and is created again.
#[derive(Debug)]
pub(crate) struct PrimaryRetention {
    pub(crate) context: u64,
    pub(crate) retained: u32,
}

/// A context: its own cost, what was loaded into it and what was allocated in it.
#[derive(Debug)]
pub(crate) struct CardContext {
    pub(crate) card: usize,
    pub(crate) own_bytes: u64,
    pub(crate) limits: BTreeMap<ContextLimit, u64>,
    pub(crate) modules: BTreeMap<u64, u64>,
    pub(crate) arena: Arena,
}

/// An allocation with an address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MachineAllocation {
    pub(crate) home: AllocationOrigin,
    pub(crate) placement: BlockPlacement,
    pub(crate) bytes: u64,
}

/// Where an allocation came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllocationOrigin {
    Context(u64),
    Pool(u64),
}

impl MachineProcess {
    pub(crate) fn new(peer: PeerIdentity) -> Self {
        Self {
            peer,
            contexts: BTreeMap::new(),
            primaries: BTreeMap::new(),
            pools: BTreeMap::new(),
            default_pools: BTreeMap::new(),
            graph_pools: BTreeMap::new(),
            allocations: HashMap::new(),
            checkpoint: ProcessCheckpoint::default(),
        }
    }

    /// Whether the process has a context on a card. Then NVML lists it.
    pub(crate) fn is_on(&self, card: usize) -> bool {
        self.contexts.values().any(|context| context.card == card)
    }
}

impl CardContext {
    /// Requests of up to 1 MiB share blocks of 2 MiB. Larger ones are rounded up to 2 MiB.
    pub(crate) fn new(card: usize, own_bytes: u64) -> Self {
        Self {
            card,
            own_bytes,
            limits: BTreeMap::new(),
            modules: BTreeMap::new(),
            arena: Arena::new(2 * MIB, MIB),
        }
    }

    /// All memory of the context on its card.
    pub(crate) fn bytes(&self) -> u64 {
        self.own_bytes + self.limit_bytes() + self.code_bytes() + self.arena.reserved()
    }

    /// The memory for its limits. The stacks and the local memory of threads share one allocation.
    pub(crate) fn limit_bytes(&self) -> u64 {
        let of = |limit| self.limits.get(&limit).copied().unwrap_or(0);
        let threads = of(ContextLimit::Stack).max(of(ContextLimit::Local));
        let others = [
            ContextLimit::MallocHeap,
            ContextLimit::PrintfFifo,
            ContextLimit::Hidden,
        ];
        others
            .into_iter()
            .map(of)
            .fold(threads, u64::saturating_add)
    }

    /// The memory of its modules. Small ones share blocks; a large one has its own.
    pub(crate) fn code_bytes(&self) -> u64 {
        let (small, large): (Vec<u64>, Vec<u64>) =
            self.modules.values().partition(|bytes| **bytes <= MIB);
        let blocks = |bytes: u64| bytes.checked_next_multiple_of(2 * MIB).unwrap_or(u64::MAX);
        let large = large.into_iter().map(blocks);
        large.fold(blocks(small.iter().sum()), u64::saturating_add)
    }
}

impl ContextLimit {
    /// The value that a context includes from the start.
    pub(crate) fn included(self) -> u64 {
        match self {
            Self::MallocHeap => 8 * MIB,
            Self::PrintfFifo => MIB,
            Self::Stack | Self::Local => 1024,
            Self::Hidden => 0,
        }
    }

    /// The memory for a value above what is included.
    pub(crate) fn cost(self, value: u64, multiprocessors: u32) -> u64 {
        let above = value.saturating_sub(self.included());
        let bytes = match self {
            Self::MallocHeap | Self::PrintfFifo | Self::Hidden => above,
            Self::Stack | Self::Local => above.saturating_mul(2048 * u64::from(multiprocessors)),
        };
        bytes.checked_next_multiple_of(2 * MIB).unwrap_or(u64::MAX)
    }
}
