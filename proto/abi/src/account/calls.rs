//! Calls of the driver: how the agent sees that a share is idle, and how a call wakes a share that sleeps.
//!
//! The agent publishes an epoch. A process writes the epoch into its own word at its first call in it, before it goes into
//! the driver. So a call costs a load and a comparison, and no two processes write one cache line. Once the agent has seen
//! a call of the epoch, it begins the next one. While nobody calls, and while the share sleeps, the epoch stays. So a share
//! has been idle since its epoch began, if no word has that epoch; and a sleeping share wants to wake as soon as one has.
//!
//! # Why no call is overlooked
//! A call that goes into the driver finds its epoch published: by itself, or by an earlier call of its process. The agent
//! puts a share to sleep only if no word has the epoch, and keeps the epoch until the share runs again. So a call that the
//! driver holds has its epoch in a word, however the two cross: `tests/loom.rs` tries all ways. What remains is a call that
//! read the epoch before the present one, and was stopped before it came to the driver, for as long as the share was idle.
//! The agent makes sure of that by looking at the threads (`node-agent/src/processes/threads.rs`).
//!
//! Programs can write anything here. With that they keep their own share awake, or asleep.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::layout::{AtomicU64, SlotHead, fence};

/// The value of `suspended` of a share that a call wakes.
pub(super) const ASLEEP_UNTIL_CALLED: u64 = 2;

/// The agent's words: the same for all processes of a share, which only read them.
#[derive(Clone, Copy, Debug)]
pub struct SharedCallWords<'a> {
    pub(super) epoch: &'a AtomicU64,
    pub(super) suspended: &'a AtomicU64,
}

impl<'a> SharedCallWords<'a> {
    /// Assembles the words of a `limits` file.
    #[must_use]
    pub const fn new(epoch: &'a AtomicU64, suspended: &'a AtomicU64) -> Self {
        Self { epoch, suspended }
    }

    /// The word of the epoch. 0 means that nobody asks about calls.
    #[must_use]
    pub const fn epoch_word(self) -> &'a AtomicU64 {
        self.epoch
    }

    /// The epoch; 0 if nobody asks about calls.
    #[must_use]
    pub fn epoch(self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// Begins the next epoch. For the agent, while the share runs.
    pub fn begin_epoch(self) {
        let next = self.epoch.load(Relaxed).wrapping_add(1).max(1);
        self.epoch.store(next, Release);
    }

    /// Whether the agent must be told of a call, because it wakes the share. Ask after the call was published.
    #[must_use]
    pub fn wakes(self) -> bool {
        self.suspended.load(SeqCst) == ASLEEP_UNTIL_CALLED
    }
}

/// The words of the processes.
#[derive(Clone, Copy, Debug)]
pub struct CallWords<'a> {
    heads: &'a [SlotHead],
    /// The last epoch in which a process without a slot called the driver.
    /// Written by: such processes. Read by: agent. Release/Acquire, as `called` of a slot.
    without_slot: Option<&'a AtomicU64>,
    /// Whether a process of the share may call the driver unseen: 1 or 0, and never 0 again.
    /// Written by: processes that find that they may. Read by: agent. Relaxed.
    unseen: Option<&'a AtomicU64>,
}

impl<'a> CallWords<'a> {
    /// Assembles the words of a `usage` file.
    #[must_use]
    pub const fn new(
        heads: &'a [SlotHead],
        without_slot: Option<&'a AtomicU64>,
        unseen: Option<&'a AtomicU64>,
    ) -> Self {
        Self {
            heads,
            without_slot,
            unseen,
        }
    }

    /// Publishes that a process calls the driver in this epoch. Its slot is `None` if it has none yet.
    pub fn publish(self, slot: Option<usize>, epoch: u64) {
        let head = slot.and_then(|slot| self.heads.get(slot));
        if let Some(word) = head.map(|head| &head.called).or(self.without_slot) {
            word.store(epoch, Release);
        }
        // Either this process sees next that the share is asleep, or the agent sees the call when it has put it to sleep.
        fence(SeqCst);
    }

    /// Whether a process has called the driver in this epoch.
    #[must_use]
    pub fn has_called(self, epoch: u64) -> bool {
        let slots = self.heads.iter().map(|head| &head.called);
        let mut all = slots.chain(self.without_slot);
        all.any(|word| word.load(Acquire) == epoch)
    }

    /// Says that a process of the share may call the driver unseen.
    pub fn set_unseen(self) {
        if let Some(word) = self.unseen {
            word.store(1, Relaxed);
        }
    }

    /// Whether a process of the share may call the driver unseen.
    #[must_use]
    pub fn may_be_unseen(self) -> bool {
        self.unseen.is_some_and(|word| word.load(Relaxed) != 0)
    }
}
