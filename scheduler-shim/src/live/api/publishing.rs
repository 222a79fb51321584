//! Events about pods.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Patch, PatchParams};
use kube::runtime::events;
use serde_json::json;
use tracing::warn;

use super::ApiWriter;
use crate::live::event::{PodEventReason, PodRef};

/// The reason of kube-scheduler's event about a pod whose devices are not ready yet.
const AWAITS_DEVICES: &str = "BindingConditionsPending";

impl ApiWriter {
    /// Publishes an event. Why a pod waits is also its condition.
    pub(super) async fn publish_event(
        &self,
        pod: &PodRef,
        reason: PodEventReason,
        message: String,
    ) {
        // Only the first of them makes autoscalers add nodes.
        let of_condition = match reason {
            PodEventReason::Unschedulable => Some("Unschedulable"),
            PodEventReason::AwaitsDevices => Some(AWAITS_DEVICES),
            PodEventReason::Scheduled
            | PodEventReason::NotBound
            | PodEventReason::Evicted
            | PodEventReason::NotEvicted
            | PodEventReason::Suspended
            | PodEventReason::NotSuspended
            | PodEventReason::Resumed
            | PodEventReason::NotAdopted
            | PodEventReason::Resized
            | PodEventReason::ResizeDeferred
            | PodEventReason::ResizeInfeasible => None,
        };
        if let Some(reason) = of_condition {
            let condition = json!({"status": {"conditions": [{"type": "PodScheduled",
                "status": "False", "reason": reason, "message": message}]}});
            let (pods, parameters) = (self.pods(pod), PatchParams::default());
            let patch = Patch::Strategic(condition);
            let patched = pods.patch_status(&pod.name, &parameters, &patch);
            if let Err(problem) = self.while_leading(patched).await {
                warn!(pod = pod.full(), %problem, "Failed to update the PodScheduled condition");
            }
        }
        let (kind, text, action) = event_fields(reason);
        let event = events::Event {
            type_: kind,
            reason: text.to_owned(),
            note: Some(message.chars().take(1000).collect()),
            action: action.to_owned(),
            secondary: None,
        };
        let reference = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        // A recorder keeps each event for six minutes to count repeats. These events have none: a pod is bound or
        // evicted once.
        let once = events::Recorder::new(self.client.clone(), self.reporter.clone());
        let recorder = match reason {
            PodEventReason::Scheduled | PodEventReason::Evicted => &once,
            _ => &*self.recorder,
        };
        if let Err(problem) = self
            .while_leading(recorder.publish(&event, &reference))
            .await
        {
            warn!(pod = pod.full(), %problem, "Failed to publish an event");
        }
    }
}

/// The kind, reason and action of an event.
const fn event_fields(reason: PodEventReason) -> (events::EventType, &'static str, &'static str) {
    use events::EventType::{Normal, Warning};
    match reason {
        PodEventReason::Scheduled => (Normal, "Scheduled", "Binding"),
        PodEventReason::Unschedulable => (Warning, "Unschedulable", "Scheduling"),
        PodEventReason::AwaitsDevices => (Normal, AWAITS_DEVICES, "Scheduling"),
        PodEventReason::NotBound => (Warning, "BindingError", "Binding"),
        PodEventReason::Evicted => (Normal, "Evict", "Evicting"),
        PodEventReason::NotEvicted => (Normal, "EvictionRefused", "Evicting"),
        PodEventReason::Suspended => (Normal, "Suspended", "Suspending"),
        PodEventReason::NotSuspended => (Normal, "SuspensionFailed", "Suspending"),
        PodEventReason::Resumed => (Normal, "Resumed", "Resuming"),
        PodEventReason::NotAdopted => (Warning, "NotAdopted", "Adopting"),
        PodEventReason::Resized => (Normal, "Resized", "Resizing"),
        PodEventReason::ResizeDeferred => (Warning, "ResizeDeferred", "Resizing"),
        PodEventReason::ResizeInfeasible => (Warning, "ResizeInfeasible", "Resizing"),
    }
}
