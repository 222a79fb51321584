//! Requests for larger allowances that will never be over, because their programs were killed while they asked.
//!
//! A share's `burst` file counts the requests that were made and those that are over. A killed program leaves the second
//! count behind for good. So the agent notes how many requests were still open when it gave up waiting, and waits for no
//! more than the others. One that was only slow ends later. The next request shows it: its own program waits for the
//! answer, so what was abandoned is at most what is open besides it.

use std::collections::BTreeMap;

use apportion_abi::CardUuid;
use apportion_ledger::AllocationId;

/// How many requests of each share on each card are abandoned.
#[derive(Debug, Default)]
pub(super) struct AbandonedRequests(BTreeMap<(CardUuid, AllocationId), u32>);

impl AbandonedRequests {
    /// A program of the share waits for its answer, so `open` counts at least one request that is not abandoned.
    pub(super) fn note_waiting(&mut self, share: &(CardUuid, AllocationId), open: u32) {
        if let Some(abandoned) = self.0.get_mut(share) {
            *abandoned = (*abandoned).min(open.saturating_sub(1));
        }
    }

    /// Whether all open requests of the share are abandoned.
    pub(super) fn covers(&self, share: &(CardUuid, AllocationId), open: u32) -> bool {
        open <= self.0.get(share).copied().unwrap_or_default()
    }

    /// The programs of these open requests took too long.
    pub(super) fn give_up(&mut self, share: &(CardUuid, AllocationId), open: u32) {
        self.0.insert(share.clone(), open);
    }

    /// Forgets an allocation that is gone.
    pub(super) fn forget(&mut self, id: &AllocationId) {
        self.0.retain(|(_, of), _| of != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_program_is_waited_for_once_and_a_slow_one_counts_again() {
        let id = AllocationId::parse("1-1").expect("it is one");
        let share = (CardUuid([1; 16]), id);
        let mut requests = AbandonedRequests::default();
        // The program of the first request is killed.
        requests.note_waiting(&share, 1);
        assert!(!requests.covers(&share, 1));
        requests.give_up(&share, 1);
        // The second one is waited for until it is over.
        requests.note_waiting(&share, 2);
        assert!(!requests.covers(&share, 2));
        assert!(requests.covers(&share, 1));
        // The third one is slow, and ends before the fourth comes.
        requests.note_waiting(&share, 2);
        requests.give_up(&share, 2);
        requests.note_waiting(&share, 2);
        assert!(!requests.covers(&share, 2));
        assert!(requests.covers(&share, 1));
        requests.forget(&share.1);
        assert!(!requests.covers(&share, 1));
    }
}
