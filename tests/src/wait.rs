//! Waiting for a condition, with a reasonable limit.

use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How often the condition is checked.
const GLANCE: Duration = Duration::from_millis(10);

/// Waits until `seen` is true.
///
/// # Panics
/// If it is not true within `patience`. The message is `what`.
#[track_caller]
pub fn eventually(patience: Duration, what: &str, mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !seen() {
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
        thread::sleep(GLANCE);
    }
}
