//! All slices and classes of a cluster, indexed for allocations.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use crate::expression::CompiledExpressions;
use crate::objects::{DeviceClass, ResourceSlice};

/// Stands before the name of a class in the extended resource that every class has.
pub const IMPLICIT_RESOURCE: &str = "deviceclass.resource.kubernetes.io/";

/// A slice, and the number of this version of it.
#[derive(Debug)]
pub(crate) struct KnownSlice {
    pub(crate) slice: ResourceSlice,
    version: u64,
}

impl KnownSlice {
    pub(crate) fn pool(&self) -> PoolName<'_> {
        PoolName {
            driver: &self.slice.spec.driver,
            pool: &self.slice.spec.pool.name,
        }
    }

    fn node(&self) -> Option<&str> {
        let node = self.slice.spec.node_name.as_deref();
        node.filter(|node| !node.is_empty())
    }
}

/// A pool is named by its driver and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PoolName<'a> {
    pub(crate) driver: &'a str,
    pub(crate) pool: &'a str,
}

/// A version of a slice, and the place of a device in it.
type DeviceVersion = (u64, usize);
/// The values of a condition, as far as they are known.
type KnownValues = HashMap<DeviceVersion, Result<bool, String>>;

/// The slices and classes of a cluster.
///
/// The value of a condition for a device is kept as long as the slice does not change: the same conditions meet the
/// same devices for every pod and every node.
#[derive(Debug, Default)]
pub struct DeviceInventory {
    slices: BTreeMap<String, Arc<KnownSlice>>,
    /// Names of the slices of each node.
    by_node: HashMap<String, BTreeSet<String>>,
    /// Names of the slices of no single node.
    shared: BTreeSet<String>,
    /// Names of the slices of each pool, by driver and pool.
    by_pool: HashMap<(String, String), BTreeSet<String>>,
    classes: BTreeMap<String, Arc<DeviceClass>>,
    /// Names of the classes of each extended resource.
    by_resource: BTreeMap<String, BTreeSet<String>>,
    last_version: u64,
    changes: u64,
    outdated: usize,
    expressions: CompiledExpressions,
    values: Mutex<HashMap<String, KnownValues>>,
}

impl DeviceInventory {
    /// Adds a slice, or replaces the one with its name.
    pub fn set_slice(&mut self, slice: ResourceSlice) {
        let name = slice.metadata.name.clone();
        self.remove_slice(&name);
        self.last_version += 1;
        self.changes += 1;
        let known = KnownSlice {
            slice,
            version: self.last_version,
        };
        self.names_of(&known).insert(name.clone());
        let pool = owned(known.pool());
        self.by_pool.entry(pool).or_default().insert(name.clone());
        self.slices.insert(name, Arc::new(known));
    }

    /// Removes a slice.
    pub fn remove_slice(&mut self, name: &str) {
        let Some(known) = self.slices.remove(name) else {
            return;
        };
        self.changes += 1;
        self.names_of(&known).remove(name);
        if let Some(node) = known.node()
            && self.by_node.get(node).is_some_and(BTreeSet::is_empty)
        {
            self.by_node.remove(node);
        }
        let pool = owned(known.pool());
        if let Some(names) = self.by_pool.get_mut(&pool) {
            names.remove(name);
            if names.is_empty() {
                self.by_pool.remove(&pool);
            }
        }
        self.outdated += 1;
        if self.outdated > self.slices.len() {
            self.forget_outdated();
        }
    }

    /// Adds a class, or replaces the one with its name.
    pub fn set_class(&mut self, class: DeviceClass) {
        let name = class.metadata.name.clone();
        self.remove_class(&name);
        if let Some(resource) = &class.spec.extended_resource_name {
            let names = self.by_resource.entry(resource.clone()).or_default();
            names.insert(name.clone());
        }
        self.classes.insert(name, Arc::new(class));
    }

    /// Removes a class.
    pub fn remove_class(&mut self, name: &str) {
        self.changes += 1;
        let class = self.classes.remove(name);
        let resource = class.and_then(|class| class.spec.extended_resource_name.clone());
        if let Some(resource) = resource
            && let Some(names) = self.by_resource.get_mut(&resource)
        {
            names.remove(name);
            if names.is_empty() {
                self.by_resource.remove(&resource);
            }
        }
    }

    /// Whether any class names an extended resource.
    #[must_use]
    pub fn names_resources(&self) -> bool {
        !self.by_resource.is_empty()
    }

    /// The class whose devices an extended resource means: every class has an implicit name, and may give another one.
    /// Of several classes with one name, the newest counts, then the first by name.
    #[must_use]
    pub fn class_of_resource(&self, resource: &str) -> Option<&DeviceClass> {
        if let Some(class) = resource.strip_prefix(IMPLICIT_RESOURCE) {
            return self.class(class);
        }
        let names = self.by_resource.get(resource)?.iter();
        let classes = names.filter_map(|name| self.class(name));
        classes.max_by_key(|class| {
            let created = class.metadata.creation_timestamp.clone();
            (created, Reverse(class.metadata.name.clone()))
        })
    }

    /// The class with that name.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<&DeviceClass> {
        self.classes.get(name).map(Arc::as_ref)
    }

    pub(crate) fn classes(&self) -> impl Iterator<Item = &DeviceClass> {
        self.classes.values().map(Arc::as_ref)
    }

    pub(crate) fn slices(&self) -> impl Iterator<Item = &KnownSlice> {
        self.slices.values().map(Arc::as_ref)
    }

    /// A number that is another one whenever a slice or a class was another one.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.changes
    }

    /// Whether there are no slices at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// The slices that a node may reach: its own, and those of no single node.
    pub(crate) fn near(&self, node: &str) -> impl Iterator<Item = &KnownSlice> {
        let own = self.by_node.get(node).into_iter().flatten();
        let names = own.chain(&self.shared);
        names.filter_map(|name| self.slices.get(name).map(Arc::as_ref))
    }

    /// All slices of a pool, for whatever nodes.
    pub(crate) fn of_pool(&self, pool: PoolName<'_>) -> impl Iterator<Item = &KnownSlice> {
        let names = self.by_pool.get(&owned(pool)).into_iter().flatten();
        names.filter_map(|name| self.slices.get(name).map(Arc::as_ref))
    }

    /// The value of a condition for the device at this place of a slice.
    pub(crate) fn value(
        &self,
        expression: &str,
        known: &KnownSlice,
        device: usize,
    ) -> Result<bool, String> {
        let index = (known.version, device);
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = values.get(expression).and_then(|known| known.get(&index)) {
            return value.clone();
        }
        let spec = &known.slice.spec;
        let value = self
            .expressions
            .evaluate(expression, &spec.driver, &spec.devices[device]);
        let known = values.entry(expression.to_owned()).or_default();
        known.insert(index, value.clone());
        value
    }

    /// Forgets conditions that neither a class nor, as `is_used` says, a claim has.
    pub fn forget_conditions(&mut self, is_used: impl Fn(&str) -> bool) {
        let selectors = self
            .classes
            .values()
            .flat_map(|class| &class.spec.selectors);
        let of_classes: BTreeSet<&str> = selectors
            .filter_map(|selector| Some(selector.cel.as_ref()?.expression.as_str()))
            .collect();
        let stays = |text: &str| of_classes.contains(text) || is_used(text);
        self.expressions.keep(stays);
        let values = self
            .values
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        values.retain(|text, _| stays(text));
    }

    fn names_of(&mut self, known: &KnownSlice) -> &mut BTreeSet<String> {
        match known.node() {
            Some(node) => self.by_node.entry(node.to_owned()).or_default(),
            None => &mut self.shared,
        }
    }

    fn forget_outdated(&mut self) {
        let versions = self.slices.values().map(|known| known.version);
        let versions: BTreeSet<u64> = versions.collect();
        let values = self
            .values
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for known in values.values_mut() {
            known.retain(|(version, _), _| versions.contains(version));
        }
        self.outdated = 0;
    }
}

fn owned(pool: PoolName<'_>) -> (String, String) {
    (pool.driver.to_owned(), pool.pool.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, created: &str, resource: Option<&str>) -> DeviceClass {
        let mut class = DeviceClass::default();
        class.metadata.name = name.to_owned();
        class.metadata.creation_timestamp = created.to_owned();
        class.spec.extended_resource_name = resource.map(str::to_owned);
        class
    }

    #[test]
    fn the_newest_class_has_a_name_and_the_next_one_gets_it_when_that_is_gone() {
        let mut all = DeviceInventory::default();
        assert!(!all.names_resources());
        let gpu = Some("nvidia.com/gpu");
        all.set_class(class("old", "2026-01-01T00:00:00Z", gpu));
        all.set_class(class("b", "2026-01-02T00:00:00Z", gpu));
        all.set_class(class("c", "2026-01-02T00:00:00Z", gpu));
        all.set_class(class("unnamed", "2026-01-03T00:00:00Z", None));
        let name = |all: &DeviceInventory, resource: &str| {
            let class = all.class_of_resource(resource);
            class.map(|class| class.metadata.name.clone())
        };
        assert_eq!(name(&all, "nvidia.com/gpu").as_deref(), Some("b"));
        all.set_class(class("b", "2026-01-02T00:00:00Z", Some("example.com/gpu")));
        assert_eq!(name(&all, "nvidia.com/gpu").as_deref(), Some("c"));
        assert_eq!(name(&all, "example.com/gpu").as_deref(), Some("b"));
        all.remove_class("c");
        assert_eq!(name(&all, "nvidia.com/gpu").as_deref(), Some("old"));
        all.remove_class("old");
        assert_eq!(name(&all, "nvidia.com/gpu"), None);
        let implicit = "deviceclass.resource.kubernetes.io/unnamed";
        assert_eq!(name(&all, implicit).as_deref(), Some("unnamed"));
        assert_eq!(name(&all, "deviceclass.resource.kubernetes.io/c"), None);
        all.remove_class("b");
        assert!(!all.names_resources());
    }
}
