//! The clock of the ledger.

use std::time::{SystemTime, UNIX_EPOCH};

use apportion_ledger::EpochMillis;

/// The wall-clock time, because reservations outlive the agent.
pub(super) fn now() -> EpochMillis {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    EpochMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
