//! One write starts a pod: its binding, which carries what is to be read on the pod.
//!
//! The API server merges a binding's annotations into the pod, and from Kubernetes 1.35 on its labels, too. One
//! that leaves the labels out is found out by its first answers: the pods by which that is learned get them after
//! their binding, all others before it. Both writes name the pod's UID, so that they never hit a later pod of
//! the same name.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use apportion_abi::names::LABEL_GPU_GROUP;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::live::event::PodRef;
use crate::objects::cards::{CARDS, FRACTION, RECEIVED, text};

type Texts = BTreeMap<String, String>;

/// Whoever binds.
#[derive(Clone)]
pub(super) struct Binder {
    client: Client,
    /// Whether labels of a binding reach its pod, once that was seen.
    carries_labels: Arc<OnceLock<bool>>,
}

impl Binder {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            carries_labels: Arc::default(),
        }
    }

    /// Binds a pod, with what is written on it.
    pub(super) async fn bind(
        &self,
        node: &str,
        pod: &PodRef,
        cards: &[(String, u64)],
        received: Option<&str>,
    ) -> Result<(), kube::Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let labels = received.map_or_else(Texts::new, |received| labels(cards, received));
        let are_carried = match labels.is_empty() {
            true => Some(true),
            false => self.carries_labels.get().copied(),
        };
        if are_carried == Some(false) {
            label(&pods, pod, &labels).await?;
        }
        let annotations = received.map(|received| annotations(cards, received));
        let binding = binding(node, pod, annotations, labels.clone());
        let parameters = PostParams::default();
        let _: Value = pods
            .create_subresource("binding", &pod.name, &parameters, &binding)
            .await?;
        match are_carried {
            Some(_) => Ok(()),
            None => self.learn(&pods, pod, &labels).await,
        }
    }

    /// Looks whether labels were carried, and makes up for it where they were not.
    async fn learn(
        &self,
        pods: &Api<Pod>,
        pod: &PodRef,
        labels: &Texts,
    ) -> Result<(), kube::Error> {
        let shown = pods.get_metadata(&pod.name).await?;
        let are_carried =
            (labels.iter()).all(|(key, value)| shown.labels().get(key) == Some(value));
        let _ = self.carries_labels.set(are_carried);
        match are_carried {
            true => Ok(()),
            false => label(pods, pod, labels).await,
        }
    }
}

async fn label(pods: &Api<Pod>, pod: &PodRef, labels: &Texts) -> Result<(), kube::Error> {
    let patch = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"uid": pod.uid, "labels": labels}});
    let parameters = PatchParams::default();
    pods.patch_metadata(&pod.name, &parameters, &Patch::Merge(patch))
        .await?;
    Ok(())
}

fn binding(node: &str, pod: &PodRef, annotations: Option<Texts>, labels: Texts) -> Binding {
    Binding {
        metadata: ObjectMeta {
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            uid: Some(pod.uid.clone()),
            annotations,
            labels: Some(labels).filter(|labels| !labels.is_empty()),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            ..ObjectReference::default()
        },
    }
}

fn annotations(cards: &[(String, u64)], received: &str) -> Texts {
    let mut annotations = Texts::from([(RECEIVED.to_owned(), received.to_owned())]);
    if !cards.is_empty() {
        annotations.insert(CARDS.to_owned(), text(cards));
    }
    annotations
}

/// The cards that a pod shares with others.
fn labels(cards: &[(String, u64)], received: &str) -> Texts {
    let group = |(card, _): &(String, u64)| match cards {
        [_] => (LABEL_GPU_GROUP.to_owned(), card.clone()),
        _ => (format!("{LABEL_GPU_GROUP}/{card}"), card.clone()),
    };
    match received {
        FRACTION => cards.iter().map(group).collect(),
        _ => Texts::new(),
    }
}
