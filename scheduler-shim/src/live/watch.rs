//! All objects that decide something, as events.
//!
//! Each kind is listed and then watched; a watch that breaks is listed again, and what vanished meanwhile
//! is seen as gone. Kinds that own pods are many, and most clusters lack most of them: those that the API
//! server has are watched, and new ones are looked for now and then.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use apportion_groups::Object;
use kube::api::{Api, ApiResource};
use kube::discovery;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Discovery};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio_stream::StreamExt;
use tracing::{debug, warn};

use super::event::Event;
use super::slim::Slim;
use crate::objects::{config_maps, inventory};

/// How often new kinds are looked for.
const AGAIN: Duration = Duration::from_secs(30);

/// A kind that every cluster has, and without which nothing is decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Always {
    pub(crate) kind: &'static str,
    group: &'static str,
    version: &'static str,
    plural: &'static str,
}

pub(crate) const ALWAYS: &[Always] = &[
    Always {
        kind: "Pod",
        group: "",
        version: "v1",
        plural: "pods",
    },
    Always {
        kind: "Node",
        group: "",
        version: "v1",
        plural: "nodes",
    },
    Always {
        kind: "PriorityClass",
        group: "scheduling.k8s.io",
        version: "v1",
        plural: "priorityclasses",
    },
    Always {
        kind: "Queue",
        group: "scheduling.run.ai",
        version: "v2",
        plural: "queues",
    },
];

/// Watches until nobody listens.
/// Which kinds there are beside those that are always there is said once it is known.
pub(crate) fn start(
    client: Client,
    events: UnboundedSender<Event>,
) -> oneshot::Receiver<BTreeSet<String>> {
    for kind in ALWAYS {
        let resource = ApiResource {
            group: kind.group.to_owned(),
            version: kind.version.to_owned(),
            api_version: match kind.group {
                "" => kind.version.to_owned(),
                group => format!("{group}/{}", kind.version),
            },
            kind: kind.kind.to_owned(),
            plural: kind.plural.to_owned(),
        };
        tokio::spawn(watch(client.clone(), resource, events.clone()));
    }
    let (first, found) = oneshot::channel();
    tokio::spawn(find_others(client, events, first));
    found
}

/// Looks for kinds that may own pods.
async fn find_others(
    client: Client,
    events: UnboundedSender<Event>,
    first: oneshot::Sender<BTreeSet<String>>,
) {
    let mut first = Some(first);
    let always = ALWAYS
        .iter()
        .map(|kind| (kind.group.to_owned(), kind.kind.to_owned()));
    let mut watched: BTreeSet<(String, String)> = always.collect();
    loop {
        match others(client.clone()).await {
            Ok(found) => {
                if let Some(first) = first.take() {
                    let _ = first.send(found.iter().map(|one| one.kind.clone()).collect());
                }
                for resource in found {
                    let key = (resource.group.clone(), resource.kind.clone());
                    if watched.insert(key) {
                        debug!(
                            kind = resource.kind,
                            group = resource.group,
                            "Watching kind"
                        );
                        tokio::spawn(watch(client.clone(), resource, events.clone()));
                    }
                }
            }
            Err(problem) => warn!(%problem, "API discovery failed"),
        }
        if events.is_closed() {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn others(client: Client) -> Result<Vec<ApiResource>, kube::Error> {
    let found: Discovery = discovery::Discovery::new(client).run().await?;
    // Kinds of one group may be at different versions, as KAI's queues and pod groups are.
    let resources = found
        .groups()
        .flat_map(discovery::ApiGroup::resources_by_stability);
    let wanted = resources.filter(|(resource, capabilities)| {
        let is_listed = inventory::is_read(&resource.group, &resource.kind);
        is_listed && capabilities.supports_operation(discovery::verbs::WATCH)
    });
    Ok(wanted.map(|(resource, _)| resource).collect())
}

/// Which objects there are of a kind of which only that matters: their changes are no events. Some programs write
/// theirs every few seconds.
#[derive(Default)]
struct Known(BTreeSet<(String, String)>);

impl Known {
    /// Whether anybody has to hear of an object.
    fn is_news(&mut self, json: &Value) -> bool {
        Self::key(json).is_none_or(|key| self.0.insert(key))
    }

    fn forget(&mut self, json: &Value) {
        if let Some(key) = Self::key(json) {
            self.0.remove(&key);
        }
    }

    fn key(json: &Value) -> Option<(String, String)> {
        let object = Object::new(json);
        let counts = (object.api_group(), object.kind()) == config_maps::KIND;
        counts.then(|| (object.namespace().to_owned(), object.name().to_owned()))
    }
}

async fn watch(client: Client, resource: ApiResource, events: UnboundedSender<Event>) {
    let api: Api<Slim> = Api::all_with(client, &resource);
    let config = watcher::Config::default();
    let mut stream = pin!(watcher(api, config).default_backoff());
    let mut listing = Vec::new();
    let kind = resource.kind.clone();
    let mut known = Known::default();
    while let Some(next) = stream.next().await {
        let event = match next {
            Ok(watcher::Event::Init) => {
                listing.clear();
                known = Known::default();
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                let json = object.json(&resource);
                known.is_news(&json);
                listing.push(json);
                continue;
            }
            Ok(watcher::Event::InitDone) => {
                Event::Listed(kind.clone(), std::mem::take(&mut listing))
            }
            Ok(watcher::Event::Apply(object)) => {
                let json = object.json(&resource);
                if !known.is_news(&json) {
                    continue;
                }
                Event::Applied(json)
            }
            Ok(watcher::Event::Delete(object)) => {
                let json = object.json(&resource);
                known.forget(&json);
                Event::Gone(json)
            }
            Err(problem) => {
                warn!(kind, %problem, "Watch failed, restarting");
                continue;
            }
        };
        if events.send(event).is_err() {
            return;
        }
    }
}
