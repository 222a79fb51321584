//! What this process says in its account of memory that others may hold too, and by which key.

use apportion_abi::Bytes;
use apportion_abi::account::{Join, Share};
use apportion_gate::Hold;

use super::{Account, marks};

/// What came of joining the holders of memory that another process shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// It is held from now on.
    Held(Hold),
    /// It is not this account's memory, or cannot be told.
    Foreign,
    /// There is no room for it.
    Refused,
}

impl Account {
    /// Says that memory which this process has charged is shown to others.
    pub(crate) fn offer(&self, card: usize, key: u64, bytes: u64) -> Option<Hold> {
        let usage = self.usage.usage();
        let owner = self.owner(&usage)?;
        usage
            .offer(owner, card, key, Bytes(bytes))
            .map(Share::words)
    }

    /// Joins those who hold memory that is known by a key.
    pub(crate) fn join(&self, key: u64) -> Joined {
        let usage = self.usage.usage();
        let Some(owner) = self.owner(&usage) else {
            return Joined::Refused;
        };
        let ask = || usage.join(owner, key, |card| self.limits.cards().get(card));
        let joined = match ask() {
            Join::Refused => {
                self.retire_the_dead();
                ask()
            }
            decided @ (Join::Joined(_) | Join::Unknown) => decided,
        };
        match joined {
            Join::Joined(share) => Joined::Held(share.words()),
            Join::Unknown => Joined::Foreign,
            Join::Refused => Joined::Refused,
        }
    }

    /// Takes back what was said, after the driver has let go of the memory.
    pub(crate) fn leave(&self, hold: Hold) {
        self.usage.usage().leave(Share::from_words(hold));
    }

    /// The key on a descriptor.
    pub(crate) fn key_on(descriptor: i32) -> Option<u64> {
        marks::find(descriptor)
    }

    /// Leaves a key on a descriptor: `known`, or a new one. `None` where that cannot be done.
    pub(crate) fn put_key_on(descriptor: i32, known: Option<u64>) -> Option<u64> {
        let key = known.unwrap_or_else(marks::fresh);
        marks::mark(descriptor, key).then_some(key)
    }
}
