//! The allocations of a finished search, as they are written into the claims.

use serde_json::{Map, Value, json};

use super::{AllocationSearch, ClaimPlan};
use crate::constraint::RequestName;
use crate::objects::{
    AllocatedDevice, AllocationResult, DeviceAllocationResult, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm,
};
use crate::request_plan::RequestPlan;

impl AllocationSearch<'_> {
    pub(super) fn results(&self, share_ids: &mut dyn FnMut() -> String) -> Vec<AllocationResult> {
        let claims = self.claims.iter();
        let results = claims.map(|claim| AllocationResult {
            devices: DeviceAllocationResult {
                results: self.devices_of(claim, share_ids),
                config: claim.config(),
            },
            node_selector: self.node_selector(claim),
            allocation_timestamp: None,
        });
        results.collect()
    }

    fn devices_of(
        &self,
        claim: &ClaimPlan<'_>,
        share_ids: &mut dyn FnMut() -> String,
    ) -> Vec<AllocatedDevice> {
        let given = claim.given.iter().map(|given| {
            let plan = &claim.requests[given.request][given.alternative];
            let pool = &self.devices.pools[given.index.pool].name;
            let device = self.devices.device(given.index);
            AllocatedDevice {
                request: plan.name.to_string(),
                driver: pool.driver.to_owned(),
                pool: pool.pool.to_owned(),
                device: device.name.clone(),
                admin_access: plan.terms.admin_access.then_some(true),
                tolerations: plan.terms.tolerations.clone(),
                share_id: given.share.is_some().then(&mut *share_ids),
                consumed_capacity: given.share.clone().unwrap_or_default(),
                binding_conditions: device.binding_conditions.clone(),
                binding_failure_conditions: device.binding_failure_conditions.clone(),
            }
        });
        given.collect()
    }

    /// The nodes that reach all devices of a claim. Nothing is all nodes.
    fn node_selector(&self, claim: &ClaimPlan<'_>) -> Option<NodeSelector> {
        let mut term = NodeSelectorTerm::default();
        for given in &claim.given {
            let device = self.devices.device(given.index);
            let spec = &self.devices.slice(given.index).slice.spec;
            let (name, selector) = if spec.per_device_node_selection {
                (&device.node_name, &device.node_selector)
            } else {
                (&spec.node_name, &spec.node_selector)
            };
            if name.is_some() || device.binds_to_node {
                let requirement = NodeSelectorRequirement {
                    key: "metadata.name".to_owned(),
                    operator: "In".to_owned(),
                    values: vec![self.devices.node.name.to_owned()],
                };
                let term = NodeSelectorTerm {
                    match_fields: vec![requirement],
                    ..NodeSelectorTerm::default()
                };
                return Some(NodeSelector {
                    node_selector_terms: vec![term],
                });
            }
            let terms = selector.iter().flat_map(|one| &one.node_selector_terms);
            for own in terms {
                add_new(&own.match_fields, &mut term.match_fields);
                add_new(&own.match_expressions, &mut term.match_expressions);
            }
        }
        let is_empty = term.match_fields.is_empty() && term.match_expressions.is_empty();
        (!is_empty).then(|| NodeSelector {
            node_selector_terms: vec![term],
        })
    }
}

fn add_new(from: &[NodeSelectorRequirement], to: &mut Vec<NodeSelectorRequirement>) {
    for requirement in from {
        if !to.contains(requirement) {
            to.push(requirement.clone());
        }
    }
}

impl ClaimPlan<'_> {
    /// The alternative that a request got.
    fn chosen(&self, request: usize) -> &RequestPlan<'_> {
        &self.requests[request][self.chosen[request]]
    }

    /// The settings for drivers: those of the classes, then those of the claim.
    fn config(&self) -> Vec<Map<String, Value>> {
        let requests = 0..self.requests.len();
        let plans: Vec<&RequestPlan<'_>> = requests.map(|request| self.chosen(request)).collect();
        let mut config = Vec::new();
        let mut done: Vec<&str> = Vec::new();
        for plan in &plans {
            let class = plan.class.metadata.name.as_str();
            if done.contains(&class) {
                continue;
            }
            done.push(class);
            let same = plans
                .iter()
                .filter(|other| other.class.metadata.name == class);
            let names: Vec<String> = same.map(|other| other.name.to_string()).collect();
            for own in &plan.class.spec.config {
                config.push(with_source(own, "FromClass", &names, &plans));
            }
        }
        for own in &self.claim.spec.devices.config {
            let names = own.get("requests").and_then(Value::as_array);
            let names = names.into_iter().flatten().filter_map(Value::as_str);
            let names: Vec<String> = names.map(str::to_owned).collect();
            if names.is_empty() || plans.iter().any(|plan| is_named(plan.name, &names)) {
                config.push(with_source(own, "FromClaim", &names, &plans));
            }
        }
        config
    }
}

/// Whether settings for these requests are for this one.
fn is_named(name: RequestName<'_>, names: &[String]) -> bool {
    name.is_in(names)
}

/// Settings with where they come from and for which requests they are; those for all requests name none.
fn with_source(
    own: &Map<String, Value>,
    source: &str,
    names: &[String],
    plans: &[&RequestPlan<'_>],
) -> Map<String, Value> {
    let mut all = own.clone();
    all.insert("source".to_owned(), json!(source));
    if names.is_empty() || plans.iter().all(|plan| is_named(plan.name, names)) {
        all.remove("requests");
    } else {
        all.insert("requests".to_owned(), json!(names));
    }
    all
}
