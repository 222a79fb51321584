//! Requests to the API server and to agents from this process: a long run makes too many to start a program for each.
//!
//! The API server may be down, or die before it answers. A change is retried until the API server says that it is made,
//! was made before, or is impossible.

use std::path::Path;
use std::time::{Duration, Instant};

use apportion_proto::v1;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::cluster::PATIENCE;

/// The timeout of one try, and the pause before the next one.
const TRY: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(50);

/// A change of an object.
#[derive(Debug)]
pub(crate) enum ApiChange {
    Create(Value),
    /// A kind and a name.
    Delete(ApiResource, String),
    Edit(String, Value),
    EditStatus(String, Value),
}

impl ApiChange {
    /// Whether an error code says that nothing is left to do.
    const fn is_settled_by(&self, code: u16) -> bool {
        match self {
            Self::Create(_) => code == 409,
            Self::Delete(..) | Self::Edit(..) | Self::EditStatus(..) => code == 404,
        }
    }
}

/// The client.
#[derive(Clone)]
pub(crate) struct ApiRequester(Client);

impl ApiRequester {
    pub(crate) async fn new(kubeconfig: &Path) -> Self {
        let read = Kubeconfig::read_from(kubeconfig).expect("it was written");
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        Self(Client::try_from(config.expect("it makes sense")).expect("a client"))
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.0.clone(), "default")
    }

    fn of(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.0.clone(), "default", resource)
    }

    /// Makes sure that a change is made. Returns an error if the API server refuses it.
    pub(crate) async fn surely(&self, request: &ApiChange) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let problem = match timeout(TRY, self.once(request)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(kube::Error::Api(status))) if request.is_settled_by(status.code) => {
                    return Ok(());
                }
                Ok(Err(problem)) => problem.to_string(),
                Err(late) => late.to_string(),
            };
            if Instant::now() > deadline {
                return Err(format!("{request:?}: {problem}"));
            }
            sleep(AGAIN).await;
        }
    }

    async fn once(&self, request: &ApiChange) -> Result<(), kube::Error> {
        let parameters = PatchParams::default();
        match request {
            ApiChange::Create(json) => {
                let object: DynamicObject = serde_json::from_value(json.clone()).expect("one");
                let all = self.of(&resource(json));
                all.create(&PostParams::default(), &object).await?;
            }
            ApiChange::Delete(resource, name) => {
                let at_once = DeleteParams::default().grace_period(0);
                self.of(resource).delete(name, &at_once).await?;
            }
            ApiChange::Edit(pod, patch) => {
                let patch = Patch::Merge(patch);
                self.pods().patch(pod, &parameters, &patch).await?;
            }
            ApiChange::EditStatus(pod, patch) => {
                let patch = Patch::Merge(patch);
                self.pods().patch_status(pod, &parameters, &patch).await?;
            }
        }
        Ok(())
    }

    /// All pods of the namespace, if the API server answers.
    pub(crate) async fn all(&self) -> Option<Vec<Pod>> {
        let (pods, parameters) = (self.pods(), ListParams::default());
        let list = timeout(TRY, pods.list(&parameters)).await;
        Some(list.ok()?.ok()?.items)
    }
}

/// The API resource of an object, from its own fields.
pub(crate) fn resource(json: &Value) -> ApiResource {
    let text = |key: &str| json[key].as_str().expect("it says what it is");
    let version = text("apiVersion");
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("kind")))
}

/// An agent's ledger, if it answers.
pub(crate) async fn book(socket: &Path) -> Option<v1::ListReply> {
    let asked = async {
        let mut agent = apportion_proto::connect(socket).await.ok()?;
        let reply = agent.list(v1::ListRequest {}).await.ok()?;
        Some(reply.into_inner())
    };
    timeout(TRY, asked).await.ok()?
}
