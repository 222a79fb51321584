//! PodGroups that are being created, so that their pods are bound after them.
//!
//! Who sees a bound pod may look for its group at once, as the clients of KAI do. So a binding waits for the group that
//! it names, but not for long: a slow API server must not keep pods from starting.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::live::grouper::WriteSubject;

/// How long a binding waits for its group at most.
const PATIENCE: Duration = Duration::from_millis(500);

/// The groups whose requests are in flight.
#[derive(Debug, Default)]
pub(super) struct GroupsInCreation {
    groups: Mutex<BTreeSet<WriteSubject>>,
    ended: Notify,
}

impl GroupsInCreation {
    pub(super) fn begin(&self, group: WriteSubject) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.insert(group);
    }

    pub(super) fn end(&self, group: &WriteSubject) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.remove(group);
        drop(groups);
        self.ended.notify_waiters();
    }

    /// Waits until the group's request has ended, or for as long as a binding may wait.
    pub(super) async fn wait(&self, group: &WriteSubject) {
        let _ = timeout(PATIENCE, self.until_ended(group)).await;
    }

    async fn until_ended(&self, group: &WriteSubject) {
        loop {
            let mut ended = pin!(self.ended.notified());
            // Before the look, so that an end between the look and the wait is noticed.
            ended.as_mut().enable();
            if !self.is_in_creation(group) {
                return;
            }
            ended.await;
        }
    }

    fn is_in_creation(&self, group: &WriteSubject) -> bool {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.contains(group)
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
        let creation = Arc::new(GroupsInCreation::default());
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
        let creation = GroupsInCreation::default();
        creation.begin(group("slow"));
        let start = Instant::now();
        creation.wait(&group("slow")).await;
        assert!(start.elapsed() <= PATIENCE + Duration::from_millis(1));
    }
}
