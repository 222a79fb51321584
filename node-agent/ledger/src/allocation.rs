//! An allocation: a placement that was accepted, with what it has of each of its cards.

use std::collections::BTreeMap;
use std::fmt;

use apportion_abi::{Bytes, CardUuid};

use crate::estimate::OverheadEstimate;
use crate::event::EpochMillis;

/// The name of an allocation inside the agent, and of its account's directory.
///
/// It is never used twice, also not after the checkpoint was lost: a process that outlives its
/// allocation still names it in its environment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId(pub String);

impl AllocationId {
    /// Reads what was written down, a file's text or a folder's name: the ledger's two numbers. Anything else is no
    /// id, and so nothing that leads out of the folder of accounts is one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (epoch, serial) = text.split_once('-')?;
        let is_number = |part: &str, digits: usize, is_digit: fn(&u8) -> bool| {
            (1..=digits).contains(&part.len()) && part.as_bytes().iter().all(is_digit)
        };
        let is_id = is_number(epoch, 16, u8::is_ascii_hexdigit)
            && is_number(serial, 20, u8::is_ascii_digit);
        is_id.then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for AllocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A process, told apart from a later one with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// The pid as the agent sees it.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start: u64,
}

/// For whom an allocation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationOwner {
    /// A process of this machine.
    Process(ProcessId),
    /// A pod, by UID.
    Pod(String),
}

/// How far an allocation has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationPhase {
    /// Accepted and not yet committed.
    Reserved {
        /// When it ends unless it is committed.
        expires: EpochMillis,
    },
    /// Committed.
    Allocated(AllocationOwner),
    /// Given back, or its owner is gone; it holds its memory until its last process ends.
    Draining,
}

/// Whether the limit of a grant is being kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitEnforcement {
    /// No process uses the card yet.
    #[default]
    Pending,
    /// The card is given whole, and nothing is limited on it.
    Whole,
    /// Every process that uses the card charges the account.
    Attached,
    /// The account's files are gone or damaged.
    Missing,
    /// The processes use more than the limit.
    Overlimit,
    /// A process uses the card without charging the account, and the allocation uses more than it may.
    Bypassed,
}

/// What an allocation has of one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardGrant {
    /// The card.
    pub card: CardUuid,
    /// The most that its processes may take together.
    pub limit: Bytes,
    /// What nobody else can have: the limit, or what is used where that is more.
    pub held: Bytes,
    /// What the driver took for its processes beyond their claims.
    pub overhead: Bytes,
    /// What NVML says its processes use.
    pub nvml: Bytes,
    /// Whether the limit is being kept.
    pub enforcement: LimitEnforcement,
    /// The most that its processes may use without offence: the limit, or what they used when it was
    /// lowered and still do.
    pub(crate) allowed: Bytes,
    pub(crate) estimates: BTreeMap<ProcessId, OverheadEstimate>,
    /// The ledger's generation at the latest shrink: older samples do not show it.
    pub(crate) shrunk: u64,
}

impl CardGrant {
    /// A grant that nothing uses yet.
    #[must_use]
    pub fn new(card: CardUuid, limit: Bytes) -> Self {
        Self {
            card,
            limit,
            held: limit,
            overhead: Bytes::ZERO,
            nvml: Bytes::ZERO,
            enforcement: LimitEnforcement::Pending,
            allowed: limit,
            estimates: BTreeMap::new(),
            shrunk: 0,
        }
    }

    /// Adds up the overhead of all processes and says whether it changed.
    pub(crate) fn add_up(&mut self) -> bool {
        let overhead = self
            .estimates
            .values()
            .map(OverheadEstimate::overhead)
            .sum();
        overhead != std::mem::replace(&mut self.overhead, overhead)
    }
}

/// A placement that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its name inside the agent.
    pub id: AllocationId,
    /// The caller's name for its wish: asking again with it gives the same allocation.
    pub key: String,
    /// What people call it.
    pub name: String,
    /// How far it has come.
    pub state: AllocationPhase,
    /// When it was accepted.
    pub created: EpochMillis,
    /// What it has of each card, in the order in which it was asked for.
    pub grants: Vec<CardGrant>,
    /// Whether its containers have the cards to themselves, with nothing between them and the driver.
    pub is_whole: bool,
}

impl Allocation {
    /// What it has of one card.
    #[must_use]
    pub fn grant(&self, card: CardUuid) -> Option<&CardGrant> {
        self.grants.iter().find(|grant| grant.card == card)
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
