//! Makes the Deployments of the scheduler and the webhook follow KAI's Config.
//!
//! The leader does it, when the Config changes and now and then. See [`apportion_model::shards::programs`] for what a
//! Config can say.

use std::pin::pin;
use std::time::Duration;

use apportion_exit::error_chain;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::StreamExt;
use tracing::{info, warn};

use super::api::LeadershipGuard;
use apportion_model::object_kinds::KAI_CONFIG as KIND;
use apportion_model::shards::programs::{CONFIG, DEPLOYMENTS, DesiredPrograms};

/// How long until a failed change is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// How often the Deployments are checked: an upgrade of the chart writes them, too.
const NOW_AND_THEN: Duration = Duration::from_secs(300);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs until the watch ends.
pub(super) async fn arrange(client: Client, namespace: String, leading: LeadershipGuard) {
    let kind = GroupVersionKind::gvk(KIND.0, "v1", KIND.1);
    let configs: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let only = watcher::Config::default().fields(&format!("metadata.name={CONFIG}"));
    let mut events = pin!(watcher(configs, only).default_backoff());
    let deployments: Api<Deployment> = Api::namespaced(client, &namespace);
    let mut config = None;
    let mut next = Instant::now() + NOW_AND_THEN;
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) => {
                    config = serde_json::to_value(object).ok();
                }
                Some(_) => continue,
                None => return,
            },
            () = sleep_until(next) => {}
        }
        let Some(config) = &config else {
            next = Instant::now() + NOW_AND_THEN;
            continue;
        };
        let done = leading
            .only(follow(&deployments, &DesiredPrograms::by(config)))
            .await;
        next = Instant::now()
            + match done {
                Some(true) => NOW_AND_THEN,
                Some(false) | None => AGAIN,
            };
    }
}

/// Changes what is not as wanted. Returns whether everything is now.
async fn follow(deployments: &Api<Deployment>, wanted: &DesiredPrograms) -> bool {
    let mut is_done = true;
    for name in DEPLOYMENTS {
        let why = match timeout(PATIENCE, change(deployments, name, wanted)).await {
            Ok(Ok(is_new)) => {
                if is_new {
                    info!(name, "Deployment follows the Config");
                }
                continue;
            }
            Ok(Err(problem)) => error_chain(&problem),
            Err(late) => late.to_string(),
        };
        warn!(
            name,
            why, "Failed to make a Deployment follow the Config, retrying"
        );
        is_done = false;
    }
    is_done
}

/// Changes one Deployment, if it exists. Returns whether it was not as wanted.
async fn change(
    deployments: &Api<Deployment>,
    name: &str,
    wanted: &DesiredPrograms,
) -> Result<bool, kube::Error> {
    let Some(found) = deployments.get_opt(name).await? else {
        return Ok(false);
    };
    let found: Value = serde_json::to_value(found).map_err(kube::Error::SerdeError)?;
    let Some(patch) = wanted.change(&found) else {
        return Ok(false);
    };
    let parameters = PatchParams::default();
    deployments
        .patch(name, &parameters, &Patch::Merge(patch))
        .await?;
    Ok(true)
}
