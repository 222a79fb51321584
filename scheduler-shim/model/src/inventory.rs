//! All objects by kind, namespace and name.
//!
//! Equal objects with one name are one object; of different ones the newest counts. Objects of kinds that no decision
//! needs are only counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apportion_claims::IMPLICIT_RESOURCE;
use apportion_groups::{ObjectStore, ObjectView, TABLE};
use serde_json::{Value, json};

use super::change_counters::ChangeCounters;
use super::claim_store::ClaimStore;
use super::object_kinds::is_cluster_wide;
use super::object_warnings::{ObjectWarnings, called};
use super::parsed_objects::{ParsedNode, ParsedPod, ParsedPodGroup};

/// The priority classes that KAI installs, for clusters whose dump leaves them out.
const CLASSES: &[(&str, i32)] = &[
    ("train", 50),
    ("build-preemptible", 75),
    ("build", 100),
    ("inference", 125),
];

/// The objects that decisions need.
#[derive(Debug, Default)]
pub struct ObjectInventory {
    objects: ObjectStore,
    /// By namespace and name, in the same order as the objects.
    pods: BTreeMap<String, BTreeMap<String, Box<ParsedPod>>>,
    /// Pods that name a device class in place of a resource, by namespace and name.
    by_class: BTreeSet<(String, String)>,
    /// What the pod that was parsed last requires of its node. Most pods require the same and share it.
    last_key: Arc<str>,
    pod_groups: BTreeMap<String, BTreeMap<String, ParsedPodGroup>>,
    nodes: BTreeMap<String, ParsedNode>,
    /// Claims, and the devices for them.
    pub claims: ClaimStore,
    /// How often each part of a group changed.
    pub ages: ChangeCounters,
    /// How many objects of which kinds were ignored.
    pub ignored: BTreeMap<String, usize>,
    /// The kinds that cannot be read, if all others are complete as in a running cluster: a missing owner is then
    /// still to come. `None` if any object may be missing, as in a file.
    pub unreadable: Option<BTreeSet<String>>,
}

impl ObjectInventory {
    /// The inventory of these objects.
    pub fn of(objects: Vec<Value>, warnings: &mut ObjectWarnings) -> Self {
        let mut all = Self::default();
        for object in objects {
            all.enter(object, warnings);
        }
        all.add_classes();
        all
    }

    /// Adds KAI's priority classes that do not exist.
    fn add_classes(&mut self) {
        for (name, value) in CLASSES {
            if self.find("PriorityClass", "", name).is_none() {
                let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                    "metadata": {"name": name}, "value": value});
                self.set(&class);
            }
        }
    }

    fn enter(&mut self, json: Value, warnings: &mut ObjectWarnings) {
        if let Some(json) = self.sorted(json, warnings) {
            self.keep(json, warnings);
        }
    }

    /// Adds an object, or replaces its older version.
    pub fn put(&mut self, json: Value, warnings: &mut ObjectWarnings) {
        if let Some(json) = self.sorted(json, warnings) {
            self.set(&json);
        }
    }

    /// Removes an object.
    pub fn remove(&mut self, json: &Value) {
        let object = ObjectView::new(json);
        let (kind, namespace) = (object.kind(), object.namespace());
        let known = self.objects.find(kind, namespace, object.name());
        self.ages.record(known, None);
        self.objects.remove(object);
        match kind {
            "Pod" => {
                if let Some(named) = self.pods.get_mut(namespace) {
                    named.remove(object.name());
                }
                self.pods.retain(|_, named| !named.is_empty());
                if !self.by_class.is_empty() {
                    let name = (namespace.to_owned(), object.name().to_owned());
                    self.by_class.remove(&name);
                }
            }
            "PodGroup" => {
                if let Some(named) = self.pod_groups.get_mut(namespace) {
                    named.remove(object.name());
                }
                self.pod_groups.retain(|_, named| !named.is_empty());
            }
            "Node" => drop(self.nodes.remove(object.name())),
            "ResourceClaim" | "ResourceSlice" | "DeviceClass" => self.claims.remove(object),
            "PriorityClass" => self.add_classes(),
            _ => {}
        }
    }

    /// Stores an object, and its parsed form.
    fn set(&mut self, json: &Value) {
        let object = ObjectView::new(json);
        match object.kind() {
            "Pod" => {
                let named = self.pods.entry(object.namespace().to_owned()).or_default();
                let mut read = Box::new(ParsedPod::of(object));
                if read.requirements_key == self.last_key {
                    read.requirements_key = Arc::clone(&self.last_key);
                } else {
                    self.last_key = Arc::clone(&read.requirements_key);
                }
                let is_by_class =
                    (read.holds.resources()).any(|name| name.starts_with(IMPLICIT_RESOURCE));
                if is_by_class || !self.by_class.is_empty() {
                    let name = (object.namespace().to_owned(), object.name().to_owned());
                    if is_by_class {
                        self.by_class.insert(name)
                    } else {
                        self.by_class.remove(&name)
                    };
                }
                named.insert(object.name().to_owned(), read);
            }
            "PodGroup" => {
                let named = (self.pod_groups).entry(object.namespace().to_owned());
                let read = ParsedPodGroup::of(object);
                named.or_default().insert(object.name().to_owned(), read);
            }
            "Node" => {
                let name = object.name().to_owned();
                self.nodes.insert(name, ParsedNode::of(object));
            }
            "ResourceClaim" | "ResourceSlice" | "DeviceClass" => self.claims.set(object),
            _ => {}
        }
        let (kind, namespace) = (object.kind(), object.namespace());
        let known = self.objects.find(kind, namespace, object.name());
        self.ages.record(known, Some(object));
        self.objects.insert(json);
    }

    /// The object as it is stored; `None` if no decision needs it, or if it is invalid.
    fn sorted(&mut self, mut json: Value, warnings: &mut ObjectWarnings) -> Option<Value> {
        let object = ObjectView::new(&json);
        let (kind, group) = (object.kind().to_owned(), object.api_group().to_owned());
        let Some(is_cluster_wide) = is_cluster_wide(&group, &kind) else {
            let kind = if kind.is_empty() { "no kind" } else { &kind };
            *self.ignored.entry(kind.to_owned()).or_default() += 1;
            return None;
        };
        let name = object.name().to_owned();
        if name.is_empty() {
            warnings.add(&kind, "it has no metadata.name and is ignored");
            return None;
        }
        let namespace = match object.namespace() {
            _ if is_cluster_wide => "",
            "" => "default",
            namespace => namespace,
        };
        let namespace = namespace.to_owned();
        let called = called(&kind, &namespace, &name);
        if let Some(wrong) = not_text(&json) {
            warnings.add(called, wrong);
            return None;
        }
        json["metadata"]["namespace"] = namespace.as_str().into();
        if ObjectView::new(&json).uid().is_empty() {
            json["metadata"]["uid"] = kind.to_lowercase().into();
        }
        Some(json)
    }

    fn keep(&mut self, json: Value, warnings: &mut ObjectWarnings) {
        let object = ObjectView::new(&json);
        let called = called(object.kind(), object.namespace(), object.name());
        let known = self.find(object.kind(), object.namespace(), object.name());
        let known = known.map(|known| known.json());
        if known.is_some_and(|known| *known != json) {
            let message = "it is given more than once with different contents; the newest is used";
            warnings.add(called, message);
        }
        if known.is_none_or(|known| rank(&json) > rank(known)) {
            self.set(&json);
        }
    }

    /// All pods with their parsed form, by namespace and name.
    pub fn pods(&self) -> impl Iterator<Item = (ObjectView<'_>, &ParsedPod)> {
        let read = self.pods.values().flat_map(BTreeMap::values);
        self.all("Pod").zip(read.map(Box::as_ref))
    }

    /// The parsed form of a pod.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&ParsedPod> {
        let read = self.pods.get(namespace)?.get(name);
        read.map(Box::as_ref)
    }

    /// Whether any pod names a device class in place of a resource.
    pub(crate) fn asks_by_class(&self) -> bool {
        !self.by_class.is_empty()
    }

    /// The parsed form of a PodGroup.
    pub(crate) fn pod_group(&self, namespace: &str, name: &str) -> Option<&ParsedPodGroup> {
        self.pod_groups.get(namespace)?.get(name)
    }

    /// All nodes with their parsed form, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (ObjectView<'_>, &ParsedNode)> {
        self.all("Node").zip(self.nodes.values())
    }

    /// All objects of a kind, by namespace and name.
    pub fn all(&self, kind: &str) -> impl Iterator<Item = ObjectView<'_>> {
        self.objects.of_kind(kind)
    }

    /// Every object.
    pub fn every(&self) -> impl Iterator<Item = ObjectView<'_>> {
        self.objects.iter()
    }

    /// An object by name.
    pub fn find(&self, kind: &str, namespace: &str, name: &str) -> Option<ObjectView<'_>> {
        self.objects.find(kind, namespace, name)
    }

    /// Adds objects that were derived from others.
    pub fn extend(&mut self, objects: Vec<Value>, warnings: &mut ObjectWarnings) {
        for object in objects {
            self.enter(object, warnings);
        }
    }

    /// Drops the JSON of objects that are stored as text. It is parsed again when somebody reads it.
    pub fn drop_cache(&mut self) {
        self.objects.drop_cache();
    }

    /// Whether a missing owner of a pod is still to come: its kind has a grouping rule, and can be read.
    pub fn awaits(&self, owner: ObjectView<'_>) -> bool {
        let Some(unreadable) = &self.unreadable else {
            return false;
        };
        let (group, kind) = (owner.api_group(), owner.kind());
        let is_here = |namespace| self.find(kind, namespace, owner.name()).is_some();
        let mut rules = TABLE.iter();
        // Some owners are cluster-scoped.
        rules.any(|row| (row.api_group, row.kind) == (group, kind))
            && !unreadable.contains(kind)
            && !is_here(owner.namespace())
            && !is_here("")
    }

    /// The objects, for lookups by grouping rules.
    pub fn lookup(&self) -> &ObjectStore {
        &self.objects
    }
}

/// The newer version is greater. The text decides if nothing else does.
fn rank(json: &Value) -> (u64, String) {
    let version = json["metadata"]["resourceVersion"].as_str();
    let version = version.and_then(|version| version.parse().ok());
    (version.unwrap_or(0), json.to_string())
}

/// Labels and annotations are strings. Kubernetes rejects a number without quotes.
fn not_text(json: &Value) -> Option<String> {
    for field in ["labels", "annotations"] {
        let entries = json["metadata"][field].as_object().into_iter().flatten();
        for (key, value) in entries {
            if !value.is_string() && !value.is_null() {
                let field = field.trim_end_matches('s');
                return Some(format!(
                    "its {field} {key} is {value}, which is not a string; quote it. The object is ignored"
                ));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kais_classes_are_there_where_nobody_has_made_them_or_took_theirs_away() {
        let mut warnings = ObjectWarnings::default();
        let mut all = ObjectInventory::of(Vec::new(), &mut warnings);
        let value = |all: &ObjectInventory| {
            let found = all.find("PriorityClass", "", "build")?;
            found.json()["value"].as_i64()
        };
        assert_eq!(value(&all), Some(100));
        let theirs = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": "build", "uid": "u1"}, "value": 200});
        all.put(theirs.clone(), &mut warnings);
        assert_eq!(value(&all), Some(200));
        all.remove(&theirs);
        assert_eq!(value(&all), Some(100));
    }
}
