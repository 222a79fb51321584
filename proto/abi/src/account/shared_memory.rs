//! Memory that several processes of one account hold. It is one piece of the card, and counts once for as long as any
//! of them lives and holds it.
//!
//! The process that made it has charged it, and records that here before any other process can know the memory (an
//! *offer*, which the owner's own claim pays for). A process that imports it *joins* before it calls the driver, and
//! claims nothing. If the maker releases it or dies while others hold it, no claim covers it any more. Then it counts
//! by itself, as part of every sum, until the last holder has left.
//!
//! # Decision: derived, not moved
//! To move the charge from the maker's slot to another's takes two steps, and the process that does it may be killed
//! in between; the maker may be dead already. So nothing is moved. A share records its holder, and counts if the
//! holder is in the account and no offer has the same key. Retiring a slot voids all shares of its owner in the same
//! step, because they carry the generation of the claim that is emptied.
//!
//! A sum reads the claims first and the shares afterwards, and a maker withdraws its offer before its claim. So
//! memory may be counted twice for an instant, but never not at all.
//!
//! The shares lie in the unused words of the slots' heads, but are unrelated to those slots; zeroes mean that there
//! are none. When all places are taken, further memory is not tracked.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use super::layout::{CardLimit, SlotHead, fence};
use super::slot::{SlotOwner, bytes_of, tag_of, tagged};
use super::usage::AccountUsage;
use crate::units::Bytes;

/// Flags of a holder's word. Below them are the slot (32 bits up) and the generation of its claims.
const TAKEN: u64 = 1 << 63;
const PAID: u64 = 1 << 62;
/// The share's other words are not written yet.
const BEGUN: u64 = 1 << 61;

/// A process's hold on shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    place: usize,
    holder: u64,
}

impl Share {
    /// The hold as two words, for code that does not need to know their meaning.
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        [self.place as u64, self.holder]
    }

    /// The hold from its two words.
    #[must_use]
    pub const fn from_words([place, holder]: [u64; 2]) -> Self {
        let place = place as usize;
        Self { place, holder }
    }
}

/// The outcome of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinOutcome {
    /// The memory is held; the driver may be called.
    Joined(Share),
    /// No process of the account offers or holds it: the memory belongs to no process of this account.
    Unknown,
    /// Its maker has released it, and the limit has no room for it.
    Refused,
}

/// A share as read at one moment.
#[derive(Clone, Copy)]
struct HoldSnapshot {
    place: usize,
    holder: u64,
    card: usize,
    key: u64,
    bytes: u64,
}

impl HoldSnapshot {
    const fn is_paid(&self) -> bool {
        self.holder & PAID != 0
    }
}

const fn holder(owner: SlotOwner, flags: u64) -> u64 {
    TAKEN | flags | ((owner.slot as u64) << 32) | owner.tag()
}

/// The slot and the generation that a holder's word names.
const fn named(holder: u64) -> (usize, u64) {
    ((holder >> 32 & 0xffff) as usize, holder & 0xffff)
}

impl AccountUsage<'_> {
    /// Records that memory which `owner` has charged is about to be shared, under a key that all its holders will
    /// know. `None` if no place is left.
    #[must_use]
    pub fn offer(&self, owner: SlotOwner, card: usize, key: u64, bytes: Bytes) -> Option<Share> {
        self.enter_share(owner, PAID, card, key, bytes)
    }

    /// Makes `owner` a holder of memory that some process of the account offers or holds. `limits` returns a card's
    /// limit.
    #[must_use]
    pub fn join<'l>(
        &self,
        owner: SlotOwner,
        key: u64,
        limits: impl Fn(usize) -> Option<&'l CardLimit>,
    ) -> JoinOutcome {
        let Some(known) = self.known_holds().find(|hold| hold.key == key) else {
            return JoinOutcome::Unknown;
        };
        let bytes = Bytes(known.bytes);
        let Some(share) = self.enter_share(owner, 0, known.card, key, bytes) else {
            return JoinOutcome::Unknown;
        };
        // Either the maker sees this share, or this process sees that the offer is gone.
        fence(SeqCst);
        if self
            .known_holds()
            .any(|hold| hold.key == key && hold.is_paid())
        {
            return JoinOutcome::Joined(share);
        }
        let fits = limits(known.card).is_some_and(|card| {
            let limits = card.limits();
            self.claimed(known.card).plus(limits.overhead) <= limits.limit
        });
        if fits {
            return JoinOutcome::Joined(share);
        }
        self.leave(share);
        JoinOutcome::Refused
    }

    /// Drops a hold: after the driver has released the memory, and before the claim behind an offer is withdrawn.
    pub fn leave(&self, share: Share) {
        if let Some(head) = self.heads.get(share.place) {
            let _ = head
                .holder
                .compare_exchange(share.holder, 0, AcqRel, Relaxed);
        }
        fence(SeqCst);
    }

    /// Memory on a card that counts by itself, because its maker is gone and others hold it. With `of`, only the part
    /// that is counted for that process.
    pub(super) fn orphaned(&self, card: usize, of: Option<SlotOwner>) -> Bytes {
        let used = self.cards.get(card).map(|card| card.shares.load(Acquire));
        if used.unwrap_or_default() == 0 {
            return Bytes::ZERO;
        }
        fence(SeqCst);
        let here = self.holds_of(of).filter(|hold| hold.card == card);
        let counts = here.filter(|holds| !holds.is_paid() && !self.is_counted_elsewhere(holds));
        counts.map(|holds| Bytes(holds.bytes)).sum()
    }

    /// Whether an offer, or a holder in an earlier place, accounts for the same memory.
    fn is_counted_elsewhere(&self, one: &HoldSnapshot) -> bool {
        let mut same = self.known_holds().filter(|other| other.key == one.key);
        same.any(|other| other.is_paid() || other.place < one.place)
    }

    /// All shares whose holders are in the account.
    fn known_holds(&self) -> impl Iterator<Item = HoldSnapshot> + '_ {
        self.holds_of(None)
    }

    /// All shares, or those of one holder. A caller that asks for one holder after the other reads each share many
    /// times. So the shares of other holders must cost no more than one word: a tenant can fill all places.
    fn holds_of(&self, of: Option<SlotOwner>) -> impl Iterator<Item = HoldSnapshot> + '_ {
        let used = self.cards.iter().map(|card| card.shares.load(Acquire));
        let used = usize::try_from(used.max().unwrap_or(0)).unwrap_or(usize::MAX);
        let places = self.heads.iter().take(used).enumerate();
        places.filter_map(move |(place, head)| self.read_hold(place, head, of))
    }

    fn read_hold(
        &self,
        place: usize,
        head: &SlotHead,
        of: Option<SlotOwner>,
    ) -> Option<HoldSnapshot> {
        let holder = head.holder.load(Acquire);
        let is_asked = of.is_none_or(|owner| named(holder) == (owner.slot, owner.tag()));
        if !is_asked || holder & TAKEN == 0 || holder & BEGUN != 0 {
            return None;
        }
        let (key, amount) = (head.key.load(Acquire), head.amount.load(Acquire));
        let card = usize::try_from(tag_of(amount)).unwrap_or(usize::MAX);
        let is_whole = head.holder.load(Acquire) == holder && self.is_in(holder, card);
        is_whole.then_some(HoldSnapshot {
            place,
            holder,
            card,
            key,
            bytes: bytes_of(amount),
        })
    }

    /// Whether the holder has not been retired.
    fn is_in(&self, holder: u64, card: usize) -> bool {
        let (slot, tag) = named(holder);
        self.claim_word(slot, card)
            .is_some_and(|claim| tag_of(claim.claimed.load(Acquire)) == tag)
    }

    /// Takes the first place that is free or whose holder is gone.
    fn enter_share(
        &self,
        owner: SlotOwner,
        flags: u64,
        card: usize,
        key: u64,
        bytes: Bytes,
    ) -> Option<Share> {
        let words = self.cards.get(card)?;
        for (place, head) in self.heads.iter().enumerate() {
            let old = head.holder.load(Acquire);
            let (slot, _) = named(old);
            let is_void = slot >= self.heads.len() || !self.is_in(old, 0);
            let begun = holder(owner, flags | BEGUN);
            if (old & TAKEN != 0 && !is_void)
                || head
                    .holder
                    .compare_exchange(old, begun, AcqRel, Relaxed)
                    .is_err()
            {
                continue;
            }
            words.shares.fetch_max(place as u64 + 1, AcqRel);
            head.key.store(key, Relaxed);
            head.amount.store(tagged(card as u64, bytes.0), Relaxed);
            let holder = holder(owner, flags);
            head.holder.store(holder, Release);
            return Some(Share { place, holder });
        }
        None
    }
}
