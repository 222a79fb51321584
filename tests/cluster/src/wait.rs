//! Waiting in tests for a condition, with a limit that suits a busy machine.

use std::thread;
use std::time::{Duration, Instant};

/// How long a pod may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the condition is checked. A check may start a program.
const GLANCE: Duration = Duration::from_millis(200);

/// Waits until `seen` is true.
///
/// # Panics
/// If it is not true in time. The message is `what`.
#[track_caller]
pub fn eventually(what: &str, mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !seen() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        thread::sleep(GLANCE);
    }
}
