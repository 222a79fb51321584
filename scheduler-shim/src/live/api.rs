//! What the scheduler writes to the API server: bindings, evictions, events, why pods wait, and what queues used.
//!
//! If an answer is lost, the API server's state decides. An eviction or a binding counts as over only when the API
//! server says so. Until then no other one is started in its place.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apportion_exit::{CommandFailure, error_chain};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Status;
use kube::runtime::events;
use kube::{Client, Config};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::claims::ClaimReservation;
use super::event::{PodEventReason, PodRef, SchedulerEffect, SchedulerEvent};
use super::grouper::{GroupWrite, WriteSubject};
use super::usage_recorder::UsageRecordStore;
use super::volumes;

mod binding;
mod claims;
mod deferred_events;
mod extended_claims;
mod grouping;
mod leadership;
mod publishing;
mod request_limiter;
mod resizing;
mod statuses;
mod writes_in_flight;

use binding::{BindingMetadata, PodBinder};
use deferred_events::{DeferredEventSender, DeferredEvents};
use grouping::GroupWriter;
pub(crate) use leadership::LeadershipGuard;
use request_limiter::{RequestLimiter, RequestPurpose};
use writes_in_flight::WritesInFlight;

/// Timeout of a request: as long as an API server works on one. After a shorter one the outcome would be unknown.
const PATIENCE: Duration = Duration::from_secs(60);
/// Delay before the API server is asked again.
const AGAIN: Duration = Duration::from_millis(500);
/// How often an eviction without a clear answer is tried again.
const FAILURES: usize = 100;
/// Field manager of server-side apply.
const FIELD_MANAGER: &str = "apportion-scheduler";

/// Namespace and name of the pod whose condition or event this is.
fn told_pod(effect: &SchedulerEffect) -> Option<WriteSubject> {
    match effect {
        SchedulerEffect::PublishEvent { pod, .. } => {
            Some((pod.namespace.clone(), pod.name.clone()))
        }
        SchedulerEffect::WriteStatus(status) if status.kind == "Pod" => {
            Some((status.namespace.clone(), status.name.clone()))
        }
        _ => None,
    }
}

/// A client from a kubeconfig file, from the environment, or from the service account of this pod.
pub(crate) async fn client(kubeconfig: Option<&Path>) -> Result<Client, CommandFailure> {
    let hint = "name a file with --kubeconfig, or set KUBECONFIG";
    let config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path);
            let wrong = |error: &dyn std::error::Error| {
                let path = path.display();
                CommandFailure::usage(format!("failed to read {path}: {}", error_chain(error)))
                    .hint(hint)
            };
            let read = read.map_err(|error| wrong(&error))?;
            let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
            config.map_err(|error| wrong(&error))?
        }
        None => Config::infer().await.map_err(|error| {
            CommandFailure::usage(format!(
                "failed to find a cluster configuration: {}",
                error_chain(&error)
            ))
            .hint(hint)
        })?,
    };
    Client::try_from(config).map_err(|error| {
        CommandFailure::new(format!(
            "failed to create a Kubernetes client: {}",
            error_chain(&error)
        ))
    })
}

/// Why a write did not succeed.
#[derive(Debug, thiserror::Error)]
enum ApiWriteError {
    /// The API server rejected it.
    #[error("{0}")]
    Refused(Box<Status>),
    /// The outcome is unknown. The write may have been done, or may still be done.
    #[error("{0}")]
    Unknown(String),
}

/// Tells a rejection from an unknown outcome.
fn problem(error: kube::Error) -> ApiWriteError {
    match error {
        kube::Error::Api(status) if is_refusal(&status) => ApiWriteError::Refused(status),
        error => ApiWriteError::Unknown(error_chain(&error)),
    }
}

/// Whether the API server rejected this request, and was not just overloaded.
fn is_refusal(status: &Status) -> bool {
    // Flow control answers 429 with this text. A disruption budget answers 429 with another one.
    let is_busy = status.code == 429 && status.message.contains("please try again later");
    (400..500).contains(&status.code) && !is_busy
}

fn refused(pod: PodRef, why: &str) -> SchedulerEvent {
    info!(pod = pod.full(), why, "Pod eviction rejected");
    SchedulerEvent::NotEvicted(pod, why.to_owned())
}

/// Writes to the API server.
pub(crate) struct ApiWriter {
    client: Client,
    binder: PodBinder,
    groups: GroupWriter,
    /// PodGroups that are being created before their pods are bound.
    groups_in_creation: Arc<WritesInFlight>,
    /// PodGroups that are created when bindings leave time. No binding waits for them.
    groups_created_later: Arc<WritesInFlight>,
    /// Pods that are being told their group.
    pods_in_marking: Arc<WritesInFlight>,
    reporter: events::Reporter,
    recorder: Arc<events::Recorder>,
    limiter: Arc<RequestLimiter>,
    leading: LeadershipGuard,
    deferred_events: DeferredEventSender,
    store: UsageRecordStore,
    answers: UnboundedSender<SchedulerEvent>,
}

impl ApiWriter {
    pub(crate) fn new(
        client: Client,
        names: &[String],
        store: UsageRecordStore,
        leading: LeadershipGuard,
        answers: UnboundedSender<SchedulerEvent>,
    ) -> Arc<Self> {
        let reporter = events::Reporter {
            controller: names.first().cloned().unwrap_or_default(),
            instance: None,
        };
        let (deferred_events, deferred) = deferred_events::deferred_events();
        let recorder = Arc::new(events::Recorder::new(client.clone(), reporter.clone()));
        let writer = Arc::new(Self {
            binder: PodBinder::new(client.clone(), names),
            groups: GroupWriter::new(client.clone(), recorder.clone(), deferred_events.clone()),
            groups_in_creation: Arc::default(),
            groups_created_later: Arc::default(),
            pods_in_marking: Arc::default(),
            reporter,
            recorder,
            client,
            store,
            limiter: Arc::new(RequestLimiter::new()),
            leading,
            deferred_events,
            answers,
        });
        tokio::spawn(Arc::clone(&writer).publish_deferred(deferred));
        writer
    }

    /// Performs an effect. Its answer, if it has one, is an event.
    pub(crate) fn perform(self: &Arc<Self>, effect: SchedulerEffect) {
        let effect = match effect {
            SchedulerEffect::PublishEvent {
                pod,
                reason: PodEventReason::Scheduled,
                message,
            } => return self.deferred_events.queue_event(pod, message),
            effect => effect,
        };
        if let SchedulerEffect::Group(write) = &effect {
            self.begin_group_write(write);
        }
        tokio::spawn(Arc::clone(self).perform_in_turn(Box::new(effect)));
    }

    /// Waits for the effect's turn, and performs it. Thousands of effects may wait. So this future is small, and the
    /// large futures of requests are allocated when it is their turn.
    async fn perform_in_turn(self: Arc<Self>, effect: Box<SchedulerEffect>) {
        self.leading.begins().await;
        let purpose = match *effect {
            SchedulerEffect::Group(write) => return Box::pin(self.write_group(write)).await,
            SchedulerEffect::ReserveClaims { pod, claims } => {
                if let Err(why) = Box::pin(self.reserve(&pod, &claims)).await {
                    let _ = self.answers.send(SchedulerEvent::NotBound(pod, why));
                }
                return;
            }
            SchedulerEffect::Bind { .. } | SchedulerEffect::Evict(_) => RequestPurpose::Decision,
            _ => RequestPurpose::LowPriority,
        };
        if let SchedulerEffect::Bind { pod, .. } = &*effect
            && let Err(why) = Box::pin(self.prepare_binding(&effect)).await
        {
            let answer = SchedulerEvent::NotBound(pod.clone(), why);
            let _ = self.answers.send(answer);
            return;
        }
        if let Some(pod) = told_pod(&effect) {
            self.pods_in_marking.wait(&pod).await;
        }
        let _permit = self.limiter.acquire(purpose).await;
        Box::pin(self.done(*effect)).await;
    }

    /// Does what a binding needs: binds volumes, reserves claims, and waits for the pod's group.
    async fn prepare_binding(&self, effect: &SchedulerEffect) -> Result<(), String> {
        let SchedulerEffect::Bind {
            node,
            pod,
            volumes,
            claims,
            are_claims_reserved,
            joins,
            ..
        } = effect
        else {
            return Ok(());
        };
        if !volumes.is_empty()
            && let Err(why) = Box::pin(volumes::bind(&self.client, node, pod, volumes)).await
        {
            if *are_claims_reserved {
                Box::pin(self.release_claims(pod, claims)).await;
            }
            return Err(why);
        }
        if !are_claims_reserved {
            self.reserve(pod, claims).await?;
        }
        if let Some(membership) = joins {
            let group = (pod.namespace.clone(), membership.group.clone());
            self.groups_in_creation.wait(&group).await;
        }
        Ok(())
    }

    /// Reserves the claims of a pod, if it has any, and reports their versions.
    async fn reserve(&self, pod: &PodRef, claims: &[ClaimReservation]) -> Result<(), String> {
        if claims.is_empty() {
            return Ok(());
        }
        let reserved = Box::pin(self.reserve_claims(pod, claims)).await;
        let versions = reserved.inspect_err(|why| {
            warn!(pod = pod.full(), why, "Failed to reserve a resource claim");
        })?;
        let answer = SchedulerEvent::ClaimsReserved(pod.clone(), versions);
        let _ = self.answers.send(answer);
        Ok(())
    }

    async fn done(&self, effect: SchedulerEffect) {
        let answer = match effect {
            SchedulerEffect::Bind {
                node,
                pod,
                cards,
                received,
                allocated,
                zones,
                joins,
                claims,
                ..
            } => {
                let written = BindingMetadata {
                    cards: &cards,
                    received,
                    allocated: allocated.as_deref(),
                    zones: &zones,
                    joins: joins.as_ref(),
                };
                let answer = self.bind(&node, pod, written).await;
                if let SchedulerEvent::NotBound(pod, _) = &answer {
                    self.release_claims(pod, &claims).await;
                }
                self.deferred_events.bound();
                Some(answer)
            }
            SchedulerEffect::Evict(pod) => Some(self.evict(pod).await),
            SchedulerEffect::ReleaseClaims { pod, claims } => {
                self.release_claims(&pod, &claims).await;
                Some(SchedulerEvent::ClaimsReleased(pod))
            }
            SchedulerEffect::DeleteClaim { pod, claim, uid } => {
                self.delete_left_behind(&pod, &claim, &uid).await;
                None
            }
            SchedulerEffect::WriteAllocated {
                pod,
                cards,
                request,
            } => Some(self.write_allocated(pod, &cards, &request).await),
            SchedulerEffect::PublishEvent {
                pod,
                reason,
                message,
            } => {
                self.publish_event(&pod, reason, message).await;
                None
            }
            SchedulerEffect::WriteStatus(report) => {
                self.report(report).await;
                None
            }
            SchedulerEffect::StoreUsageHistory(text) => {
                self.store.write(text).await;
                None
            }
            SchedulerEffect::WriteReadiness { node, version, is } => {
                self.report_readiness(&node, &version, is).await;
                None
            }
            SchedulerEffect::AskAgent { .. }
            | SchedulerEffect::ReserveClaims { .. }
            | SchedulerEffect::Group(_) => None,
        };
        if let Some(answer) = answer {
            let _ = self.answers.send(answer);
        }
    }

    /// Publishes the deferred events, one after the other.
    async fn publish_deferred(self: Arc<Self>, mut deferred: DeferredEvents) {
        while let Some((pod, message)) = deferred.next().await {
            self.publish_event(&pod, PodEventReason::Scheduled, message)
                .await;
        }
    }

    fn pods(&self, pod: &PodRef) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &pod.namespace)
    }

    /// Notes a write that others come after.
    fn begin_group_write(&self, write: &GroupWrite) {
        match write {
            GroupWrite::Create(_) => {
                if let Some(group) = write.subject() {
                    self.groups_created_later.begin(group);
                }
            }
            GroupWrite::Found(_) => {
                if let Some(group) = write.subject() {
                    self.groups_in_creation.begin(group);
                }
            }
            GroupWrite::Mark(pod, _) => {
                let pod = (pod.namespace.clone(), pod.name.clone());
                self.pods_in_marking.begin(pod);
            }
            GroupWrite::Change(..) | GroupWrite::NotReady(..) => {}
        }
    }

    async fn write_group(&self, write: GroupWrite) {
        let subject = write.subject();
        let marked = match &write {
            GroupWrite::Mark(pod, membership) => {
                let group = (pod.namespace.clone(), membership.group.clone());
                self.groups_in_creation.wait(&group).await;
                self.groups_created_later.wait(&group).await;
                Some((pod.namespace.clone(), pod.name.clone()))
            }
            _ => None,
        };
        let is_done = self.groups.write(write).await;
        if let Some(pod) = marked {
            self.pods_in_marking.end(&pod);
        }
        if let Some(subject) = subject {
            self.groups_in_creation.end(&subject);
            self.groups_created_later.end(&subject);
            let _ = self.answers.send(SchedulerEvent::Grouped(subject, is_done));
        }
    }

    async fn bind(&self, node: &str, pod: PodRef, written: BindingMetadata<'_>) -> SchedulerEvent {
        let asked = self.binder.bind(node, &pod, written);
        let why = match self.while_leading(asked).await {
            Ok(()) => {
                info!(pod = pod.full(), node, "Pod bound");
                return SchedulerEvent::Bound(pod);
            }
            Err(ApiWriteError::Refused(status)) => error_chain(&status),
            Err(ApiWriteError::Unknown(why)) => why,
        };
        if self.is_bound(&pod, node).await {
            return SchedulerEvent::Bound(pod);
        }
        warn!(pod = pod.full(), node, why, "Failed to bind pod");
        SchedulerEvent::NotBound(pod, why)
    }

    /// Whether the pod was bound after all. Nobody else gets its place until the API server has answered.
    async fn is_bound(&self, pod: &PodRef, node: &str) -> bool {
        loop {
            let found = self.while_leading(self.pods(pod).get_opt(&pod.name)).await;
            if let Ok(found) = found {
                return found.is_some_and(|found| is_on(&found, pod, node));
            }
            sleep(AGAIN).await;
        }
    }

    async fn evict(&self, pod: PodRef) -> SchedulerEvent {
        let eviction = Eviction {
            metadata: ObjectMeta {
                name: Some(pod.name.clone()),
                namespace: Some(pod.namespace.clone()),
                ..ObjectMeta::default()
            },
            delete_options: Some(DeleteOptions {
                preconditions: Some(Preconditions {
                    uid: Some(pod.uid.clone()),
                    ..Preconditions::default()
                }),
                ..DeleteOptions::default()
            }),
        };
        let pods = self.pods(&pod);
        let parameters = PostParams::default();
        let mut failures = 0;
        loop {
            let name = &pod.name;
            let asked =
                pods.create_subresource::<_, Value>("eviction", name, &parameters, &eviction);
            match self.while_leading(asked).await {
                Ok(_) => break,
                // The pod is gone. Another one may have its name.
                Err(ApiWriteError::Refused(status)) if [404, 409].contains(&status.code) => break,
                Err(ApiWriteError::Refused(status)) => return refused(pod, &error_chain(&status)),
                // To ask again is safe: it changes nothing if the eviction was granted.
                Err(ApiWriteError::Unknown(why)) if failures < FAILURES => {
                    debug!(pod = pod.full(), why, "Eviction not answered, asking again");
                    failures += 1;
                    sleep(AGAIN).await;
                }
                Err(ApiWriteError::Unknown(why)) => return refused(pod, &why),
            }
        }
        info!(pod = pod.full(), "Pod evicted");
        SchedulerEvent::Evicted(pod)
    }

    /// Sends a request while this scheduler leads, and records its latency.
    async fn while_leading<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiWriteError> {
        self.leading.begins().await;
        let began = Instant::now();
        let Some(done) = self.leading.only(timeout(PATIENCE, request)).await else {
            return Err(ApiWriteError::Unknown(
                "the lease was not renewed in time".to_owned(),
            ));
        };
        let problem = match done {
            Ok(Ok(answer)) => {
                self.limiter.record(Some(began.elapsed()));
                return Ok(answer);
            }
            Ok(Err(error)) => problem(error),
            Err(_) => {
                ApiWriteError::Unknown(format!("the API server did not answer within {PATIENCE:?}"))
            }
        };
        let is_answer = matches!(problem, ApiWriteError::Refused(_));
        self.limiter.record(is_answer.then(|| began.elapsed()));
        Err(problem)
    }
}

fn is_on(found: &Pod, pod: &PodRef, node: &str) -> bool {
    let spec = found.spec.as_ref();
    found.metadata.uid.as_deref() == Some(&pod.uid)
        && spec.and_then(|spec| spec.node_name.as_deref()) == Some(node)
}

#[cfg(test)]
mod tests;
