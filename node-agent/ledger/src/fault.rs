//! What a card's error numbers (XIDs) mean for the card, and when it is trusted again.
//!
//! Most XIDs are a program's own fault: it accessed invalid memory and lost its context, and the card is fine. Some
//! mean that the card must not be used until somebody repairs it. A card withdrawn for one of these is allocated
//! again only on proof: several checks in a row in which the driver says that no recovery is needed. The absence of
//! new XIDs proves nothing.

/// How many checks in a row must report that no recovery is needed.
const PROOFS: u8 = 2;

/// What an XID means for its card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum XidSeverity {
    /// A program's own error. The card is fine.
    Application,
    /// The hardware worked around a fault, or the number is unknown. The card stays in use.
    Warning,
    /// Running programs may go on. Nothing new may start until the card is reset.
    Drain,
    /// The card does not work until it is reset.
    Reset,
    /// The card has fallen off the bus.
    Lost,
}

/// All XIDs that are not [`XidSeverity::Warning`].
const NUMBERS: &[(u64, XidSeverity)] = &[
    // Graphics engine exception.
    (13, XidSeverity::Application),
    // Memory page fault.
    (31, XidSeverity::Application),
    // The card stopped processing because of a program's error.
    (43, XidSeverity::Application),
    // Cleanup after a program that ended.
    (45, XidSeverity::Application),
    // Video decoder exception.
    (68, XidSeverity::Application),
    // Graphics engine class error.
    (69, XidSeverity::Application),
    // Context switch timeout.
    (109, XidSeverity::Application),
    // Double-bit ECC error.
    (48, XidSeverity::Drain),
    // Row remapping failure.
    (64, XidSeverity::Drain),
    // NVLink error.
    (74, XidSeverity::Drain),
    // Fallen off the bus.
    (79, XidSeverity::Lost),
    // Uncontained memory error.
    (95, XidSeverity::Reset),
    // GPU System Processor (GSP) timeout or error.
    (119, XidSeverity::Reset),
    (120, XidSeverity::Reset),
];

impl XidSeverity {
    /// The severity of this XID.
    #[must_use]
    pub fn of(xid: u64) -> Self {
        let known = NUMBERS.iter().find(|(number, _)| *number == xid);
        known.map_or(Self::Warning, |(_, fault)| *fault)
    }

    /// Whether the card is withdrawn.
    #[must_use]
    pub fn withdraws(self) -> bool {
        match self {
            Self::Application | Self::Warning => false,
            Self::Drain | Self::Reset | Self::Lost => true,
        }
    }

    /// The label value for metrics.
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

/// A withdrawn card, and how many checks in a row it has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardWithdrawal {
    proofs: u8,
}

impl CardWithdrawal {
    /// Records a check. Returns `None` once the card has passed enough of them.
    pub(crate) fn check(self, needs_recovery: bool) -> Option<Self> {
        let proofs = if needs_recovery { 0 } else { self.proofs + 1 };
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
