//! Writes about pod groups that are in flight, so that others come after them.
//!
//! Who sees that a pod is bound, or that it waits, may look for its group at once, as the clients of KAI do. KAI's pod
//! grouper writes in this order: the PodGroup, its name on the pod, then what the scheduler says. So a binding waits for the
//! group that it names, and so does the name on a waiting pod; the condition of a waiting pod comes after that. None waits for
//! long: a slow API server must not keep pods from starting.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::live::grouper::WriteSubject;

/// The longest wait for another write.
const PATIENCE: Duration = Duration::from_millis(500);

/// The objects, by namespace and name, whose requests are in flight.
#[derive(Debug, Default)]
pub(super) struct WritesInFlight {
    objects: Mutex<BTreeSet<WriteSubject>>,
    ended: Notify,
}

impl WritesInFlight {
    pub(super) fn begin(&self, object: WriteSubject) {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.insert(object);
    }

    pub(super) fn end(&self, object: &WriteSubject) {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.remove(object);
        drop(objects);
        self.ended.notify_waiters();
    }

    /// Waits until the object's request has ended, but not for long.
    pub(super) async fn wait(&self, object: &WriteSubject) {
        let _ = timeout(PATIENCE, self.until_ended(object)).await;
    }

    async fn until_ended(&self, object: &WriteSubject) {
        loop {
            let mut ended = pin!(self.ended.notified());
            // Before the look, so that an end between the look and the wait is noticed.
            ended.as_mut().enable();
            if !self.is_in_flight(object) {
                return;
            }
            ended.await;
        }
    }

    fn is_in_flight(&self, object: &WriteSubject) -> bool {
        let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.contains(object)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;

    fn group(name: &str) -> WriteSubject {
        ("team".to_owned(), name.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_binding_waits_for_its_own_group_only() {
        let creation = Arc::new(WritesInFlight::default());
        creation.begin(group("one"));
        let start = Instant::now();
        creation.wait(&group("other")).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        let later = Arc::clone(&creation);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            later.end(&group("other"));
            tokio::time::sleep(Duration::from_millis(20)).await;
            later.end(&group("one"));
        });
        creation.wait(&group("one")).await;
        assert_eq!(start.elapsed(), Duration::from_millis(40));
    }

    #[tokio::test(start_paused = true)]
    async fn a_binding_does_not_wait_for_a_slow_api_server() {
        let creation = WritesInFlight::default();
        creation.begin(group("slow"));
        let start = Instant::now();
        creation.wait(&group("slow")).await;
        assert!(start.elapsed() <= PATIENCE + Duration::from_millis(1));
    }
}
