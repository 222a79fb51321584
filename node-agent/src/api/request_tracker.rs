//! Tracks whether clients still use the agent, so that one that was started in the background can exit.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The number of open requests, and when the last one ended.
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

/// An open request. It ends when this is dropped.
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

    pub(crate) fn open(&self) -> TrackedRequest<'_> {
        self.change(|state| state.requests += 1);
        TrackedRequest(self)
    }

    /// How long no request has been open.
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
