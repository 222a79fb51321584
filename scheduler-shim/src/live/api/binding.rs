//! One write starts a pod: its binding, which also carries annotations and labels for the pod.
//!
//! The API server merges a binding's annotations into the pod, and since Kubernetes 1.35 its labels, too. The first
//! bindings with labels show whether it does. If it does not, their pods get the labels after the binding, and all
//! later pods before it. Both writes name the pod's UID, so they never hit a later pod of the same name.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

pub(super) use apportion_abi::names::ANNOTATION_ALLOCATED as ALLOCATED;
use apportion_abi::names::{
    ANNOTATION_GROUP, ANNOTATION_NUMA_PREDICTED, LABEL_GPU_GROUP, LABEL_SUBGROUP,
};
use apportion_policy::cluster::ZoneAmounts;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::live::event::PodRef;
use crate::live::grouper::{GroupMembership, KAI};
use apportion_model::cards::{CARDS, CardShare, FRACTION, RECEIVED, annotation};
use apportion_model::pod_zones;

pub(super) type Texts = BTreeMap<String, String>;

#[derive(Clone)]
pub(super) struct PodBinder {
    client: Client,
    /// Whether a binding's labels reach its pod; unset until that was seen.
    carries_labels: Arc<OnceLock<bool>>,
    /// Whether to write KAI's label for the cards of a pod. KAI's binder takes a pod with it for one of its own.
    serves_kai: bool,
}

/// The metadata that a binding writes on its pod.
#[derive(Clone, Copy)]
pub(super) struct BindingMetadata<'w> {
    pub(super) cards: &'w [CardShare],
    /// The kind of cards it got; `None` without cards.
    pub(super) received: Option<&'w str>,
    /// The request that its share is for.
    pub(super) allocated: Option<&'w str>,
    /// What it is expected to get from each NUMA zone.
    pub(super) zones: &'w [(String, ZoneAmounts)],
    pub(super) joins: Option<&'w GroupMembership>,
}

impl PodBinder {
    /// `names` are the scheduler names that this process serves. KAI's binder deletes each pod that has its label but
    /// none of its reservations, also if another scheduler placed it. So the label is written only if KAI's name is among `names`.
    pub(super) fn new(client: Client, names: &[String]) -> Self {
        Self {
            client,
            carries_labels: Arc::default(),
            serves_kai: names.iter().any(|name| name == KAI),
        }
    }

    /// Binds a pod and writes its metadata.
    pub(super) async fn bind(
        &self,
        node: &str,
        pod: &PodRef,
        written: BindingMetadata<'_>,
    ) -> Result<(), kube::Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let labels = written.labels(self.serves_kai);
        let are_carried = if labels.is_empty() {
            Some(true)
        } else {
            self.carries_labels.get().copied()
        };
        if are_carried == Some(false) {
            label(&pods, pod, &labels).await?;
        }
        let binding = binding(node, pod, written.annotations(), labels.clone());
        let parameters = PostParams::default();
        let _: Value = pods
            .create_subresource("binding", &pod.name, &parameters, &binding)
            .await?;
        match are_carried {
            Some(_) => Ok(()),
            None => self.learn(&pods, pod, &labels).await,
        }
    }

    /// Checks whether the binding's labels reached the pod, and writes them if they did not.
    async fn learn(
        &self,
        pods: &Api<Pod>,
        pod: &PodRef,
        labels: &Texts,
    ) -> Result<(), kube::Error> {
        let current = pods.get_metadata(&pod.name).await?;
        let are_carried =
            (labels.iter()).all(|(key, value)| current.labels().get(key) == Some(value));
        let _ = self.carries_labels.set(are_carried);
        if are_carried {
            Ok(())
        } else {
            label(pods, pod, labels).await
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

fn binding(node: &str, pod: &PodRef, annotations: Texts, labels: Texts) -> Binding {
    Binding {
        metadata: ObjectMeta {
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            uid: Some(pod.uid.clone()),
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
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

impl BindingMetadata<'_> {
    fn annotations(self) -> Texts {
        let mut annotations = Texts::new();
        if let Some(received) = self.received {
            annotations.insert(RECEIVED.to_owned(), received.to_owned());
            if !self.cards.is_empty() {
                annotations.insert(CARDS.to_owned(), annotation(self.cards));
            }
        }
        if let Some(allocated) = self.allocated {
            annotations.insert(ALLOCATED.to_owned(), allocated.to_owned());
        }
        if !self.zones.is_empty() {
            annotations.insert(
                ANNOTATION_NUMA_PREDICTED.to_owned(),
                pod_zones::text(self.zones),
            );
        }
        if let Some(joins) = self.joins {
            annotations.insert(ANNOTATION_GROUP.to_owned(), joins.group.clone());
        }
        annotations
    }

    fn labels(self, serves_kai: bool) -> Texts {
        let mut labels = self.joins.map_or_else(Texts::new, membership_labels);
        if serves_kai && self.received == Some(FRACTION) {
            labels.extend(self.shared());
        }
        labels
    }

    /// KAI's labels for the cards that a pod shares with others.
    fn shared(self) -> impl Iterator<Item = (String, String)> {
        let is_one = self.cards.len() == 1;
        self.cards.iter().map(move |share| {
            let card = &share.card;
            let label = if is_one {
                LABEL_GPU_GROUP.to_owned()
            } else {
                format!("{LABEL_GPU_GROUP}/{card}")
            };
            (label, card.clone())
        })
    }
}

/// The label for a pod's subgroup.
pub(super) fn membership_labels(membership: &GroupMembership) -> Texts {
    let part = membership.part.iter();
    part.map(|part| (LABEL_SUBGROUP.to_owned(), part.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kais_label_is_written_only_in_place_of_kai() {
        let cards = ["GPU-1=1", "GPU-2=1"].map(|text| text.parse().unwrap());
        let written = |count: usize| BindingMetadata {
            cards: &cards[..count],
            received: Some(FRACTION),
            allocated: Some("gpu-memory=2000"),
            zones: &[],
            joins: None,
        };
        assert_eq!(written(1).labels(false), Texts::new());
        assert_eq!(written(1).labels(true)[LABEL_GPU_GROUP], "GPU-1");
        assert_eq!(written(2).labels(true).len(), 2);
        assert_eq!(written(2).annotations()[CARDS], annotation(&cards));
        assert_eq!(written(2).annotations()[ALLOCATED], "gpu-memory=2000");
    }

    #[test]
    fn a_pod_gets_its_group_with_its_binding_whether_it_got_cards_or_not() {
        let joins = GroupMembership {
            group: "pg".to_owned(),
            part: Some("workers".to_owned()),
        };
        let written = BindingMetadata {
            cards: &[],
            received: None,
            allocated: None,
            zones: &[],
            joins: Some(&joins),
        };
        let expected = |key: &str, value: &str| Texts::from([(key.to_owned(), value.to_owned())]);
        assert_eq!(written.annotations(), expected(ANNOTATION_GROUP, "pg"));
        assert_eq!(written.labels(false), expected(LABEL_SUBGROUP, "workers"));
    }
}
