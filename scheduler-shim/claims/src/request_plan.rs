//! The requests of claims, checked and with their classes, before devices are searched for.

use crate::capacity::{self, CapacityAnswer};
use crate::constraint::RequestName;
use crate::device_use::DeviceUse;
use crate::inventory::{DeviceInventory, KnownSlice};
use crate::node::{NodeView, reaches};
use crate::objects::{
    AllocationMode, Device, DeviceClass, DeviceSelector, DeviceTaint, DeviceToleration,
    RequestTerms, ResourceClaim,
};
use crate::pool::{DevicePool, PoolFault};
use crate::refusal::AllocationRefusal;

/// The most devices of a claim.
pub(crate) const MOST_DEVICES: usize = 32;

/// Where a device is: the pool, the slice in it, the device in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DeviceIndex {
    pub(crate) pool: usize,
    pub(crate) slice: usize,
    pub(crate) device: usize,
}

/// A request, or an alternative of one.
#[derive(Debug)]
pub(crate) struct RequestPlan<'a> {
    pub(crate) name: RequestName<'a>,
    pub(crate) terms: &'a RequestTerms,
    pub(crate) class: &'a DeviceClass,
    /// How many devices it needs.
    pub(crate) wanted: usize,
    /// Which, if it wants all.
    pub(crate) all: Vec<DeviceIndex>,
}

/// The pools of a node, and what is known of their devices.
#[derive(Debug)]
pub(crate) struct NodeDevices<'a> {
    pub(crate) inventory: &'a DeviceInventory,
    pub(crate) node: NodeView<'a>,
    pub(crate) pools: Vec<DevicePool<'a>>,
}

impl<'a> NodeDevices<'a> {
    pub(crate) fn slice(&self, index: DeviceIndex) -> &'a KnownSlice {
        self.pools[index.pool].slices[index.slice]
    }

    pub(crate) fn device(&self, index: DeviceIndex) -> &'a Device {
        &self.slice(index).slice.spec.devices[index.device]
    }

    /// Every device of pools without a fault, in the order in which they are tried.
    pub(crate) fn indices(&self) -> impl Iterator<Item = DeviceIndex> {
        let pools = self.pools.iter().enumerate();
        let sound = pools.filter(|(_, pool)| pool.fault.is_none());
        sound.flat_map(|(pool, found)| {
            let slices = found.slices.iter().enumerate();
            slices.flat_map(move |(slice, known)| {
                let devices = 0..known.slice.spec.devices.len();
                devices.map(move |device| DeviceIndex {
                    pool,
                    slice,
                    device,
                })
            })
        })
    }

    /// Whether the class and the request select a device that this node reaches.
    ///
    /// # Errors
    ///
    /// A condition is invalid or cannot be evaluated.
    pub(crate) fn selects(
        &self,
        plan: &RequestPlan<'_>,
        index: DeviceIndex,
    ) -> Result<bool, String> {
        let known = self.slice(index);
        let device = self.device(index);
        let of_class = plan.class.spec.selectors.iter().map(|one| (true, one));
        let own = plan.terms.selectors.iter().map(|one| (false, one));
        for (is_of_class, DeviceSelector { cel }) in of_class.chain(own) {
            let value = match cel {
                Some(cel) => self.inventory.value(&cel.expression, known, index.device),
                None => Err("its kind is unknown".to_owned()),
            };
            let value = value.map_err(|error| {
                let whose = if is_of_class {
                    format!("class {}", plan.class.metadata.name)
                } else {
                    "the request".to_owned()
                };
                format!("the selector of {whose} fails for {}: {error}", device.name)
            })?;
            if !value {
                return Ok(false);
            }
        }
        let name = device.node_name.as_deref();
        let selector = device.node_selector.as_ref();
        Ok(!known.slice.spec.per_device_node_selection
            || reaches(&self.node, name, device.all_nodes, selector))
    }

    /// Plans a request.
    ///
    /// # Errors
    ///
    /// It can't be served whatever the devices are, or wants all of a pool that changes.
    pub(crate) fn plan(
        &self,
        claim: &'a ResourceClaim,
        name: RequestName<'a>,
        terms: &'a RequestTerms,
    ) -> Result<RequestPlan<'a>, AllocationRefusal> {
        let invalid = |reason: String| AllocationRefusal::Invalid {
            claim: claim.metadata.name.clone(),
            request: Some(name.to_string()),
            reason,
        };
        if !terms.derived_attributes.is_empty() {
            return Err(invalid("derived attributes are not supported".to_owned()));
        }
        let class = self.inventory.class(&terms.device_class_name);
        let mut plan = RequestPlan {
            name,
            terms,
            class: class.ok_or_else(|| {
                invalid(format!(
                    "there is no device class {}",
                    terms.device_class_name
                ))
            })?,
            wanted: 0,
            all: Vec::new(),
        };
        match &terms.allocation_mode {
            AllocationMode::ExactCount => {
                let count = usize::try_from(terms.count.unwrap_or(1));
                plan.wanted = count.map_err(|_| invalid("its count is not a number".to_owned()))?;
            }
            AllocationMode::All => {
                let fault = self
                    .pools
                    .iter()
                    .find_map(|pool| Some((pool, pool.fault.as_ref()?)));
                if let Some((pool, fault)) = fault {
                    let name = format!("{}/{}", pool.name.driver, pool.name.pool);
                    return Err(match fault {
                        PoolFault::Incomplete => AllocationRefusal::PoolChanges {
                            claim: claim.metadata.name.clone(),
                            request: plan.name.to_string(),
                            pool: name,
                        },
                        PoolFault::Invalid(reason) => invalid(format!(
                            "it asks for all devices, and pool {name}: {reason}"
                        )),
                    });
                }
                for index in self.indices() {
                    if self.selects(&plan, index).map_err(invalid)?
                        && self.fits(&plan, index, None).map_err(invalid)?
                    {
                        plan.all.push(index);
                    }
                }
                plan.wanted = plan.all.len();
            }
            AllocationMode::Unknown(mode) => {
                return Err(invalid(format!("the allocation mode {mode} is unknown")));
            }
        }
        Ok(plan)
    }

    /// Whether a device has enough capacity left for a request.
    pub(crate) fn fits(
        &self,
        plan: &RequestPlan<'_>,
        index: DeviceIndex,
        used: Option<&DeviceUse>,
    ) -> Result<bool, String> {
        let device = self.device(index);
        let required = plan.terms.capacity.as_ref();
        let answer = capacity::check(device, required, used, None)?;
        Ok(answer != CapacityAnswer::TooLittle)
    }
}

/// Whether a taint keeps a request from a device. Unknown effects do not.
pub(crate) fn is_tainted(device: &Device, tolerations: &[DeviceToleration]) -> bool {
    let mut taints = device.taints.iter();
    taints.any(|taint| {
        let forbids = matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        forbids && !tolerations.iter().any(|one| tolerates(one, taint))
    })
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let is_same = |ours: &str, its: &str| ours.is_empty() || ours == its;
    is_same(&toleration.effect, &taint.effect)
        && is_same(&toleration.key, &taint.key)
        && match toleration.operator.as_str() {
            "" | "Equal" => toleration.value == taint.value,
            "Exists" => true,
            _ => false,
        }
}
