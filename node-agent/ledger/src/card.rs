//! One card as the ledger knows it: what it can give and what others take of it.

use std::collections::VecDeque;

use apportion_abi::{Bytes, CardCapacity};

use crate::fault::{CardWithdrawal, XidSeverity};

/// Whether a card can be given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Healthy,
    /// It answers and is not to be given out.
    Unhealthy,
    /// It does not answer.
    Lost,
}

/// How many samples in a row must show memory that no listed process explains.
///
/// The card's total and its process list are read one after the other, so that a process which starts
/// or ends between them shows as unexplained memory in one sample. What stays is real.
const UNTOLD_SAMPLES: usize = 4;

/// One card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerCard {
    /// What it has.
    pub capacity: CardCapacity,
    /// Whether it can be given out.
    pub health: Health,
    /// What processes use that have no allocation on it.
    pub unmanaged: Bytes,
    /// How it answered last.
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

    /// Enters how it answers.
    pub(crate) fn answer(&mut self, answered: Health) {
        self.answered = answered;
        self.conclude();
    }

    /// Enters an error that it reported.
    pub(crate) fn fail(&mut self, xid: u64) {
        if XidSeverity::of(xid).withdraws() {
            self.withdrawn = Some(CardWithdrawal::default());
        }
        self.conclude();
    }

    /// Enters whether the driver says that it needs a recovery, which withdraws it also if its error was
    /// never heard, such as before the agent started.
    pub(crate) fn check(&mut self, needs_recovery: bool) {
        let withdrawn = match needs_recovery {
            true => self.withdrawn.or(Some(CardWithdrawal::default())),
            false => self.withdrawn,
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

    /// Enters what a sample found: memory of processes without an allocation, and memory that no
    /// process was listed for.
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
