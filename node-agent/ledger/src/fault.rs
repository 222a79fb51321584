//! What a card's error numbers (XIDs) mean for the card, and what it takes to trust it again.
//!
//! Most errors are a program's own: it read past its memory, and its context is gone, and the card is as
//! good as before. Some mean that the card is not to be used until somebody has done something to it. A
//! card that was withdrawn for one of these is given out again only on proof: the driver says in a row of
//! checks that no recovery is needed. That nothing is heard any more proves nothing.

/// How many checks in a row must find that no recovery is needed.
const PROOFS: u8 = 2;

/// What an error means for its card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum XidSeverity {
    /// A program's own doing; the card is well.
    Application,
    /// The hardware did its work around a fault, or it is not known what it is; the card goes on.
    Warning,
    /// What runs may go on, and nothing new may come until the card was reset.
    Drain,
    /// The card does not work until it was reset.
    Reset,
    /// The card is off the bus.
    Lost,
}

/// The numbers that mean something else than [`XidSeverity::Warning`], and a word for each.
const NUMBERS: &[(u64, XidSeverity)] = &[
    // Graphics engine exception.
    (13, XidSeverity::Application),
    // Memory page fault.
    (31, XidSeverity::Application),
    // The card stopped processing for a program's error.
    (43, XidSeverity::Application),
    // Cleaning up after a program that ended.
    (45, XidSeverity::Application),
    // Video decoder exception.
    (68, XidSeverity::Application),
    // Graphics engine class error.
    (69, XidSeverity::Application),
    // Context switch timeout.
    (109, XidSeverity::Application),
    // Double bit error.
    (48, XidSeverity::Drain),
    // A row could not be remapped.
    (64, XidSeverity::Drain),
    // NVLink error.
    (74, XidSeverity::Drain),
    // Fallen off the bus.
    (79, XidSeverity::Lost),
    // Uncontained memory error.
    (95, XidSeverity::Reset),
    // The system processor does not answer.
    (119, XidSeverity::Reset),
    (120, XidSeverity::Reset),
];

impl XidSeverity {
    /// What the error with this number means.
    #[must_use]
    pub fn of(xid: u64) -> Self {
        let known = NUMBERS.iter().find(|(number, _)| *number == xid);
        known.map_or(Self::Warning, |(_, fault)| *fault)
    }

    /// Whether the card is withdrawn for it.
    #[must_use]
    pub fn withdraws(self) -> bool {
        match self {
            Self::Application | Self::Warning => false,
            Self::Drain | Self::Reset | Self::Lost => true,
        }
    }

    /// A word for a metric.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Warning => "warning",
            Self::Drain => "drain",
            Self::Reset => "reset",
            Self::Lost => "lost",
        }
    }
}

/// A card that was withdrawn, and how far it has proved itself since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardWithdrawal {
    proofs: u8,
}

impl CardWithdrawal {
    /// Enters a check; nothing is left of the withdrawal once it is proved that the card is well.
    pub(crate) fn check(self, needs_recovery: bool) -> Option<Self> {
        let proofs = match needs_recovery {
            true => 0,
            false => self.proofs + 1,
        };
        (proofs < PROOFS).then_some(Self { proofs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_own_error_withdraws_no_card_and_a_lost_one_is_withdrawn() {
        let own = [13, 31, 43, 45, 68, 69, 109];
        assert!(
            own.iter()
                .all(|xid| XidSeverity::of(*xid) == XidSeverity::Application)
        );
        assert!(
            !XidSeverity::of(63).withdraws()
                && !XidSeverity::of(94).withdraws()
                && !XidSeverity::of(92).withdraws()
        );
        let grave = [48, 64, 74, 79, 95, 119, 120];
        assert!(grave.iter().all(|xid| XidSeverity::of(*xid).withdraws()));
        assert_eq!(XidSeverity::of(999_999), XidSeverity::Warning);
    }

    #[test]
    fn only_checks_in_a_row_are_proof() {
        let withdrawn = Some(CardWithdrawal::default());
        let check = |checks: &[bool]| {
            checks
                .iter()
                .fold(withdrawn, |at, needs| at.and_then(|at| at.check(*needs)))
        };
        assert!(check(&[false]).is_some());
        assert!(check(&[false, true, false]).is_some());
        assert!(check(&[true, false, false]).is_none());
    }
}
