//! Whether anybody still talks to the agent, so that one that was started in the background can leave.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Requests in progress, and the end of the latest.
#[derive(Debug)]
pub(crate) struct RequestTracker {
    /// Invariant: `since` is when the number of requests last became zero.
    state: Mutex<RequestTrackerState>,
}

#[derive(Debug)]
struct RequestTrackerState {
    requests: usize,
    since: Instant,
}

/// One request; it is over when this is dropped.
#[derive(Debug)]
pub(crate) struct TrackedRequest<'a>(&'a RequestTracker);

impl RequestTracker {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(RequestTrackerState {
                requests: 0,
                since: Instant::now(),
            }),
        }
    }

    /// A request begins.
    pub(crate) fn open(&self) -> TrackedRequest<'_> {
        self.change(|state| state.requests += 1);
        TrackedRequest(self)
    }

    /// How long nobody has asked anything.
    pub(crate) fn quiet_for(&self) -> Duration {
        let state = self
            .state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if state.requests == 0 {
            state.since.elapsed()
        } else {
            Duration::ZERO
        }
    }

    fn change(&self, change: impl FnOnce(&mut RequestTrackerState)) {
        change(
            &mut self
                .state
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        );
    }
}

impl Drop for TrackedRequest<'_> {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.requests = state.requests.saturating_sub(1);
            state.since = Instant::now();
        });
    }
}
