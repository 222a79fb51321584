//! Pods to which another device plugin, such as NVIDIA's, gave cards. The ledger records these cards as the pods',
//! even after the plugin has left.
//!
//! Cards are recognized by their device ids: a UUID or a minor number, followed by the replica or the partition.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::CardUuid;
use apportion_abi::names::is_foreign_card;
use apportion_proto::podresources::{ContainerDevices, PodResources};

use super::checkpoint::KubeletCheckpoint;

/// Another plugin's id of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ForeignCardId {
    /// NVIDIA's plugin: `GPU-…`, and `GPU-…::2` for a replica.
    Uuid(CardUuid),
    /// GKE's plugin: `nvidia0`, and `nvidia0/vgpu1` or `nvidia0/gi1` for a part.
    Minor(u32),
}

/// A pod with cards of another plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ForeignHolder {
    /// Namespace and name, if the kubelet reported them.
    pub(crate) name: Option<String>,
    pub(crate) cards: BTreeSet<ForeignCardId>,
}

impl ForeignCardId {
    fn of(device: &str) -> Option<Self> {
        let whole = device.split("::").next()?;
        if let Ok(uuid) = whole.parse() {
            return Some(Self::Uuid(uuid));
        }
        let minor = whole.split('/').next()?.strip_prefix("nvidia")?;
        minor.parse().ok().map(Self::Minor)
    }
}

/// The resource with which another plugin offers cards, among the kubelet's allocatable devices.
pub(super) fn offered(devices: &[ContainerDevices]) -> Option<&str> {
    devices
        .iter()
        .find(|of| {
            let mut ids = of.device_ids.iter();
            ids.any(|id| is_foreign_card(&of.resource_name, id))
        })
        .map(|of| of.resource_name.as_str())
}

/// The pods that still exist, by UID. The checkpoint keeps a pod for a while after it has left; the pod-resources
/// API does not list it.
pub(super) fn holders(
    record: &KubeletCheckpoint,
    listed: Option<&[PodResources]>,
    live: &BTreeSet<String>,
    name_of: impl Fn(&str) -> Option<String>,
) -> BTreeMap<String, ForeignHolder> {
    let listed = listed.map(names);
    let mut pods: BTreeMap<String, ForeignHolder> = BTreeMap::new();
    for entry in &record.entries {
        let devices = entry.devices();
        for id in devices.filter(|id| is_foreign_card(&entry.resource, id)) {
            let known = name_of(&entry.pod);
            let listed_devices = listed
                .as_ref()
                .and_then(|names| names.get(id))
                .into_iter()
                .flatten()
                .find(|name| known.as_ref().is_none_or(|known| known == *name));
            if listed.is_some() && listed_devices.is_none() && !live.contains(&entry.pod) {
                continue;
            }
            let pod = pods.entry(entry.pod.clone()).or_default();
            pod.cards.extend(ForeignCardId::of(id));
            pod.name = known.or_else(|| listed_devices.cloned());
        }
    }
    pods.retain(|_, pod| !pod.cards.is_empty());
    pods
}

/// The pods that the pod-resources API lists for each device.
fn names(listed: &[PodResources]) -> BTreeMap<String, BTreeSet<String>> {
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for pod in listed {
        let devices = pod.containers.iter().flat_map(|of| &of.devices);
        for id in devices.flat_map(|of| &of.device_ids) {
            let name = format!("{}/{}", pod.namespace, pod.name);
            names.entry(id.clone()).or_default().insert(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_abi::names::{RESOURCE_SLOT, RESOURCE_WHOLE};
    use apportion_proto::podresources::ContainerResources;

    const CARD: &str = "GPU-00000000-0000-0000-0000-000000000001";

    fn entry(pod: &str, resource: &str, id: &str) -> serde_json::Value {
        serde_json::json!({
            "PodUID": pod, "ContainerName": "main", "ResourceName": resource, "DeviceIDs": {"0": [id]},
        })
    }

    fn record(entries: &[(&str, &str, &str)]) -> KubeletCheckpoint {
        let entries = entries
            .iter()
            .map(|(pod, resource, id)| serde_json::from_value(entry(pod, resource, id)).unwrap());
        KubeletCheckpoint {
            entries: entries.collect(),
            ..KubeletCheckpoint::default()
        }
    }

    fn listed(name: &str, id: &str) -> PodResources {
        PodResources {
            name: name.into(),
            namespace: "team".into(),
            containers: vec![ContainerResources {
                name: "main".into(),
                devices: vec![devices(RESOURCE_WHOLE, id)],
                ..ContainerResources::default()
            }],
        }
    }

    fn devices(resource: &str, id: &str) -> ContainerDevices {
        ContainerDevices {
            resource_name: resource.into(),
            device_ids: vec![id.into()],
        }
    }

    #[test]
    fn a_card_is_known_by_its_uuid_or_its_number() {
        let uuid = ForeignCardId::Uuid(CARD.parse().unwrap());
        let replica = format!("{CARD}::3");
        let known = [
            (CARD, Some(uuid)),
            (&replica, Some(uuid)),
            ("nvidia2", Some(ForeignCardId::Minor(2))),
            ("nvidia0/vgpu1", Some(ForeignCardId::Minor(0))),
            ("nvidia", None),
            ("rdma0", None),
        ];
        for (id, card) in known {
            assert_eq!(ForeignCardId::of(id), card, "{id}");
        }
    }

    #[test]
    fn our_own_devices_and_those_that_are_no_cards_are_not_another_plugins() {
        assert_eq!(offered(&[devices(RESOURCE_WHOLE, "w-0001")]), None);
        assert_eq!(offered(&[devices(RESOURCE_SLOT, "s-0001")]), None);
        assert_eq!(offered(&[devices("nvidia.com/hostdev", "rdma0")]), None);
        for resource in [
            RESOURCE_WHOLE,
            "nvidia.com/gpu.shared",
            "nvidia.com/mig-1g.10gb",
        ] {
            let all = [devices(RESOURCE_SLOT, "s-0001"), devices(resource, CARD)];
            assert_eq!(offered(&all), Some(resource));
        }
        assert_eq!(
            offered(&[devices(RESOURCE_WHOLE, "nvidia0")]),
            Some(RESOURCE_WHOLE)
        );
    }

    #[test]
    fn the_pods_that_hold_cards_of_another_plugin_are_those_that_are_there() {
        let record = record(&[
            ("u1", RESOURCE_WHOLE, CARD),
            ("u2", RESOURCE_WHOLE, "w-0001"),
            ("left", RESOURCE_WHOLE, "nvidia1"),
        ]);
        let (none, nobody) = (BTreeSet::new(), |_: &str| None);
        let seen_by = |listed: Option<&[PodResources]>| holders(&record, listed, &none, nobody);
        let pods = seen_by(Some(&[listed("a", CARD)]));
        assert_eq!(pods.keys().collect::<Vec<_>>(), ["u1"]);
        assert_eq!(pods["u1"].name.as_deref(), Some("team/a"));
        assert_eq!(pods["u1"].cards.len(), 1);
        assert_eq!(
            seen_by(None).len(),
            2,
            "the record alone does not say who has left"
        );
        let live = ["left".to_owned()].into();
        assert!(holders(&record, Some(&[]), &live, nobody).contains_key("left"));
    }
}
