//! The simulated machine: cards, and what processes hold on them. It is one pure state that requests change. It models
//! what memory accounting depends on (rounding, context overhead, sub-allocation, stream-ordered pools, virtual memory
//! with reference counts). It knows no sockets, clocks, pointers or libraries. Its requests and replies are also the
//! messages on the wire.
//!
//! It deliberately leaves out time (a kernel is over as soon as it is launched) and residency (managed memory is
//! resident from its allocation on).
#![forbid(unsafe_code)]

mod arena;
mod card;
mod checkpoint;
mod config;
mod contexts;
mod machine;
mod nvml_answer;
mod nvml_limits;
mod nvml_state;
mod pool;
mod process;
mod refusal;
mod rules;
mod snapshot;
mod virtual_memory;
mod wire;

pub use arena::BlockPlacement;
pub use checkpoint::{CheckpointState, GateOrder, GateReport};
pub use config::{CardConfig, ConfigError, DriverGeneration, MachineConfig};
pub use machine::Machine;
pub use pool::{PoolAttribute, PoolLocation};
pub use process::PeerIdentity;
pub use refusal::CudaRefusal;
pub use rules::{CallAdmission, FaultEffect, FaultRule};
pub use snapshot::*;
pub use wire::{
    CardFacts, ContextLimit, EXPORTED, MachineAnswer, MachineCall, MachineFacts, MachineLocation,
    MachineReply, MachineRequest,
};

/// A process, by its pid on the host.
pub type Pid = i32;
