//! Objects that rules may look up besides a pod and its owners.
//!
//! A few rules need a second object: the Job of a CronJob, the RayCluster of a RayJob, the PodGang that a label
//! names, a group that an older version made. The caller keeps them here by kind, namespace and name, and updates
//! single objects as its watches report them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::error::GroupingError;
use crate::lazy_object::LazyObject;
use crate::object::ObjectView;

/// A map by words that many objects share.
type By<T> = BTreeMap<Arc<str>, T>;

/// The objects of a kind in a namespace.
#[derive(Debug)]
struct ObjectsByName {
    named: By<LazyObject>,
    /// The text that the next object is probably similar to.
    dictionary: Arc<str>,
}

impl Default for ObjectsByName {
    fn default() -> Self {
        let (named, dictionary) = (By::new(), "".into());
        Self { named, dictionary }
    }
}

/// Objects by kind, namespace and name: nested maps, so that a lookup needs no key of its own.
#[derive(Debug, Default)]
pub struct ObjectStore {
    kinds: By<By<ObjectsByName>>,
    /// Whether lookups are traced. Written and read by one thread; orders no other memory access.
    is_traced: AtomicBool,
    /// What was looked up since tracing began.
    trace: Mutex<LookupTrace>,
}

/// Lookups of objects that may change without the pod; the result may change with them.
#[derive(Debug, Default)]
pub struct LookupTrace {
    /// Whether other pods, or groups by a part of a name, were looked at.
    pub listed_all: bool,
    /// The PodGroups that were looked up, by namespace and name, existing or not.
    pub pod_groups: Vec<(String, String)>,
}

impl ObjectStore {
    /// Adds an object, or replaces its older version.
    pub fn insert(&mut self, json: &Value) {
        let object = ObjectView::new(json);
        let (kind, within) = entry(&mut self.kinds, object.kind());
        let (namespace, all) = entry(within, object.namespace());
        let known = all.named.get_key_value(object.name());
        let name = known.map_or_else(|| object.name().into(), |(name, _)| name.clone());
        let dictionary = &mut all.dictionary;
        let lazy = LazyObject::new(json, kind, namespace, name.clone(), dictionary);
        all.named.insert(name, lazy);
    }

    /// Removes an object.
    pub fn remove(&mut self, object: ObjectView<'_>) {
        let Some(within) = self.kinds.get_mut(object.kind()) else {
            return;
        };
        let Some(all) = within.get_mut(object.namespace()) else {
            return;
        };
        all.named.remove(object.name());
        if all.named.is_empty() {
            within.remove(object.namespace());
        }
    }

    /// Drops all parsed JSON; the next read parses it again.
    pub fn drop_cache(&mut self) {
        let within = self.kinds.values_mut().flat_map(BTreeMap::values_mut);
        let all = within.flat_map(|all| all.named.values_mut());
        all.for_each(LazyObject::drop_cache);
    }

    /// Finds an object by name.
    pub fn find(&self, kind: &str, namespace: &str, name: &str) -> Option<ObjectView<'_>> {
        if kind == "PodGroup" {
            self.trace(|trace| {
                trace
                    .pod_groups
                    .push((namespace.to_owned(), name.to_owned()))
            });
        }
        let found = self.kinds.get(kind)?.get(namespace)?.named.get(name);
        found.map(ObjectView::lazy)
    }

    /// Runs `work`, and returns what it looked up.
    pub fn traced<T>(&self, work: impl FnOnce() -> T) -> (T, LookupTrace) {
        self.is_traced.store(true, Ordering::Relaxed);
        let done = work();
        self.is_traced.store(false, Ordering::Relaxed);
        let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        (done, std::mem::take(&mut *trace))
    }

    fn trace(&self, what: impl FnOnce(&mut LookupTrace)) {
        if self.is_traced.load(Ordering::Relaxed) {
            what(&mut self.trace.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// All objects of a kind, by namespace and name.
    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = ObjectView<'_>> {
        let within = self.kinds.get(kind).into_iter().flat_map(BTreeMap::values);
        let all = within.flat_map(|all| all.named.values());
        all.map(ObjectView::lazy)
    }

    /// All objects of all kinds.
    pub fn iter(&self) -> impl Iterator<Item = ObjectView<'_>> {
        let within = self.kinds.values().flat_map(BTreeMap::values);
        let all = within.flat_map(|all| all.named.values());
        all.map(ObjectView::lazy)
    }

    pub(crate) fn require(
        &self,
        resource: &RequiredResource,
        namespace: &str,
        name: &str,
    ) -> Result<ObjectView<'_>, GroupingError> {
        self.find(resource.kind, namespace, name)
            .ok_or_else(|| GroupingError::NotFound {
                resource: resource.name,
                name: name.to_owned(),
            })
    }

    pub(crate) fn pods(&self, namespace: &str) -> impl Iterator<Item = ObjectView<'_>> {
        self.trace(|trace| trace.listed_all = true);
        let named = self
            .kinds
            .get("Pod")
            .and_then(|all| all.get(namespace))
            .into_iter()
            .flat_map(|all| all.named.values());
        named.map(ObjectView::lazy)
    }

    pub(crate) fn has_priority_class(&self, name: &str) -> bool {
        self.find("PriorityClass", "", name).is_some()
    }

    /// Whether this group exists without subgroups: then an older version made it for pods that still run.
    pub fn is_flat(&self, namespace: &str, group: &str) -> bool {
        self.find("PodGroup", namespace, group).is_some_and(is_flat)
    }

    /// Whether such a group exists with this name, or with one that begins with it and a dash.
    pub(crate) fn has_flat(&self, namespace: &str, name: &str) -> bool {
        self.trace(|trace| trace.listed_all = true);
        let named = self
            .kinds
            .get("PodGroup")
            .and_then(|all| all.get(namespace));
        let Some(named) = named else {
            return false;
        };
        let from = (Bound::Included(name), Bound::Unbounded);
        named
            .named
            .range::<str, _>(from)
            .map_while(|(found, lazy)| Some((found.strip_prefix(name)?, lazy)))
            .filter(|(rest, _)| rest.is_empty() || rest.starts_with('-'))
            .any(|(_, lazy)| is_flat(ObjectView::lazy(lazy)))
    }
}

fn is_flat(group: ObjectView<'_>) -> bool {
    let apart = group.read_apart();
    ObjectView::new(&apart)
        .list(&["spec", "subGroups"])
        .is_ok_and(<[_]>::is_empty)
}

/// A kind of object that a rule needs and that may be missing.
pub(crate) struct RequiredResource {
    pub(crate) kind: &'static str,
    /// Its name in the API server's messages.
    pub(crate) name: &'static str,
}

impl FromIterator<Value> for ObjectStore {
    fn from_iter<T: IntoIterator<Item = Value>>(objects: T) -> Self {
        let mut all = Self::default();
        for json in objects {
            all.insert(&json);
        }
        all
    }
}

/// The entry of a word, and the shared copy of the word.
fn entry<'m, T: Default>(map: &'m mut By<T>, word: &str) -> (Arc<str>, &'m mut T) {
    let known = map.get_key_value(word);
    let word: Arc<str> = known.map_or_else(|| word.into(), |(word, _)| word.clone());
    (word.clone(), map.entry(word).or_default())
}
