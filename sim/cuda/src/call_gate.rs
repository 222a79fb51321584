//! The gate that every CUDA call passes. A checkpoint closes it: no call begins, and those in flight end first.
//!
//! A program may call CUDA from a callback of a CUDA call. Only the outermost call of a thread passes the gate, so that
//! it can end while the gate is closing.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
struct GateState {
    calls: usize,
    is_closed: bool,
}

static STATE: Mutex<GateState> = Mutex::new(GateState {
    calls: 0,
    is_closed: false,
});
static CHANGED: Condvar = Condvar::new();

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A call in flight.
#[derive(Debug)]
pub(crate) struct CallPass;

/// Whether a function goes on while the gate is closed, so that a process can checkpoint itself.
pub(crate) fn passes_closed_gate(function: &str) -> bool {
    function.starts_with("cuCheckpoint")
}

fn state() -> MutexGuard<'static, GateState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes the gate. Waits while it is closed.
pub(crate) fn pass() -> CallPass {
    let depth = DEPTH.get();
    DEPTH.set(depth + 1);
    if depth == 0 {
        let mut state = state();
        while state.is_closed {
            state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.calls += 1;
    }
    CallPass
}

impl Drop for CallPass {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth > 0 {
            return;
        }
        let mut state = state();
        state.calls -= 1;
        if state.is_closed && state.calls == 0 {
            CHANGED.notify_all();
        }
    }
}

/// Closes the gate and waits for the calls in flight. If they take longer than `longest`, opens it again.
pub(crate) fn close(longest: Option<Duration>) -> bool {
    let begun = Instant::now();
    let mut state = state();
    state.is_closed = true;
    while state.calls > 0 {
        let left = longest.map(|longest| longest.saturating_sub(begun.elapsed()));
        state = match left {
            Some(Duration::ZERO) => {
                state.is_closed = false;
                CHANGED.notify_all();
                return false;
            }
            Some(left) => {
                CHANGED
                    .wait_timeout(state, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
            None => CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
    }
    true
}

/// Opens the gate.
pub(crate) fn open() {
    state().is_closed = false;
    CHANGED.notify_all();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// One test: the gate is one for the process.
    #[test]
    fn a_closed_gate_holds_new_calls_and_waits_for_those_in_flight() {
        let call = pass();
        let nested = pass();
        assert!(
            !close(Some(Duration::from_millis(20))),
            "a call is in flight"
        );
        drop(nested);
        let closing = thread::spawn(|| close(None));
        while !state().is_closed {
            thread::yield_now();
        }
        drop(pass());
        assert!(!closing.is_finished(), "the outer call is in flight");
        drop(call);
        assert!(closing.join().expect("it closes"));

        let (send, passed) = channel();
        let waiting = thread::spawn(move || {
            let _call = pass();
            send.send(()).expect("the test waits");
        });
        assert!(passed.recv_timeout(Duration::from_millis(50)).is_err());
        open();
        assert!(passed.recv_timeout(Duration::from_secs(10)).is_ok());
        waiting.join().expect("it passed");
    }
}
