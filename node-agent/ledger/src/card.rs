//! One card in the ledger: its capacity, its health and its unmanaged memory.

use std::collections::VecDeque;

use apportion_abi::{Bytes, CardCapacity};

use crate::fault::{CardWithdrawal, XidSeverity};

/// Whether a card can be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The card answers and takes allocations.
    Healthy,
    /// It answers, but must not be allocated.
    Unhealthy,
    /// It does not answer.
    Lost,
}

/// How many samples in a row must show memory that no listed process explains.
///
/// NVML reports the card's total and its process list in two calls. A process that starts or ends between them shows
/// as unexplained memory in one sample. Only memory that stays unexplained is real.
const UNTOLD_SAMPLES: usize = 4;

/// A card of the node, with its capacity and its health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerCard {
    /// Its capacity.
    pub capacity: CardCapacity,
    /// Whether it can be allocated.
    pub health: Health,
    /// The memory of processes that have no allocation on it.
    pub unmanaged: Bytes,
    /// Its health according to the last NVML query, without withdrawals.
    answered: Health,
    withdrawn: Option<CardWithdrawal>,
    untold: VecDeque<Bytes>,
}

impl LedgerCard {
    pub(crate) fn new(capacity: CardCapacity) -> Self {
        Self {
            capacity,
            health: Health::Healthy,
            unmanaged: Bytes::ZERO,
            answered: Health::Healthy,
            withdrawn: None,
            untold: VecDeque::new(),
        }
    }

    /// Records how the card answered.
    pub(crate) fn answer(&mut self, answered: Health) {
        self.answered = answered;
        self.conclude();
    }

    /// Records an XID that the card reported.
    pub(crate) fn fail(&mut self, xid: u64) {
        if XidSeverity::of(xid).withdraws() {
            self.withdrawn = Some(CardWithdrawal::default());
        }
        self.conclude();
    }

    /// Records whether the driver says that the card needs a recovery. That also withdraws a card whose XID was
    /// missed, for example because the agent was not running.
    pub(crate) fn check(&mut self, needs_recovery: bool) {
        let withdrawn = if needs_recovery {
            self.withdrawn.or(Some(CardWithdrawal::default()))
        } else {
            self.withdrawn
        };
        self.withdrawn = withdrawn.and_then(|withdrawn| withdrawn.check(needs_recovery));
        self.conclude();
    }

    fn conclude(&mut self) {
        self.health = match (self.answered, self.withdrawn) {
            (Health::Healthy, Some(_)) => Health::Unhealthy,
            (answered, _) => answered,
        };
    }

    /// Records what a sample found: memory of processes without an allocation, and memory that no listed process
    /// explains.
    pub(crate) fn observe(&mut self, strangers: Bytes, untold: Bytes) {
        self.untold.truncate(UNTOLD_SAMPLES - 1);
        self.untold.push_front(untold);
        let lasting = match self.untold.len() {
            UNTOLD_SAMPLES => self.untold.iter().min().copied().unwrap_or_default(),
            _ => Bytes::ZERO,
        };
        self.unmanaged = strangers.plus(lasting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> LedgerCard {
        LedgerCard::new(CardCapacity {
            total: Bytes(1000),
            reserved: Bytes(0),
        })
    }

    #[test]
    fn a_withdrawn_card_that_answers_is_not_healthy_before_the_proof() {
        let mut card = card();
        card.fail(31);
        assert_eq!(card.health, Health::Healthy);
        card.fail(79);
        card.answer(Health::Lost);
        assert_eq!(card.health, Health::Lost);
        card.answer(Health::Healthy);
        assert_eq!(card.health, Health::Unhealthy);
        card.check(true);
        card.check(false);
        assert_eq!(card.health, Health::Unhealthy);
        card.check(false);
        assert_eq!(card.health, Health::Healthy);
    }

    #[test]
    fn unexplained_memory_counts_only_once_it_lasts() {
        let mut card = card();
        for _ in 1..UNTOLD_SAMPLES {
            card.observe(Bytes(10), Bytes(50));
            assert_eq!(card.unmanaged, Bytes(10));
        }
        card.observe(Bytes(10), Bytes(40));
        assert_eq!(card.unmanaged, Bytes(50));
        card.observe(Bytes(0), Bytes(0));
        assert_eq!(card.unmanaged, Bytes(0));
    }
}
