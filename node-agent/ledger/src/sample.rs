//! What the agent saw of the cards and the accounts in one sampling round.

use apportion_abi::{Bytes, CardUuid};

use crate::ids::{AllocationId, ProcessId};

/// What one round of sampling found on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSample {
    /// The ledger's generation when the round began. The sample does not show later shrinks.
    pub generation: u64,
    /// The cards that answered.
    pub cards: Vec<CardSample>,
    /// The accounts, one entry for each allocation.
    pub accounts: Vec<AccountSample>,
}

/// What NVML reports about one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardSample {
    /// The card.
    pub card: CardUuid,
    /// The memory in use, without the driver's reserve.
    pub used: Bytes,
    /// The claims of live processes that NVML does not list. In its own pid namespace the agent may see no processes
    /// in NVML, or pids that mean nothing here.
    pub unlisted: Bytes,
    /// How much a process that charges may use beyond its claims without an offence.
    pub leeway: Bytes,
    /// The processes that NVML lists.
    pub processes: Vec<ProcessSample>,
}

/// One process on one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSample {
    /// The process.
    pub process: ProcessId,
    /// The allocation that it belongs to.
    pub owner: Option<AllocationId>,
    /// The memory that it uses; `None` if the card does not report it.
    pub nvml: Option<Bytes>,
    /// What it claimed on the card; `None` if it has no slot in its account.
    pub claimed: Option<ClaimWindow>,
    /// Whether it has ended while the driver still holds its memory.
    pub has_ended: bool,
}

/// The lowest and the highest claim of a process during the NVML query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimWindow {
    /// The lowest.
    pub lowest: Bytes,
    /// The highest.
    pub highest: Bytes,
}

impl ClaimWindow {
    /// Whether the claim did not change during the query.
    #[must_use]
    pub fn is_quiet(self) -> bool {
        self.lowest == self.highest
    }
}

/// What the processes of one account have charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountSample {
    /// The allocation that owns it.
    pub id: AllocationId,
    /// Whether its files exist and are valid.
    pub is_sound: bool,
    /// The claims of all processes, by card.
    pub claimed: Vec<(CardUuid, Bytes)>,
}
