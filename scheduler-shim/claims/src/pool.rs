//! The pools within reach of a node, in the order in which their devices are tried.
//!
//! The rules are those of `k8s.io/dynamic-resource-allocation/structured`: slices of older generations do not count; a
//! pool without all its slices gives nothing, because a slice that is missing may say that devices are gone; a pool
//! whose slices contradict each other gives nothing either. Pools come in the order of their names, and slices too, so
//! a driver decides by names what is tried first.

use std::collections::{BTreeMap, BTreeSet};

use crate::inventory::{DeviceInventory, KnownSlice, PoolName};
use crate::node::{NodeView, reaches};
use crate::objects::{CounterSet, ResourceSlice};

#[derive(Debug)]
pub(crate) struct DevicePool<'a> {
    pub(crate) name: PoolName<'a>,
    /// Why it gives nothing, if so.
    pub(crate) fault: Option<PoolFault>,
    /// The slices with devices that this node reaches.
    pub(crate) slices: Vec<&'a KnownSlice>,
    /// The other slices with devices, if they were needed.
    pub(crate) elsewhere: Vec<&'a KnownSlice>,
    pub(crate) counters: BTreeMap<&'a str, &'a CounterSet>,
}

/// Why a pool gives nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolFault {
    /// Some slices of the newest generation are missing.
    Incomplete,
    /// Slices contradict each other.
    Invalid(String),
}

/// All pools with devices for this node.
pub(crate) fn reachable<'a>(
    inventory: &'a DeviceInventory,
    node: &NodeView<'_>,
) -> Vec<DevicePool<'a>> {
    let mut found: BTreeMap<PoolName<'a>, Vec<&'a KnownSlice>> = BTreeMap::new();
    let near = inventory.near(node.name);
    for known in near.filter(|known| counts(&known.slice) && is_near(&known.slice, node)) {
        let slices = found.entry(known.pool()).or_default();
        let newest = slices.first().map(|first| generation(first));
        match newest.map(|newest| generation(known).cmp(&newest)) {
            Some(std::cmp::Ordering::Less) => {}
            Some(std::cmp::Ordering::Greater) => *slices = vec![known],
            Some(std::cmp::Ordering::Equal) | None => slices.push(known),
        }
    }
    let pools = found.into_iter();
    let mut pools: Vec<DevicePool<'a>> = pools
        .filter_map(|(name, slices)| build(inventory, name, slices))
        .collect();
    pools.sort_by_key(has_binding_conditions);
    pools
}

fn generation(known: &KnownSlice) -> i64 {
    known.slice.spec.pool.generation
}

/// Whether the slice is understood: one with compatibility groups is not, and then its pool is incomplete.
fn counts(slice: &ResourceSlice) -> bool {
    let consumption = slice
        .spec
        .devices
        .iter()
        .flat_map(|one| &one.consumes_counters);
    let mut groups = consumption.map(|one| &one.compatibility_groups);
    groups.all(Vec::is_empty)
}

fn is_near(slice: &ResourceSlice, node: &NodeView<'_>) -> bool {
    let spec = &slice.spec;
    let name = spec.node_name.as_deref().filter(|name| !name.is_empty());
    if name.is_some() || spec.all_nodes || spec.node_selector.is_some() {
        return reaches(node, name, spec.all_nodes, spec.node_selector.as_ref());
    }
    let mut devices = spec.devices.iter();
    spec.per_device_node_selection
        && devices.any(|one| {
            let name = one.node_name.as_deref();
            reaches(node, name, one.all_nodes, one.node_selector.as_ref())
        })
}

/// The pool of these slices, or nothing if a newer generation has no device for this node.
fn build<'a>(
    inventory: &'a DeviceInventory,
    name: PoolName<'a>,
    mut slices: Vec<&'a KnownSlice>,
) -> Option<DevicePool<'a>> {
    slices.sort_by(|one, other| one.slice.metadata.name.cmp(&other.slice.metadata.name));
    let mut pool = DevicePool {
        name,
        fault: None,
        slices: Vec::new(),
        elsewhere: Vec::new(),
        counters: BTreeMap::new(),
    };
    let first = &slices.first()?.slice.spec.pool;
    let is_all = |count: usize| i64::try_from(count) == Ok(first.resource_slice_count);
    let mut others = Vec::new();
    if !is_all(slices.len()) {
        let all = inventory.of_pool(name);
        let newer = all.map(generation).max();
        if newer.is_some_and(|newer| newer > first.generation) {
            return None;
        }
        let all = inventory.of_pool(name);
        let all = all.filter(|known| generation(known) == first.generation && counts(&known.slice));
        let all: Vec<&KnownSlice> = all.collect();
        if !is_all(all.len()) {
            pool.fault = Some(PoolFault::Incomplete);
            return Some(pool);
        }
        let near: BTreeSet<&str> = slices.iter().map(|known| text(known)).collect();
        others = all;
        others.retain(|known| !near.contains(text(known)));
    }
    let has_counters = |known: &&KnownSlice| !known.slice.spec.shared_counters.is_empty();
    let counters = slices.iter().chain(&others).copied().filter(has_counters);
    let sets = counters.flat_map(|known| &known.slice.spec.shared_counters);
    let mut repeated = None;
    for set in sets {
        if pool.counters.insert(&set.name, set).is_some() {
            repeated.get_or_insert_with(|| format!("duplicate counter set name {}", set.name));
        }
    }
    slices.retain(|known| !has_counters(known));
    others.retain(|known| !has_counters(known));
    (pool.slices, pool.elsewhere) = (slices, others);
    let fault = repeated_device(&pool).or(repeated);
    let fault = fault.or_else(|| unknown_counter(&pool));
    pool.fault = fault.map(PoolFault::Invalid);
    Some(pool)
}

fn text(known: &KnownSlice) -> &str {
    &known.slice.metadata.name
}

fn repeated_device(pool: &DevicePool<'_>) -> Option<String> {
    let mut names = BTreeSet::new();
    let devices = pool
        .slices
        .iter()
        .flat_map(|known| &known.slice.spec.devices);
    let mut repeated = devices.filter(|device| !names.insert(&device.name));
    let repeated = repeated.next()?;
    Some(format!("duplicate device name {}", repeated.name))
}

fn unknown_counter(pool: &DevicePool<'_>) -> Option<String> {
    let slices = pool.slices.iter().chain(&pool.elsewhere);
    let devices = slices.flat_map(|known| &known.slice.spec.devices);
    let mut consumption = devices.flat_map(|device| &device.consumes_counters);
    consumption.find_map(|one| {
        let Some(set) = pool.counters.get(one.counter_set.as_str()) else {
            return Some(format!("counter set {} not found", one.counter_set));
        };
        let mut names = one.counters.keys();
        let unknown = names.find(|name| !set.counters.contains_key(*name))?;
        Some(format!(
            "counter {unknown} not found in counter set {}",
            set.name
        ))
    })
}

/// Pools with devices that need a condition before binding come last.
fn has_binding_conditions(pool: &DevicePool<'_>) -> bool {
    let devices = pool
        .slices
        .iter()
        .flat_map(|known| &known.slice.spec.devices);
    devices
        .map(|device| &device.binding_conditions)
        .any(|all| !all.is_empty())
}
