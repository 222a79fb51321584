//! What the rules may look up besides a pod and its owners.
//!
//! A few rules need a second object: the Job of a CronJob, the RayCluster of a RayJob, the PodGang that
//! a label names, a group that an older version made. The caller keeps them here, by kind, namespace and
//! name, and changes single ones as its watches report them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::malformed::Malformed;
use crate::object::Object;

/// Objects by kind, namespace and name.
#[derive(Debug, Clone, Default)]
pub struct Objects(BTreeMap<(String, String, String), Value>);

impl Objects {
    /// Enters an object, in place of the one that it is a newer version of.
    pub fn insert(&mut self, json: Value) {
        let key = key(Object::new(&json));
        self.0.insert(key, json);
    }

    /// Forgets an object.
    pub fn remove(&mut self, object: Object<'_>) {
        self.0.remove(&key(object));
    }

    /// Finds an object by name.
    pub fn find(&self, kind: &str, namespace: &str, name: &str) -> Option<Object<'_>> {
        self.0
            .get(&(kind.to_owned(), namespace.to_owned(), name.to_owned()))
            .map(Object::new)
    }

    /// All objects of a kind, by namespace and name.
    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = Object<'_>> {
        let kind = kind.to_owned();
        self.0
            .range((kind.clone(), String::new(), String::new())..)
            .take_while(move |((found, _, _), _)| *found == kind)
            .map(|(_, json)| Object::new(json))
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = Object<'_>> {
        self.0.values().map(Object::new)
    }

    pub(crate) fn need(
        &self,
        kind: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<Object<'_>, Malformed> {
        self.find(kind, namespace, name)
            .ok_or_else(|| Malformed::NotFound {
                kind,
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })
    }

    pub(crate) fn pods(&self, namespace: &str) -> impl Iterator<Item = Object<'_>> {
        let from = ("Pod".to_owned(), namespace.to_owned(), String::new());
        self.0
            .range(from..)
            .take_while(move |((kind, within, _), _)| kind == "Pod" && within == namespace)
            .map(|(_, json)| Object::new(json))
    }

    pub(crate) fn has_priority_class(&self, name: &str) -> bool {
        self.find("PriorityClass", "", name).is_some()
    }

    /// Whether this group exists and has no subgroups: an older version made it, and its pods run by it.
    pub fn is_flat(&self, namespace: &str, group: &str) -> bool {
        self.find("PodGroup", namespace, group)
            .is_some_and(|found| {
                found
                    .list(&["spec", "subGroups"])
                    .is_ok_and(<[_]>::is_empty)
            })
    }
}

impl FromIterator<Value> for Objects {
    fn from_iter<T: IntoIterator<Item = Value>>(objects: T) -> Self {
        let mut all = Self::default();
        objects.into_iter().for_each(|json| all.insert(json));
        all
    }
}

fn key(object: Object<'_>) -> (String, String, String) {
    (
        object.kind().to_owned(),
        object.namespace().to_owned(),
        object.name().to_owned(),
    )
}
