//! Leader election with a Lease, by the rules of Kubernetes' own components.
//!
//! A lease is taken when it is free, or when it was not renewed for as long as its record says. That time is measured
//! here, because other clocks are not trusted. The holder renews it, and stops acting before that time is over
//! ([`LeaseTenure`]). It does not exit: if the answers were only slow and nobody else took the lease, it goes on.
//!
//! A scheduler that waits watches the lease instead of reading it again and again. That costs the API server less, and
//! tells the moment of each renewal, so that the lease of a dead holder is taken as soon as it has run out.
//!
//! Without leader election the one scheduler takes the lease, too, but does not renew it. Its record has no duration:
//! the scheduler that starts next takes it at once. The one before sees that in its watch, and ends. One that can't
//! reach the API server does not see it, but each has a term of its own, and agents refuse the older one.

use std::pin::pin;
use std::time::{Duration, Instant};

use apportion_exit::{CommandFailure, error_chain};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease as Object;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use kube::{Client, Error};
use tokio::sync::watch;
use tokio::time::{sleep, timeout, timeout_at};
use tokio_stream::StreamExt;
use tracing::{debug, info, warn};

use crate::options::SchedulerRunOptions;

mod record;
mod tenure;

use tenure::LeaseTenure;

/// Timeout of a request until the lease is ours.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause after a request that failed.
const RETRY: Duration = Duration::from_secs(1);
/// After how many seconds the API server ends a watch.
const WATCH_SECONDS: u32 = 290;
/// How long the release may take.
const PARTING: Duration = Duration::from_secs(2);
/// How long the lease is ours without leader election, unless another scheduler takes it.
const UNLIMITED: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Acquires, renews and releases the lease.
pub(crate) struct LeaderElector {
    api: Api<Object>,
    name: String,
    identity: String,
    /// How long a record is valid at least. `None` without leader election.
    duration: Option<Duration>,
}

/// Until when the lease is ours.
pub(crate) type LeadershipDeadline = watch::Receiver<Instant>;

/// The lease while it is ours.
pub(crate) struct HeldLease {
    object: Object,
    tenure: LeaseTenure,
    until: watch::Sender<Instant>,
}

impl HeldLease {
    /// The term of this leadership; greater than all before it.
    pub(crate) fn term(&self) -> u64 {
        record::term(&self.object)
    }

    /// Until when it is ours, updated with each renewal.
    pub(crate) fn until(&self) -> LeadershipDeadline {
        self.until.subscribe()
    }
}

/// The lease of another holder: the last version seen, and since when.
struct ObservedLease {
    version: Option<String>,
    since: Instant,
}

impl ObservedLease {
    /// Notes what the API server says about the lease.
    fn note(&mut self, lease: &Object) {
        if self.version != lease.metadata.resource_version {
            self.version.clone_from(&lease.metadata.resource_version);
            self.since = Instant::now();
        }
    }
}

/// The result of a try to take the lease.
enum AcquireResult {
    Ours(Box<Object>),
    /// Another holds it, for this much longer if it is not renewed.
    Held(String, Duration),
}

fn taken() -> CommandFailure {
    CommandFailure::new("another scheduler took the lease")
}

fn deleted() -> CommandFailure {
    CommandFailure::new("the lease was deleted")
}

impl LeaderElector {
    /// `client` is for the lease alone, so that no other request delays it.
    pub(crate) fn new(client: Client, options: &SchedulerRunOptions) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let at = Timestamp::now().as_nanosecond();
        Self {
            api: Api::namespaced(client, &options.lease_namespace),
            name: options.lease_name.clone(),
            identity: format!("{}_{}_{at:x}", host.trim(), std::process::id()),
            duration: options
                .leader_elect
                .then(|| Duration::from_secs(options.lease_duration)),
        }
    }

    /// This scheduler's name in the lease.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Waits until the lease is ours.
    pub(crate) async fn acquire(&self) -> HeldLease {
        let now = Instant::now();
        let mut tenure = match self.duration {
            Some(duration) => LeaseTenure::new(now, duration),
            None => LeaseTenure::without_renewals(now),
        };
        let mut observed = ObservedLease {
            version: None,
            since: now,
        };
        let mut is_told = false;
        loop {
            let sent_at = Instant::now();
            let acquired = timeout(PATIENCE, self.try_to_take(&mut observed, &mut tenure)).await;
            match acquired {
                Ok(Ok(AcquireResult::Ours(object))) => {
                    let until = match self.duration {
                        Some(_) => tenure.until(),
                        None => Instant::now() + UNLIMITED,
                    };
                    let (until, _) = watch::channel(until);
                    return HeldLease {
                        object: *object,
                        tenure,
                        until,
                    };
                }
                Ok(Ok(AcquireResult::Held(holder, left))) => {
                    if !is_told {
                        info!(holder, "Another scheduler holds the lease");
                        is_told = true;
                    }
                    if let Err(problem) = self.wait_until_free(&mut observed, left).await {
                        debug!(
                            problem = error_chain(&problem),
                            "Failed to watch the lease, reading it instead"
                        );
                        sleep(RETRY.min(left)).await;
                    }
                }
                // Another scheduler was quicker.
                Ok(Err(Error::Api(status))) if status.code == 409 => {}
                Ok(Err(problem)) => {
                    warn!(
                        problem = error_chain(&problem),
                        "Failed to acquire the lease"
                    );
                    sleep(RETRY).await;
                }
                Err(_) => {
                    warn!("Lease request timed out");
                    tenure.answered(sent_at.elapsed());
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Watches the lease of another scheduler until it may be free: released, deleted, or not renewed in time. It is
    /// valid for `left` now. The watch may also end before.
    async fn wait_until_free(
        &self,
        observed: &mut ObservedLease,
        left: Duration,
    ) -> Result<(), Error> {
        let mut free_at = Instant::now() + left;
        let params = self.watch_params();
        let version = observed.version.clone().unwrap_or_default();
        let watching = self.api.watch(&params, &version);
        let Ok(events) = timeout_at(free_at.into(), watching).await else {
            return Ok(());
        };
        let mut events = pin!(events?);
        loop {
            let Ok(event) = timeout_at(free_at.into(), events.next()).await else {
                return Ok(());
            };
            match event.transpose()? {
                Some(WatchEvent::Added(lease) | WatchEvent::Modified(lease)) => {
                    observed.note(&lease);
                    if record::holder(&lease).is_none() {
                        return Ok(());
                    }
                    free_at = observed.since + self.validity(&lease);
                }
                Some(WatchEvent::Deleted(_)) => return Ok(()),
                Some(WatchEvent::Bookmark(_)) => {}
                Some(WatchEvent::Error(status)) => return Err(Error::Api(status)),
                None => {
                    sleep(RETRY.min(free_at.saturating_duration_since(Instant::now()))).await;
                    return Ok(());
                }
            }
        }
    }

    fn watch_params(&self) -> WatchParams {
        WatchParams::default()
            .fields(&format!("metadata.name={}", self.name))
            .timeout(WATCH_SECONDS)
    }

    /// How long the record of another scheduler is valid.
    fn validity(&self, lease: &Object) -> Duration {
        record::valid(lease).max(self.duration.unwrap_or_default())
    }

    /// Takes the lease, or says who has it.
    async fn try_to_take(
        &self,
        observed: &mut ObservedLease,
        tenure: &mut LeaseTenure,
    ) -> Result<AcquireResult, Error> {
        let read = Instant::now();
        let found = self.api.get_opt(&self.name).await?;
        tenure.answered(read.elapsed());
        let params = PostParams::default();
        let Some(mut found) = found else {
            let sent_at = Instant::now();
            let valid = tenure.asks(sent_at);
            let object = Object {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(record::of(&self.identity, valid, None)),
            };
            let made = self.api.create(&params, &object).await?;
            tenure.granted(sent_at, Instant::now(), valid);
            return Ok(AcquireResult::Ours(Box::new(made)));
        };
        observed.note(&found);
        let left = self
            .validity(&found)
            .saturating_sub(observed.since.elapsed());
        let others = record::holder(&found).filter(|holder| *holder != self.identity);
        if let Some(holder) = others.filter(|_| left > Duration::ZERO) {
            return Ok(AcquireResult::Held(holder, left));
        }
        let sent_at = Instant::now();
        let valid = tenure.asks(sent_at);
        found.spec = Some(record::of(&self.identity, valid, found.spec.as_ref()));
        let acquired = self.api.replace(&self.name, &params, &found).await?;
        tenure.granted(sent_at, Instant::now(), valid);
        Ok(AcquireResult::Ours(Box::new(acquired)))
    }

    /// Keeps the lease until another scheduler has it; then says so.
    pub(crate) async fn keep(&self, held: HeldLease) -> CommandFailure {
        match self.duration {
            Some(_) => self.keep_renewed(held).await,
            None => self.wait_until_taken().await,
        }
    }

    /// Watches the lease until another scheduler has it.
    async fn wait_until_taken(&self) -> CommandFailure {
        let mut is_warned = false;
        loop {
            let problem = match self.api.get_opt(&self.name).await {
                Ok(None) => return deleted(),
                Ok(Some(lease)) if record::holder(&lease).as_ref() != Some(&self.identity) => {
                    return taken();
                }
                Ok(Some(lease)) => self.wait_for_change(&lease).await.err(),
                Err(problem) => Some(problem),
            };
            if let Some(problem) = &problem {
                let problem = error_chain(problem);
                if !is_warned {
                    warn!(problem, "Failed to watch the lease, retrying");
                }
                sleep(RETRY).await;
            }
            is_warned = problem.is_some();
        }
    }

    /// Waits until somebody writes the lease, or until the watch ends.
    async fn wait_for_change(&self, lease: &Object) -> Result<(), Error> {
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let mut events = pin!(self.api.watch(&self.watch_params(), &version).await?);
        while let Some(event) = events.next().await {
            match event? {
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(status) => return Err(Error::Api(status)),
                WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_) => {
                    return Ok(());
                }
            }
        }
        sleep(RETRY).await;
        Ok(())
    }

    /// Renews the lease until another scheduler has it. While it can't be renewed, everything that heeds
    /// [`HeldLease::until`] pauses.
    async fn keep_renewed(&self, held: HeldLease) -> CommandFailure {
        let HeldLease {
            mut object,
            mut tenure,
            until,
        } = held;
        let (mut is_paused, mut is_warned) = (false, false);
        loop {
            sleep(tenure.pause()).await;
            let sent_at = Instant::now();
            let valid = tenure.asks(sent_at);
            until.send_replace(tenure.until());
            let problem = match timeout(tenure.patience(), self.renew(&mut object, valid)).await {
                Ok(Ok(true)) => {
                    tenure.granted(sent_at, Instant::now(), valid);
                    until.send_replace(tenure.until());
                    None
                }
                Ok(Ok(false)) => return taken(),
                Ok(Err(Error::Api(status))) if status.code == 404 => return deleted(),
                Ok(Err(problem)) => Some(error_chain(&problem)),
                Err(_) => {
                    tenure.answered(sent_at.elapsed());
                    Some("the API server did not answer in time".to_owned())
                }
            };
            match &problem {
                Some(problem) if !is_warned => {
                    warn!(problem, "Failed to renew the lease, retrying")
                }
                Some(problem) => debug!(problem, "Failed to renew the lease, retrying"),
                None => {}
            }
            is_warned = problem.is_some();
            let is_over = Instant::now() >= tenure.until();
            match (is_paused, is_over) {
                (false, true) => warn!("Scheduling paused until the lease is renewed"),
                (true, false) => info!("Lease renewed, scheduling goes on"),
                (true, true) | (false, false) => {}
            }
            is_paused = is_over;
        }
    }

    /// Renews the lease. Returns whether it is still ours.
    async fn renew(&self, object: &mut Object, valid: Duration) -> Result<bool, Error> {
        let params = PostParams::default();
        loop {
            let mut next = object.clone();
            next.spec = Some(record::of(&self.identity, valid, next.spec.as_ref()));
            match self.api.replace(&self.name, &params, &next).await {
                Ok(written) => {
                    *object = written;
                    return Ok(true);
                }
                // Another scheduler wrote it, or this one did and the answer was lost.
                Err(Error::Api(status)) if status.code == 409 => {
                    *object = self.api.get(&self.name).await?;
                }
                Err(problem) => return Err(problem),
            }
            if record::holder(object).as_ref() != Some(&self.identity) {
                return Ok(false);
            }
        }
    }

    /// Releases the lease, so that the next scheduler need not wait.
    pub(crate) async fn release(&self) {
        let given = async {
            let mut found = self.api.get(&self.name).await?;
            if record::holder(&found).as_ref() == Some(&self.identity) {
                if let Some(spec) = &mut found.spec {
                    spec.holder_identity = None;
                }
                self.api
                    .replace(&self.name, &PostParams::default(), &found)
                    .await?;
            }
            Ok::<(), Error>(())
        };
        let _ = timeout(PARTING, given).await;
    }
}
