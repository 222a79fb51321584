//! Which pod has which whole cards, from the kubelet's two sources.
//!
//! A pod's devices include those of its init containers, because its lowest device stands for its first card. The
//! pod-resources API lists only running containers. So the API says which pods exist, and the checkpoint says which
//! devices they have.
//!
//! If the sources contradict each other about a device, none of its pods starts and none loses what it has. Other
//! pods are not affected.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use apportion_abi::names::RESOURCE_WHOLE;
use apportion_ledger::WholeCardId;
use apportion_proto::podresources::PodResources;

use super::checkpoint::KubeletCheckpoint;

/// A pod with whole cards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WholeCardHolder {
    /// Namespace and name, if the kubelet reported them.
    pub(crate) name: Option<String>,
    pub(crate) ids: BTreeSet<WholeCardId>,
    /// Whether the pod-resources API lists it: one of its containers runs.
    pub(crate) is_listed: bool,
}

/// A pod that shares a device with another pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceConflict {
    pub(crate) ids: BTreeSet<WholeCardId>,
    /// The devices that two pods have.
    pub(crate) twice: BTreeSet<WholeCardId>,
    /// The names of these pods, or the UIDs of those without a known name.
    pub(crate) pods: BTreeSet<String>,
}

impl fmt::Display for DeviceConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.twice.iter().map(WholeCardId::to_string).collect();
        let pods: Vec<_> = self.pods.iter().map(String::as_str).collect();
        let (ids, pods) = (ids.join(", "), pods.join(" and to "));
        write!(
            f,
            "the kubelet allocated whole GPU {ids} to pod {pods}; delete one of them"
        )
    }
}

/// The whole-card part of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WholeCardSnapshot {
    /// By UID.
    pub(crate) pods: BTreeMap<String, WholeCardHolder>,
    /// The pods, by UID, whose devices are uncertain.
    pub(crate) contested: BTreeMap<String, DeviceConflict>,
}

impl WholeCardSnapshot {
    /// Every pod that holds or claims a device.
    pub(crate) fn claimants(&self) -> impl Iterator<Item = &String> {
        self.pods.keys().chain(self.contested.keys())
    }

    /// All devices of the contested pods.
    pub(crate) fn contested_ids(&self) -> BTreeSet<WholeCardId> {
        let contests = self.contested.values();
        contests.flat_map(|of| of.ids.iter().copied()).collect()
    }

    /// One of these devices that a pod with a running container holds, with the pod's name.
    pub(super) fn in_use(&self, ids: &[WholeCardId]) -> Option<(WholeCardId, &str)> {
        self.pods.values().find_map(|of| {
            let id = ids.iter().find(|id| of.is_listed && of.ids.contains(id))?;
            Some((*id, of.name.as_deref()?))
        })
    }
}

/// The pods that exist. `live` are those that have not ended, and `name_of` returns their names.
pub(super) fn holders(
    record: &KubeletCheckpoint,
    listed: Option<&[PodResources]>,
    live: &BTreeSet<String>,
    name_of: impl Fn(&str) -> Option<String>,
) -> WholeCardSnapshot {
    let mut pods: BTreeMap<String, WholeCardHolder> = BTreeMap::new();
    let ours = record.entries.iter();
    for entry in ours.filter(|entry| entry.resource == RESOURCE_WHOLE) {
        let ids = entry
            .devices()
            .filter_map(|id| id.parse::<WholeCardId>().ok());
        pods.entry(entry.pod.clone()).or_default().ids.extend(ids);
    }
    let listed = listed.map(names);
    let known: BTreeMap<String, String> = pods
        .keys()
        .filter_map(|uid| Some((uid.clone(), name_of(uid)?)))
        .collect();
    for (uid, pod) in &mut pods {
        let ids = pod.ids.iter();
        let mut listed_names = ids.filter_map(|id| listed.as_ref()?.get(id)).flatten();
        let its = match known.get(uid) {
            Some(name) => listed_names.find(|listed_names| *listed_names == name),
            // Ignore names that belong to another pod.
            None => {
                listed_names.find(|listed_names| !known.values().any(|name| name == *listed_names))
            }
        };
        pod.is_listed = its.is_some();
        pod.name = its.or(known.get(uid)).cloned();
    }
    pods.retain(|uid, pod| {
        let is_there = listed.is_none() || pod.is_listed || live.contains(uid);
        is_there && !pod.ids.is_empty()
    });
    contest(pods, &listed.unwrap_or_default())
}

/// Separates the pods that claim a device of another pod.
fn contest(
    mut pods: BTreeMap<String, WholeCardHolder>,
    listed: &BTreeMap<WholeCardId, BTreeSet<String>>,
) -> WholeCardSnapshot {
    let mut claims: BTreeMap<WholeCardId, Vec<&String>> = BTreeMap::new();
    for (uid, pod) in &pods {
        let ids = pod.ids.iter();
        ids.for_each(|id| claims.entry(*id).or_default().push(uid));
    }
    let mut contested: BTreeMap<String, DeviceConflict> = BTreeMap::new();
    for (id, claimants) in claims.iter().filter(|(_, of)| of.len() > 1) {
        let name = |uid: &&String| pods.get(*uid)?.name.clone();
        let mut names: BTreeSet<String> = claimants.iter().filter_map(name).collect();
        names.extend(listed.get(id).into_iter().flatten().cloned());
        if names.len() < claimants.len() {
            let nameless = claimants.iter().filter(|uid| name(uid).is_none());
            names.extend(nameless.map(|uid| (*uid).clone()));
        }
        for uid in claimants {
            let contest = contested.entry((*uid).clone()).or_default();
            contest.twice.insert(*id);
            let its = pods.get(*uid).into_iter().flat_map(|of| &of.ids);
            contest.ids.extend(its);
            contest.pods.extend(names.iter().cloned());
        }
    }
    pods.retain(|uid, _| !contested.contains_key(uid));
    WholeCardSnapshot { pods, contested }
}

/// The pods that the pod-resources API lists for each device.
fn names(listed: &[PodResources]) -> BTreeMap<WholeCardId, BTreeSet<String>> {
    let mut names: BTreeMap<WholeCardId, BTreeSet<String>> = BTreeMap::new();
    for pod in listed {
        let devices = pod.containers.iter().flat_map(|of| &of.devices);
        let ours = devices.filter(|of| of.resource_name == RESOURCE_WHOLE);
        let ids = ours.flat_map(|of| &of.device_ids);
        for id in ids.filter_map(|id| id.parse().ok()) {
            let name = format!("{}/{}", pod.namespace, pod.name);
            names.entry(id).or_default().insert(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_proto::podresources::{ContainerDevices, ContainerResources};

    fn record(entries: &[(&str, &str, &[&str])]) -> KubeletCheckpoint {
        KubeletCheckpoint {
            entries: entries
                .iter()
                .map(|(pod, container, ids)| {
                    serde_json::from_value(serde_json::json!({
                        "PodUID": pod, "ContainerName": container, "ResourceName": RESOURCE_WHOLE,
                        "DeviceIDs": {"0": ids},
                    }))
                    .unwrap()
                })
                .collect(),
            ..KubeletCheckpoint::default()
        }
    }

    fn listed(name: &str, id: &str) -> PodResources {
        let devices = vec![ContainerDevices {
            resource_name: RESOURCE_WHOLE.into(),
            device_ids: vec![id.into()],
        }];
        PodResources {
            name: name.into(),
            namespace: "team".into(),
            containers: vec![ContainerResources {
                name: "main".into(),
                devices,
                ..ContainerResources::default()
            }],
        }
    }

    fn ids(holders: &WholeCardSnapshot, uid: &str) -> Vec<u16> {
        holders.pods[uid].ids.iter().map(|id| id.0).collect()
    }

    fn holders(
        record: &KubeletCheckpoint,
        listed: Option<&[PodResources]>,
        live: &BTreeSet<String>,
    ) -> WholeCardSnapshot {
        super::holders(record, listed, live, |uid| {
            (uid == "known").then(|| "team/b".to_owned())
        })
    }

    #[test]
    fn a_pod_has_the_devices_of_all_its_containers() {
        let record = record(&[
            ("u1", "init", &["w-0001", "w-0003"]),
            ("u1", "main", &["w-0003"]),
            ("u2", "main", &["GPU-foreign"]),
        ]);
        let list = [listed("a", "w-0003")];
        let holders = holders(&record, Some(&list), &BTreeSet::new());
        assert_eq!(ids(&holders, "u1"), [1, 3]);
        assert_eq!(holders.pods["u1"].name.as_deref(), Some("team/a"));
        assert_eq!(holders.pods.len(), 1, "devices of others are none of ours");
        assert_eq!(
            holders.in_use(&[WholeCardId(3)]),
            Some((WholeCardId(3), "team/a"))
        );
        assert_eq!(holders.in_use(&[WholeCardId(2)]), None);
    }

    #[test]
    fn a_pod_that_has_left_is_on_record_for_a_while_and_has_nothing() {
        let none = BTreeSet::new();
        let left = record(&[("u1", "main", &["w-0001"])]);
        assert!(holders(&left, Some(&[]), &none).pods.is_empty());
        let live = ["u1".to_owned()].into();
        assert_eq!(ids(&holders(&left, Some(&[]), &live), "u1"), [1]);
        assert_eq!(ids(&holders(&left, None, &none), "u1"), [1]);
        let both = record(&[("u1", "main", &["w-0001"]), ("known", "main", &["w-0001"])]);
        let after = holders(&both, Some(&[listed("b", "w-0001")]), &none);
        assert_eq!(ids(&after, "known"), [1]);
        assert_eq!(after.claimants().count(), 1);
    }

    #[test]
    fn a_device_of_two_pods_is_neithers_and_the_others_have_theirs() {
        let both = record(&[
            ("known", "main", &["w-0001"]),
            ("u1", "main", &["w-0001", "w-0003"]),
            ("u3", "main", &["w-0002"]),
        ]);
        let running = [
            listed("b", "w-0001"),
            listed("a", "w-0001"),
            listed("c", "w-0002"),
        ];
        let live = ["known", "u1", "u3"].map(str::to_owned).into();
        let cases = [
            (Some(&running[..]), "pod team/a and to team/b"),
            (None, "pod team/b and to u1"),
        ];
        for (listed, pods) in cases {
            let holders = holders(&both, listed, &live);
            assert_eq!(ids(&holders, "u3"), [2]);
            assert_eq!(holders.pods.len(), 1);
            let message = holders.contested["u1"].to_string();
            let listed_names =
                format!("the kubelet allocated whole GPU w-0001 to {pods}; delete one of them");
            assert_eq!(message, listed_names);
            assert_eq!(
                holders.contested_ids(),
                [WholeCardId(1), WholeCardId(3)].into()
            );
        }
    }
}
