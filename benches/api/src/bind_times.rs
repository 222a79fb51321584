//! When pods are bound, as a watch of the API server shows it.

use std::collections::BTreeMap;
use std::pin::pin;

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::StreamExt;

use crate::objects::NAMESPACE;

/// When each pod was first seen on a node, by name.
pub(crate) type BindTimes = BTreeMap<String, Instant>;

/// Watches until nobody holds the receiver.
pub(crate) fn follow(client: Client) -> watch::Receiver<BindTimes> {
    let (sender, receiver) = watch::channel(BindTimes::new());
    tokio::spawn(async move {
        let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
        // The measurement itself should cost the API server little.
        let with_a_node = Config::default().fields("spec.nodeName!=");
        let mut events = pin!(watcher(pods, with_a_node));
        while let Some(event) = events.next().await {
            let now = Instant::now();
            sender.send_if_modified(|bound| match event {
                Ok(Event::Apply(pod) | Event::InitApply(pod)) => see(bound, pod, now),
                Ok(Event::Delete(pod)) => {
                    let name = pod.metadata.name.unwrap_or_default();
                    bound.remove(&name).is_some()
                }
                Ok(Event::Init | Event::InitDone) | Err(_) => false,
            });
            if sender.is_closed() {
                return;
            }
        }
    });
    receiver
}

fn see(bound: &mut BindTimes, pod: Pod, now: Instant) -> bool {
    let name = pod.metadata.name.unwrap_or_default();
    let is_bound = pod.spec.is_some_and(|spec| spec.node_name.is_some());
    if !is_bound || bound.contains_key(&name) {
        return false;
    }
    bound.insert(name, now);
    true
}
