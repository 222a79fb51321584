//! Opens, creates and maps the two files.
//!
//! This works without the standard library, because the preloaded library opens accounts inside other people's
//! programs. Opening checks magic, version, number of cards and size against the file's real size before anything is
//! read through the mapping. A file that is not exactly right is an error. Files are created complete under a
//! temporary name and renamed, so no reader sees a partial file.
//!
//! A program can damage and truncate its own `usage` file. The agent maps it guarded (`guard`). The program does not,
//! because it would only harm itself.

use core::ffi::CStr;
use core::sync::atomic::Ordering::{Acquire, SeqCst};

use super::calls::{ASLEEP_UNTIL_CALLED, CallWords, SharedCallWords};
use super::layout::{
    AccountHeader, AtomicU64, CardLimit, LIMITS_MAGIC, SLOTS, SlotHead, USAGE_MAGIC,
};
use super::mapping::{AccountOpenError, FileMapping, slots_at};
use super::usage::AccountUsage;
use crate::units::Bytes;
use crate::uuid::CardUuid;

/// A card of a new account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewCard {
    /// The card's UUID.
    pub uuid: CardUuid,
    /// Its physical memory.
    pub total: Bytes,
    /// The limit on it.
    pub limit: Bytes,
    /// What a process's first context on it claims.
    pub context_reserve: Bytes,
}

/// A mapped `limits` file.
#[derive(Debug)]
pub struct LimitsMap {
    mapping: FileMapping,
    cards: usize,
}

impl LimitsMap {
    /// Maps an existing file read-only, as a limited program does. A store through the result of [`LimitsMap::cards`]
    /// is then a fault; only the agent stores.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, or is not a `limits` file of this layout.
    pub fn open(path: &CStr) -> Result<Self, AccountOpenError> {
        let (mapping, cards) = FileMapping::open::<false>(path, LIMITS_MAGIC, libc::O_RDONLY)?;
        Ok(Self { mapping, cards })
    }

    /// Maps an existing file for writing, guarded, as an agent does that takes over from another agent.
    ///
    /// # Errors
    /// As [`LimitsMap::open`].
    pub fn adopt(path: &CStr) -> Result<Self, AccountOpenError> {
        let (mapping, cards) = FileMapping::open::<true>(path, LIMITS_MAGIC, libc::O_RDWR)?;
        Ok(Self { mapping, cards })
    }

    /// Creates a new file (mode 0644), which must not exist yet.
    ///
    /// # Errors
    /// A system call failed, or there are no cards or more than [`MAX_CARDS`](super::MAX_CARDS).
    pub fn create(path: &CStr, cards: &[NewCard]) -> Result<Self, AccountOpenError> {
        Self::create_with(path, cards, false)
    }

    /// Like [`LimitsMap::create`], for an account that has a `burst` file.
    ///
    /// # Errors
    /// As [`LimitsMap::create`].
    pub fn create_elastic(path: &CStr, cards: &[NewCard]) -> Result<Self, AccountOpenError> {
        Self::create_with(path, cards, true)
    }

    fn create_with(
        path: &CStr,
        cards: &[NewCard],
        has_burst: bool,
    ) -> Result<Self, AccountOpenError> {
        let mapping = FileMapping::create(path, LIMITS_MAGIC, cards.len(), 0o644)?;
        mapping.set_has_burst(has_burst);
        for (place, card) in cards.iter().enumerate() {
            let offset = size_of::<AccountHeader>() + place * size_of::<CardLimit>();
            let card = CardLimit::new(card.uuid, card.total, card.limit, card.context_reserve);
            // SAFETY: the file was made long enough for all cards; nobody else has it mapped yet.
            let at = unsafe { mapping.start.add(offset) };
            // SAFETY: as above, and offsets are multiples of 64.
            unsafe { at.cast::<CardLimit>().write(card) };
        }
        mapping.publish(LIMITS_MAGIC);
        Ok(Self {
            mapping,
            cards: cards.len(),
        })
    }

    /// Whether the file was truncated under the mapping, which then shows zeroes for good.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.mapping.is_damaged()
    }

    /// Whether the account has a `burst` file.
    #[must_use]
    pub fn has_burst(&self) -> bool {
        self.mapping.header().has_burst != 0
    }

    /// The cards, in the account's order.
    #[must_use]
    pub fn cards(&self) -> &[CardLimit] {
        self.mapping.slice(size_of::<AccountHeader>(), self.cards)
    }

    /// Whether the share is suspended: its programs get no memory until it is resumed. A program asks after its claim,
    /// so that either the program sees this or the agent sees the claim.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.mapping.header().suspended.load(SeqCst) != 0
    }

    /// Says whether the share is suspended. For the agent, which reads the claims and the calls after it.
    pub fn set_suspended(&self, suspension: ShareSuspension) {
        let word = &self.mapping.header().suspended;
        word.store(suspension as u64, SeqCst);
        core::sync::atomic::fence(SeqCst);
    }

    /// The words of all calls of the driver.
    #[must_use]
    pub fn calls(&self) -> SharedCallWords<'_> {
        let header = self.mapping.header();
        SharedCallWords {
            epoch: &header.epoch,
            suspended: &header.suspended,
        }
    }
}

/// Whether the programs of a share run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareSuspension {
    /// They run.
    Running = 0,
    /// They are suspended until somebody resumes them.
    Asleep = 1,
    /// They are suspended until they call the driver.
    AsleepUntilCalled = ASLEEP_UNTIL_CALLED as isize,
}

/// A mapped `usage` file.
#[derive(Debug)]
pub struct UsageMap {
    mapping: FileMapping,
    cards: usize,
}

impl UsageMap {
    /// Maps an existing file for reading and writing.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, or is not a `usage` file of this layout.
    pub fn open(path: &CStr) -> Result<Self, AccountOpenError> {
        let (mapping, cards) = FileMapping::open::<false>(path, USAGE_MAGIC, libc::O_RDWR)?;
        Ok(Self { mapping, cards })
    }

    /// Like [`UsageMap::open`], but guarded, as the agent needs it. Symbolic links are not followed.
    ///
    /// # Errors
    /// As [`UsageMap::open`].
    pub fn adopt(path: &CStr) -> Result<Self, AccountOpenError> {
        let flags = libc::O_RDWR | libc::O_NOFOLLOW;
        let (mapping, cards) = FileMapping::open::<true>(path, USAGE_MAGIC, flags)?;
        Ok(Self { mapping, cards })
    }

    /// Whether the file was truncated under the mapping, which then shows zeroes for good.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.mapping.is_damaged()
    }

    /// Creates a new, empty file for this many cards, which must not exist yet. Only its creator can access it (mode
    /// 0600) until the creator gives it to the programs' user.
    ///
    /// # Errors
    /// A system call failed, or there are no cards or more than [`MAX_CARDS`](super::MAX_CARDS).
    pub fn create(path: &CStr, cards: usize) -> Result<Self, AccountOpenError> {
        let mapping = FileMapping::create(path, USAGE_MAGIC, cards, 0o600)?;
        mapping.publish(USAGE_MAGIC);
        Ok(Self { mapping, cards })
    }

    /// The number of cards in the file.
    #[must_use]
    pub const fn cards(&self) -> usize {
        self.cards
    }

    /// The address at which this process has mapped it.
    #[must_use]
    pub fn address(&self) -> usize {
        self.mapping.start.addr().get()
    }

    /// The words for calls of the driver by processes without a slot.
    #[must_use]
    pub fn calls(&self) -> CallWords<'_> {
        let words: &[AtomicU64] = self.mapping.slice(size_of::<AccountHeader>(), 3);
        let AccountUsage {
            heads, slots_used, ..
        } = self.usage();
        let used = usize::try_from(slots_used.load(Acquire)).unwrap_or(usize::MAX);
        let heads = heads.get(..used).unwrap_or(heads);
        CallWords::new(heads, words.get(1), words.get(2))
    }

    /// The counters of the account in the mapped file.
    #[must_use]
    pub fn usage(&self) -> AccountUsage<'_> {
        let heads = slots_at(self.cards);
        // SAFETY: the second line of the file is inside the mapping (its size was checked) and aligned.
        let slots_used = unsafe { self.mapping.start.add(size_of::<AccountHeader>()) };
        // SAFETY: as above; the word is only ever used as an atomic.
        let slots_used = unsafe { slots_used.cast::<AtomicU64>().as_ref() };
        AccountUsage::new(
            self.mapping
                .slice(2 * size_of::<AccountHeader>(), self.cards),
            self.mapping.slice(heads, SLOTS),
            self.mapping
                .slice(heads + SLOTS * size_of::<SlotHead>(), SLOTS * self.cards),
            slots_used,
        )
    }
}
