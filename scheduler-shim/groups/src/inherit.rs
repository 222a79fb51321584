//! What every group takes over from its owners and its pod, whatever their kind.
//!
//! A value that means nothing (a priority class that does not exist, an unknown word, a duration
//! without a unit) is passed over, and the next place is asked.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::defaults::KindDefault;
use crate::duration::parse_duration;
use crate::group::{Owner, PodGroup, Preemptibility, Topology};
use crate::names::{
    ANNOTATION_DELAY, ANNOTATION_PREFERRED, ANNOTATION_REQUIRED, ANNOTATION_TOP_OWNER,
    ANNOTATION_TOPOLOGY, DEFAULT_QUEUE, LABEL_OLD_QUEUE, LABEL_PREEMPTIBILITY, LABEL_PRIORITY,
    LABEL_PROJECT, LABEL_USER,
};
use crate::object::Object;
use crate::workload::Workload;

impl<'a> Workload<'a> {
    /// One group for the owner, in which one pod is enough.
    pub(crate) fn plain(&self, priority: &str) -> PodGroup {
        PodGroup {
            name: group_name(self.owner),
            namespace: self.namespace().to_owned(),
            owner: Owner::of(self.owner),
            queue: self.queue(),
            priority_class: self.priority_class(priority),
            preemptibility: self.preemptibility(),
            preemption_delay: self.preemption_delay(),
            min_member: 1,
            min_sub_group: None,
            labels: self.labels(),
            annotations: self.annotations(),
            topology: Topology {
                name: self.annotation(ANNOTATION_TOPOLOGY),
                required: self.annotation(ANNOTATION_REQUIRED),
                preferred: self.annotation(ANNOTATION_PREFERRED),
            },
            sub_groups: Vec::new(),
        }
    }

    fn queue(&self) -> String {
        let asked = [self.owner, self.pod];
        let named = |key: &str| asked.iter().find_map(|object| object.label(key));
        let queue = named(&self.settings.queue_label).or_else(|| named(LABEL_OLD_QUEUE));
        if let Some(queue) = queue {
            return queue.to_owned();
        }
        match (
            named(LABEL_PROJECT),
            self.pod.label(&self.settings.node_pool_label),
        ) {
            (Some(project), Some(pool)) => format!("{project}-{pool}"),
            (Some(project), None) => project.to_owned(),
            (None, _) => DEFAULT_QUEUE.to_owned(),
        }
    }

    /// The priority class: the first that exists of those that the labels, the pod and the defaults of
    /// the kind name, else `default`.
    pub fn priority_class(&self, default: &str) -> String {
        self.owners()
            .filter_map(|owner| owner.label(LABEL_PRIORITY))
            .chain(self.pod.label(LABEL_PRIORITY))
            .chain(self.pod.text(&["spec", "priorityClassName"]))
            .chain(self.kind_default().map(|kind| kind.priority_class.as_str()))
            .find(|name| self.objects.has_priority_class(name))
            .unwrap_or(default)
            .to_owned()
    }

    /// What the labels say about eviction, else the defaults of the kind.
    pub fn preemptibility(&self) -> Option<Preemptibility> {
        self.owners()
            .chain([self.pod])
            .filter_map(|object| object.label(LABEL_PREEMPTIBILITY))
            .find_map(Preemptibility::parse)
            .or_else(|| self.kind_default()?.preemptibility)
    }

    /// How long the group must wait before it may evict others.
    pub fn preemption_delay(&self) -> Option<Duration> {
        self.owners()
            .chain([self.pod])
            .filter_map(|object| object.annotation(ANNOTATION_DELAY))
            .find_map(parse_duration)
    }

    pub(crate) fn kind_default(&self) -> Option<&KindDefault> {
        let settings = self.settings;
        settings
            .defaults
            .of(self.owner.api_group(), self.owner.kind())
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = texts(self.owner, "labels");
        if let Some(user) = self.pod.label(LABEL_USER) {
            labels
                .entry(LABEL_USER.to_owned())
                .or_insert_with(|| user.to_owned());
        }
        labels
    }

    fn annotations(&self) -> BTreeMap<String, String> {
        let mut annotations = texts(self.owner, "annotations");
        annotations.insert(ANNOTATION_TOP_OWNER.to_owned(), top_owner(self.owner));
        annotations
    }

    fn annotation(&self, key: &str) -> String {
        [self.owner, self.pod]
            .iter()
            .find_map(|object| object.annotation(key))
            .unwrap_or_default()
            .to_owned()
    }
}

/// The name of the one group of an owner.
pub(crate) fn group_name(owner: Object<'_>) -> String {
    format!("pg-{}-{}", owner.name(), owner.uid())
}

fn texts(object: Object<'_>, field: &str) -> BTreeMap<String, String> {
    let all = object.map(&["metadata", field]).into_iter().flatten();
    all.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// The owner in a form that outlives it; JSON, which readers of YAML understand too.
fn top_owner(owner: Object<'_>) -> String {
    let metadata: Value = json!({
        "name": owner.name(),
        "uid": owner.uid(),
        "group": owner.api_group(),
        "version": owner.version(),
        "kind": owner.kind(),
    });
    metadata.to_string()
}

/// A placement wish in the annotations of a pod template; its topology may be named further up.
pub(crate) fn template_topology(template: Object<'_>, owner: Object<'_>) -> Option<Topology> {
    let text = |key| template.annotation(key).unwrap_or_default().to_owned();
    let name = template
        .annotation(ANNOTATION_TOPOLOGY)
        .or_else(|| owner.annotation(ANNOTATION_TOPOLOGY))?;
    Topology {
        name: name.to_owned(),
        required: text(ANNOTATION_REQUIRED),
        preferred: text(ANNOTATION_PREFERRED),
    }
    .some()
}
