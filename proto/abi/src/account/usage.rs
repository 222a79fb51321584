//! Charging: publish the claim, sum up, keep it or take it back.
//!
//! The module above explains this order. Everything is lock-free: no step waits for another process. A charge that
//! may only have lost a race is retried a bounded number of times before it is refused.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use super::api::ApiFamily;
use super::layout::{AtomicU64, CardLimit, CardUse, SlotCard, SlotHead, fence};
use super::slot::{SlotOwner, bytes_of, tag_of, tagged};
use crate::units::Bytes;

/// How many times a charge that may have lost a race is tried.
#[cfg(not(loom))]
const ATTEMPTS: u32 = 64;
#[cfg(loom)]
const ATTEMPTS: u32 = 2;

/// The largest amount that fits a `claimed` word.
const MOST: u64 = (1 << 48) - 1;

/// A `usage` file's words.
#[derive(Clone, Copy, Debug)]
pub struct AccountUsage<'a> {
    pub(super) cards: &'a [CardUse],
    pub(super) heads: &'a [SlotHead],
    /// One for each slot and card, slot by slot.
    pub(super) claims: &'a [SlotCard],
    /// One above the highest slot that was ever taken.
    /// Written by: registration (max). Read by: every sum. AcqRel.
    pub(super) slots_used: &'a AtomicU64,
}

/// The outcome of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeOutcome {
    /// The bytes are claimed; the driver may be called.
    Granted,
    /// The limit would be exceeded. Nothing is claimed.
    Refused,
    /// Another process retired the slot: register again, and claim again what is held.
    Lost,
}

/// The charges on a card, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardCharges {
    /// The sum of all processes' claims, including reserves for contexts.
    pub claimed: Bytes,
    /// The part of `claimed` that is a reserve for contexts.
    pub reserve: Bytes,
    /// The largest use that a charge saw.
    pub peak: Bytes,
    /// Charges that were refused.
    pub denied: u64,
    /// Bytes that were refused.
    pub denied_bytes: Bytes,
    /// Bytes of the last refusal.
    pub last_denied: Bytes,
    /// The refusals by family, in the order of [`ApiFamily::ALL`].
    pub denied_by: [u64; ApiFamily::ALL.len()],
    /// The part of `claimed` that is code and its variables.
    pub modules: Bytes,
}

impl<'a> AccountUsage<'a> {
    /// Assembles the words of a `usage` file: one `CardUse` for each card, one head for each slot, one claim for each
    /// slot and card.
    #[must_use]
    pub const fn new(
        cards: &'a [CardUse],
        heads: &'a [SlotHead],
        claims: &'a [SlotCard],
        slots_used: &'a AtomicU64,
    ) -> Self {
        Self {
            cards,
            heads,
            claims,
            slots_used,
        }
    }

    pub(super) fn claims_of(&self, slot: usize) -> impl Iterator<Item = &'a SlotCard> + use<'a> {
        let cards = self.cards.len();
        self.claims
            .iter()
            .skip(slot.saturating_mul(cards))
            .take(cards)
    }

    pub(super) fn claim_word(&self, slot: usize, card: usize) -> Option<&'a SlotCard> {
        (card < self.cards.len())
            .then(|| slot.checked_mul(self.cards.len())?.checked_add(card))
            .flatten()
            .and_then(|place| self.claims.get(place))
    }

    fn on_card(&self, card: usize) -> impl Iterator<Item = &'a SlotCard> + use<'a> {
        let used = usize::try_from(self.slots_used.load(Acquire)).unwrap_or(usize::MAX);
        let cards = self.cards.len().max(1);
        let card = if card < cards { card } else { usize::MAX };
        self.claims.iter().skip(card).step_by(cards).take(used)
    }

    /// The sum of all processes' claims on a card, plus shared memory there that no claim covers.
    #[must_use]
    pub fn claimed(&self, card: usize) -> Bytes {
        let claims = self
            .on_card(card)
            .map(|claim| Bytes(bytes_of(claim.claimed.load(Acquire))));
        let claimed: Bytes = claims.sum();
        claimed.plus(self.orphaned(card, None))
    }

    /// Claims `ask` on a card if all claims, the overhead and `ask` together stay within the limit. A refusal is not
    /// counted: the caller may still trim, retire dead processes and try again ([`AccountUsage::deny`] when it gives
    /// up).
    #[must_use]
    pub fn charge(
        &self,
        owner: SlotOwner,
        card: usize,
        ask: Bytes,
        limits: &CardLimit,
    ) -> ChargeOutcome {
        let Some(mine) = self.claim_word(owner.slot, card) else {
            return ChargeOutcome::Refused;
        };
        if ask > limits.limits().limit {
            return ChargeOutcome::Refused;
        }
        for attempt in 0..ATTEMPTS {
            mine.pending.fetch_add(ask.0, AcqRel);
            if !publish(mine, owner, ask) {
                mine.pending.fetch_sub(ask.0, AcqRel);
                return ChargeOutcome::Lost;
            }
            // Of two racing charges at least one sees the other's claim.
            fence(SeqCst);
            let sum = self.claimed(card);
            let now = limits.limits();
            if sum.plus(now.overhead) <= now.limit {
                mine.pending.fetch_sub(ask.0, AcqRel);
                self.record_peak(mine, card, sum.plus(now.overhead));
                return ChargeOutcome::Granted;
            }
            let undecided: Bytes = self.on_card(card).map(pending_in).sum();
            withdraw(mine, owner, ask);
            mine.pending.fetch_sub(ask.0, AcqRel);
            // If it fits without the undecided claims of others, this charge may only have lost a race.
            let decided = sum.minus(undecided.minus(ask));
            if decided.plus(now.overhead) > now.limit {
                return ChargeOutcome::Refused;
            }
            pause(owner, attempt);
        }
        ChargeOutcome::Refused
    }

    /// Claims without checking the limit, for memory that is already taken and must be counted. Returns false if
    /// another process has retired the slot.
    #[must_use]
    pub fn claim_anyway(&self, owner: SlotOwner, card: usize, taken: Bytes) -> bool {
        let Some(mine) = self.claim_word(owner.slot, card) else {
            return true;
        };
        let done = publish(mine, owner, taken);
        if done {
            self.record_peak(mine, card, self.claimed(card));
        }
        done
    }

    /// Takes a charge off. Call it after the driver has freed the memory.
    pub fn uncharge(&self, owner: SlotOwner, card: usize, freed: Bytes) {
        if let Some(mine) = self.claim_word(owner.slot, card) {
            withdraw(mine, owner, freed);
        }
    }

    /// Records how much of the owner's claim is a reserve for contexts. This is for the agent's accounting; the bytes
    /// are charged and uncharged like all others.
    pub fn set_reserve(&self, owner: SlotOwner, card: usize, reserve: Bytes) {
        if let Some(mine) = self.claim_word(owner.slot, card) {
            mine.reserve.store(reserve.0, Release);
        }
    }

    /// Records how much of the owner's claim is code and its variables, like [`AccountUsage::set_reserve`] for
    /// contexts.
    pub fn set_modules(&self, owner: SlotOwner, card: usize, modules: Bytes) {
        if let Some(mine) = self.claim_word(owner.slot, card) {
            mine.modules.store(modules.0, Release);
        }
    }

    /// Counts a refusal that the program sees.
    pub fn deny(&self, card: usize, api: ApiFamily, ask: Bytes) {
        if let Some(card) = self.cards.get(card) {
            if let Some((word, one)) = api.counter()
                && let Some(word) = card.denied_by.get(word)
            {
                word.fetch_add(one, Relaxed);
            }
            card.denied.fetch_add(1, Relaxed);
            card.denied_bytes.fetch_add(ask.0, Relaxed);
            card.last_denied.store(ask.0, Relaxed);
        }
    }

    /// The charges on a card.
    #[must_use]
    pub fn used(&self, card: usize) -> CardCharges {
        let Some(words) = self.cards.get(card) else {
            return CardCharges::default();
        };
        CardCharges {
            claimed: self.claimed(card),
            reserve: self.on_card(card).map(reserve_in).sum(),
            peak: Bytes(words.peak.load(Relaxed)),
            denied: words.denied.load(Relaxed),
            denied_bytes: Bytes(words.denied_bytes.load(Relaxed)),
            last_denied: Bytes(words.last_denied.load(Relaxed)),
            denied_by: denied_by(words),
            modules: self.on_card(card).map(modules_in).sum(),
        }
    }

    /// What one process has claimed on a card, including shared memory that counts for it because the maker is gone;
    /// and the part of it that is a reserve for contexts.
    #[must_use]
    pub fn claimed_by(&self, owner: SlotOwner, card: usize) -> (Bytes, Bytes) {
        self.claim_word(owner.slot, card)
            .map_or((Bytes::ZERO, Bytes::ZERO), |claim| {
                let word = claim.claimed.load(Acquire);
                let bytes = if tag_of(word) == owner.tag() {
                    bytes_of(word)
                } else {
                    0
                };
                let bytes = Bytes(bytes).plus(self.orphaned(card, Some(owner)));
                (bytes, Bytes(claim.reserve.load(Acquire)))
            })
    }

    /// Whether a process may count on a card: its slot has a claim there, or there is shared memory, which may count
    /// for any of its holders once others are gone.
    #[must_use]
    pub fn may_count(&self, owner: SlotOwner, card: usize) -> bool {
        let claim = self.claim_word(owner.slot, card);
        let claimed = claim.map_or(0, |claim| bytes_of(claim.claimed.load(Acquire)));
        let shares = self.cards.get(card).map(|card| card.shares.load(Acquire));
        claimed > 0 || shares.unwrap_or_default() > 0
    }

    /// The largest claim of a process on a card since the last call. The next period starts with its current claim.
    /// For the agent only.
    #[must_use]
    pub fn take_high(&self, owner: SlotOwner, card: usize) -> Bytes {
        let (claimed, _) = self.claimed_by(owner, card);
        let high = self
            .claim_word(owner.slot, card)
            .map_or(0, |c| c.high.swap(claimed.0, AcqRel));
        claimed.max(Bytes(high))
    }

    fn record_peak(&self, mine: &SlotCard, card: usize, used: Bytes) {
        raise(&mine.high, bytes_of(mine.claimed.load(Relaxed)));
        if let Some(card) = self.cards.get(card) {
            raise(&card.peak, used.0);
        }
    }
}

/// The part of a slot's claim that is a reserve. A dead process's reserve was removed with its claim.
fn reserve_in(claim: &SlotCard) -> Bytes {
    let claimed = bytes_of(claim.claimed.load(Acquire));
    Bytes(claim.reserve.load(Acquire).min(claimed))
}

/// The part of a slot's claim that is code, like [`reserve_in`].
fn modules_in(claim: &SlotCard) -> Bytes {
    let claimed = bytes_of(claim.claimed.load(Acquire));
    Bytes(claim.modules.load(Acquire).min(claimed))
}

/// The refusals by family. Refusals without a family count for the last one.
fn denied_by(words: &CardUse) -> [u64; ApiFamily::ALL.len()] {
    let mut left = words.denied.load(Relaxed);
    ApiFamily::ALL.map(|api| {
        let Some((word, one)) = api.counter() else {
            return left;
        };
        let both = words.denied_by.get(word).map_or(0, |of| of.load(Relaxed));
        let count = (both / one) & u64::from(u32::MAX);
        left = left.saturating_sub(count);
        count
    })
}

/// The part of a slot's claim that is not decided yet. A process that was killed in a charge leaves its mark in a
/// slot that is empty by now.
fn pending_in(claim: &SlotCard) -> Bytes {
    let claimed = bytes_of(claim.claimed.load(Acquire));
    Bytes(claim.pending.load(Acquire).min(claimed))
}

/// Adds to the owner's claim, unless the slot has a later generation.
fn publish(mine: &SlotCard, owner: SlotOwner, ask: Bytes) -> bool {
    mine.claimed
        .fetch_update(AcqRel, Acquire, |word| {
            let bytes = bytes_of(word).saturating_add(ask.0).min(MOST);
            (tag_of(word) == owner.tag()).then_some(tagged(owner.tag(), bytes))
        })
        .is_ok()
}

/// Takes from the owner's claim, unless the slot has a later generation.
fn withdraw(mine: &SlotCard, owner: SlotOwner, freed: Bytes) {
    let _ = mine.claimed.fetch_update(AcqRel, Acquire, |word| {
        let bytes = bytes_of(word).saturating_sub(freed.0);
        (tag_of(word) == owner.tag()).then_some(tagged(owner.tag(), bytes))
    });
}

/// Raises a maximum, and writes only if it must: the common case is one load of a shared cache line.
fn raise(word: &AtomicU64, to: u64) {
    if word.load(Relaxed) < to {
        word.fetch_max(to, Relaxed);
    }
}

/// Lets the other charge decide first. Slots wait for different times, so that two that collided do not collide for
/// ever.
fn pause(owner: SlotOwner, attempt: u32) {
    #[cfg(loom)]
    {
        let _ = (owner, attempt);
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    {
        for _ in 0..(owner.slot & 7) * 16 + (1 << attempt.min(10)) {
            core::hint::spin_loop();
        }
        if attempt > 8 {
            // The other process may be waiting for this processor.
            // SAFETY: yielding has no preconditions.
            unsafe { libc::sched_yield() };
        }
    }
}
