//! What can be said later: that a pod was scheduled.
//!
//! It is one write for each pod, as dear as the binding that it tells of, and nobody acts on it. So the pods
//! of a burst are bound first: while bindings are under way it is said slowly, and at once where they are not. What
//! a burst leaves behind is bounded; past that the oldest word stands and the newest is not said.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::live::event::PodRef;

/// How many words may wait.
const ROOM: usize = 10_000;
/// How long after a binding others are thought to follow it.
const QUIET: Duration = Duration::from_millis(200);
/// How long a word waits at most once it is its turn.
const SLOWLY: Duration = Duration::from_millis(50);

/// A pod, and what is said about it.
pub(super) type DeferredEvent = (PodRef, String);

/// Who has something to say later.
#[derive(Clone)]
pub(super) struct DeferredEventSender {
    words: mpsc::Sender<DeferredEvent>,
    bound: watch::Sender<Instant>,
}

/// The words in their order, and when they may be said.
pub(super) struct DeferredEvents {
    words: mpsc::Receiver<DeferredEvent>,
    bound: watch::Receiver<Instant>,
}

pub(super) fn later() -> (DeferredEventSender, DeferredEvents) {
    let (to, words) = mpsc::channel(ROOM);
    let (seen, bound) = watch::channel(Instant::now());
    let later = DeferredEventSender {
        words: to,
        bound: seen,
    };
    (later, DeferredEvents { words, bound })
}

impl DeferredEventSender {
    /// Takes in what is to be said.
    pub(super) fn say(&self, pod: PodRef, message: String) {
        if let Err(mpsc::error::TrySendError::Full((pod, _))) = self.words.try_send((pod, message))
        {
            warn!(pod = pod.full(), "Event queue full, event dropped");
        }
    }

    /// Waits until something that nobody waits for may be written.
    pub(super) async fn turn(&self) {
        let bound = *self.bound.borrow();
        sleep_until(turn(Instant::now(), bound)).await;
    }

    /// Notes that a binding ended.
    pub(super) fn bound(&self) {
        self.bound.send_replace(Instant::now());
    }
}

impl DeferredEvents {
    /// The next word, when it may be said; `None` when nobody is left who has any.
    pub(super) async fn next(&mut self) -> Option<DeferredEvent> {
        let word = self.words.recv().await?;
        let bound = *self.bound.borrow();
        sleep_until(turn(Instant::now(), bound)).await;
        Some(word)
    }
}

/// When the next word may be said, after a binding that ended then.
fn turn(now: Instant, bound: Instant) -> Instant {
    (bound + QUIET).min(now + SLOWLY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodRef {
        PodRef {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: name.to_owned(),
        }
    }

    #[test]
    fn words_wait_for_bindings_and_not_for_ever() {
        let bound = Instant::now();
        assert_eq!(turn(bound, bound), bound + SLOWLY);
        let soon_quiet = bound + QUIET - SLOWLY / 2;
        assert_eq!(turn(soon_quiet, bound), bound + QUIET);
        let quiet = bound + QUIET * 2;
        assert!(turn(quiet, bound) < quiet, "it is said at once");
    }

    #[test]
    fn what_waits_is_bounded_and_what_came_first_stays() {
        let (later, mut words) = later();
        for number in 0..=ROOM {
            later.say(pod(&number.to_string()), String::new());
        }
        let mut said = Vec::new();
        while let Ok((pod, _)) = words.words.try_recv() {
            said.push(pod.name);
        }
        assert_eq!((said.len(), said[0].as_str()), (ROOM, "0"));
    }
}
