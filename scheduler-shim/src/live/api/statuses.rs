//! Statuses of queues and pod groups, and the readiness of agents.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::events;
use serde_json::json;
use tracing::{info, warn};

use super::{ApiWriteError, ApiWriter, FIELD_MANAGER};
use crate::live::event::{AgentReadiness, StatusUpdate};
use crate::live::heartbeats;

impl ApiWriter {
    /// Writes an agent's readiness on its `GpuNode`. A newer write by the agent itself wins.
    pub(super) async fn report_readiness(&self, node: &str, version: &str, is: AgentReadiness) {
        let (status, reason, message) = match is {
            AgentReadiness::Silent => (
                "Unknown",
                heartbeats::SILENT,
                "the agent is not heard; existing shares keep their limits",
            ),
            AgentReadiness::Serving => (
                "True",
                "Serving",
                "shares of the healthy GPUs can be granted",
            ),
            AgentReadiness::NoHealthyCard => ("False", "NoHealthyCard", "no GPU is healthy"),
        };
        let condition = json!({"type": "Ready", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": jiff::Timestamp::now()});
        let object = json!({"apiVersion": "apportion.dev/v1alpha1", "kind": heartbeats::KIND,
            "metadata": {"name": node, "resourceVersion": version},
            "status": {"conditions": [condition]}});
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
            "apportion.dev",
            "v1alpha1",
            heartbeats::KIND,
        ));
        let nodes: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&object);
        let patched = nodes.patch_status(node, &parameters, &patch);
        match self.while_leading(patched).await {
            Ok(_) => info!(node, reason, "Agent readiness changed"),
            // The agent wrote in the meantime.
            Err(ApiWriteError::Refused(status)) if status.code == 409 => {}
            Err(problem) => {
                warn!(node, %problem, "Failed to update the condition of an agent")
            }
        }
    }

    /// Writes a status, and publishes an event if something is wrong with the object.
    pub(super) async fn report(&self, report: StatusUpdate) {
        let (all, kind) = (self.client.clone(), resource(&report));
        let objects: Api<DynamicObject> = match report.namespace.as_str() {
            "" => Api::all_with(all, &kind),
            namespace => Api::namespaced_with(all, namespace, &kind),
        };
        let patch = json!({"metadata": {"uid": report.uid}, "status": report.status});
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = objects.patch_status(&report.name, &parameters, &patch);
        let (kind, name) = (&report.kind, &report.name);
        if let Err(problem) = self.while_leading(patched).await {
            warn!(kind, name, %problem, "Failed to update a status");
        }
        let Some(warning) = report.warning else {
            return;
        };
        let event = events::Event {
            type_: events::EventType::Warning,
            reason: "Unusable".to_owned(),
            note: Some(warning.chars().take(1000).collect()),
            action: "Scheduling".to_owned(),
            secondary: None,
        };
        let reference = ObjectReference {
            api_version: Some(report.api_version.clone()),
            kind: Some(report.kind.clone()),
            name: Some(report.name.clone()),
            namespace: Some(report.namespace).filter(|namespace| !namespace.is_empty()),
            uid: Some(report.uid),
            ..ObjectReference::default()
        };
        if let Err(problem) = self
            .while_leading(self.recorder.publish(&event, &reference))
            .await
        {
            warn!(kind, name, %problem, "Failed to publish an event");
        }
    }
}

/// The resource of an object that has a status to write.
fn resource(report: &StatusUpdate) -> ApiResource {
    let core = ("", report.api_version.as_str());
    let (group, version) = report.api_version.split_once('/').unwrap_or(core);
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &report.kind))
}
