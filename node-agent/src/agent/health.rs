//! Counts the cards' errors and passes them to the ledger.

use super::*;
use crate::driver::faults::CardEvent;
use apportion_ledger::XidSeverity;

impl NodeAgent {
    pub(super) fn heard(&mut self, heard: CardEvent) {
        match heard {
            CardEvent::Fault { card, xid } => {
                let fault = XidSeverity::of(xid);
                warn!(%card, xid, meaning = fault.word(), "GPU error reported");
                let count = self.counts.faults.entry((card, fault));
                *count.or_default() += 1;
                self.apply_quietly(LedgerEvent::CardFault { card, xid });
                self.show();
            }
            CardEvent::Checked {
                card,
                action,
                is_worn,
            } => {
                if let Some(action) = action {
                    self.counts.recoveries.insert(card, action);
                }
                // A driver that does not report the recovery action proves nothing.
                if action.is_some() || is_worn {
                    let needs_recovery = is_worn || action != Some(0);
                    self.apply_quietly(LedgerEvent::CardChecked {
                        card,
                        needs_recovery,
                    });
                }
            }
        }
    }
}
