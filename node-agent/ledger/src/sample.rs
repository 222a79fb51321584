//! What the agent saw of the cards and the accounts at one moment.

use apportion_abi::{Bytes, CardUuid};

use crate::allocation::{AllocationId, ProcessId};

/// Everything that was seen in one round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSample {
    /// The ledger's generation when the round began: a later shrink is not in it.
    pub generation: u64,
    /// The cards that answered.
    pub cards: Vec<CardSample>,
    /// The accounts, one entry for each allocation.
    pub accounts: Vec<AccountSample>,
}

/// One card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardSample {
    /// Which.
    pub card: CardUuid,
    /// What is in use, without the driver's reserve.
    pub used: Bytes,
    /// What live processes claimed of it that NVML does not list: in a pid namespace of its own it may
    /// list nobody, or pids that mean nothing here.
    pub unlisted: Bytes,
    /// What a process that charges may take of it beyond its claims without an offence.
    pub leeway: Bytes,
    /// The processes that NVML lists.
    pub processes: Vec<ProcessSample>,
}

/// One process on one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSample {
    /// Which.
    pub process: ProcessId,
    /// The allocation that it belongs to.
    pub owner: Option<AllocationId>,
    /// What it uses; `None` where the card does not say.
    pub nvml: Option<Bytes>,
    /// What it claimed of the card; `None` where it has no slot in its account.
    pub claimed: Option<ClaimWindow>,
    /// Whether it is dead, and the driver keeps its memory all the same.
    pub has_ended: bool,
}

/// The lowest and the highest claim of a process while NVML was being asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimWindow {
    /// The lowest.
    pub lowest: Bytes,
    /// The highest.
    pub highest: Bytes,
}

impl ClaimWindow {
    /// Whether nothing was claimed or taken back meanwhile.
    #[must_use]
    pub fn is_quiet(self) -> bool {
        self.lowest == self.highest
    }
}

/// One account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountSample {
    /// Whose.
    pub id: AllocationId,
    /// Whether its files are there and make sense.
    pub is_sound: bool,
    /// What all processes claimed, by card.
    pub claimed: Vec<(CardUuid, Bytes)>,
}
