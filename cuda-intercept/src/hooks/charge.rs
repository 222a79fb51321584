//! Charges a card, and says how much memory the program sees on it. Before either, the hooks collect what the process
//! has given back without a call that says so.

use apportion_abi::account::ApiFamily;
use apportion_gate::Card;

use crate::account::CardMemoryView;
use crate::process::ProcessState;

use super::{exported_descriptors, pool_settlement};

impl ProcessState {
    /// Charges a card. If it is full, dead processes are first taken out of the account. Then this process's pools
    /// give back what they do not use. A process of an elastic share asks the agent for more last: what its pools keep is
    /// its own already.
    ///
    /// Waits while the share is suspended, as the driver lets calls wait: see `account::suspension`.
    pub(crate) fn charge(&self, card: Card, bytes: u64) -> bool {
        self.charge_for(ApiFamily::Other, card, bytes)
    }

    /// Like `charge`, for an API family whose refusals are counted separately.
    pub(crate) fn charge_for(&self, api: ApiFamily, card: Card, bytes: u64) -> bool {
        let Some(account) = self.account() else {
            return true;
        };
        let fits = || account.charge(card, bytes);
        let fits_after_the_dead = || account.retire_for(card, bytes) && fits();
        loop {
            let granted = fits()
                || fits_after_the_dead()
                || (pool_settlement::trim_all(self, card) && (fits() || fits_after_the_dead()))
                || account.charge_after_asking(card, bytes);
            if !granted && account.is_suspended() {
                // An elastic share that is suspended gets no more, but may when it wakes.
                account.wait_until_resumed();
                continue;
            }
            if !granted {
                account.deny(card, api, bytes);
                return false;
            }
            if !account.is_suspended() {
                return true;
            }
            account.uncharge(card, bytes);
            account.wait_until_resumed();
        }
    }

    /// A card's memory as the program should see it.
    pub(crate) fn view(&self, card: Card, total: u64, free: u64) -> Option<CardMemoryView> {
        exported_descriptors::uncharge_closed(self);
        Some(self.account()?.view(card, total, free))
    }
}
