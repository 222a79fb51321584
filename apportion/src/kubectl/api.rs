//! Reads from the API server: whole lists and single objects. A refusal becomes one line.

use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

use apportion_exit::CommandFailure;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;

use crate::options::KubeconfigOptions;

/// How many objects of a kind are requested at once.
const PAGE: u32 = 500;
const NO_CONFIG: &str = "name a file with --kubeconfig, or set KUBECONFIG";

/// A cluster and the user that queries it.
pub(crate) struct ClusterConnection {
    pub(crate) client: Client,
    /// The options that make kubectl use the same cluster.
    pub(crate) options: Vec<String>,
    server: String,
}

impl ClusterConnection {
    /// Reads the kubeconfig. No request is sent yet.
    pub(crate) async fn open(access: &KubeconfigOptions) -> Result<Self, CommandFailure> {
        let chosen = KubeConfigOptions {
            context: access.context.clone(),
            ..KubeConfigOptions::default()
        };
        let wrong = |error: kube::config::KubeconfigError| {
            let what = match &access.kubeconfig {
                Some(path) => format!("failed to read {}", path.display()),
                None => "failed to read the kubeconfig".to_owned(),
            };
            CommandFailure::usage(what).because(error).hint(NO_CONFIG)
        };
        let config = match &access.kubeconfig {
            Some(path) => {
                let read = Kubeconfig::read_from(path).map_err(wrong)?;
                Config::from_custom_kubeconfig(read, &chosen).await
            }
            None => Config::from_kubeconfig(&chosen).await,
        };
        let mut config = config.map_err(wrong)?;
        let patience = Some(Duration::from_secs(access.timeout));
        config.connect_timeout = patience;
        config.read_timeout = patience;
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).map_err(|error| {
            CommandFailure::new("failed to create a Kubernetes client").because(error)
        })?;
        let named =
            |name: &str, value: Option<String>| value.map(|value| format!("--{name}={value}"));
        let options = [
            named(
                "kubeconfig",
                access
                    .kubeconfig
                    .as_ref()
                    .map(|path| path.display().to_string()),
            ),
            named("context", access.context.clone()),
        ];
        Ok(Self {
            client,
            options: options.into_iter().flatten().collect(),
            server,
        })
    }

    /// All objects of a kind, in all namespaces.
    pub(crate) async fn all<K>(&self, plural: &str) -> Result<Vec<K>, CommandFailure>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        self.listed(Api::all(self.client.clone()), plural, ListParams::default())
            .await
    }

    /// The objects that `wanted` selects, page by page.
    pub(crate) async fn listed<K>(
        &self,
        api: Api<K>,
        plural: &str,
        wanted: ListParams,
    ) -> Result<Vec<K>, CommandFailure>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        let mut asked = wanted.limit(PAGE);
        let mut found = Vec::new();
        loop {
            let page = api
                .list(&asked)
                .await
                .map_err(|error| self.failed(&format!("list {plural}"), error))?;
            found.extend(page.items);
            match page.metadata.continue_.filter(|more| !more.is_empty()) {
                Some(more) => asked = asked.continue_token(&more),
                None => return Ok(found),
            }
        }
    }

    /// One object, or `None` if it does not exist.
    pub(crate) async fn one<K>(
        &self,
        api: Api<K>,
        kind: &str,
        name: &str,
    ) -> Result<Option<K>, CommandFailure>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        match api.get(name).await {
            Ok(found) => Ok(Some(found)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(self.failed(&format!("get {kind} {name}"), error)),
        }
    }

    /// The failure for a request.
    fn failed(&self, doing: &str, error: kube::Error) -> CommandFailure {
        match error {
            kube::Error::Api(status) => match status.code {
                401 => CommandFailure::new(format!(
                    "{} does not accept the credentials of the kubeconfig",
                    self.server
                ))
                .hint("log in again, or name another context with --context"),
                403 => CommandFailure::new(format!("failed to {doing}: {}", status.message))
                    .hint("it needs the right that the message names; `kubectl auth can-i --list` shows yours"),
                404 => CommandFailure::new(format!("failed to {doing}: the cluster has no such kind"))
                    .hint("is Apportion installed? Its chart brings the CRDs"),
                _ => CommandFailure::new(format!("failed to {doing}: {}", status.message)),
            },
            error @ (kube::Error::HyperError(_) | kube::Error::Service(_)) => {
                CommandFailure::new(format!("failed to reach the API server at {}", self.server))
                    .because(last(&error))
                    .hint("check the network and the server of the kubeconfig")
            }
            error => CommandFailure::new(format!("failed to {doing}")).because(error),
        }
    }
}

/// The innermost cause, which says what the outer ones do not.
fn last(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => last(cause),
        None => error.to_string(),
    }
}
