//! The slots that the kubelet hands to containers, and which grant stands behind each.
//!
//! A slot is a name and no card: the kubelet may choose any, and chooses before anybody says which pod
//! it is for. Only when a container is about to start does the agent learn the pod from the kubelet, and
//! only then is the slot's grant written down where the runtime finds it. Without it no container starts.
//!
//! # Nothing here is saved
//! What the kubelet says of its slots, the allocations and the grants on disk are the truth; a book that
//! begins anew is told of all three ([`SlotEvent::Found`], then [`SlotEvent::Held`]) and is then what it
//! was.
//!
//! # Quarantine
//! A pod can leave a slot before its last process has ended. Until the ledger has let its allocation go,
//! the slot is not offered and no other pod starts on it. It is caution and not what keeps pods apart,
//! because no two allocations share an account; so a book that begins anew may do without it.

mod slot;
mod table;

pub use slot::{SlotId, SlotState};
pub use table::{SlotEffect, SlotEvent, SlotRefusal, SlotTable};
