//! One write ends a resize: the pod says what it has, and for which request.

use kube::api::{Patch, PatchParams};
use serde_json::json;
use tracing::{info, warn};

use super::ApiWriter;
use super::binding::ALLOCATED;
use crate::live::event::{PodRef, SchedulerEvent};
use apportion_model::cards::{CARDS, CardShare, annotation};

impl ApiWriter {
    /// Writes the new size on a pod. The write names the pod's UID, so it never hits a later pod of the same name.
    pub(super) async fn write_allocated(
        &self,
        pod: PodRef,
        cards: &[CardShare],
        request: &str,
    ) -> SchedulerEvent {
        let patch = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"uid": pod.uid,
            "annotations": {CARDS: annotation(cards), ALLOCATED: request}}});
        let (pods, parameters) = (self.pods(&pod), PatchParams::default());
        let patch = Patch::Merge(patch);
        let patched = pods.patch_metadata(&pod.name, &parameters, &patch);
        let is_done = match self.while_leading(patched).await {
            Ok(_) => {
                info!(pod = pod.full(), request, "Pod resized");
                true
            }
            Err(problem) => {
                warn!(pod = pod.full(), %problem, "Failed to write the new size of a pod");
                false
            }
        };
        SchedulerEvent::AllocatedWritten(pod, is_done)
    }
}
