//! Waiting in tests for what must come, and no longer than a busy machine needs.

use std::thread;
use std::time::{Duration, Instant};

/// How long a pod may take on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the condition is looked at; each look may be a program.
const GLANCE: Duration = Duration::from_millis(200);

/// Waits until `seen` says that it is so.
///
/// # Panics
/// If it is not so in time; the message is `what` was waited for.
#[track_caller]
pub fn eventually(what: &str, mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !seen() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        thread::sleep(GLANCE);
    }
}
