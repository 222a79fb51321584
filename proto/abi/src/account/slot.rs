//! Slots: how a process enters an account, and how it is removed after its death.
//!
//! A slot's state word holds its generation and the pid of its owner. Registration and retirement are one
//! compare-exchange each, so each happens once, however many processes try. The generation is also in the high bits
//! of every `claimed` word of the slot. So a retirement that was overtaken by a new owner finds another generation
//! there and changes nothing.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::usage::AccountUsage;
use crate::units::Bytes;

/// A process's ownership of a slot, valid as long as the slot has this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotOwner {
    pub(super) slot: usize,
    state: u64,
}

impl SlotOwner {
    /// The index of the slot in the usage file.
    #[must_use]
    pub const fn slot(self) -> usize {
        self.slot
    }

    /// The pid under which the slot was taken, in the owner's pid namespace.
    #[must_use]
    pub const fn pid(self) -> u32 {
        self.state as u32
    }

    /// A number that no other ownership of a slot in this account has: the slot's number, with its generation above.
    #[must_use]
    pub const fn number(self) -> u64 {
        ((self.state >> 32) << 16) | (self.slot as u64 & 0xffff)
    }

    pub(super) const fn tag(self) -> u64 {
        (self.state >> 32) & 0xffff
    }

    /// A word that belongs to the owner for as long as the slot has this generation.
    const fn stamp(self, word: u64) -> u64 {
        tagged(self.tag(), bytes_of(word))
    }

    /// The owner's word, or 0 if an earlier owner's is still there.
    const fn stamped(self, word: u64) -> u64 {
        if tag_of(word) == self.tag() {
            bytes_of(word)
        } else {
            0
        }
    }
}

/// The identity that a process registers in an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessRegistration {
    /// Its pid (`getpid`), not zero.
    pub pid: u32,
    /// Its start time in clock ticks since boot, 0 if it cannot be read.
    pub start_time: u64,
    /// Inode of its pid namespace, 0 if it cannot be read.
    pub pid_namespace: u64,
}

/// A process that is in an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredProcess {
    /// Its ownership of the slot, for [`AccountUsage::retire`].
    pub owner: SlotOwner,
    /// The registered identity. The start time is 0 for an instant after registration.
    pub registration: ProcessRegistration,
}

pub(super) const fn tagged(tag: u64, bytes: u64) -> u64 {
    (tag << 48) | bytes
}

pub(super) const fn tag_of(word: u64) -> u64 {
    word >> 48
}

pub(super) const fn bytes_of(word: u64) -> u64 {
    word & ((1 << 48) - 1)
}

impl AccountUsage<'_> {
    /// Registers a process. `None` if all slots are taken.
    #[must_use]
    pub fn register(&self, who: ProcessRegistration) -> Option<SlotOwner> {
        for (slot, head) in self.heads.iter().enumerate() {
            let free = head.state.load(Acquire);
            if free as u32 != 0 {
                continue;
            }
            let state = free | u64::from(who.pid);
            if head
                .state
                .compare_exchange(free, state, AcqRel, Relaxed)
                .is_err()
            {
                continue;
            }
            let owner = SlotOwner { slot, state };
            head.pid_namespace
                .store(owner.stamp(who.pid_namespace), Relaxed);
            head.start_time.store(owner.stamp(who.start_time), Release);
            for card in self.claims_of(slot) {
                card.reserve.store(0, Relaxed);
                card.modules.store(0, Relaxed);
                card.pending.store(0, Relaxed);
                card.high.store(0, Relaxed);
                card.claimed.swap(tagged(owner.tag(), 0), AcqRel);
            }
            self.slots_used.fetch_max(slot as u64 + 1, AcqRel);
            return Some(owner);
        }
        None
    }

    /// Whether the slot still has this owner; false once somebody retired it.
    #[must_use]
    pub fn holds(&self, owner: SlotOwner) -> bool {
        let head = self.heads.get(owner.slot);
        head.is_some_and(|head| head.state.load(Acquire) == owner.state)
    }

    /// The processes that are in the account.
    pub fn processes(&self) -> impl Iterator<Item = RegisteredProcess> + '_ {
        let used = usize::try_from(self.slots_used.load(Acquire)).unwrap_or(usize::MAX);
        self.heads
            .iter()
            .take(used)
            .enumerate()
            .filter_map(|(slot, head)| {
                let state = head.state.load(Acquire);
                let owner = SlotOwner { slot, state };
                let registration = ProcessRegistration {
                    pid: owner.pid(),
                    start_time: owner.stamped(head.start_time.load(Acquire)),
                    pid_namespace: owner.stamped(head.pid_namespace.load(Relaxed)),
                };
                (owner.pid() != 0).then_some(RegisteredProcess {
                    owner,
                    registration,
                })
            })
    }

    /// Removes a process with everything that it holds: because it leaves, or is known to be dead. Any number of
    /// processes may try, at any time; the slot is emptied once. Returns the bytes that this call removed, over all
    /// cards.
    pub fn retire(&self, owner: SlotOwner) -> Bytes {
        let Some(head) = self.heads.get(owner.slot) else {
            return Bytes::ZERO;
        };
        if head.state.load(Acquire) != owner.state {
            return Bytes::ZERO;
        }
        // The next generation's tag closes the claims to this owner, in case it is still alive.
        let next_tag = (owner.tag() + 1) & 0xffff;
        let taken = self.claims_of(owner.slot).map(|card| {
            card.claimed
                .fetch_update(AcqRel, Acquire, |word| {
                    (tag_of(word) == owner.tag()).then_some(tagged(next_tag, 0))
                })
                .map_or(0, bytes_of)
        });
        let taken = taken.fold(0, u64::saturating_add);
        let next = ((owner.state >> 32).wrapping_add(1) & 0xffff_ffff) << 32;
        let _ = head
            .state
            .compare_exchange(owner.state, next, AcqRel, Relaxed);
        Bytes(taken)
    }
}
