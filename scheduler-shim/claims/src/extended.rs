//! Requests for extended resources as requests for devices (KEP-5004).
//!
//! Each container that asks for such a resource gets a request of its own, so that the kubelet can tell whose devices
//! are whose. Containers that run one after the other use the same devices: an init container takes what later
//! containers have, and only asks for what is missing. The requests, their names and their order are those of
//! kube-scheduler, so that both schedulers make the same claim.

use std::collections::BTreeMap;

use crate::objects::{AllocationMode, DeviceRequest, RequestTerms};

/// A container of a pod.
#[derive(Clone, Debug, Default)]
pub struct ContainerRequests {
    /// Its name.
    pub name: String,
    /// Whether it ends before the next ones start: an init container that is no sidecar.
    pub is_short_lived: bool,
    /// What it requests of every resource, in whole units.
    pub requests: BTreeMap<String, i64>,
}

/// A request for devices of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtendedRequest {
    /// Its name.
    pub name: String,
    /// The extended resource that it is for.
    pub resource: String,
    /// The class of the devices.
    pub class: String,
    /// How many devices.
    pub count: i64,
}

/// Which devices a container gets for an extended resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestMapping {
    /// The name of the container.
    pub container: String,
    /// The extended resource.
    pub resource: String,
    /// The name of the request whose devices it gets.
    pub request: String,
}

/// What the containers of a pod ask for, as requests of one claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtendedRequests {
    /// The requests, by name.
    pub requests: Vec<ExtendedRequest>,
    /// Which containers get the devices of which request.
    pub mappings: Vec<RequestMapping>,
}

impl ExtendedRequest {
    /// The request as a claim has it.
    #[must_use]
    pub fn as_device_request(&self) -> DeviceRequest {
        DeviceRequest {
            name: self.name.clone(),
            exactly: Some(RequestTerms {
                device_class_name: self.class.clone(),
                allocation_mode: AllocationMode::ExactCount,
                count: Some(self.count),
                ..RequestTerms::default()
            }),
            first_available: Vec::new(),
        }
    }
}

impl ExtendedRequests {
    /// The requests of these containers, init containers first, for resources that `classes` gives a class to.
    #[must_use]
    pub fn of(containers: &[ContainerRequests], classes: &BTreeMap<String, String>) -> Self {
        let mut all = Self::default();
        for (resource, class) in classes {
            let one = ResourceRequests {
                containers,
                resource,
                class,
            };
            one.add_to(&mut all);
        }
        all.requests.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }
}

/// The requests for one resource.
#[derive(Clone, Copy)]
struct ResourceRequests<'a> {
    containers: &'a [ContainerRequests],
    resource: &'a str,
    class: &'a str,
}

impl ResourceRequests<'_> {
    fn add_to(self, all: &mut ExtendedRequests) {
        let mut lasting: BTreeMap<usize, ExtendedRequest> = BTreeMap::new();
        for (place, container) in self.containers.iter().enumerate() {
            if container.is_short_lived {
                continue;
            }
            if let Some(request) = self.request(place, 0) {
                all.mappings.push(self.mapping(place, &request.name));
                lasting.insert(place, request);
            }
        }
        let (largest, mappings) = self.of_short_lived(&lasting);
        all.mappings.extend(mappings);
        all.requests.extend(largest);
        all.requests.extend(lasting.into_values());
    }

    /// The one request that serves all short-lived containers, beside those of later containers that they use, and
    /// their mappings.
    fn of_short_lived(
        self,
        lasting: &BTreeMap<usize, ExtendedRequest>,
    ) -> (Option<ExtendedRequest>, Vec<RequestMapping>) {
        let mut largest: Option<ExtendedRequest> = None;
        let mut mappings = Vec::new();
        let mut own = Vec::new();
        for (place, container) in self.containers.iter().enumerate() {
            let wanted = self.wanted(place);
            if !container.is_short_lived || wanted == 0 {
                continue;
            }
            let mut found = 0;
            for later in lasting.range(place..).map(|(_, later)| later) {
                if found >= wanted {
                    break;
                }
                found += later.count;
                mappings.push(self.mapping(place, &later.name));
            }
            let Some(request) = self.request(place, found) else {
                continue;
            };
            own.push(mappings.len());
            mappings.push(self.mapping(place, &request.name));
            if largest
                .as_ref()
                .is_none_or(|largest| largest.count < request.count)
            {
                largest = Some(request);
            }
        }
        for place in own {
            if let Some(largest) = &largest {
                mappings[place].request.clone_from(&largest.name);
            }
        }
        (largest, mappings)
    }

    /// How much a container wants.
    fn wanted(self, place: usize) -> i64 {
        let wanted = self.containers[place].requests.get(self.resource);
        wanted.copied().unwrap_or(0).max(0)
    }

    /// The request of a container that has `found` devices already; nothing if these are enough.
    fn request(self, place: usize, found: i64) -> Option<ExtendedRequest> {
        let count = self.wanted(place) - found;
        let names = self.containers[place].requests.keys();
        let mut names = names.enumerate();
        let (number, _) = names.find(|(_, name)| *name == self.resource)?;
        (count > 0).then(|| ExtendedRequest {
            name: format!("container-{place}-request-{number}"),
            resource: self.resource.to_owned(),
            class: self.class.to_owned(),
            count,
        })
    }

    fn mapping(self, place: usize, request: &str) -> RequestMapping {
        RequestMapping {
            container: self.containers[place].name.clone(),
            resource: self.resource.to_owned(),
            request: request.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "nvidia.com/gpu";

    fn container(name: &str, is_short_lived: bool, requests: &[(&str, i64)]) -> ContainerRequests {
        let requests = requests.iter();
        ContainerRequests {
            name: name.to_owned(),
            is_short_lived,
            requests: requests
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect(),
        }
    }

    fn of(containers: &[ContainerRequests], resources: &[&str]) -> ExtendedRequests {
        let classes = resources.iter();
        let classes = classes.map(|name| ((*name).to_owned(), format!("class of {name}")));
        ExtendedRequests::of(containers, &classes.collect())
    }

    fn counts(all: &ExtendedRequests) -> Vec<(&str, i64)> {
        let requests = all.requests.iter();
        requests.map(|one| (one.name.as_str(), one.count)).collect()
    }

    fn pairs(all: &ExtendedRequests) -> Vec<(&str, &str)> {
        let mappings = all.mappings.iter();
        mappings
            .map(|one| (one.container.as_str(), one.request.as_str()))
            .collect()
    }

    /// The number of a request is the place of the resource among all that the container requests, by name.
    #[test]
    fn each_container_and_resource_has_a_request_of_its_own() {
        let both = [("cpu", 1), ("memory", 5), (GPU, 2), ("example.com/nic", 1)];
        let containers = [
            container("a", false, &both),
            container("b", false, &[(GPU, 1)]),
            container("c", false, &[("cpu", 1), (GPU, 0)]),
        ];
        let all = of(&containers, &[GPU, "example.com/nic"]);
        let expected = [
            ("container-0-request-1", 1),
            ("container-0-request-3", 2),
            ("container-1-request-0", 1),
        ];
        assert_eq!(counts(&all), expected);
        let classes = all.requests.iter().map(|one| one.class.as_str());
        let of_gpu = "class of nvidia.com/gpu";
        assert_eq!(
            classes.collect::<Vec<_>>(),
            ["class of example.com/nic", of_gpu, of_gpu]
        );
        let expected = [
            ("a", "container-0-request-1"),
            ("a", "container-0-request-3"),
            ("b", "container-1-request-0"),
        ];
        assert_eq!(pairs(&all), expected);
        assert_eq!(counts(&of(&containers, &[])), []);
    }

    #[test]
    fn an_init_container_uses_the_devices_of_later_containers_and_asks_for_the_rest() {
        let containers = [
            container("first", true, &[(GPU, 1)]),
            container("greedy", true, &[(GPU, 5)]),
            container("sidecar", false, &[(GPU, 1)]),
            container("modest", true, &[(GPU, 3)]),
            container("main", false, &[(GPU, 2)]),
        ];
        let all = of(&containers, &[GPU]);
        // Later containers have 3, so the greedy one lacks 2, and one that starts after the sidecar lacks 1 of 3.
        let expected = [
            ("container-1-request-0", 2),
            ("container-2-request-0", 1),
            ("container-4-request-0", 2),
        ];
        assert_eq!(counts(&all), expected);
        let expected = [
            ("sidecar", "container-2-request-0"),
            ("main", "container-4-request-0"),
            ("first", "container-2-request-0"),
            ("greedy", "container-2-request-0"),
            ("greedy", "container-4-request-0"),
            ("greedy", "container-1-request-0"),
            ("modest", "container-4-request-0"),
            ("modest", "container-1-request-0"),
        ];
        assert_eq!(pairs(&all), expected);
    }

    #[test]
    fn requests_are_in_the_order_of_their_names() {
        let containers: Vec<ContainerRequests> = (0..11)
            .map(|number| container(&format!("c{number}"), false, &[(GPU, 1)]))
            .collect();
        let all = of(&containers, &[GPU]);
        assert_eq!(all.requests[2].name, "container-10-request-0");
        assert_eq!(all.requests[3].name, "container-2-request-0");
    }
}
