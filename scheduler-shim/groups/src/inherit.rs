//! What every group inherits from its owners and its pod, whatever their kind.
//!
//! An invalid value (an unknown priority class or word, a duration without a unit) is skipped, and the next source
//! is tried.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::defaults::KindDefault;
use crate::error::GroupingError;
use crate::group::{
    DerivedPodGroup, DerivedTopologyConstraint, GroupPreemptibility, PodGroupOwner,
};
use crate::names::{
    ANNOTATION_DELAY, ANNOTATION_PREFERRED, ANNOTATION_REQUIRED, ANNOTATION_TOP_OWNER,
    ANNOTATION_TOPOLOGY, DEFAULT_QUEUE, LABEL_OLD_QUEUE, LABEL_PREEMPTIBILITY, LABEL_PRIORITY,
    LABEL_PROJECT, LABEL_USER,
};
use crate::object::ObjectView;
use crate::workload::GroupingInput;
use apportion_kubernetes::parse_duration;

impl<'a> GroupingInput<'a> {
    /// One group for the owner with a minimum of one pod, on the owner's terms.
    pub(crate) fn plain(&self, priority: &str) -> DerivedPodGroup {
        self.plain_of(&[self.owner], priority)
    }

    /// The same on the terms of several owners; the first that sets a value decides.
    pub(crate) fn plain_of(&self, owners: &[ObjectView<'a>], priority: &str) -> DerivedPodGroup {
        let of_owner = |key| self.owner.annotation(key).unwrap_or_default().to_owned();
        DerivedPodGroup {
            name: group_name(self.owner),
            namespace: self.namespace().to_owned(),
            owner: PodGroupOwner::of(self.owner),
            queue: self.queue(),
            priority_class: self.class_of(owners, priority),
            preemptibility: self.preemptibility_of(owners),
            preemption_delay: self.delay_of(owners),
            min_member: 1,
            min_sub_group: None,
            labels: self.labels(),
            annotations: self.annotations(),
            topology: DerivedTopologyConstraint {
                name: of_owner(ANNOTATION_TOPOLOGY),
                required: of_owner(ANNOTATION_REQUIRED),
                preferred: of_owner(ANNOTATION_PREFERRED),
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
        let project = asked.iter().find_map(|one| one.given_label(LABEL_PROJECT));
        match (
            project.filter(|project| !project.is_empty()),
            self.pod.given_label(&self.settings.node_pool_label),
        ) {
            (Some(project), Some(pool)) => format!("{project}-{pool}"),
            (Some(project), None) => project.to_owned(),
            (None, _) => DEFAULT_QUEUE.to_owned(),
        }
    }

    /// The priority class: the first that exists among those of the labels, the pod and the kinds' defaults, else
    /// `default`.
    pub fn priority_class(&self, default: &str) -> String {
        self.class_of(&self.all_specs(), default)
    }

    /// An owner's label hides what its pod says, even if it names no existing class.
    fn class_of(&self, owners: &[ObjectView<'a>], default: &str) -> String {
        let of_pod = self
            .pod
            .given_label(LABEL_PRIORITY)
            .or_else(|| self.pod.text(&["spec", "priorityClassName"]));
        let value = owners
            .iter()
            .filter_map(|owner| owner.given_label(LABEL_PRIORITY).or(of_pod));
        let usual = owners.iter().filter_map(|owner| self.default_of(*owner));
        value
            .chain(usual.map(|kind| kind.priority_class.as_str()))
            .find(|name| self.objects.has_priority_class(name))
            .unwrap_or(default)
            .to_owned()
    }

    /// Preemptibility from the labels, else from the defaults of the kind.
    pub fn preemptibility(&self) -> Option<GroupPreemptibility> {
        self.preemptibility_of(&self.all_specs())
    }

    /// An empty label means that the priority decides, whatever other sources say.
    fn preemptibility_of(&self, owners: &[ObjectView<'a>]) -> Option<GroupPreemptibility> {
        let value = owners
            .iter()
            .chain([&self.pod])
            .filter_map(|object| object.given_label(LABEL_PREEMPTIBILITY));
        for word in value {
            match GroupPreemptibility::parse(word) {
                None if !word.is_empty() => {}
                meant => return meant,
            }
        }
        let usual = owners.iter().filter_map(|owner| self.default_of(*owner));
        usual.filter_map(|kind| kind.preemptibility).next()
    }

    /// How long the group must wait before it may evict others.
    pub fn preemption_delay(&self) -> Option<Duration> {
        self.delay_of(&self.all_specs())
    }

    fn delay_of(&self, owners: &[ObjectView<'a>]) -> Option<Duration> {
        let value = owners.iter().chain([&self.pod]);
        value
            .filter_map(|object| object.annotation(ANNOTATION_DELAY))
            .find_map(parse_duration)
    }

    /// The cluster's defaults for an owner's kind.
    pub(crate) fn default_of(&self, owner: ObjectView<'_>) -> Option<&'a KindDefault> {
        let settings = self.settings;
        settings.defaults.of(owner.api_group(), owner.kind())
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = texts(self.owner, "labels");
        if let Some(user) = self.pod.given_label(LABEL_USER) {
            labels
                .entry(LABEL_USER.to_owned())
                .or_insert_with(|| user.to_owned());
        }
        labels
    }

    /// The annotations, with the owner as top owner. An owner made for another one (by a virtual cluster) may name
    /// that instead.
    fn annotations(&self) -> BTreeMap<String, String> {
        let user = self.pod.given_annotation(LABEL_USER);
        let user = user.map(|user| (LABEL_USER.to_owned(), user.to_owned()));
        let top = (ANNOTATION_TOP_OWNER.to_owned(), top_owner(self.owner));
        let mut annotations: BTreeMap<_, _> = user.into_iter().chain([top]).collect();
        annotations.extend(texts(self.owner, "annotations"));
        annotations
    }
}

/// The name of the one group of an owner.
pub(crate) fn group_name(owner: ObjectView<'_>) -> String {
    format!("pg-{}-{}", owner.name(), owner.uid())
}

pub(crate) fn texts(object: ObjectView<'_>, field: &str) -> BTreeMap<String, String> {
    let all = object.map(&["metadata", field]).into_iter().flatten();
    all.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// The top owner as an annotation, which outlives the object; JSON, so YAML parsers can read it, too.
fn top_owner(owner: ObjectView<'_>) -> String {
    let metadata: Value = json!({
        "name": owner.name(),
        "uid": owner.uid(),
        "group": owner.api_group(),
        "version": owner.version(),
        "kind": owner.kind(),
    });
    metadata.to_string()
}

/// The topology constraint in the annotations of a pod template; none without a topology.
pub(crate) fn template_topology(
    template: ObjectView<'_>,
) -> Result<DerivedTopologyConstraint, GroupingError> {
    let value = |key| {
        let text = template.string(&["metadata", "annotations", key])?;
        Ok(text.unwrap_or_default().to_owned())
    };
    Ok(DerivedTopologyConstraint {
        name: value(ANNOTATION_TOPOLOGY)?,
        required: value(ANNOTATION_REQUIRED)?,
        preferred: value(ANNOTATION_PREFERRED)?,
    })
}
