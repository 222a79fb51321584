//! Charges that ask for a larger allowance, and what memory queries show of it.

use apportion_abi::{Bytes, SHARE_UNIT};

use super::MappedAccount;
use super::burst::nanoseconds;
use crate::errno;

/// The longest wait for all answers to one charge, in nanoseconds. The agent may have to wait for a sample, and it may run
/// on a busy machine. If no agent runs, the wait is [`PROBE_EVERY`](super::burst::PROBE_EVERY).
const ANSWER_WITHIN: u64 = 2_000_000_000;
/// How often one charge asks. Other threads and processes of the share may take what it got.
const ATTEMPTS: u32 = 8;

impl MappedAccount {
    /// Charges a card after the agent has raised the allowance for it.
    pub(crate) fn charge_after_asking(&self, card: usize, bytes: u64) -> bool {
        let words = self.burst.as_ref().and_then(|burst| burst.card(card));
        let (Some(burst), Some((words, _)), Some(limits)) =
            (&self.burst, words, self.limits.cards().get(card))
        else {
            return false;
        };
        let _errno = errno::ErrnoGuard::now();
        let deadline = nanoseconds().saturating_add(ANSWER_WITHIN);
        for _ in 0..ATTEMPTS {
            let before = limits.limits();
            let used = self.usage.usage().claimed(card).plus(before.overhead);
            let wanted = used.plus(Bytes(bytes)).rounded_up(SHARE_UNIT);
            if wanted > words.ceiling() || burst.is_silent() {
                return false;
            }
            let must_ask = wanted > before.limit;
            let is_answered = !must_ask || burst.ask(words, wanted, deadline);
            let is_charged = is_answered && self.charge(card, bytes);
            if must_ask {
                words.end();
            }
            if is_charged {
                return true;
            }
            // If the allowance is larger, others of this share were faster, and there may be more.
            if !is_answered || must_ask && limits.limits().limit <= before.limit {
                return false;
            }
        }
        false
    }

    /// What memory queries show as the size of a card, if its limit is above its guarantee.
    pub(super) fn shown(&self, card: usize) -> Option<u64> {
        let burst = self.burst.as_ref()?;
        let (words, guaranteed) = burst.card(card)?;
        if burst.shows_guarantee {
            return Some(guaranteed.0);
        }
        let limit = self.limits.cards().get(card)?.limits().limit;
        Some(words.reachable().max(limit).0)
    }
}
