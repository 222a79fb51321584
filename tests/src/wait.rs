//! Waiting for what must come, and no longer than is reasonable.

use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take on a machine that does much else.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How often the condition is looked at.
const GLANCE: Duration = Duration::from_millis(10);

/// Waits until `seen` says that it is so.
///
/// # Panics
/// If it is not so within `patience`; the message is `what` was waited for.
#[track_caller]
pub fn eventually(patience: Duration, what: &str, mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !seen() {
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
        thread::sleep(GLANCE);
    }
}
