//! The slots that the kubelet gives to containers, and the grant of each.
//!
//! A slot is an opaque device id and stands for no card. The kubelet picks any slot before anybody knows which pod
//! it is for. The agent learns the pod from the kubelet when a container is about to start. Then it writes the
//! slot's grant where the container runtime finds it. Without the grant no container starts.
//!
//! # Nothing here is saved
//! The truth is in the kubelet's device assignments, the allocations and the grants on disk. A new table is rebuilt
//! from these ([`SlotEvent::Found`], then [`SlotEvent::Held`]).
//!
//! # Quarantine
//! A pod can leave a slot before its last process has ended. Until the ledger has removed its allocation, the slot
//! is reported as unhealthy and no other pod starts on it. This is a precaution; pods are kept apart because no two
//! allocations share an account. So a table that is rebuilt may do without it.

mod slot;
mod table;

pub use slot::{SlotId, SlotState};
pub use table::{SlotEffect, SlotEvent, SlotRefusal, SlotTable};
