//! The input of a rule: a pod, its owners and the cluster.

use serde_json::Value;

use crate::defaults::KindDefaults;
use crate::names::{LABEL_NODE_POOL, LABEL_QUEUE};
use crate::object::ObjectView;
use crate::objects::ObjectStore;

/// A pod with its owners, and what its rule may look up.
#[derive(Debug, Clone)]
pub struct GroupingInput<'a> {
    /// The pod.
    pub pod: ObjectView<'a>,
    /// The owner whose rule decides: the topmost one, or the pod itself if nothing owns it.
    pub owner: ObjectView<'a>,
    /// All owners, the nearest first. It may be partial (metadata only) and may end with `owner`.
    pub chain: Vec<ObjectView<'a>>,
    /// The rest of the cluster.
    pub objects: &'a ObjectStore,
    /// The settings of this cluster.
    pub settings: &'a GroupingSettings,
}

/// What an administrator sets once for a cluster.
#[derive(Debug, Clone)]
pub struct GroupingSettings {
    /// The label that names a queue.
    pub queue_label: String,
    /// The label that names a node pool.
    pub node_pool_label: String,
    /// Whether the pods of a Knative revision are one gang.
    pub gang_knative: bool,
    /// Whether Jobs keep groups that older versions named after single pods.
    pub keeps_old_names: bool,
    /// The defaults for each kind of owner.
    pub defaults: KindDefaults,
    /// Karta definitions, for kinds without a row.
    pub kartas: Vec<Value>,
}

impl Default for GroupingSettings {
    fn default() -> Self {
        Self {
            queue_label: LABEL_QUEUE.to_owned(),
            node_pool_label: LABEL_NODE_POOL.to_owned(),
            gang_knative: true,
            keeps_old_names: false,
            defaults: KindDefaults::default(),
            kartas: Vec::new(),
        }
    }
}

impl<'a> GroupingInput<'a> {
    /// A pod whose owners are `chain`, the nearest first.
    pub fn new(
        pod: ObjectView<'a>,
        chain: Vec<ObjectView<'a>>,
        objects: &'a ObjectStore,
        settings: &'a GroupingSettings,
    ) -> Self {
        Self {
            pod,
            owner: chain.last().copied().unwrap_or(pod),
            chain,
            objects,
            settings,
        }
    }

    /// The same input with another owner to decide.
    pub(crate) fn owned_by<'b>(&'b self, owner: ObjectView<'b>) -> GroupingInput<'b> {
        GroupingInput {
            owner,
            ..self.clone()
        }
    }

    /// All owners, the nearest first.
    pub(crate) fn owners(&self) -> impl Iterator<Item = ObjectView<'a>> {
        let missing = !self.chain.iter().any(|known| known.is(self.owner));
        let chain = self.chain.clone();
        chain.into_iter().chain(missing.then_some(self.owner))
    }

    /// The owners whose terms count for a kind without a rule of its own: all of them.
    pub(crate) fn all_specs(&self) -> Vec<ObjectView<'a>> {
        match self.chain.as_slice() {
            [] => vec![self.owner],
            chain => chain.to_vec(),
        }
    }

    pub(crate) fn namespace(&self) -> &'a str {
        self.pod.namespace()
    }
}
