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
    /// An allocation that slept because it was idle, and is needed again. What it lacks was its own, so it comes in the
    /// order of newcomers.
    IdleSleeper(AllocationId),
}

impl CallClaimant {
    /// Whether it calls in what it was promised, and not only what it used above that.
    pub(crate) fn has_guarantee(&self) -> bool {
        match self {
            Self::Newcomer(_) | Self::IdleSleeper(_) => true,
            Self::Sleeper(_) => false,
        }
    }
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
