//! Events that can wait: that a pod was scheduled.
//!
//! Each is one write per pod, as expensive as the binding itself, and nobody acts on it. So the pods of a burst are
//! bound first: while bindings are in flight these events are sent slowly, otherwise at once. The queue is bounded.
//! When it is full, the oldest events stay and the newest is dropped.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::live::event::PodRef;

/// How many events may wait.
const ROOM: usize = 10_000;
/// How long after a binding the next one is expected.
const QUIET: Duration = Duration::from_millis(200);
/// The longest delay of an event that is next in the queue.
const SLOWLY: Duration = Duration::from_millis(50);

/// A pod, and its event's message.
pub(super) type DeferredEvent = (PodRef, String);

/// Queues events, and is told about bindings.
#[derive(Clone)]
pub(super) struct DeferredEventSender {
    queue: mpsc::Sender<DeferredEvent>,
    bound: watch::Sender<Instant>,
}

/// The queued events, and when they may be sent.
pub(super) struct DeferredEvents {
    queue: mpsc::Receiver<DeferredEvent>,
    bound: watch::Receiver<Instant>,
}

pub(super) fn deferred_events() -> (DeferredEventSender, DeferredEvents) {
    let (to, queue) = mpsc::channel(ROOM);
    let (sender, bound) = watch::channel(Instant::now());
    let deferred_events = DeferredEventSender {
        queue: to,
        bound: sender,
    };
    (deferred_events, DeferredEvents { queue, bound })
}

impl DeferredEventSender {
    pub(super) fn queue_event(&self, pod: PodRef, message: String) {
        if let Err(mpsc::error::TrySendError::Full((pod, _))) = self.queue.try_send((pod, message))
        {
            warn!(pod = pod.full(), "Event queue full, event dropped");
        }
    }

    /// Waits until a write of low priority may be sent.
    pub(super) async fn wait(&self) {
        let bound = *self.bound.borrow();
        sleep_until(send_time(Instant::now(), bound)).await;
    }

    /// Records that a binding ended.
    pub(super) fn bound(&self) {
        self.bound.send_replace(Instant::now());
    }
}

impl DeferredEvents {
    /// Waits until the next event may be sent; `None` when there are no senders left.
    pub(super) async fn next(&mut self) -> Option<DeferredEvent> {
        let event = self.queue.recv().await?;
        let bound = *self.bound.borrow();
        sleep_until(send_time(Instant::now(), bound)).await;
        Some(event)
    }
}

/// When the next event may be sent, if the last binding ended at `bound`.
fn send_time(now: Instant, bound: Instant) -> Instant {
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
    fn events_wait_for_bindings_and_not_for_ever() {
        let bound = Instant::now();
        assert_eq!(send_time(bound, bound), bound + SLOWLY);
        let soon_quiet = bound + QUIET - SLOWLY / 2;
        assert_eq!(send_time(soon_quiet, bound), bound + QUIET);
        let quiet = bound + QUIET * 2;
        assert!(send_time(quiet, bound) < quiet, "the event is sent at once");
    }

    #[test]
    fn what_waits_is_bounded_and_what_came_first_stays() {
        let (deferred_events, mut queue) = deferred_events();
        for number in 0..=ROOM {
            deferred_events.queue_event(pod(&number.to_string()), String::new());
        }
        let mut queued = Vec::new();
        while let Ok((pod, _)) = queue.queue.try_recv() {
            queued.push(pod.name);
        }
        assert_eq!((queued.len(), queued[0].as_str()), (ROOM, "0"));
    }
}
