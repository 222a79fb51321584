//! The node's `ResourceSlice`: each card as a device that several claims share.
//!
//! The attributes have the names and the values of NVIDIA's DRA driver, so that its users' selectors work. The capacity
//! is what claims together can have now; the scheduler subtracts the claims. A request without a capacity is for the
//! whole card, which fits only while nobody else holds any of it.

use std::collections::BTreeMap;

use apportion_abi::names::{
    DRA_DRIVER, DRA_MEMORY, DRA_TAINT_FULL, DRA_TAINT_HEALTH, DRA_TAINT_OWNER,
};
use apportion_abi::{Bytes, SHARE_UNIT};
use apportion_ledger::Health;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity,
    DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::claim_request::device_name;
use super::device_offers::{DeviceOffer, DeviceOffers};

/// The prefix of the attributes that all drivers share.
const STANDARD: &str = "resource.kubernetes.io";
/// A device that is not to be chosen.
const NO_SCHEDULE: &str = "NoSchedule";
const KIB: u64 = 1 << 10;

/// The name of the node's slice. It has only one, because no node has more cards than a slice has room for.
pub(super) fn slice_name(node: &str) -> String {
    format!("{node}-{DRA_DRIVER}")
}

/// The slice in this generation of its pool. The pool is the node's.
pub(super) fn slice(
    node: &str,
    owner: Option<OwnerReference>,
    generation: i64,
    devices: Vec<Device>,
) -> ResourceSlice {
    ResourceSlice {
        metadata: ObjectMeta {
            name: Some(slice_name(node)),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: ResourceSliceSpec {
            driver: DRA_DRIVER.to_owned(),
            node_name: Some(node.to_owned()),
            pool: ResourcePool {
                name: node.to_owned(),
                generation,
                resource_slice_count: 1,
            },
            devices: Some(devices),
            ..ResourceSliceSpec::default()
        },
    }
}

/// The devices of the offers.
pub(super) fn devices(offers: &DeviceOffers) -> Vec<Device> {
    offers
        .devices
        .iter()
        .map(|of| Device {
            name: device_name(of.offer.card),
            allow_multiple_allocations: Some(true),
            attributes: Some(attributes(of, offers)),
            capacity: Some([(DRA_MEMORY.to_owned(), memory(of))].into()),
            taints: taints(of, offers.has_other_owner),
            ..Device::default()
        })
        .collect()
}

/// The memory for claims. The smallest value of the policy may not exceed it, so a full card is tainted instead.
fn memory(of: &DeviceOffer) -> DeviceCapacity {
    let unit = Bytes(SHARE_UNIT);
    DeviceCapacity {
        value: quantity(of.offer.offered.max(unit)),
        request_policy: Some(CapacityRequestPolicy {
            default: Some(quantity(of.offer.whole)),
            valid_range: Some(CapacityRequestPolicyRange {
                min: quantity(unit),
                step: Some(quantity(unit)),
                max: None,
            }),
            valid_values: None,
        }),
    }
}

fn taints(of: &DeviceOffer, has_other_owner: bool) -> Option<Vec<DeviceTaint>> {
    let taint = |key: &str, value: Option<&str>| DeviceTaint {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        effect: NO_SCHEDULE.to_owned(),
        time_added: None,
    };
    let sick = match of.offer.health {
        Health::Healthy => None,
        Health::Unhealthy => Some("unhealthy"),
        Health::Lost => Some("lost"),
    };
    let sick = sick.map(|word| taint(DRA_TAINT_HEALTH, Some(word)));
    let is_full = of.offer.offered.0 < SHARE_UNIT;
    let full = is_full.then(|| taint(DRA_TAINT_FULL, None));
    let owned = has_other_owner.then(|| taint(DRA_TAINT_OWNER, None));
    let all: Vec<DeviceTaint> = sick.into_iter().chain(full).chain(owned).collect();
    (!all.is_empty()).then_some(all)
}

fn attributes(of: &DeviceOffer, offers: &DeviceOffers) -> BTreeMap<String, DeviceAttribute> {
    let identity = &of.identity;
    let standard = |name: &str| format!("{STANDARD}/{name}");
    let known = [
        ("type".to_owned(), Some(text("gpu"))),
        ("uuid".to_owned(), Some(text(&of.offer.card.to_string()))),
        ("productName".to_owned(), Some(text(&of.model))),
        ("index".to_owned(), Some(number(of.index))),
        ("minor".to_owned(), of.minor.map(number)),
        ("brand".to_owned(), identity.brand.as_deref().map(text)),
        (
            "architecture".to_owned(),
            identity.architecture.as_deref().map(text),
        ),
        (
            "cudaComputeCapability".to_owned(),
            identity
                .compute_capability
                .map(|(major, minor)| version(&format!("{major}.{minor}.0"))),
        ),
        (
            "driverVersion".to_owned(),
            semantic(&offers.driver_version).as_deref().map(version),
        ),
        (
            "cudaDriverVersion".to_owned(),
            offers
                .cuda_version
                .map(|of| version(&format!("{}.{}.0", of / 1000, of % 1000 / 10))),
        ),
        (
            standard("pciBusID"),
            identity.pci_bus_id.as_deref().map(text),
        ),
        (
            standard("pcieRoot"),
            identity.pcie_root.as_deref().map(text),
        ),
        (standard("numaNode"), of.numa.map(number)),
    ];
    let known = known
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    known.collect()
}

fn text(value: &str) -> DeviceAttribute {
    DeviceAttribute {
        // Longer values are refused.
        string: Some(value.chars().take(64).collect()),
        ..DeviceAttribute::default()
    }
}

fn number(value: u32) -> DeviceAttribute {
    DeviceAttribute {
        int: Some(value.into()),
        ..DeviceAttribute::default()
    }
}

fn version(value: &str) -> DeviceAttribute {
    DeviceAttribute {
        version: Some(value.to_owned()),
        ..DeviceAttribute::default()
    }
}

/// A version with three numbers and no zero before another digit: `580.65.06` becomes `580.65.6`.
fn semantic(version: &str) -> Option<String> {
    let numbers = version.split('.').map(str::parse::<u32>);
    let mut numbers: Vec<u32> = numbers.collect::<Result<_, _>>().ok()?;
    numbers.resize(3, 0);
    let texts: Vec<String> = numbers.iter().map(u32::to_string).collect();
    Some(texts.join("."))
}

/// In the largest unit that divides it, as Kubernetes writes quantities.
fn quantity(bytes: Bytes) -> Quantity {
    let units = ["Ki", "Mi", "Gi", "Ti"];
    let mut value = (bytes.0, "");
    for unit in units {
        if value.0 == 0 || !value.0.is_multiple_of(KIB) {
            break;
        }
        value = (value.0 / KIB, unit);
    }
    Quantity(format!("{}{}", value.0, value.1))
}

#[cfg(test)]
mod tests {
    use apportion_abi::CardUuid;
    use apportion_ledger::ClaimOffer;

    use super::*;
    use crate::driver::identity::CardIdentity;

    fn offers(offered: u64, health: Health) -> DeviceOffers {
        let offer = ClaimOffer {
            card: CardUuid([7; 16]),
            whole: Bytes::from_mib(46_068),
            offered: Bytes::from_mib(offered),
            health,
        };
        let identity = CardIdentity {
            brand: Some("Nvidia".into()),
            architecture: Some("Ada Lovelace".into()),
            compute_capability: Some((8, 9)),
            pci_bus_id: Some("0000:3b:00.0".into()),
            pcie_root: None,
        };
        DeviceOffers {
            devices: vec![DeviceOffer {
                offer,
                index: 0,
                minor: Some(0),
                model: "NVIDIA L40S".into(),
                numa: Some(1),
                identity,
            }],
            has_other_owner: false,
            driver_version: "580.65.06".into(),
            cuda_version: Some(13_010),
        }
    }

    fn keys(device: &Device) -> Vec<(&str, Option<&str>)> {
        let taints = device.taints.iter().flatten();
        taints
            .map(|taint| (taint.key.as_str(), taint.value.as_deref()))
            .collect()
    }

    #[test]
    fn a_card_is_a_device_that_claims_share_and_a_request_without_memory_is_for_all_of_it() {
        let device = devices(&offers(40_000, Health::Healthy)).remove(0);
        assert_eq!(device.name, "gpu-07070707-0707-0707-0707-070707070707");
        assert_eq!(device.allow_multiple_allocations, Some(true));
        let memory = &device.capacity.as_ref().unwrap()["memory"];
        let policy = memory.request_policy.as_ref().unwrap();
        let range = policy.valid_range.as_ref().unwrap();
        assert_eq!(memory.value.0, "40000Mi");
        assert_eq!(policy.default.as_ref().unwrap().0, "46068Mi");
        assert_eq!(
            (
                range.min.0.as_str(),
                range.step.as_ref().unwrap().0.as_str()
            ),
            ("2Mi", "2Mi")
        );
        assert_eq!(keys(&device), []);
    }

    #[test]
    fn attributes_have_the_names_and_forms_of_nvidias_driver() {
        let device = devices(&offers(40_000, Health::Healthy)).remove(0);
        let attributes = device.attributes.unwrap();
        let string = |name: &str| attributes[name].string.clone().unwrap();
        let version = |name: &str| attributes[name].version.clone().unwrap();
        assert_eq!(string("type"), "gpu");
        assert_eq!(string("uuid"), "GPU-07070707-0707-0707-0707-070707070707");
        assert_eq!(string("productName"), "NVIDIA L40S");
        assert_eq!(string("resource.kubernetes.io/pciBusID"), "0000:3b:00.0");
        assert_eq!(version("cudaComputeCapability"), "8.9.0");
        assert_eq!(version("driverVersion"), "580.65.6");
        assert_eq!(version("cudaDriverVersion"), "13.1.0");
        assert_eq!(attributes["resource.kubernetes.io/numaNode"].int, Some(1));
        assert!(!attributes.contains_key("resource.kubernetes.io/pcieRoot"));
    }

    #[test]
    fn a_card_that_gives_nothing_is_tainted_and_says_why() {
        let sick = devices(&offers(40_000, Health::Lost)).remove(0);
        assert_eq!(keys(&sick), [("gpu.apportion.dev/health", Some("lost"))]);
        let full = devices(&offers(0, Health::Healthy)).remove(0);
        assert_eq!(keys(&full), [("gpu.apportion.dev/full", None)]);
        assert_eq!(full.capacity.as_ref().unwrap()["memory"].value.0, "2Mi");
        let owned = DeviceOffers {
            has_other_owner: true,
            ..offers(40_000, Health::Healthy)
        };
        assert_eq!(
            keys(&devices(&owned)[0]),
            [("gpu.apportion.dev/other-owner", None)]
        );
    }

    #[test]
    fn a_version_has_three_numbers() {
        for (given, expected) in [
            ("580.65.06", "580.65.6"),
            ("535.54", "535.54.0"),
            ("1.2.3.4", "1.2.3"),
        ] {
            assert_eq!(semantic(given).as_deref(), Some(expected));
        }
        assert_eq!(semantic("580.x"), None);
    }
}
