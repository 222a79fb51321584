//! The numbers of elastic grants, and what programs ask for.

use std::collections::BTreeMap;

use apportion_abi::{Bytes, CardUuid};

use crate::ids::AllocationId;
use crate::time::EpochMillis;

/// The two numbers of an elastic grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstRange {
    /// What is always there.
    pub guaranteed: Bytes,
    /// The most that the allowance can grow to: the limit that the user wrote.
    pub ceiling: Bytes,
}

/// A program's request for a larger allowance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BurstRequest {
    /// Its allocation.
    pub id: AllocationId,
    /// The card.
    pub card: CardUuid,
    /// The allowance that it needs.
    pub wanted: Bytes,
}

/// Requests that were not met, with what they wanted, until this time.
pub(crate) type UnmetBursts = BTreeMap<(CardUuid, AllocationId), UnmetBurst>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnmetBurst {
    pub(crate) wanted: Bytes,
    pub(crate) until: EpochMillis,
}
