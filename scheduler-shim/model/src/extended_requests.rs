//! What one pod requests of extended resources that device classes may name (KEP-5004), and the claim for it.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::names::RESOURCE_PARTITION as PARTITION;
use apportion_claims::objects::ResourceClaim;
use apportion_claims::{ContainerRequests, DeviceInventory, ExtendedRequests};
use apportion_groups::ObjectView;
use apportion_kubernetes::Quantity;
use apportion_policy::cluster::TaskGpuRequest;
use serde_json::{Value, json};

use super::pods;
use super::requests::{self, WHOLE};

/// The annotation of a claim that its scheduler made for a pod.
pub const OF_EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";

/// Begins the end of the name of a claim that exists in memory only. No object has such a name.
pub(crate) const IN_MEMORY: &str = "<extended-resources";

/// Resources that device classes name, with the names of the classes.
pub(crate) type ResourceClasses = BTreeMap<String, String>;

/// The name of the claim that a pod, with or without its namespace, would get.
#[must_use]
pub fn name_in_memory(pod: &str) -> String {
    format!("{pod}{IN_MEMORY}>")
}

/// Whether a claim exists in memory only.
#[must_use]
pub fn is_in_memory(claim: &str) -> bool {
    claim.contains(IN_MEMORY)
}

/// What is written into a claim and into the status of its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtendedClaimContents {
    /// The spec of the claim.
    pub spec: Value,
    /// Which container gets the devices of which request: `requestMappings` in the status of the pod.
    pub mappings: Value,
}

impl ExtendedClaimContents {
    pub(crate) fn of(asked: &ExtendedRequests) -> Self {
        let requests = asked.requests.iter().map(|one| {
            json!({"name": one.name, "exactly": {"deviceClassName": one.class,
                "allocationMode": "ExactCount", "count": one.count}})
        });
        let mappings = asked.mappings.iter().map(|one| {
            json!({"containerName": one.container, "resourceName": one.resource, "requestName": one.request})
        });
        Self {
            spec: json!({"devices": {"requests": requests.collect::<Vec<Value>>()}}),
            mappings: mappings.collect(),
        }
    }
}

/// The claim that a bound pod has, as its status says.
#[derive(Clone, Debug)]
pub struct ExtendedClaimStatus {
    /// The claim, with its namespace.
    pub(crate) claim: String,
    /// The resources that come with it.
    pub(crate) resources: BTreeSet<String>,
}

impl ExtendedClaimStatus {
    /// Reads the status of a pod.
    pub(crate) fn of(pod: ObjectView<'_>) -> Option<Self> {
        let status = &pod.json()["status"]["extendedResourceClaimStatus"];
        let claim = status["resourceClaimName"].as_str()?;
        let mappings = status["requestMappings"].as_array().into_iter().flatten();
        let names = mappings.filter_map(|one| one["resourceName"].as_str());
        Some(Self {
            claim: format!("{}/{claim}", pod.namespace()),
            resources: names.map(str::to_owned).collect(),
        })
    }
}

/// What a pod requests of all resources.
#[derive(Debug)]
pub(crate) struct RequestedResources {
    /// The pod, with its namespace.
    pod: String,
    pub(crate) uid: String,
    pub(crate) version: String,
    /// The containers, init containers first.
    containers: Vec<ContainerRequests>,
    /// What the whole pod requests of each resource.
    totals: BTreeMap<String, i64>,
}

impl RequestedResources {
    pub(crate) fn of(pod: ObjectView<'_>) -> Self {
        let init = requests::containers(pod, "initContainers").map(|one| container(one, true));
        let running = requests::containers(pod, "containers").map(|one| container(one, false));
        let containers: Vec<ContainerRequests> = init.chain(running).collect();
        let names = containers.iter().flat_map(|one| one.requests.keys());
        let version = pod.json()["metadata"]["resourceVersion"].as_str();
        Self {
            pod: pods::name(pod),
            uid: pod.uid().to_owned(),
            version: version.unwrap_or_default().to_owned(),
            totals: names
                .map(|name| (name.clone(), requests::total(pod, name).units()))
                .collect(),
            containers,
        }
    }

    /// The resources among these that classes name.
    pub(crate) fn classes(&self, devices: &DeviceInventory) -> ResourceClasses {
        let asked = self.totals.iter().filter(|(_, amount)| **amount > 0);
        let named = asked.filter_map(|(name, _)| {
            let class = devices.class_of_resource(name)?;
            Some((name.clone(), class.metadata.name.clone()))
        });
        named.collect()
    }

    /// The requests for resources of these classes.
    pub(crate) fn as_requests(&self, classes: &ResourceClasses) -> ExtendedRequests {
        ExtendedRequests::of(&self.containers, classes)
    }

    /// The claim for requests, as if it was there. Messages name it after its resources.
    pub(crate) fn as_claim(&self, asked: &ExtendedRequests) -> ResourceClaim {
        let resources: BTreeSet<&str> = (asked.requests.iter())
            .map(|one| one.resource.as_str())
            .collect();
        let resources: Vec<&str> = resources.into_iter().collect();
        let requests = asked.requests.iter();
        let mut claim = ResourceClaim::default();
        claim.metadata.name = format!("for {} of {}", resources.join(" and "), self.pod);
        claim.metadata.uid.clone_from(&self.uid);
        claim.spec.devices.requests = requests.map(|one| one.as_device_request()).collect();
        claim
    }

    /// What is left of a request for cards without some resources.
    pub(crate) fn cards_without(
        &self,
        cards: &TaskGpuRequest,
        is_without: impl Fn(&str) -> bool,
    ) -> TaskGpuRequest {
        match cards {
            TaskGpuRequest::Whole(count) => {
                let gone = WHOLE.iter().filter(|name| is_without(name));
                let gone: i64 = gone.filter_map(|name| self.totals.get(*name)).sum();
                match count - gone {
                    ..=0 => TaskGpuRequest::None,
                    left => TaskGpuRequest::Whole(left),
                }
            }
            TaskGpuRequest::Partitions(all) => {
                let mut left = all.clone();
                left.retain(|name, _| !is_without(name));
                if left.is_empty() {
                    TaskGpuRequest::None
                } else {
                    TaskGpuRequest::Partitions(left)
                }
            }
            TaskGpuRequest::None | TaskGpuRequest::Shared { .. } => cards.clone(),
        }
    }

    /// The resource that a request of a claim is for, by the name that the request has.
    pub(crate) fn resource_of(&self, request: &str) -> Option<&str> {
        let numbers = request.strip_prefix("container-")?;
        let (place, number) = numbers.split_once("-request-")?;
        let container = self.containers.get(place.parse::<usize>().ok()?)?;
        let name = container.requests.keys().nth(number.parse().ok()?);
        name.map(String::as_str)
    }
}

/// What a container requests. A limit without a request is a request, as the API server has it.
fn container(container: &Value, is_init: bool) -> ContainerRequests {
    let resources = &container["resources"];
    let kinds = ["limits", "requests"].into_iter();
    let entries = kinds.flat_map(|kind| resources[kind].as_object().into_iter().flatten());
    let units = |amount| Quantity::from_json(amount).unwrap_or_default().units();
    ContainerRequests {
        name: container["name"].as_str().unwrap_or_default().to_owned(),
        is_short_lived: is_init && container["restartPolicy"] != "Always",
        requests: entries
            .map(|(name, amount)| (name.clone(), units(amount)))
            .collect(),
    }
}

/// Whether a resource counts in the quota of GPUs by its name, however a node has it.
pub(crate) fn counts_by_name(resource: &str) -> bool {
    WHOLE.contains(&resource) || resource.starts_with(PARTITION)
}
