//! The layout of the account files: who writes and who reads each word.
//!
//! Every structure is a multiple of 64 bytes, so that no two writers share a cache line. Words are native-endian; the
//! files never leave the machine. A change here needs a new [`LAYOUT_VERSION`].
//!
//! # Decision: one version so far
//! A word that was always zero can get a meaning without a new version, if zero means the old behaviour.
//! `further_reserve`, `denied_by`, `modules`, `suspended`, `has_burst`, the words of shares and those of calls did so. Thus agents and libraries of different
//! releases understand each other. A new version is for changes that cannot be made that way. An agent that meets a
//! version which it cannot read reports it and leaves the account to its programs, which keep their limits. Accounts
//! of version 1 are recorded in `tests/files` and stay readable for ever.

#[cfg(not(loom))]
pub(super) use core::sync::atomic::{AtomicU64, fence};
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, fence};

/// The version of both layouts. A program does not use an account of another version.
pub const LAYOUT_VERSION: u32 = 1;
/// The most cards that one account can name.
pub const MAX_CARDS: usize = 64;
/// The most processes that can hold memory in one account at the same time.
#[cfg(not(loom))]
pub const SLOTS: usize = 1024;
/// The most processes that can hold memory in one account at the same time.
#[cfg(loom)]
pub const SLOTS: usize = 3;

/// First word of a `limits` file.
#[cfg(not(loom))]
pub(super) const LIMITS_MAGIC: u64 = u64::from_be_bytes(*b"APPLIMIT");
/// First word of a `burst` file.
#[cfg(not(loom))]
pub(super) const BURST_MAGIC: u64 = u64::from_be_bytes(*b"APPBURST");
/// First word of a `usage` file.
#[cfg(not(loom))]
pub(super) const USAGE_MAGIC: u64 = u64::from_be_bytes(*b"APPUSAGE");

/// The header of either file. Written once, before the file gets its name; read when it is opened. `suspended` and `epoch`
/// are the exceptions.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct AccountHeader {
    pub(super) magic: u64,
    pub(super) version: u32,
    pub(super) cards: u32,
    pub(super) size: u64,
    /// Whether the share is suspended: 0, 1, or 2 if a call of the driver wakes it. Only used in a `limits` file.
    /// Written by: agent when it suspends and resumes. Read by: every charge, after its claim. SeqCst: either the charge
    /// sees that the share is suspended, or the agent sees the claim.
    pub(super) suspended: AtomicU64,
    /// Zeroes. They have a name so that they are written: otherwise every program with a limit could read what the
    /// writer's stack held there.
    pub(super) unused: [u64; 2],
    /// Of a `limits` file: the epoch of calls, see `calls`. 0 if nobody asks about calls.
    /// Written by: agent, after it has seen calls of this epoch. Read by: every call of the driver. Acquire/Release.
    pub(super) epoch: AtomicU64,
    /// Of a `limits` file: whether the account has a `burst` file, 1 or 0.
    pub(super) has_burst: u64,
}

/// One card of a `limits` file.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct CardLimit {
    /// The card's UUID ([`crate::CardUuid::to_words`]).
    /// Written by: agent, once, before the file has its name. Read by: every lookup.
    pub uuid: [u64; 2],
    /// The card's physical memory in bytes. Written by: agent, once. Read by: memory queries.
    pub total: u64,
    /// The limit in bytes.
    /// Written by: agent at allocation and resize. Read by: every charge. Release/Acquire.
    pub(super) limit: AtomicU64,
    /// Bytes to claim for a process's first context on this card.
    /// Written by: agent when it learns a better value. Read by: the first context of a process. Relaxed.
    pub(super) context_reserve: AtomicU64,
    /// Bytes that the driver uses for these processes beyond what they claimed.
    /// Written by: agent tick. Read by: every charge and query. Release/Acquire.
    pub(super) overhead: AtomicU64,
    /// Counts the agent's writes to this card's words.
    /// Written by: agent after each change. Read by: diagnosis. Release/Acquire with `limit`.
    pub(super) generation: AtomicU64,
    /// Bytes to claim for each further context of a process on this card. 0 if unknown, as agents write that only
    /// know the first context's bytes; then each one claims as much as the first.
    /// Written by: agent when it learns it. Read by: further contexts of a process. Relaxed.
    pub(super) further_reserve: AtomicU64,
}

/// One card of a `usage` file, summed over all processes that were ever in it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct CardUse {
    /// The largest use that a charge saw.
    /// Written by: charges (max). Read by: agent. Relaxed.
    pub(super) peak: AtomicU64,
    /// Charges that were refused. Written by: refusals (add). Read by: agent. Relaxed.
    pub(super) denied: AtomicU64,
    /// Bytes that were refused. Written by: refusals (add). Read by: agent. Relaxed.
    pub(super) denied_bytes: AtomicU64,
    /// Bytes of the last refusal. Written by: refusals. Read by: agent. Relaxed.
    pub(super) last_denied: AtomicU64,
    /// One above the highest place that a share of memory on this card ever had.
    /// Written by: processes that enter shares (max). Read by: every sum. AcqRel.
    pub(super) shares: AtomicU64,
    /// The refusals of each [`super::ApiFamily`], two in each word, low half first. Refusals in `denied` beyond these
    /// have no family; in accounts whose programs do not count families, that is all of them.
    /// Written by: refusals (add). Read by: agent. Relaxed.
    pub(super) denied_by: [AtomicU64; 3],
}

/// The owner of a slot, when it last called the driver, and one share, which is unrelated to that slot: see `shares`.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct SlotHead {
    /// Generation (high 32 bits) and pid (low 32 bits, 0 = free), see [`super::SlotOwner`].
    /// Written by: registration and retirement (compare-exchange). Read by: both. AcqRel.
    pub(super) state: AtomicU64,
    /// Generation (high 16 bits) and start time of the process in clock ticks since boot (`/proc/<pid>/stat` field
    /// 22). With another generation, the start time is not known yet.
    /// Written by: the owner at registration. Read by: processes that check whether it is dead. Release/Acquire.
    pub(super) start_time: AtomicU64,
    /// Generation and inode of the owner's pid namespace. A pid means nothing outside its namespace. Written and read
    /// like `start_time`.
    pub(super) pid_namespace: AtomicU64,
    /// The holder of the share, 0 = free. The share is void once the slot that it names has another generation.
    /// Written by: processes that take or leave the place (compare-exchange). Read by: every sum. AcqRel.
    pub(super) holder: AtomicU64,
    /// The key of the shared memory.
    /// Written by: the holder, before it sets `holder`. Read by: sums. Ordered by `holder`.
    pub(super) key: AtomicU64,
    /// The card (high 16 bits) and the bytes (low 48 bits). Written and read like `key`.
    pub(super) amount: AtomicU64,
    /// The last epoch in which the slot's owner called the driver, see `calls`. Unlike the words above, it is the
    /// owner's.
    /// Written by: the owner, at its first call in an epoch. Read by: agent. Release/Acquire, with a SeqCst fence before
    /// the owner reads `suspended`.
    pub(super) called: AtomicU64,
}

/// What one process holds on one card.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct SlotCard {
    /// Generation (high 16 bits) and bytes that are held or about to be requested from the driver (low 48 bits).
    /// Written by: the owner (add, subtract), retirement (to zero, only in its generation). Read by: every charge of
    /// every process. Published before the sum by a SeqCst fence.
    pub(super) claimed: AtomicU64,
    /// The part of `claimed` that is a reserve for contexts. Written by: owner. Read by: agent.
    pub(super) reserve: AtomicU64,
    /// Bytes of charges that are not decided yet.
    /// Written by: owner. Read by: refused charges, to tell a race from a full account. AcqRel.
    pub(super) pending: AtomicU64,
    /// The largest `claimed` since the agent last reset it.
    /// Written by: owner (max), agent (reset). Read by: agent, to tell the driver's memory from a charge that came
    /// and went. Relaxed.
    pub(super) high: AtomicU64,
    /// The part of `claimed` that is code and its variables; 0 if programs do not report it.
    /// Written by: owner. Read by: agent.
    pub(super) modules: AtomicU64,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<AccountHeader>() == 64);
    assert!(size_of::<CardLimit>() == 64);
    assert!(size_of::<CardUse>() == 64);
    assert!(size_of::<SlotHead>() == 64);
    assert!(size_of::<SlotCard>() == 64);
};
