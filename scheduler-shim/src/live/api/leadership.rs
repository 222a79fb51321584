//! No request goes to the API server while another scheduler may hold the lease.

use std::time::Instant;

use tokio::time::sleep_until;

use crate::live::leader_election::LeadershipDeadline;

/// Tells whether this scheduler leads.
#[derive(Clone, Debug)]
pub(crate) struct LeadershipGuard(LeadershipDeadline);

impl LeadershipGuard {
    pub(crate) const fn new(until: LeadershipDeadline) -> Self {
        Self(until)
    }

    /// Whether it leads now.
    pub(crate) fn is_so(&self) -> bool {
        Instant::now() < *self.0.borrow()
    }

    /// Waits until it leads.
    pub(super) async fn begins(&self) {
        let mut until = self.0.clone();
        while Instant::now() >= *until.borrow_and_update() {
            if until.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until it no longer leads.
    async fn ends(&self) {
        let mut until = self.0.clone();
        loop {
            let at = *until.borrow_and_update();
            if Instant::now() >= at {
                return;
            }
            tokio::select! {
                () = sleep_until(at.into()) => {}
                changed = until.changed() => if changed.is_err() {
                    return sleep_until(at.into()).await;
                }
            }
        }
    }

    /// Runs an action while this scheduler leads. If leadership ends first, the action is dropped and its outcome is
    /// unknown.
    pub(crate) async fn only<T>(&self, action: impl Future<Output = T>) -> Option<T> {
        self.begins().await;
        tokio::select! {
            done = action => Some(done),
            () = self.ends() => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::watch;
    use tokio::time::{sleep, timeout};

    use super::*;

    const SOON: Duration = Duration::from_millis(30);

    #[tokio::test]
    async fn nothing_begins_without_the_lease_and_nothing_outlives_it() {
        let (until, receiver) = watch::channel(Instant::now());
        let leading = LeadershipGuard::new(receiver);
        assert!(!leading.is_so());
        assert!(timeout(SOON, leading.only(async {})).await.is_err());
        until.send_replace(Instant::now() + SOON);
        assert!(leading.is_so());
        assert_eq!(leading.only(async { 1 }).await, Some(1));
        assert_eq!(leading.only(std::future::pending::<()>()).await, None);
    }

    #[tokio::test]
    async fn what_is_under_way_goes_on_while_the_lease_is_renewed() {
        let (until, receiver) = watch::channel(Instant::now() + SOON);
        let leading = LeadershipGuard::new(receiver);
        let renewed = async {
            for _ in 0..6 {
                until.send_replace(Instant::now() + SOON * 20);
                sleep(SOON / 2).await;
            }
        };
        let (done, ()) = tokio::join!(leading.only(sleep(SOON * 2)), renewed);
        assert_eq!(done, Some(()));
    }
}
