//! Writes about pod groups: their objects, the mark on their pods, and the event that pods are missing.
//!
//! There may be as many of these writes as pods. So they have a few requests of their own, and are slow while pods are
//! bound. Only the few groups that are created with their bindings don't wait, and their bindings wait for them
//! ([`super::writes_in_flight`]). A missing permission is logged once, not once per pod, and then tried again now and
//! then: somebody may grant it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use kube::runtime::events;
use kube::{Client, core::Status};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::PATIENCE;
use super::binding::{Texts, membership_labels};
use super::deferred_events::DeferredEventSender;
use crate::live::event::PodRef;
use crate::live::grouper::{GroupMembership, GroupWrite};
use apportion_abi::names::ANNOTATION_GROUP;
use apportion_exit::error_chain;
use apportion_model::group_objects::{API_VERSION, KIND};

/// How many of these requests may be in flight.
const AT_ONCE: usize = 8;
/// Pause after the API server forbade a write.
const REFUSED_FOR: Duration = Duration::from_secs(15);

/// Writes about pod groups.
pub(super) struct GroupWriter {
    client: Client,
    recorder: Arc<events::Recorder>,
    free: Arc<Semaphore>,
    /// For groups that are created with their bindings.
    free_at_once: Arc<Semaphore>,
    deferred_events: DeferredEventSender,
    /// No writes before this time; set while they are forbidden.
    refused: Arc<Mutex<Option<Instant>>>,
}

/// Why a write failed.
enum GroupWriteError {
    /// This scheduler has no permission, or the kind does not exist.
    Forbidden(String),
    /// It failed for this object.
    Failed(String),
}

impl GroupWriter {
    pub(super) fn new(
        client: Client,
        recorder: Arc<events::Recorder>,
        deferred_events: DeferredEventSender,
    ) -> Self {
        Self {
            client,
            recorder,
            free: Arc::new(Semaphore::new(AT_ONCE)),
            free_at_once: Arc::new(Semaphore::new(AT_ONCE)),
            deferred_events,
            refused: Arc::default(),
        }
    }

    /// Performs a write. Returns whether it succeeded.
    pub(super) async fn write(&self, write: GroupWrite) -> bool {
        let is_awaited = matches!(write, GroupWrite::Found(_));
        // Bindings wait for these, while the others wait for bindings.
        let free = if is_awaited {
            &self.free_at_once
        } else {
            &self.free
        };
        let Ok(_permit) = free.acquire().await else {
            return false;
        };
        if !is_awaited {
            self.deferred_events.wait().await;
        }
        if self.is_refused() {
            return false;
        }
        let what = name(&write);
        // Thousands may wait for a permit. The request's future is large, so it is allocated only now.
        let done = match timeout(PATIENCE, Box::pin(self.send(write))).await {
            Ok(done) => done.map_err(why_not),
            Err(late) => Err(GroupWriteError::Failed(late.to_string())),
        };
        match done {
            Ok(()) => {
                self.allowed();
                true
            }
            Err(GroupWriteError::Forbidden(why)) => {
                self.refuse(&why);
                false
            }
            Err(GroupWriteError::Failed(why)) => {
                warn!(what, why, "Failed to write a pod group");
                false
            }
        }
    }

    async fn send(&self, write: GroupWrite) -> Result<(), kube::Error> {
        match write {
            GroupWrite::Create(object) | GroupWrite::Found(object) => self.create(object).await,
            GroupWrite::Change(namespace, name, change) => {
                let groups = self.groups(&namespace);
                let (parameters, patch) = (PatchParams::default(), Patch::Merge(change));
                groups.patch(&name, &parameters, &patch).await.map(drop)
            }
            GroupWrite::Mark(pod, membership) => self.mark(&pod, &membership).await,
            GroupWrite::NotReady(group, message) => self.publish_event(&group, message).await,
        }
    }

    async fn create(&self, object: Value) -> Result<(), kube::Error> {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let groups = self.groups(namespace);
        let object: DynamicObject =
            serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        match groups.create(&PostParams::default(), &object).await {
            Ok(_) => Ok(()),
            // Somebody else created it. Its content is checked when the watch shows it.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(problem) => Err(problem),
        }
    }

    async fn mark(&self, pod: &PodRef, membership: &GroupMembership) -> Result<(), kube::Error> {
        let labels = membership_labels(membership);
        let annotations = Texts::from([(ANNOTATION_GROUP.to_owned(), membership.group.clone())]);
        let patch = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"uid": pod.uid, "annotations": annotations, "labels": labels}});
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let parameters = PatchParams::default();
        let done = pods
            .patch_metadata(&pod.name, &parameters, &Patch::Merge(patch))
            .await;
        match done {
            Ok(_) => Ok(()),
            // The pod is gone, or another one has its name.
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
            Err(problem) => Err(problem),
        }
    }

    async fn publish_event(&self, group: &Value, message: String) -> Result<(), kube::Error> {
        let text = |field: &str| group[field].as_str().map(str::to_owned);
        let event = events::Event {
            type_: events::EventType::Normal,
            reason: "NotReady".to_owned(),
            note: Some(message.chars().take(1000).collect()),
            action: "Scheduling".to_owned(),
            secondary: None,
        };
        let reference = ObjectReference {
            api_version: Some(API_VERSION.to_owned()),
            kind: Some(KIND.to_owned()),
            name: text("name"),
            namespace: text("namespace"),
            uid: text("uid"),
            ..ObjectReference::default()
        };
        self.recorder.publish(&event, &reference).await
    }

    fn groups(&self, namespace: &str) -> Api<DynamicObject> {
        let (group, version) = API_VERSION.split_once('/').unwrap_or_default();
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, KIND));
        Api::namespaced_with(self.client.clone(), namespace, &kind)
    }

    fn is_refused(&self) -> bool {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.is_some_and(|until| Instant::now() < until)
    }

    fn refuse(&self, why: &str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.is_none() {
            warn!(
                why,
                "Pod groups are not written: the API server refuses it; pods are scheduled all the same"
            );
        }
        *refused = Some(Instant::now() + REFUSED_FOR);
    }

    fn allowed(&self) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.take().is_some() {
            info!("Pod groups are written again");
        }
    }
}

fn name(write: &GroupWrite) -> String {
    match write {
        GroupWrite::Mark(pod, _) => format!("Pod {}", pod.full()),
        GroupWrite::Create(_)
        | GroupWrite::Found(_)
        | GroupWrite::Change(..)
        | GroupWrite::NotReady(..) => {
            let subject = write.subject();
            subject.map_or_else(String::new, |(namespace, name)| {
                format!("PodGroup {namespace}/{name}")
            })
        }
    }
}

fn why_not(problem: kube::Error) -> GroupWriteError {
    match &problem {
        kube::Error::Api(status) if is_missing_right(status) => {
            GroupWriteError::Forbidden(status.message.clone())
        }
        _ => GroupWriteError::Failed(error_chain(&problem)),
    }
}

/// Whether the permission or the kind is missing. That a policy refused this object, or that its namespace is
/// terminating, does not count.
fn is_missing_right(status: &Status) -> bool {
    let has_no_right = status.code == 403 && status.message.contains(" cannot ");
    let lacks = |text| status.message.contains(text);
    let has_no_kind = status.code == 404 && (lacks("could not find") || lacks("page not found"));
    has_no_right || has_no_kind
}
