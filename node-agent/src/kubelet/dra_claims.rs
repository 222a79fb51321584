//! GPUs that NVIDIA's DRA driver gives to pods through resource claims. The ledger records them as the pods', like
//! those of another device plugin. While the driver offers GPUs of this node, the agent allocates nothing.
//!
//! The kubelet's pod-resources API says which claim has which device. It names devices by number, and the driver's
//! `ResourceSlice` maps them to GPUs. If the API server does not have it, the number is taken as the minor number of
//! the device file.

use std::collections::BTreeMap;

use apportion_abi::CardUuid;
use apportion_abi::names::DRA_DRIVER;
use apportion_exit::error_chain;
use apportion_proto::podresources::PodResources;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tracing::{debug, info, warn};

use super::foreign_holders::{ForeignCardId, ForeignHolder};
use super::pods::{self, RETRY};

/// The name of NVIDIA's DRA driver.
pub(super) const DRIVER: &str = "gpu.nvidia.com";

/// The GPUs of this node that the driver offers, by device name. A partition maps to its GPU.
pub(super) type Published = BTreeMap<String, CardUuid>;

/// The pods with claimed GPUs, by UID, or by name if the UID is unknown.
pub(super) fn holders(
    listed: &[PodResources],
    published: &Published,
    uid_of: impl Fn(&str) -> Option<String>,
) -> BTreeMap<String, ForeignHolder> {
    let mut holders: BTreeMap<String, ForeignHolder> = BTreeMap::new();
    for pod in listed {
        let claims = pod.containers.iter().flat_map(|of| &of.dynamic_resources);
        let devices = claims.flat_map(|claim| &claim.claim_resources);
        let ours = devices.filter(|device| device.driver_name == DRIVER);
        let cards = ours.filter_map(|device| card(&device.device_name, published));
        let cards: Vec<ForeignCardId> = cards.collect();
        if cards.is_empty() {
            continue;
        }
        let name = format!("{}/{}", pod.namespace, pod.name);
        let uid = uid_of(&name).unwrap_or_else(|| name.clone());
        let holder = holders.entry(uid).or_default();
        holder.name = Some(name);
        holder.cards.extend(cards);
    }
    holders
}

/// The pods with claims of this agent's driver: their names by UID, by the claim's namespace and name.
pub(super) fn own(
    listed: &[PodResources],
    uid_of: impl Fn(&str) -> Option<String>,
) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut claims: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for pod in listed {
        let all = pod.containers.iter().flat_map(|of| &of.dynamic_resources);
        let own = all.filter(|claim| {
            let mut devices = claim.claim_resources.iter();
            devices.any(|device| device.driver_name == DRA_DRIVER)
        });
        for claim in own {
            let name = format!("{}/{}", pod.namespace, pod.name);
            let claim = format!("{}/{}", claim.claim_namespace, claim.claim_name);
            if let Some(uid) = uid_of(&name) {
                claims.entry(claim).or_default().insert(uid, name);
            }
        }
    }
    claims
}

/// The GPU of a device, for example `gpu-0` or `gpu-0-mig-1g.10gb-0`.
fn card(device: &str, published: &Published) -> Option<ForeignCardId> {
    if let Some(uuid) = published.get(device) {
        return Some(ForeignCardId::Uuid(*uuid));
    }
    let number = device.strip_prefix("gpu-")?.split('-').next()?;
    number.parse().ok().map(ForeignCardId::Minor)
}

/// Watches what the driver offers on this node. Without an API server that stays unknown.
pub(super) fn watch(node: Option<String>) -> watch::Receiver<Published> {
    let (published, seen) = watch::channel(Published::new());
    if let Some(node) = node {
        tokio::spawn(async move {
            match pods::client().await {
                Ok(client) => follow(client, &node, &published).await,
                Err(problem) => debug!(problem, "ResourceSlices of the node unknown"),
            }
        });
    }
    seen
}

async fn follow(client: Client, node: &str, published: &watch::Sender<Published>) {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let mut events = Box::pin(watcher(Api::<ResourceSlice>::all(client), config));
    let mut slices: BTreeMap<String, Published> = BTreeMap::new();
    let mut is_failing = false;
    while let Some(event) = events.next().await {
        let is_complete = match event {
            Ok(watcher::Event::Init) => {
                slices.clear();
                false
            }
            Ok(watcher::Event::InitApply(slice)) => {
                slices.insert(slice.name_any(), offered(&slice));
                false
            }
            Ok(watcher::Event::Apply(slice)) => {
                slices.insert(slice.name_any(), offered(&slice));
                true
            }
            Ok(watcher::Event::Delete(slice)) => {
                slices.remove(&slice.name_any());
                true
            }
            Ok(watcher::Event::InitDone) => true,
            Err(error) => {
                // An API server without DRA has no ResourceSlices.
                let is_old = matches!(&error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404);
                if !is_failing && !is_old {
                    warn!(
                        error = error_chain(&error),
                        "Failed to watch the ResourceSlices of the node"
                    );
                }
                is_failing = true;
                tokio::time::sleep(if is_old { RETRY * 60 } else { RETRY }).await;
                continue;
            }
        };
        is_failing = false;
        if is_complete {
            let all: Published = slices
                .values()
                .flatten()
                .map(|(name, uuid)| (name.clone(), *uuid))
                .collect();
            published.send_if_modified(|known| {
                let is_new = *known != all;
                if is_new {
                    info!(gpus = all.len(), "GPUs offered by NVIDIA's DRA driver");
                    *known = all;
                }
                is_new
            });
        }
    }
}

/// The GPUs of a slice.
fn offered(slice: &ResourceSlice) -> Published {
    let devices = slice.spec.devices.iter().flatten();
    let ours = devices.filter(|_| slice.spec.driver == DRIVER);
    ours.filter_map(|device| {
        let attribute = |name: &str| device.attributes.as_ref()?.get(name)?.string.clone();
        let uuid = attribute("parentUUID").or_else(|| attribute("uuid"))?;
        Some((device.name.clone(), uuid.parse().ok()?))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use apportion_proto::podresources::{ClaimResource, ContainerResources, DynamicResource};
    use serde_json::json;

    use super::*;

    const UUID: &str = "GPU-00000000-0000-0000-0000-000000000001";

    fn pod(name: &str, claimed: &[(&str, &str)]) -> PodResources {
        PodResources {
            name: name.to_owned(),
            namespace: "team".to_owned(),
            containers: vec![ContainerResources {
                name: "main".to_owned(),
                dynamic_resources: vec![DynamicResource {
                    claim_resources: claimed
                        .iter()
                        .map(|(driver, device)| ClaimResource {
                            driver_name: (*driver).to_owned(),
                            pool_name: "node".to_owned(),
                            device_name: (*device).to_owned(),
                        })
                        .collect(),
                    ..DynamicResource::default()
                }],
                ..ContainerResources::default()
            }],
        }
    }

    #[test]
    fn a_pod_holds_the_gpus_of_its_claims_and_nothing_of_another_drivers() {
        let uuid = UUID.parse().unwrap();
        let published = Published::from([("gpu-7".to_owned(), uuid)]);
        let listed = [
            pod("a", &[(DRIVER, "gpu-7"), (DRIVER, "gpu-2-mig-1g.10gb-0")]),
            pod("b", &[("nic.example.com", "gpu-1"), (DRIVER, "gpu-vfio-1")]),
            pod("c", &[]),
        ];
        let holders = holders(&listed, &published, |name| {
            (name == "team/a").then(|| "u1".to_owned())
        });
        assert_eq!(holders.keys().collect::<Vec<_>>(), ["u1"]);
        let expected = [ForeignCardId::Uuid(uuid), ForeignCardId::Minor(2)];
        assert_eq!(holders["u1"].cards, expected.into());
        assert_eq!(holders["u1"].name.as_deref(), Some("team/a"));
        let nobody = super::holders(&listed, &published, |_| None);
        assert_eq!(nobody.keys().collect::<Vec<_>>(), ["team/a"]);
    }

    #[test]
    fn a_slice_names_the_gpus_of_its_devices_also_of_parts() {
        let slice = |driver: &str| -> ResourceSlice {
            let text = |value: &str| json!({"string": value});
            serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {"driver": driver, "nodeName": "n",
                "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "devices": [
                    {"name": "gpu-0", "attributes": {"uuid": text(UUID)}},
                    {"name": "gpu-0-mig-1", "attributes": {"uuid": text("MIG-1"), "parentUUID": text(UUID)}},
                    {"name": "gpu-vfio-0", "attributes": {}}]}}))
            .unwrap()
        };
        let names: Vec<_> = offered(&slice(DRIVER)).into_keys().collect();
        assert_eq!(names, ["gpu-0", "gpu-0-mig-1"]);
        assert!(offered(&slice("compute-domain.nvidia.com")).is_empty());
    }
}
