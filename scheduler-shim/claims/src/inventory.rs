//! All slices and classes of a cluster, indexed for allocations.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use crate::expression::CompiledExpressions;
use crate::objects::{DeviceClass, ResourceSlice};

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
        self.changes += 1;
        self.classes.insert(name, Arc::new(class));
    }

    /// Removes a class.
    pub fn remove_class(&mut self, name: &str) {
        self.changes += 1;
        self.classes.remove(name);
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
