//! Requests to the API server and to agents from this process: a long run makes too many for a program each.
//!
//! What fails is an answer like any other, because the API server may be dead just then.

use std::path::Path;
use std::time::Duration;

use apportion_proto::v1;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whoever asks.
pub(crate) struct Requests {
    runtime: Runtime,
    client: Client,
}

impl Requests {
    pub(crate) fn new(kubeconfig: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let client = runtime.block_on(async {
            let read = Kubeconfig::read_from(kubeconfig).expect("it was written");
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(read, &options).await;
            Client::try_from(config.expect("it makes sense")).expect("a client")
        });
        Self { runtime, client }
    }

    fn ask<T>(&self, asked: impl Future<Output = Result<T, kube::Error>>) -> Option<T> {
        let asked = self
            .runtime
            .block_on(async { timeout(PATIENCE, asked).await });
        asked.ok()?.ok()
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Creates an object of the namespace; whether the API server says that it did.
    pub(crate) fn create(&self, json: Value) -> bool {
        let object: DynamicObject = serde_json::from_value(json).expect("an object");
        let kind = object.types.clone().expect("it says what it is");
        let (group, version) = kind
            .api_version
            .split_once('/')
            .unwrap_or(("", &kind.api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind.kind));
        let all: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), "default", &resource);
        self.ask(all.create(&PostParams::default(), &object))
            .is_some()
    }

    /// Deletes a pod at once; whether the API server says that it is gone.
    pub(crate) fn delete(&self, pod: &str) -> bool {
        let at_once = DeleteParams::default().grace_period(0);
        self.ask(self.pods().delete(pod, &at_once)).is_some()
    }

    /// Changes a pod.
    pub(crate) fn edit(&self, pod: &str, patch: &Value) {
        let _ = self.ask(
            self.pods()
                .patch(pod, &PatchParams::default(), &Patch::Merge(patch)),
        );
    }

    /// Changes what a pod says about itself.
    pub(crate) fn edit_status(&self, pod: &str, patch: &Value) {
        let pods = self.pods();
        let parameters = PatchParams::default();
        let _ = self.ask(pods.patch_status(pod, &parameters, &Patch::Merge(patch)));
    }

    /// All pods of the namespace, if the API server says.
    pub(crate) fn all(&self) -> Option<Vec<Pod>> {
        let list = self.ask(self.pods().list(&ListParams::default()))?;
        Some(list.items)
    }

    /// What an agent has in its book, if it answers.
    pub(crate) fn book(&self, socket: &Path) -> Option<v1::ListReply> {
        self.runtime.block_on(async {
            let asked = async {
                let mut agent = apportion_proto::connect(socket).await.ok()?;
                let reply = agent.list(v1::ListRequest {}).await.ok()?;
                Some(reply.into_inner())
            };
            timeout(PATIENCE, asked).await.ok()?
        })
    }
}
