//! Who chooses devices for claims.
//!
//! The policy counts which claim has which devices at each step of a session. What a device is, and whether it serves
//! a claim, only the allocator knows: it reads slices, classes and the conditions of claims, which the policy does
//! not.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The devices of a claim. It is counted as a whole: given, and taken back.
pub trait DeviceAllocation: Any + fmt::Debug + Send + Sync {
    /// What is written into the status of the claim, as JSON.
    fn text(&self) -> String;
    /// The devices, as a person reads them.
    fn devices(&self) -> Vec<String>;
    /// Whether the other one has the same devices, and as much of them.
    fn is_like(&self, other: &dyn DeviceAllocation) -> bool;
}

/// An allocation that several states of a session share.
pub type DeviceGrant = Arc<dyn DeviceAllocation>;

/// What claims have of all devices, and what is left of them.
pub trait DeviceAccount: fmt::Debug {
    /// Counts an allocation.
    fn add(&mut self, allocation: &dyn DeviceAllocation);

    /// Takes back an allocation that was counted.
    fn remove(&mut self, allocation: &dyn DeviceAllocation);

    /// Chooses devices for claims of one pod on a node, for all of them or for none.
    ///
    /// # Errors
    ///
    /// Why that is not possible, for people.
    fn allocate(&self, node: &str, claims: &[&str]) -> Result<Vec<DeviceGrant>, String>;

    /// Whether `allocate` would find devices. It is asked for every node, so it may remember answers.
    fn can_allocate(&self, node: &str, claims: &[&str]) -> bool {
        self.allocate(node, claims).is_ok()
    }

    /// Whether a node reaches all devices of an allocation.
    fn reaches(&self, node: &str, allocation: &dyn DeviceAllocation) -> bool;

    /// An account with the same contents.
    fn copy(&self) -> Box<dyn DeviceAccount>;
}

/// The devices of a cluster and the claims on them.
pub trait DeviceAllocator: fmt::Debug + Send + Sync {
    /// An account in which nobody has anything.
    fn account(&self) -> Box<dyn DeviceAccount>;
}
