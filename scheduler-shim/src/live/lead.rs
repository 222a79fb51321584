//! Who leads: the holder of a Lease, by the rules of Kubernetes' own components.
//!
//! A lease is taken when it is free or was not renewed for its duration as seen from here (clocks of other
//! machines are not trusted), renewed seven times in that time, and given up when it could not be renewed for
//! two thirds of it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease as Object, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::nodes::chain;
use crate::failure::Failure;
use crate::options::Run;

/// The lease.
pub(crate) struct Lease {
    api: Api<Object>,
    name: String,
    identity: String,
    duration: Duration,
}

/// Another's lease as it was last seen, and since when it has not changed.
struct Watched {
    version: Option<String>,
    since: Instant,
}

/// What came of asking for the lease.
enum Asked {
    /// It is ours, for this term.
    Ours(u64),
    /// Another's.
    Held(String),
}

impl Lease {
    pub(crate) fn new(client: Client, asked: &Run) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let at = Timestamp::now().as_nanosecond();
        Self {
            api: Api::namespaced(client, &asked.lease_namespace),
            name: asked.lease_name.clone(),
            identity: format!("{}_{}_{at:x}", host.trim(), std::process::id()),
            duration: Duration::from_secs(asked.lease_duration),
        }
    }

    /// How long it may go without being renewed, from the holder's side.
    fn deadline(&self) -> Duration {
        self.duration * 2 / 3
    }

    /// How often it is asked for and renewed.
    fn period(&self) -> Duration {
        self.duration * 2 / 15
    }

    /// Who we are.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Waits until the lease is ours; the term is greater than all before it.
    pub(crate) async fn acquire(&self) -> Result<u64, Failure> {
        let mut watched = Watched {
            version: None,
            since: Instant::now(),
        };
        let mut is_told = false;
        loop {
            match self.try_to_take(&mut watched).await {
                Ok(Asked::Ours(term)) => return Ok(term),
                Ok(Asked::Held(holder)) if !is_told => {
                    info!(holder, "Another scheduler holds the lease");
                    is_told = true;
                }
                Ok(Asked::Held(_)) => {}
                Err(problem) => warn!(problem = chain(&problem), "Failed to acquire the lease"),
            }
            sleep(self.period()).await;
        }
    }

    /// Takes the lease, or says who has it.
    async fn try_to_take(&self, watched: &mut Watched) -> Result<Asked, kube::Error> {
        let Some(mut found) = self.api.get_opt(&self.name).await? else {
            let object = Object {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(None)),
            };
            let made = self.api.create(&PostParams::default(), &object).await?;
            return Ok(Asked::Ours(term(&made)));
        };
        let holder = held_by(&found);
        if watched.version != found.metadata.resource_version {
            watched.version.clone_from(&found.metadata.resource_version);
            watched.since = Instant::now();
        }
        let others = holder.filter(|holder| *holder != self.identity);
        if let Some(holder) = others.filter(|_| watched.since.elapsed() < self.duration) {
            return Ok(Asked::Held(holder));
        }
        found.spec = Some(self.spec(found.spec.as_ref()));
        let params = PostParams::default();
        let taken = self.api.replace(&self.name, &params, &found).await?;
        Ok(Asked::Ours(term(&taken)))
    }

    /// Renews the lease until that fails for too long; then says so.
    pub(crate) async fn keep(&self) -> Failure {
        let mut renewed = Instant::now();
        loop {
            sleep(self.period()).await;
            match timeout(self.deadline(), self.renew()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return Failure::new("another scheduler took the lease"),
                Ok(Err(problem)) => warn!(problem = chain(&problem), "Failed to renew the lease"),
                Err(_) => warn!("Lease renewal timed out"),
            }
            if renewed.elapsed() > self.deadline() {
                let deadline = self.deadline();
                return Failure::new(format!("failed to renew the lease for {deadline:?}"));
            }
        }
    }

    async fn renew(&self) -> Result<bool, kube::Error> {
        let mut found = self.api.get(&self.name).await?;
        if held_by(&found).as_ref() != Some(&self.identity) {
            return Ok(false);
        }
        found.spec = Some(self.spec(found.spec.as_ref()));
        self.api
            .replace(&self.name, &PostParams::default(), &found)
            .await?;
        Ok(true)
    }

    /// Gives the lease back, so that the next one need not wait.
    pub(crate) async fn release(&self) {
        let given = async {
            let mut found = self.api.get(&self.name).await?;
            if held_by(&found).as_ref() == Some(&self.identity) {
                if let Some(spec) = &mut found.spec {
                    spec.holder_identity = None;
                }
                self.api
                    .replace(&self.name, &PostParams::default(), &found)
                    .await?;
            }
            Ok::<(), kube::Error>(())
        };
        let _ = timeout(self.period(), given).await;
    }

    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = || MicroTime(Timestamp::now());
        let is_ours = before.and_then(|spec| spec.holder_identity.as_ref()) == Some(&self.identity);
        let before = before.cloned().unwrap_or_default();
        let transitions = before.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.duration.as_secs()).ok(),
            acquire_time: match is_ours {
                true => before.acquire_time,
                false => Some(now()),
            },
            renew_time: Some(now()),
            lease_transitions: Some(transitions + i32::from(!is_ours)),
            ..LeaseSpec::default()
        }
    }
}

/// Which leadership this is: it grows with each change of the holder, and also when somebody deletes the
/// lease, which begins to count anew.
fn term(lease: &Object) -> u64 {
    let made = lease.metadata.creation_timestamp.as_ref();
    let made = made.map_or(0, |made| made.0.as_second());
    let changes = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
    let changes = u64::try_from(changes.unwrap_or(0)).unwrap_or(0);
    (u64::try_from(made).unwrap_or(0) << 24) + changes
}

fn held_by(lease: &Object) -> Option<String> {
    let holder = lease.spec.as_ref()?.holder_identity.clone();
    holder.filter(|holder| !holder.is_empty())
}
