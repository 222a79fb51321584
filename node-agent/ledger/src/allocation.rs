//! An allocation: an accepted placement with one grant for each card.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_abi::{BurstTerms, Bytes, CardUuid};

use crate::burst_request::BurstRange;
use crate::estimate::OverheadEstimate;
use crate::ids::{AllocationId, ProcessId};
use crate::time::EpochMillis;

/// Who an allocation is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationOwner {
    /// A process of this machine.
    Process(ProcessId),
    /// A pod, by UID.
    Pod(String),
    /// A ResourceClaim. All its pods share the allocation.
    Claim(ClaimOwner),
}

/// A ResourceClaim that owns an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimOwner {
    /// The claim's UID.
    pub uid: String,
    /// Namespace and name, with `/` between them.
    pub name: String,
    /// The pods that use the claim, as far as they are known: names by UID.
    pub pods: BTreeMap<String, String>,
}

/// The prefix of the keys of allocations for claims.
const CLAIM: &str = "claim/";

impl ClaimOwner {
    /// The key of the claim's allocation.
    #[must_use]
    pub fn key(uid: &str) -> String {
        format!("{CLAIM}{uid}")
    }

    /// The claim's namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }
}

/// The phase of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationPhase {
    /// Accepted and not yet committed.
    Reserved {
        /// When the reservation expires unless it is committed.
        expires: EpochMillis,
    },
    /// Committed to a process or a pod.
    Allocated(AllocationOwner),
    /// Released, or its owner is gone. It holds its memory until its last process ends.
    Draining,
}

/// Whether the programs of an allocation run, or sleep with their GPU memory in the host's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SuspensionPhase {
    /// They run.
    #[default]
    Running,
    /// They are being put to sleep. The allocation holds all its memory until they are.
    Suspending,
    /// They sleep. The allocation holds only what the driver still reports for them.
    Suspended,
    /// The allocation holds all its memory again, and they are being woken.
    Resuming,
}

/// Who put an allocation to sleep, and so who wakes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SuspensionCause {
    /// A client did, or the scheduler of its pod, and one of them wakes it. While it sleeps others can have all its memory.
    #[default]
    Client,
    /// A guarantee was called in, see `guarantee_call`. The agent wakes it, and what is guaranteed to it stays reserved.
    Guarantee,
    /// Its programs did not use the GPU. The agent wakes it when they do. While it sleeps others can have all its memory,
    /// or, if a pod owns it, what it used above its guarantee.
    Idle,
}

/// Who asks for a suspension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuspensionRequester {
    /// A client of the agent.
    Client,
    /// The scheduler of the pod.
    Scheduler,
    /// Somebody whose guarantee is called in.
    GuaranteeCall,
    /// The agent, because the processes do not use the GPU.
    IdleTime,
}

impl SuspensionRequester {
    /// Both a client and a scheduler decide themselves when it ends.
    pub(crate) fn cause(self) -> SuspensionCause {
        match self {
            Self::Client | Self::Scheduler => SuspensionCause::Client,
            Self::GuaranteeCall => SuspensionCause::Guarantee,
            Self::IdleTime => SuspensionCause::Idle,
        }
    }
}

/// Whether a grant's limit is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitEnforcement {
    /// No process uses the card yet.
    #[default]
    Pending,
    /// The card was given whole. Nothing limits its use.
    Whole,
    /// Every process that uses the card charges the account.
    Attached,
    /// The account's files are gone or damaged.
    Missing,
    /// The processes use more than the limit.
    Overlimit,
    /// A process uses the card without charging the account, and the allocation uses more than allowed.
    Bypassed,
}

/// What an allocation has of one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardGrant {
    /// The card.
    pub card: CardUuid,
    /// The most that its processes may use together now. Of an elastic grant this is its allowance, which changes.
    pub limit: Bytes,
    /// The guarantee and the limit of an elastic grant; `None` if both are `limit`.
    pub burst: Option<BurstRange>,
    /// What no other allocation can get: the limit, or the use where that is higher.
    pub held: Bytes,
    /// What the driver took for its processes beyond their claims.
    pub overhead: Bytes,
    /// What its processes use according to NVML.
    pub nvml: Bytes,
    /// What a suspended allocation held before, and must get back before its processes are woken.
    pub needed: Bytes,
    /// What its processes used when that was last known: by NVML or by their claims, whichever is more.
    pub used: Bytes,
    /// Whether the limit is kept.
    pub enforcement: LimitEnforcement,
    /// The most that its processes may use without an offence: the limit, or the use at the time of a shrink as long
    /// as it lasts.
    pub(crate) allowed: Bytes,
    pub(crate) estimates: BTreeMap<ProcessId, OverheadEstimate>,
    /// The first generation whose samples show the latest shrink.
    pub(crate) shrunk: u64,
}

impl CardGrant {
    /// A grant that no process uses yet.
    #[must_use]
    pub fn new(card: CardUuid, limit: Bytes) -> Self {
        Self {
            card,
            limit,
            burst: None,
            held: limit,
            overhead: Bytes::ZERO,
            nvml: Bytes::ZERO,
            needed: Bytes::ZERO,
            used: Bytes::ZERO,
            enforcement: LimitEnforcement::Pending,
            allowed: limit,
            estimates: BTreeMap::new(),
            shrunk: 0,
        }
    }

    /// Sums the overhead of all processes. Returns whether the sum changed.
    pub(crate) fn add_up(&mut self) -> bool {
        let overhead = self
            .estimates
            .values()
            .map(OverheadEstimate::overhead)
            .sum();
        overhead != std::mem::replace(&mut self.overhead, overhead)
    }
}

/// An accepted placement, from its reservation until its last process has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its id inside the agent.
    pub id: AllocationId,
    /// The caller's idempotency key: a second request with it returns the same allocation.
    pub key: String,
    /// The name for people.
    pub name: String,
    /// Its phase.
    pub state: AllocationPhase,
    /// When it was accepted.
    pub created: EpochMillis,
    /// One grant for each card, in the order of the request.
    pub grants: Vec<CardGrant>,
    /// What it is worth beside others that burst. Of no meaning unless a grant is elastic.
    pub terms: BurstTerms,
    /// Whether its containers have the cards to themselves, without the library between them and the driver.
    pub is_whole: bool,
    /// Whether its processes run or sleep.
    pub suspension: SuspensionPhase,
    /// Who put its processes to sleep. Of no meaning while they run.
    pub suspension_cause: SuspensionCause,
    /// When its processes last fell asleep or woke, or when it was accepted.
    pub moved: EpochMillis,
    /// After how long without a call of the driver its processes are put to sleep; `None` for never.
    pub idle_after: Option<Duration>,
}

impl Allocation {
    /// The grant of one card.
    #[must_use]
    pub fn grant(&self, card: CardUuid) -> Option<&CardGrant> {
        self.grants.iter().find(|grant| grant.card == card)
    }

    /// The claim that owns the allocation, if one does.
    #[must_use]
    pub fn claim(&self) -> Option<&ClaimOwner> {
        match &self.state {
            AllocationPhase::Allocated(AllocationOwner::Claim(claim)) => Some(claim),
            _ => None,
        }
    }

    /// Whether it was made for a claim.
    #[must_use]
    pub fn is_of_claim(&self) -> bool {
        self.key.starts_with(CLAIM)
    }

    pub(crate) fn grant_mut(&mut self, card: CardUuid) -> Option<&mut CardGrant> {
        self.grants.iter_mut().find(|grant| grant.card == card)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_two_numbers_and_leads_nowhere_else() {
        for id in ["4d-1", "19ac5b3f2e1-18446744073709551615"] {
            assert_eq!(AllocationId::parse(id), Some(AllocationId(id.to_owned())));
        }
        for text in [
            "",
            "-",
            "1-",
            "-1",
            "..",
            "../../escape",
            "4d-1/..",
            "4d-1-2",
            "important",
        ] {
            assert_eq!(AllocationId::parse(text), None, "{text}");
        }
    }
}
