//! What this process records about memory that others may also hold, and the keys of such memory.

use apportion_abi::Bytes;
use apportion_abi::account::{JoinOutcome, Share};
use apportion_gate::Hold;

use super::{MappedAccount, descriptor_keys};

/// The outcome of joining the holders of memory that another process shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinedMemory {
    /// This process holds the memory from now on.
    Held(Hold),
    /// It is another account's memory, or that is unknown.
    Foreign,
    /// The limit has no room for the memory, or the account none for this process.
    Refused,
}

impl MappedAccount {
    /// Records that memory which this process has charged is shared with others.
    pub(crate) fn offer(&self, card: usize, key: u64, bytes: u64) -> Option<Hold> {
        let usage = self.usage.usage();
        let owner = self.owner(&usage)?;
        usage
            .offer(owner, card, key, Bytes(bytes))
            .map(Share::words)
    }

    /// Joins the holders of the memory with this key.
    pub(crate) fn join(&self, key: u64) -> JoinedMemory {
        let usage = self.usage.usage();
        let Some(owner) = self.owner(&usage) else {
            return JoinedMemory::Refused;
        };
        let ask = || usage.join(owner, key, |card| self.limits.cards().get(card));
        let joined = match ask() {
            JoinOutcome::Refused => {
                self.retire_the_dead();
                ask()
            }
            decided @ (JoinOutcome::Joined(_) | JoinOutcome::Unknown) => decided,
        };
        match joined {
            JoinOutcome::Joined(share) => JoinedMemory::Held(share.words()),
            JoinOutcome::Unknown => JoinedMemory::Foreign,
            JoinOutcome::Refused => JoinedMemory::Refused,
        }
    }

    /// Drops a hold, after the driver has released the memory.
    pub(crate) fn leave(&self, hold: Hold) {
        self.usage.usage().leave(Share::from_words(hold));
    }

    /// The key on a descriptor.
    pub(crate) fn key_on(descriptor: i32) -> Option<u64> {
        descriptor_keys::find(descriptor)
    }

    /// Puts a key on a descriptor: `known`, or a new one. `None` where that is not possible.
    pub(crate) fn put_key_on(descriptor: i32, known: Option<u64>) -> Option<u64> {
        let key = known.unwrap_or_else(descriptor_keys::fresh);
        descriptor_keys::mark(descriptor, key).then_some(key)
    }
}
