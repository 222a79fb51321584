//! Who calls a guarantee in, and what for.

use apportion_abi::CardRequest;

use crate::ids::AllocationId;

/// Who calls memory in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallClaimant {
    /// A new allocation with a guarantee, by its idempotency key.
    Newcomer(String),
    /// An allocation that sleeps because of an earlier call, and has waited for its turn.
    Sleeper(AllocationId),
}

/// A call that is not served yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuaranteeCall {
    /// Who calls.
    pub claimant: CallClaimant,
    /// Its name for people.
    pub name: String,
    /// What it needs beyond what it holds.
    pub asks: Vec<CardRequest>,
}
