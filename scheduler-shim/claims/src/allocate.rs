//! Allocates the claims of a pod on a node.
//!
//! The rules, and the order in which devices are tried, are those of `k8s.io/dynamic-resource-allocation/structured`:
//! claim by claim, request by request, device by device; the first solution is taken. So kube-scheduler and this
//! scheduler choose the same devices in the same cluster.
//!
//! # Decision: the search is bounded
//!
//! Upstream searches until its time is over. Here a request that finds too few devices is refused before the search,
//! and the search ends after a number of steps. So one claim costs a cycle milliseconds, and the result does not
//! depend on a clock.
//!
//! # Not followed
//!
//! Slices that skip node operations, compatibility groups and derived attributes: such devices are not given, and such
//! requests are refused.

use std::collections::{BTreeMap, HashMap};

use apportion_kubernetes::Quantity;

use crate::amount::CapacityMap;
use crate::capacity::{self, CapacityAnswer};
use crate::constraint::{ConstraintState, RequestName};
use crate::counters::CounterState;
use crate::device_use::{DeviceUsage, DeviceUse};
use crate::inventory::DeviceInventory;
use crate::node::NodeView;
use crate::objects::{AllocationResult, ResourceClaim};
use crate::pool;
use crate::refusal::AllocationRefusal;
use crate::request_plan::{DeviceIndex, MOST_DEVICES, NodeDevices, RequestPlan, is_tainted};

mod result;
mod tally;

/// After how many steps the search ends. A step is one device tried for one request.
pub const MOST_STEPS: usize = 100_000;
/// The most requests and devices of a pod together, which bounds the depth of the search.
const MOST_TOGETHER: usize = 512;

/// A claim while it is allocated.
struct ClaimPlan<'a> {
    claim: &'a ResourceClaim,
    /// The alternatives of each request; a request without has one.
    requests: Vec<Vec<RequestPlan<'a>>>,
    /// Which alternative each request got.
    chosen: Vec<usize>,
    constraints: Vec<ConstraintState<'a>>,
    given: Vec<GivenDevice>,
}

/// A device that a claim gets.
struct GivenDevice {
    index: DeviceIndex,
    request: usize,
    alternative: usize,
    /// What it consumes, if several claims may have it.
    share: Option<CapacityMap>,
}

/// What is being given of a device.
#[derive(Default)]
struct DeviceGift<'a> {
    /// The claims that get it for themselves.
    owners: Vec<usize>,
    shares: usize,
    consumed: BTreeMap<&'a str, Quantity>,
}

/// Which device is searched next.
#[derive(Clone, Copy)]
struct SearchPosition {
    claim: usize,
    request: usize,
    /// The alternative, once one is tried.
    alternative: Option<usize>,
    /// How many devices the request has.
    devices: usize,
    /// Where to go on: earlier devices were tried for this request.
    from: Option<DeviceIndex>,
}

/// Why a part of the search ended.
enum SearchEnd {
    Found,
    /// There is no solution from here.
    Nothing,
    /// A claim would get too many devices. Other devices for earlier requests do not help, only other alternatives.
    TooMany,
}

/// Allocates the claims of a pod together on a node.
///
/// Claims are served in order. `share_ids` gives a new UID for each share of a device.
///
/// # Errors
///
/// Why that is not possible.
pub fn allocate(
    inventory: &DeviceInventory,
    usage: &DeviceUsage,
    node: NodeView<'_>,
    claims: &[&ResourceClaim],
    share_ids: &mut dyn FnMut() -> String,
) -> Result<Vec<AllocationResult>, AllocationRefusal> {
    let devices = NodeDevices {
        inventory,
        node,
        pools: pool::reachable(inventory, &node),
    };
    let mut search = AllocationSearch::new(&devices, usage, claims)?;
    search.refuse_shortages()?;
    let start = SearchPosition {
        claim: 0,
        request: 0,
        alternative: None,
        devices: 0,
        from: None,
    };
    match search.next(start)? {
        SearchEnd::Found => Ok(search.results(share_ids)),
        SearchEnd::Nothing | SearchEnd::TooMany => Err(AllocationRefusal::NoCombination {
            claims: search.names(),
            has_constraints: search.claims.iter().any(|one| !one.constraints.is_empty()),
        }),
    }
}

struct AllocationSearch<'a> {
    devices: &'a NodeDevices<'a>,
    usage: &'a DeviceUsage,
    claims: Vec<ClaimPlan<'a>>,
    /// Whether a device is selected: by claim, request, alternative and place.
    selected: HashMap<(usize, usize, usize, DeviceIndex), bool>,
    gifts: HashMap<DeviceIndex, DeviceGift<'a>>,
    counters: HashMap<usize, CounterState<'a>>,
    steps: usize,
}

impl<'a> AllocationSearch<'a> {
    fn new(
        devices: &'a NodeDevices<'a>,
        usage: &'a DeviceUsage,
        claims: &[&'a ResourceClaim],
    ) -> Result<Self, AllocationRefusal> {
        let plans = claims.iter().map(|claim| plan(devices, claim));
        let plans: Vec<ClaimPlan<'a>> = plans.collect::<Result<_, _>>()?;
        let requests = plans.iter().flat_map(|plan| &plan.requests);
        let sizes = requests.map(|alternatives| {
            let most = alternatives
                .iter()
                .map(|plan| plan.wanted.min(MOST_DEVICES));
            1 + most.max().unwrap_or_default()
        });
        let size: usize = sizes.sum();
        if let Some(first) = plans.first().filter(|_| size > MOST_TOGETHER) {
            let reason = format!(
                "the claims of its pod have {size} requests and devices, more than {MOST_TOGETHER}"
            );
            return Err(invalid(first.claim, None, reason));
        }
        Ok(Self {
            devices,
            usage,
            claims: plans,
            selected: HashMap::new(),
            gifts: HashMap::new(),
            counters: HashMap::new(),
            steps: 0,
        })
    }

    fn names(&self) -> Vec<String> {
        let names = self.claims.iter().map(|one| &one.claim.metadata.name);
        names.cloned().collect()
    }

    /// Goes on from a position until everything is given.
    fn next(&mut self, at: SearchPosition) -> Result<SearchEnd, AllocationRefusal> {
        let Some(claim) = self.claims.get(at.claim) else {
            return Ok(SearchEnd::Found);
        };
        if at.request >= claim.requests.len() {
            let next = SearchPosition {
                claim: at.claim + 1,
                request: 0,
                alternative: None,
                devices: 0,
                from: None,
            };
            return Ok(match self.next(next)? {
                // Another alternative of an earlier claim may leave one here that needs fewer devices.
                SearchEnd::TooMany => SearchEnd::Nothing,
                end @ (SearchEnd::Found | SearchEnd::Nothing) => end,
            });
        }
        match at.alternative {
            None => self.first_available(at),
            Some(alternative) => self.one_more(at, alternative),
        }
    }

    /// Tries the alternatives of a request, the best first.
    fn first_available(&mut self, at: SearchPosition) -> Result<SearchEnd, AllocationRefusal> {
        let count = self.claims[at.claim].requests[at.request].len();
        let mut end = SearchEnd::TooMany;
        for alternative in 0..count {
            let next = SearchPosition {
                alternative: Some(alternative),
                devices: 0,
                from: None,
                ..at
            };
            match self.next(next)? {
                SearchEnd::Found => {
                    self.claims[at.claim].chosen[at.request] = alternative;
                    return Ok(SearchEnd::Found);
                }
                SearchEnd::Nothing => end = SearchEnd::Nothing,
                SearchEnd::TooMany => {}
            }
        }
        Ok(end)
    }

    /// Gives one more device to a request, or goes on with the next request.
    fn one_more(
        &mut self,
        at: SearchPosition,
        alternative: usize,
    ) -> Result<SearchEnd, AllocationRefusal> {
        let claim = &self.claims[at.claim];
        let plan = &claim.requests[at.request][alternative];
        let wants_all = plan.terms.allocation_mode == crate::objects::AllocationMode::All;
        if wants_all && plan.all.is_empty() {
            return Ok(SearchEnd::Nothing);
        }
        if at.devices >= plan.wanted {
            return self.next(SearchPosition {
                request: at.request + 1,
                alternative: None,
                devices: 0,
                from: None,
                ..at
            });
        }
        if plan.wanted - at.devices > MOST_DEVICES.saturating_sub(claim.given.len()) {
            return Ok(SearchEnd::TooMany);
        }
        if wants_all {
            let index = plan.all[at.devices];
            let end = self.try_device(at, alternative, index, true)?;
            return Ok(end.unwrap_or(SearchEnd::Nothing));
        }
        let devices = self.devices;
        let indices = devices.indices();
        for index in indices.filter(|index| at.from.is_none_or(|from| *index > from)) {
            match self.try_device(at, alternative, index, false)? {
                Some(end @ (SearchEnd::Found | SearchEnd::TooMany)) => return Ok(end),
                Some(SearchEnd::Nothing) | None => {}
            }
        }
        Ok(SearchEnd::Nothing)
    }

    /// Gives a device to a request and goes on. `None` if the device can't be given.
    fn try_device(
        &mut self,
        at: SearchPosition,
        alternative: usize,
        index: DeviceIndex,
        is_needed: bool,
    ) -> Result<Option<SearchEnd>, AllocationRefusal> {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(AllocationRefusal::TooHard {
                claims: self.names(),
                steps: MOST_STEPS,
            });
        }
        if !self.give(at, alternative, index, is_needed)? {
            return Ok(None);
        }
        let next = SearchPosition {
            devices: at.devices + 1,
            from: Some(index),
            ..at
        };
        let end = self.next(next)?;
        if !matches!(end, SearchEnd::Found) {
            self.take_back(at);
        }
        Ok(Some(end))
    }

    /// Gives a device to a request, if it can have it.
    fn give(
        &mut self,
        at: SearchPosition,
        alternative: usize,
        index: DeviceIndex,
        is_needed: bool,
    ) -> Result<bool, AllocationRefusal> {
        let devices = self.devices;
        let device = devices.device(index);
        let pool = &devices.pools[index.pool];
        let used = self
            .usage
            .of(pool.name.driver, pool.name.pool, &device.name);
        let claim = &self.claims[at.claim];
        let plan = &claim.requests[at.request][alternative];
        let is_shared = device.allow_multiple_allocations;
        let gift = self.gifts.get(&index);
        let has_owner = if plan.terms.admin_access {
            gift.is_some_and(|gift| gift.owners.contains(&at.claim))
        } else {
            used.is_some_and(|used| used.owners > 0)
                || gift.is_some_and(|gift| !gift.owners.is_empty())
        };
        if has_owner
            || !devices
                .slice(index)
                .slice
                .spec
                .skip_node_operations
                .is_empty()
        {
            return Ok(false);
        }
        let fault = |reason| invalid(claim.claim, Some(plan.name), reason);
        let key = (at.claim, at.request, alternative, index);
        let is_selected = match self.selected.get(&key) {
            Some(known) => *known,
            None => {
                let is_selected = devices.selects(plan, index).map_err(fault)?;
                self.selected.insert(key, is_selected);
                is_selected
            }
        };
        if !is_selected {
            return Ok(false);
        }
        let giving = gift.map(|gift| &gift.consumed);
        let required = plan.terms.capacity.as_ref();
        let answer = capacity::check(device, required, used, giving).map_err(fault)?;
        if answer == CapacityAnswer::TooLittle && !is_needed {
            return Ok(false);
        }
        let is_tainted = is_tainted(device, &plan.terms.tolerations);
        let name = plan.name;
        let is_charged = is_shared
            && (used.is_some_and(|used| used.shares > 0)
                || gift.is_some_and(|gift| gift.shares > 0));
        let needs_counters = !is_charged && !device.consumes_counters.is_empty();
        if is_tainted || (needs_counters && !self.counters_of(index.pool).add(device)) {
            return Ok(false);
        }
        let claim = &mut self.claims[at.claim];
        let driver = pool.name.driver;
        let mut constraints = claim.constraints.iter_mut();
        let added = constraints
            .position(|constraint| !constraint.add(name, driver, device))
            .unwrap_or(claim.constraints.len());
        let breaks_constraint = added < claim.constraints.len();
        let consumed = match answer {
            CapacityAnswer::Enough(consumed) if !breaks_constraint => consumed,
            CapacityAnswer::Enough(_) | CapacityAnswer::TooLittle => {
                for constraint in &mut claim.constraints[..added] {
                    constraint.remove(name);
                }
                let claim = claim.claim;
                if needs_counters {
                    self.counters_of(index.pool).remove(device);
                }
                if is_needed && breaks_constraint {
                    let reason = format!(
                        "device {} breaks a constraint, and all are wanted",
                        device.name
                    );
                    return Err(invalid(claim, Some(name), reason));
                }
                return Ok(false);
            }
        };
        let gift = self.gifts.entry(index).or_default();
        if is_shared {
            gift.shares += 1;
            for capacity in device.capacity.keys() {
                let sum = gift.consumed.entry(capacity).or_default();
                *sum += consumed[capacity].0;
            }
        } else {
            gift.owners.push(at.claim);
        }
        self.claims[at.claim].given.push(GivenDevice {
            index,
            request: at.request,
            alternative,
            share: is_shared.then_some(consumed),
        });
        Ok(true)
    }

    /// Takes back the device that the claim was given last.
    fn take_back(&mut self, at: SearchPosition) {
        let claim = &mut self.claims[at.claim];
        let Some(last) = claim.given.pop() else {
            return;
        };
        let device = self.devices.device(last.index);
        let name = claim.requests[last.request][last.alternative].name;
        for constraint in &mut claim.constraints {
            constraint.remove(name);
        }
        let pool = &self.devices.pools[last.index.pool];
        let used = self
            .usage
            .of(pool.name.driver, pool.name.pool, &device.name);
        let gift = self.gifts.entry(last.index).or_default();
        if let Some(consumed) = &last.share {
            gift.shares = gift.shares.saturating_sub(1);
            for (capacity, amount) in consumed {
                if let Some(sum) = gift.consumed.get_mut(capacity.as_str()) {
                    *sum = *sum - amount.0;
                }
            }
        } else {
            gift.owners.pop();
        }
        // A further share of a device did not consume counters again.
        let was_charged =
            last.share.is_some() && (used.is_some_and(|used| used.shares > 0) || gift.shares > 0);
        if !was_charged && !device.consumes_counters.is_empty() {
            self.counters_of(last.index.pool).remove(device);
        }
    }

    fn counters_of(&mut self, pool: usize) -> &mut CounterState<'a> {
        let found = &self.devices.pools[pool];
        let state = self.counters.entry(pool);
        state.or_insert_with(|| CounterState::new(found, self.usage))
    }

    fn used(&self, index: DeviceIndex) -> Option<&'a DeviceUse> {
        let pool = &self.devices.pools[index.pool].name;
        let device = self.devices.device(index);
        self.usage.of(pool.driver, pool.pool, &device.name)
    }
}

fn plan<'a>(
    devices: &NodeDevices<'a>,
    claim: &'a ResourceClaim,
) -> Result<ClaimPlan<'a>, AllocationRefusal> {
    let spec = &claim.spec.devices;
    let mut requests = Vec::new();
    let mut fewest: usize = 0;
    for request in &spec.requests {
        let name = |alternative| RequestName {
            request: &request.name,
            alternative,
        };
        let plans = match &request.exactly {
            Some(terms) => vec![devices.plan(claim, name(None), terms)?],
            None => {
                let alternatives = request.first_available.iter();
                let plans = alternatives
                    .map(|terms| devices.plan(claim, name(Some(terms.name.as_str())), terms));
                plans.collect::<Result<Vec<_>, _>>()?
            }
        };
        let Some(least) = plans.iter().map(|plan| plan.wanted).min() else {
            let reason = "it asks for nothing that is known".to_owned();
            return Err(invalid(claim, Some(name(None)), reason));
        };
        fewest = fewest.saturating_add(least);
        requests.push(plans);
    }
    if fewest > MOST_DEVICES {
        let reason = format!("it needs {fewest} devices, and may have {MOST_DEVICES}");
        return Err(invalid(claim, None, reason));
    }
    let constraints = spec.constraints.iter().map(|one| {
        ConstraintState::new(one)
            .ok_or_else(|| invalid(claim, None, "a constraint of an unknown kind".to_owned()))
    });
    Ok(ClaimPlan {
        claim,
        chosen: vec![0; requests.len()],
        requests,
        constraints: constraints.collect::<Result<_, _>>()?,
        given: Vec::new(),
    })
}

fn invalid(
    claim: &ResourceClaim,
    request: Option<RequestName<'_>>,
    reason: String,
) -> AllocationRefusal {
    AllocationRefusal::Invalid {
        claim: claim.metadata.name.clone(),
        request: request.map(|name| name.to_string()),
        reason,
    }
}
