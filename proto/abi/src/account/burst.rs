//! The `burst` file of an elastic share: programs ask in it for a larger allowance, and the agent answers.
//!
//! A charge that does not fit writes the allowance that it needs, takes a number, and wakes the agent through the FIFO
//! beside the file. The agent writes the new allowance into `limits`, as it writes every limit, and then the highest
//! number that it has answered. The program tries its charge again, whatever the answer was: only `limits` says what it
//! may have. Then it tells that its request is over. Until then the agent gives what it was given to no other request.
//!
//! Programs can write anything here, also into the agent's words. The agent never reads its own words back, takes each
//! number of theirs for no more than a wish, and decides from its ledger. So a program can only deceive itself.
//!
//! # Decision: a futex for the answer, a FIFO for the question
//! The program waits with a futex on the mapped word: no descriptor, no lock, no memory, and it works for every process
//! that has the file mapped. The agent cannot wait on the words of all accounts at once, so it needs a descriptor that its
//! event loop can watch. A FIFO has no connection, no peer and no queue of ours: it is full after 64 KiB and then says so
//! to the writer, who has nothing to add. Its inode stays when the agent is replaced, so it can be mounted into a
//! container. A socket would be a new file after each start of the agent.

use core::ffi::CStr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use super::layout::{AccountHeader, BURST_MAGIC};
use super::map::LimitsMap;
use super::mapping::{AccountOpenError, FileMapping};
use crate::units::Bytes;

/// One card of a `burst` file. All zero for a card whose limit is not above its guarantee.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct CardBurst {
    /// What is guaranteed. Written by: agent, before the file has its name and by each resize. Read by: memory queries.
    /// Relaxed.
    guaranteed: AtomicU64,
    /// The most that the allowance can grow to. Written by: agent, before the file has its name and by each resize. Read
    /// by: charges that were refused. Relaxed: the agent refuses what is above it.
    ceiling: AtomicU64,
    /// The allowance that could be had now.
    /// Written by: agent, after each sample and each change on the card. Read by: memory queries. Relaxed.
    reachable: AtomicU64,
    /// The largest allowance that a waiting charge needs.
    /// Written by: charges that were refused (max), agent (reset). Read by: agent. AcqRel, before `asked`.
    wanted: AtomicU64,
    /// How many requests there were. It wraps.
    /// Written by: charges that were refused (add). Read by: agent. AcqRel.
    asked: AtomicU32,
    /// The last request that was answered, as a value of `asked`. Charges wait on it (futex).
    /// Written by: agent, after the limit. Read by: charges that wait. Release/Acquire.
    answered: AtomicU32,
    /// How many requests are over: their charges were tried again, or gave up. It wraps. It stays one behind for each
    /// program that was killed while it asked, so the agent gives such requests up. A library from before this word never
    /// writes it.
    /// Written by: charges that asked (add), after they charged. Read by: agent. AcqRel.
    ended: AtomicU32,
}

const _: () = assert!(size_of::<CardBurst>() == 64);

/// A card of a new `burst` file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewBurst {
    /// What is guaranteed; zero for a card whose limit is not above its guarantee.
    pub guaranteed: Bytes,
    /// The most that the allowance can grow to; zero for such a card.
    pub ceiling: Bytes,
}

/// The number of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstTicket(u32);

impl CardBurst {
    /// What is guaranteed, or `None` if the limit is not above it.
    #[must_use]
    pub fn guaranteed(&self) -> Option<Bytes> {
        let is_elastic = self.ceiling.load(Relaxed) > 0;
        is_elastic.then(|| Bytes(self.guaranteed.load(Relaxed)))
    }

    /// The most that the allowance can grow to.
    #[must_use]
    pub fn ceiling(&self) -> Bytes {
        Bytes(self.ceiling.load(Relaxed))
    }

    /// Writes both numbers. For the agent.
    pub fn set_range(&self, range: NewBurst) {
        self.guaranteed.store(range.guaranteed.0, Relaxed);
        self.ceiling.store(range.ceiling.0, Relaxed);
    }

    /// The allowance that could be had now.
    #[must_use]
    pub fn reachable(&self) -> Bytes {
        Bytes(self.reachable.load(Relaxed))
    }

    /// Publishes the allowance that could be had now. For the agent.
    pub fn set_reachable(&self, reachable: Bytes) {
        self.reachable.store(reachable.0, Relaxed);
    }

    /// Enters a request for an allowance of `wanted`. The agent must then be woken.
    #[must_use]
    pub fn ask(&self, wanted: Bytes) -> BurstTicket {
        self.wanted.fetch_max(wanted.0, AcqRel);
        BurstTicket(self.asked.fetch_add(1, AcqRel).wrapping_add(1))
    }

    /// Whether the agent has answered the request.
    #[must_use]
    pub fn is_answered(&self, ticket: BurstTicket) -> bool {
        self.answered.load(Acquire).wrapping_sub(ticket.0) < 1 << 31
    }

    /// Tells that a request is over: its charge was tried again, or gave up.
    pub fn end(&self) {
        self.ended.fetch_add(1, AcqRel);
    }

    /// How many requests, of this one and all before it, are not over. At zero nobody waits for what they were given, and
    /// what they charged is in the `usage` file. For the agent.
    #[must_use]
    pub fn open_until(&self, ticket: BurstTicket) -> u32 {
        let behind = ticket.0.wrapping_sub(self.ended.load(Acquire));
        if behind < 1 << 31 { behind } else { 0 }
    }

    /// Waits for an answer to any request, at most that long, and not at all if this one is answered already.
    pub fn wait(&self, ticket: BurstTicket, nanoseconds: libc::c_long) {
        let seen = self.answered.load(Acquire);
        if self.is_answered(ticket) {
            return;
        }
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: nanoseconds,
        };
        // SAFETY: the word is mapped and aligned, and the time is valid. The bare call is no cancellation point.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.answered.as_ptr(),
                libc::FUTEX_WAIT,
                seen,
                &raw const time,
            )
        };
    }

    /// The open request, if there is one: its number, and the largest allowance that is wanted. For the agent, which
    /// must answer it.
    #[must_use]
    pub fn take(&self) -> Option<(BurstTicket, Bytes)> {
        let ticket = BurstTicket(self.asked.load(Acquire));
        if self.is_answered(ticket) {
            return None;
        }
        Some((ticket, Bytes(self.wanted.swap(0, AcqRel))))
    }

    /// Answers a request and all before it, and wakes their charges. For the agent, after it has written the limit.
    pub fn answer(&self, ticket: BurstTicket) {
        self.answered.store(ticket.0, Release);
        // SAFETY: the word is mapped and aligned. The kernel does not write to it.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.answered.as_ptr(),
                libc::FUTEX_WAKE,
                libc::c_int::MAX,
            )
        };
    }
}

/// A mapped `burst` file.
#[derive(Debug)]
pub struct BurstMap {
    mapping: FileMapping,
    cards: usize,
}

impl BurstMap {
    /// Maps an existing file, as a limited program does.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, or is not a `burst` file of this layout.
    pub fn open(path: &CStr) -> Result<Self, AccountOpenError> {
        let (mapping, cards) = FileMapping::open::<false>(path, BURST_MAGIC, libc::O_RDWR)?;
        Ok(Self { mapping, cards })
    }

    /// Like [`BurstMap::open`], but guarded, as the agent needs it. Symbolic links are not followed.
    ///
    /// # Errors
    /// As [`BurstMap::open`].
    pub fn adopt(path: &CStr) -> Result<Self, AccountOpenError> {
        let flags = libc::O_RDWR | libc::O_NOFOLLOW;
        let (mapping, cards) = FileMapping::open::<true>(path, BURST_MAGIC, flags)?;
        Ok(Self { mapping, cards })
    }

    /// Creates a new file, which must not exist yet. Only its creator can access it (mode 0600) until the creator gives
    /// it to the programs' user.
    ///
    /// # Errors
    /// A system call failed, or there are no cards or more than [`MAX_CARDS`](super::MAX_CARDS).
    pub fn create(path: &CStr, cards: &[NewBurst]) -> Result<Self, AccountOpenError> {
        let mapping = FileMapping::create(path, BURST_MAGIC, cards.len(), 0o600)?;
        let map = Self {
            mapping,
            cards: cards.len(),
        };
        for (words, card) in map.cards().iter().zip(cards) {
            words.set_range(*card);
            words.reachable.store(card.guaranteed.0, Relaxed);
        }
        map.mapping.publish(BURST_MAGIC);
        Ok(map)
    }

    /// The cards, in the account's order.
    #[must_use]
    pub fn cards(&self) -> &[CardBurst] {
        self.mapping.slice(size_of::<AccountHeader>(), self.cards)
    }

    /// Whether the file was truncated under the mapping, which then shows zeroes for good.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.mapping.is_damaged()
    }

    /// The size of the file.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.mapping.size()
    }

    /// Whether it has the same cards as a `limits` file.
    #[must_use]
    pub fn fits(&self, limits: &LimitsMap) -> bool {
        self.cards == limits.cards().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_ended_when_all_before_it_have_also_where_the_numbers_wrap() {
        let before_the_wrap = u32::MAX - 1;
        let words = CardBurst {
            asked: AtomicU32::new(before_the_wrap),
            answered: AtomicU32::new(before_the_wrap),
            ended: AtomicU32::new(before_the_wrap),
            ..CardBurst::default()
        };
        let tickets = [10, 30, 20].map(|mib| words.ask(Bytes::from_mib(mib)));
        assert_eq!(words.take(), Some((tickets[2], Bytes::from_mib(30))));
        words.answer(tickets[2]);
        assert!(tickets.into_iter().all(|ticket| words.is_answered(ticket)));
        for count in 0..=3 {
            let open = tickets.map(|ticket| words.open_until(ticket));
            assert_eq!(open, [1, 2, 3].map(|all: u32| all.saturating_sub(count)));
            words.end();
        }
    }
}
