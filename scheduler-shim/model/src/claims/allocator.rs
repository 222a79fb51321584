//! Allocates devices for claims: the policy's side of `apportion-claims`.

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use apportion_claims::allocate::allocate;
use apportion_claims::objects::{AllocationResult, ResourceClaim};
use apportion_claims::{DeviceInventory, DeviceUsage, NodeView};
use apportion_policy::cluster::{DeviceAccount, DeviceAllocation, DeviceAllocator, DeviceGrant};

use super::share_ids::ShareIds;
use crate::claim_store::KnownClaim;

/// The labels of a node.
type NodeLabels = BTreeMap<String, String>;
/// What a pod's claims ask for, in their order.
type ClaimShapes = Vec<String>;

/// Everything that allocations depend on.
#[derive(Debug)]
pub(super) struct AllocatorData {
    pub(super) devices: Arc<RwLock<DeviceInventory>>,
    /// By namespace and name.
    pub(super) claims: BTreeMap<String, Arc<KnownClaim>>,
    /// By the name of the node.
    pub(super) labels: BTreeMap<String, NodeLabels>,
}

/// Allocates the devices of a cluster.
#[derive(Debug)]
pub(super) struct ClaimAllocator(pub(super) Arc<AllocatorData>);

impl DeviceAllocator for ClaimAllocator {
    fn account(&self) -> Box<dyn DeviceAccount> {
        Box::new(UsageAccount {
            data: Arc::clone(&self.0),
            usage: DeviceUsage::default(),
            answers: RefCell::default(),
        })
    }
}

/// The devices of a claim, as its status has them.
#[derive(Debug)]
pub(super) struct ClaimedDevices(pub(super) Arc<AllocationResult>);

impl DeviceAllocation for ClaimedDevices {
    fn text(&self) -> String {
        serde_json::to_string(&*self.0).expect("its keys are strings")
    }

    fn devices(&self) -> Vec<String> {
        let results = self.0.devices.results.iter();
        let names = results.map(|one| format!("{}/{}/{}", one.driver, one.pool, one.device));
        names.collect()
    }

    fn is_like(&self, other: &dyn DeviceAllocation) -> bool {
        let Some(other) = read(other) else {
            return false;
        };
        let (own, other) = (&self.0.devices.results, &other.devices.results);
        let mut pairs = own.iter().zip(other);
        own.len() == other.len()
            && pairs.all(|(left, right)| {
                left.driver == right.driver
                    && left.pool == right.pool
                    && left.device == right.device
                    && left.request == right.request
                    && left.consumed_capacity == right.consumed_capacity
            })
    }
}

fn read(allocation: &dyn DeviceAllocation) -> Option<&AllocationResult> {
    let any: &dyn Any = allocation;
    any.downcast_ref::<ClaimedDevices>().map(|read| &*read.0)
}

/// What claims have of the devices.
#[derive(Debug)]
struct UsageAccount {
    data: Arc<AllocatorData>,
    usage: DeviceUsage,
    /// For which nodes and which claims devices were found, until something changes.
    answers: RefCell<HashMap<String, HashMap<ClaimShapes, bool>>>,
}

impl UsageAccount {
    fn devices(&self) -> RwLockReadGuard<'_, DeviceInventory> {
        let devices = self.data.devices.read();
        devices.unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the answers about the nodes that reach the devices of an allocation.
    fn forget(&mut self, allocation: &AllocationResult) {
        match only_node(allocation) {
            Some(node) => drop(self.answers.get_mut().remove(node)),
            None => self.answers.get_mut().clear(),
        }
    }

    fn node<'s>(&'s self, node: &'s str, none: &'s NodeLabels) -> NodeView<'s> {
        NodeView {
            name: node,
            labels: self.data.labels.get(node).unwrap_or(none),
        }
    }

    fn shapes(&self, claims: &[&str]) -> ClaimShapes {
        let known = claims.iter().map(|claim| self.data.claims.get(*claim));
        known
            .map(|known| known.map_or_else(String::new, |known| known.shape.clone()))
            .collect()
    }
}

/// The only node that reaches an allocation, if there is one.
fn only_node(allocation: &AllocationResult) -> Option<&str> {
    let terms = &allocation.node_selector.as_ref()?.node_selector_terms;
    let [term] = terms.as_slice() else {
        return None;
    };
    let [field] = term.match_fields.as_slice() else {
        return None;
    };
    let [name] = field.values.as_slice() else {
        return None;
    };
    (field.key == "metadata.name" && field.operator == "In").then_some(name)
}

impl DeviceAccount for UsageAccount {
    fn add(&mut self, allocation: &dyn DeviceAllocation) {
        if let Some(allocation) = read(allocation) {
            self.usage.add(allocation);
            self.forget(allocation);
        }
    }

    fn remove(&mut self, allocation: &dyn DeviceAllocation) {
        if let Some(allocation) = read(allocation) {
            self.usage.remove(allocation);
            self.forget(allocation);
        }
    }

    fn allocate(&self, node: &str, claims: &[&str]) -> Result<Vec<DeviceGrant>, String> {
        let known = claims.iter().map(|name| {
            let found = self.data.claims.get(*name);
            found.ok_or_else(|| format!("claim {name} does not exist"))
        });
        let known: Vec<&Arc<KnownClaim>> = known.collect::<Result<_, _>>()?;
        let mut ids = ShareIds::of(known.iter().map(|known| {
            let uid = known.claim.metadata.uid.clone();
            (uid, known.version.clone())
        }));
        let wanted: Vec<&ResourceClaim> = known.iter().map(|known| &known.claim).collect();
        let none = NodeLabels::new();
        let view = self.node(node, &none);
        let devices = self.devices();
        let found = allocate(&devices, &self.usage, view, &wanted, &mut || ids.next());
        let found = found.map_err(|refusal| refusal.to_string())?;
        let grants = found.into_iter().map(|one| {
            let grant: DeviceGrant = Arc::new(ClaimedDevices(Arc::new(one)));
            grant
        });
        Ok(grants.collect())
    }

    fn can_allocate(&self, node: &str, claims: &[&str]) -> bool {
        let shapes = self.shapes(claims);
        let answers = self.answers.borrow();
        if let Some(answer) = answers.get(node).and_then(|known| known.get(&shapes)) {
            return *answer;
        }
        drop(answers);
        let answer = self.allocate(node, claims).is_ok();
        let mut answers = self.answers.borrow_mut();
        let known = answers.entry(node.to_owned()).or_default();
        known.insert(shapes, answer);
        answer
    }

    fn reaches(&self, node: &str, allocation: &dyn DeviceAllocation) -> bool {
        let Some(allocation) = read(allocation) else {
            return false;
        };
        let none = NodeLabels::new();
        let view = self.node(node, &none);
        let selector = allocation.node_selector.as_ref();
        selector.is_none_or(|selector| view.matches(selector))
    }

    fn copy(&self) -> Box<dyn DeviceAccount> {
        Box::new(Self {
            data: Arc::clone(&self.data),
            usage: self.usage.clone(),
            answers: RefCell::default(),
        })
    }
}
