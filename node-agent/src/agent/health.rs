//! Counts the cards' errors and passes them to the ledger.

use apportion_ledger::{LedgerEvent, XidSeverity};
use tracing::warn;

use super::state::AgentState;
use crate::driver::faults::CardEvent;

impl AgentState {
    /// Processes what the driver reported of a card.
    pub(super) fn handle_card_event(&mut self, event: CardEvent) {
        match event {
            CardEvent::Fault { card, xid } => {
                let fault = XidSeverity::of(xid);
                warn!(%card, xid, meaning = fault.word(), "GPU error reported");
                let faults = &mut self.publisher.stats().faults;
                *faults.entry((card, fault)).or_default() += 1;
                self.apply_quietly(LedgerEvent::CardFault { card, xid });
                self.show();
            }
            CardEvent::Checked {
                card,
                action,
                is_worn,
            } => {
                if let Some(action) = action {
                    self.publisher.stats().recoveries.insert(card, action);
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
