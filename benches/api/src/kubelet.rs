//! A stand-in for kubelets: it ends evicted pods and counts them.

use std::pin::pin;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_stream::StreamExt;

use crate::objects::NAMESPACE;

/// Ends pods until nobody holds the receiver, which shows how many were ended.
pub(crate) fn follow(client: Client) -> watch::Receiver<usize> {
    let (ended, looked_at) = watch::channel(0);
    tokio::spawn(async move {
        let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
        let with_a_node = Config::default().fields("spec.nodeName!=");
        let mut events = pin!(watcher(pods.clone(), with_a_node));
        while let Some(event) = events.next().await {
            if ended.is_closed() {
                return;
            }
            let (Ok(Event::Apply(pod)) | Ok(Event::InitApply(pod))) = event else {
                continue;
            };
            let metadata = pod.metadata;
            if metadata.deletion_timestamp.is_none()
                || metadata.deletion_grace_period_seconds == Some(0)
            {
                continue;
            }
            let pods = pods.clone();
            let ended = ended.clone();
            tokio::spawn(async move {
                let name = metadata.name.unwrap_or_default();
                let at_once = DeleteParams::default().grace_period(0);
                if pods.delete(&name, &at_once).await.is_ok() {
                    ended.send_modify(|count| *count += 1);
                }
            });
        }
    });
    looked_at
}
