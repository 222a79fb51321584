//! Watches all objects that decisions need, and sends events.
//!
//! Each kind is listed and then watched. A watch that breaks is listed again, and what vanished meanwhile counts as
//! gone. There are many kinds that own pods, and most clusters lack most of them: only those that the API server has
//! are watched. New ones are discovered now and then, and as soon as an object has such an owner.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apportion_groups::ObjectView;
use kube::api::{Api, ApiResource, PartialObjectMeta};
use kube::discovery;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Discovery};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, oneshot};
use tokio_stream::{Stream, StreamExt};
use tracing::{debug, warn};

use super::event::SchedulerEvent;
use super::pruned_object::PrunedObject;
use apportion_model::numa;
use apportion_model::object_kinds::{self, CONFIG_MAP, NODE_RESOURCE_TOPOLOGY};

/// How often new kinds are discovered.
const AGAIN: Duration = Duration::from_secs(30);

/// How soon discovery looks again for a kind that an object names as its owner, and how often before the kind counts
/// as unreadable. The API server may take a moment to offer a new kind.
const SOON: Duration = Duration::from_secs(2);
const TRIES: u32 = 3;

/// A kind: its API group and its name.
type GroupKind = (String, String);

/// The kinds that are watched, and kinds of owners that are not.
#[derive(Debug, Default)]
struct WatchedKinds {
    watched: Mutex<BTreeSet<GroupKind>>,
    /// How often discovery did not find each of them.
    missed: Mutex<BTreeMap<GroupKind, u32>>,
    found_missing: Notify,
}

impl WatchedKinds {
    /// Notes the owners of an object.
    fn record_owners(&self, json: &Value) {
        let owners = json.pointer("/metadata/ownerReferences");
        for owner in owners.and_then(Value::as_array).into_iter().flatten() {
            let version = owner["apiVersion"].as_str().unwrap_or_default();
            let group = version.rsplit_once('/').map_or("", |(group, _)| group);
            let kind = owner["kind"].as_str().unwrap_or_default();
            if !object_kinds::is_read(group, kind) {
                continue;
            }
            let key = (group.to_owned(), kind.to_owned());
            if lock(&self.watched).contains(&key) {
                continue;
            }
            if let Entry::Vacant(first) = lock(&self.missed).entry(key) {
                first.insert(0);
                self.found_missing.notify_one();
            }
        }
    }

    /// Marks a kind as watched. Returns whether it was not before.
    fn begin(&self, key: GroupKind) -> bool {
        lock(&self.missed).remove(&key);
        lock(&self.watched).insert(key)
    }

    /// Counts one more failed discovery. Returns the kinds that now count as unreadable.
    fn unreadable(&self) -> Vec<String> {
        let mut missed = lock(&self.missed);
        for tries in missed.values_mut() {
            *tries = tries.saturating_add(1);
        }
        let given_up = missed.iter().filter(|(_, tries)| **tries == TRIES);
        given_up.map(|((_, kind), _)| kind.clone()).collect()
    }

    /// Whether discovery has to look for a kind again soon.
    fn is_sought(&self) -> bool {
        lock(&self.missed).values().any(|tries| *tries < TRIES)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kind that every cluster has. Nothing is decided before it was listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequiredKind {
    pub(crate) kind: &'static str,
    group: &'static str,
    version: &'static str,
    plural: &'static str,
}

pub(crate) const ALWAYS: &[RequiredKind] = &[
    RequiredKind {
        kind: "Pod",
        group: "",
        version: "v1",
        plural: "pods",
    },
    RequiredKind {
        kind: "Node",
        group: "",
        version: "v1",
        plural: "nodes",
    },
    RequiredKind {
        kind: "PriorityClass",
        group: "scheduling.k8s.io",
        version: "v1",
        plural: "priorityclasses",
    },
    RequiredKind {
        kind: "Queue",
        group: "scheduling.run.ai",
        version: "v2",
        plural: "queues",
    },
];

/// Starts the watches, which run until nobody receives the events. The result gets the optional kinds that this
/// cluster has, once discovery has run.
pub(crate) fn start(
    client: Client,
    events: UnboundedSender<SchedulerEvent>,
) -> oneshot::Receiver<BTreeSet<String>> {
    let kinds = Arc::new(WatchedKinds::default());
    for kind in ALWAYS {
        kinds.begin((kind.group.to_owned(), kind.kind.to_owned()));
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
        let kinds = kinds.clone();
        tokio::spawn(watch(client.clone(), resource, events.clone(), kinds));
    }
    let (first, found) = oneshot::channel();
    tokio::spawn(find_others(client, events, first, kinds));
    found
}

/// Discovers and watches the optional kinds.
async fn find_others(
    client: Client,
    events: UnboundedSender<SchedulerEvent>,
    first: oneshot::Sender<BTreeSet<String>>,
    kinds: Arc<WatchedKinds>,
) {
    let mut first = Some(first);
    loop {
        match others(client.clone()).await {
            Ok(found) => {
                if let Some(first) = first.take() {
                    let _ = first.send(found.iter().map(|one| one.kind.clone()).collect());
                }
                for resource in found {
                    let key = (resource.group.clone(), resource.kind.clone());
                    if kinds.begin(key) {
                        debug!(
                            kind = resource.kind,
                            group = resource.group,
                            "Watching kind"
                        );
                        let (events, kinds) = (events.clone(), kinds.clone());
                        tokio::spawn(watch(client.clone(), resource, events, kinds));
                    }
                }
                for kind in kinds.unreadable() {
                    let _ = events.send(SchedulerEvent::Unreadable(kind));
                }
            }
            Err(problem) => warn!(%problem, "API discovery failed"),
        }
        if events.is_closed() {
            return;
        }
        tokio::time::sleep(SOON).await;
        if !kinds.is_sought() {
            let _ = tokio::time::timeout(AGAIN, kinds.found_missing.notified()).await;
        }
    }
}

async fn others(client: Client) -> Result<Vec<ApiResource>, kube::Error> {
    // Two requests instead of one for each API group and version; Kubernetes has them since 1.30.
    let found: Discovery = match Discovery::new(client.clone()).run_aggregated().await {
        Ok(found) => found,
        Err(_) => Discovery::new(client).run().await?,
    };
    // Kinds of one group may be at different versions, as KAI's queues and pod groups are.
    let resources = found
        .groups()
        .flat_map(discovery::ApiGroup::resources_by_stability);
    let wanted = resources.filter(|(resource, capabilities)| {
        let is_listed = object_kinds::is_read(&resource.group, &resource.kind);
        // Devices are allocated by the rules of this version, and beta versions have other fields.
        let is_claim = resource.group == object_kinds::CLAIM_GROUP;
        is_listed
            && (!is_claim || resource.version == "v1")
            && capabilities.supports_operation(discovery::verbs::WATCH)
    });
    Ok(wanted.map(|(resource, _)| resource).collect())
}

/// Filters kinds whose objects are written every few seconds without a change that matters: keeps what matters of
/// each.
#[derive(Default)]
struct ChangeFilter(BTreeMap<(String, String), Value>);

impl ChangeFilter {
    /// Whether an object has a change that matters.
    fn is_changed(&mut self, json: &Value) -> bool {
        Self::key(json)
            .is_none_or(|(key, relevant)| self.0.insert(key, relevant.clone()) != Some(relevant))
    }

    fn forget(&mut self, json: &Value) {
        if let Some((key, _)) = Self::key(json) {
            self.0.remove(&key);
        }
    }

    /// The name of an object of such a kind, and what matters of it.
    fn key(json: &Value) -> Option<((String, String), Value)> {
        let object = ObjectView::new(json);
        let relevant = match (object.api_group(), object.kind()) {
            // Only its existence matters.
            CONFIG_MAP => Value::Null,
            NODE_RESOURCE_TOPOLOGY => numa::lasting(json),
            _ => return None,
        };
        Some((
            (object.namespace().to_owned(), object.name().to_owned()),
            relevant,
        ))
    }
}

type ObjectEvents = Pin<Box<dyn Stream<Item = watcher::Result<Event<Value>>> + Send>>;

/// Lists and watches a kind.
fn object_events(client: Client, resource: &ApiResource) -> ObjectEvents {
    let config = watcher::Config::default();
    let resource = resource.clone();
    if (resource.group.as_str(), resource.kind.as_str()) != CONFIG_MAP {
        let api: Api<PrunedObject> = Api::all_with(client, &resource);
        let events = watcher(api, config).default_backoff();
        return Box::pin(events.map(move |event| Ok(converted(event?, |it| it.json(&resource)))));
    }
    // A ConfigMap has up to a MiB, and a page of a list has 500. So only metadata is asked for, and of that only the
    // name is kept.
    let api: Api<PartialObjectMeta> = Api::all_with(client, &resource);
    let events = watcher(api, config).default_backoff();
    Box::pin(events.map(move |event| {
        Ok(converted(event?, |object| {
            json!({"kind": resource.kind, "apiVersion": resource.api_version,
                "metadata": {"name": object.metadata.name, "namespace": object.metadata.namespace}})
        }))
    }))
}

fn converted<K, V>(event: Event<K>, convert: impl FnOnce(K) -> V) -> Event<V> {
    match event {
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(convert(object)),
        Event::InitDone => Event::InitDone,
        Event::Apply(object) => Event::Apply(convert(object)),
        Event::Delete(object) => Event::Delete(convert(object)),
    }
}

async fn watch(
    client: Client,
    resource: ApiResource,
    events: UnboundedSender<SchedulerEvent>,
    kinds: Arc<WatchedKinds>,
) {
    let mut stream = object_events(client, &resource);
    let mut listing = Vec::new();
    let kind = resource.kind.clone();
    let mut known = ChangeFilter::default();
    let mut was_listed = false;
    while let Some(next) = stream.next().await {
        let event = match next {
            Ok(Event::Init) => {
                listing.clear();
                known = ChangeFilter::default();
                continue;
            }
            Ok(Event::InitApply(json)) => {
                kinds.record_owners(&json);
                known.is_changed(&json);
                listing.push(json);
                continue;
            }
            Ok(Event::InitDone) => {
                was_listed = true;
                SchedulerEvent::Listed(kind.clone(), std::mem::take(&mut listing))
            }
            Ok(Event::Apply(json)) => {
                kinds.record_owners(&json);
                if !known.is_changed(&json) {
                    continue;
                }
                SchedulerEvent::Applied(json)
            }
            Ok(Event::Delete(json)) => {
                known.forget(&json);
                SchedulerEvent::Gone(json)
            }
            Err(problem) => {
                warn!(kind, %problem, "Watch failed, restarting");
                if was_listed {
                    continue;
                }
                SchedulerEvent::Unreadable(kind.clone())
            }
        };
        if events.send(event).is_err() {
            return;
        }
    }
}
