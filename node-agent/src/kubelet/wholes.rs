//! Which pod has which whole cards, from the kubelet's two voices.
//!
//! All devices of a pod are wanted, those of its init containers too, because the lowest device is the
//! pod's first card. The service lists only the containers that run, so it says which pods are there, and
//! the record says what they have.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::names::RESOURCE_WHOLE;
use apportion_ledger::WholeId;
use apportion_proto::podresources::PodResources;

use super::checkpoint::Record;
use super::look::LookError;

/// A pod with whole cards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WholeHolder {
    /// Namespace and name, where the kubelet said them.
    pub(crate) name: Option<String>,
    pub(crate) ids: BTreeSet<WholeId>,
}

/// The pods that are there, by UID. `live` are those of which the API server says so.
pub(super) fn seen(
    record: &Record,
    listed: Option<&[PodResources]>,
    live: &BTreeSet<String>,
) -> Result<BTreeMap<String, WholeHolder>, LookError> {
    let names = listed.map(names);
    let mut pods: BTreeMap<String, WholeHolder> = BTreeMap::new();
    let ours = record.entries.iter();
    for entry in ours.filter(|entry| entry.resource == RESOURCE_WHOLE) {
        let ids = entry.devices().filter_map(|id| id.parse::<WholeId>().ok());
        pods.entry(entry.pod.clone()).or_default().ids.extend(ids);
    }
    for pod in pods.values_mut() {
        let name = names
            .iter()
            .find_map(|names| pod.ids.iter().find_map(|id| names.get(id)));
        pod.name = name.cloned();
    }
    pods.retain(|uid, pod| {
        let is_there = names.is_none() || pod.name.is_some() || live.contains(uid);
        is_there && !pod.ids.is_empty()
    });
    let mut taken = BTreeSet::new();
    let mut ids = pods.values().flat_map(|pod| &pod.ids);
    match ids.find(|id| !taken.insert(**id)) {
        Some(twice) => Err(LookError::TwoPodsWhole(*twice)),
        None => Ok(pods),
    }
}

fn names(listed: &[PodResources]) -> BTreeMap<WholeId, String> {
    let mut names = BTreeMap::new();
    for pod in listed {
        let devices = pod.containers.iter().flat_map(|of| &of.devices);
        let ours = devices.filter(|of| of.resource_name == RESOURCE_WHOLE);
        let ids = ours.flat_map(|of| &of.device_ids);
        let name = format!("{}/{}", pod.namespace, pod.name);
        names.extend(
            ids.filter_map(|id| id.parse().ok())
                .map(|id| (id, name.clone())),
        );
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_proto::podresources::{ContainerDevices, ContainerResources};

    fn record(entries: &[(&str, &str, &[&str])]) -> Record {
        let entry = |(pod, container, ids): &(&str, &str, &[&str])| {
            serde_json::from_value(serde_json::json!({
                "PodUID": pod, "ContainerName": container, "ResourceName": RESOURCE_WHOLE,
                "DeviceIDs": {"0": ids},
            }))
            .unwrap()
        };
        Record {
            entries: entries.iter().map(entry).collect(),
            ..Record::default()
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
            }],
        }
    }

    fn ids(pods: &BTreeMap<String, WholeHolder>, uid: &str) -> Vec<u16> {
        pods[uid].ids.iter().map(|id| id.0).collect()
    }

    #[test]
    fn a_pod_has_the_devices_of_all_its_containers() {
        let record = record(&[
            ("u1", "init", &["w-0001", "w-0003"]),
            ("u1", "main", &["w-0003"]),
            ("u2", "main", &["GPU-foreign"]),
        ]);
        let list = [listed("a", "w-0003")];
        let pods = seen(&record, Some(&list), &BTreeSet::new()).unwrap();
        assert_eq!(ids(&pods, "u1"), [1, 3]);
        assert_eq!(pods["u1"].name.as_deref(), Some("team/a"));
        assert_eq!(pods.len(), 1, "devices of others are none of ours");
    }

    #[test]
    fn a_pod_that_has_left_is_on_record_for_a_while_and_has_nothing() {
        let both = record(&[("u1", "main", &["w-0001"]), ("u2", "main", &["w-0001"])]);
        let none = BTreeSet::new();
        let error = seen(&both, Some(&[listed("b", "w-0001")]), &none);
        assert!(matches!(error, Err(LookError::TwoPodsWhole(WholeId(1)))));
        let left = record(&[("u1", "main", &["w-0001"])]);
        assert!(seen(&left, Some(&[]), &none).unwrap().is_empty());
        let live = ["u1".to_owned()].into();
        assert_eq!(ids(&seen(&left, Some(&[]), &live).unwrap(), "u1"), [1]);
        assert_eq!(ids(&seen(&left, None, &none).unwrap(), "u1"), [1]);
    }
}
