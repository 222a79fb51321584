//! Merges the kubelet's two sources, its checkpoint and its pod-resources API, into one holder for each slot. Pure:
//! the poller reads both.
//!
//! A slot on which they contradict each other has no holder. Other slots are not affected: one pod's problem must
//! not stop the node.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::names::RESOURCE_SLOT;
use apportion_ledger::SlotId;
use apportion_proto::podresources::PodResources;

use super::checkpoint::KubeletCheckpoint;
use super::snapshot::{Holder, KubeletSnapshot, SlotDispute};

/// The holders according to both sources, or according to the checkpoint if the API does not answer. If the
/// checkpoint has two pods for a slot, the one that the API names holds it, if its UID is known.
pub(super) fn agreed(
    record: &KubeletCheckpoint,
    listed: Option<&[PodResources]>,
    name_of: impl Fn(&str) -> Option<String>,
) -> KubeletSnapshot {
    let mut snapshot = KubeletSnapshot::default();
    let mut on_record = on_record(record);
    let Some(listed) = listed else {
        for (slot, pods) in on_record {
            let held = holder((slot, pods), None);
            snapshot.enter(slot, held);
        }
        return snapshot;
    };
    for (slot, named) in in_use(listed) {
        // A slot that is not in the checkpoint yet is still being allocated.
        let Some(mut pods) = on_record.remove(&slot) else {
            continue;
        };
        let held = match only((slot, named)) {
            Some((_, (name, containers))) => {
                if pods.len() > 1 {
                    pods.retain(|uid, _| name_of(uid).as_ref() == Some(&name));
                }
                holder((slot, pods), Some((name, containers)))
            }
            None => Err(SlotDispute::TwoPods),
        };
        snapshot.enter(slot, held);
    }
    snapshot.is_listed = true;
    snapshot.is_complete = snapshot.disputed.is_empty();
    snapshot
}

impl KubeletSnapshot {
    fn enter(&mut self, slot: SlotId, held: Result<Holder, SlotDispute>) {
        match held {
            Ok(holder) => drop(self.held.insert(slot, holder)),
            Err(dispute) => drop(self.disputed.insert(slot, dispute)),
        }
    }
}

/// The only pod in the checkpoint, with the name and the containers that the API reports.
fn holder(
    recorded: (SlotId, Containers),
    named: Option<(String, BTreeSet<String>)>,
) -> Result<Holder, SlotDispute> {
    let (_, (pod, known)) = only(recorded).ok_or(SlotDispute::TwoPods)?;
    let (name, containers) = match named {
        Some((name, containers)) => (Some(name), containers),
        None => (None, known.clone()),
    };
    let holder = Holder {
        pod,
        name,
        containers,
    };
    let is_known = holder.containers.is_subset(&known);
    is_known.then_some(holder).ok_or(SlotDispute::Disagree)
}

/// Pods, by UID or by name, with their containers.
type Containers = BTreeMap<String, BTreeSet<String>>;

/// The slot with its pod, if it has exactly one.
pub(super) fn only(
    (slot, pods): (SlotId, Containers),
) -> Option<(SlotId, (String, BTreeSet<String>))> {
    let mut pods = pods.into_iter();
    let first = pods.next()?;
    pods.next().is_none().then_some((slot, first))
}

/// The UIDs of the pods of each slot. A slot of an init container is reused by a later container.
pub(super) fn on_record(record: &KubeletCheckpoint) -> BTreeMap<SlotId, Containers> {
    let mut slots: BTreeMap<SlotId, Containers> = BTreeMap::new();
    let ours = record.entries.iter();
    for entry in ours.filter(|entry| entry.resource == RESOURCE_SLOT) {
        for slot in entry.devices().filter_map(|id| id.parse().ok()) {
            let containers = slots.entry(slot).or_default().entry(entry.pod.clone());
            containers.or_default().insert(entry.container.clone());
        }
    }
    slots
}

/// The names of the pods of each slot, with the containers that hold it.
pub(super) fn in_use(listed: &[PodResources]) -> BTreeMap<SlotId, Containers> {
    let mut slots: BTreeMap<SlotId, Containers> = BTreeMap::new();
    for pod in listed {
        let name = format!("{}/{}", pod.namespace, pod.name);
        for container in &pod.containers {
            let ours = container.devices.iter();
            let ours = ours.filter(|of| of.resource_name == RESOURCE_SLOT);
            for slot in ours
                .flat_map(|of| &of.device_ids)
                .filter_map(|id| id.parse().ok())
            {
                let containers = slots.entry(slot).or_default().entry(name.clone());
                containers.or_default().insert(container.name.clone());
            }
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_proto::podresources::{ContainerDevices, ContainerResources};

    fn agreed(record: &KubeletCheckpoint, listed: Option<&[PodResources]>) -> KubeletSnapshot {
        super::agreed(record, listed, |uid| {
            (uid == "u1").then(|| "team/a".to_owned())
        })
    }

    fn record(entries: &[(&str, &str, &str)]) -> KubeletCheckpoint {
        KubeletCheckpoint {
            entries: entries
                .iter()
                .map(|(pod, container, slot)| {
                    serde_json::from_value(serde_json::json!({
                        "PodUID": pod, "ContainerName": container, "ResourceName": RESOURCE_SLOT,
                        "DeviceIDs": {"-1": [slot]},
                    }))
                    .unwrap()
                })
                .collect(),
            ..KubeletCheckpoint::default()
        }
    }

    fn listed(name: &str, container: &str, slot: &str) -> PodResources {
        let devices = vec![ContainerDevices {
            resource_name: RESOURCE_SLOT.into(),
            device_ids: vec![slot.into()],
        }];
        PodResources {
            name: name.into(),
            namespace: "team".into(),
            containers: vec![ContainerResources {
                name: container.into(),
                devices,
                ..ContainerResources::default()
            }],
        }
    }

    #[test]
    fn a_slot_is_held_by_the_pod_that_both_name() {
        let record = record(&[
            ("u1", "init", "s-0001"),
            ("u1", "main", "s-0001"),
            ("u2", "main", "s-0002"),
        ]);
        let snapshot = agreed(&record, Some(&[listed("a", "main", "s-0001")]));
        let holder = Holder {
            pod: "u1".into(),
            name: Some("team/a".into()),
            containers: ["main".to_owned()].into(),
        };
        assert_eq!(snapshot.held, [(SlotId(1), holder)].into());
        assert!(snapshot.is_complete);
    }

    #[test]
    fn a_name_that_was_given_to_another_pod_is_not_taken_for_the_old_one() {
        let record = record(&[("u1", "main", "s-0001")]);
        let other = agreed(&record, Some(&[listed("a", "trainer", "s-0001")]));
        assert_eq!(other.disputed[&SlotId(1)], SlotDispute::Disagree);
        assert!(!other.is_complete);
    }

    #[test]
    fn one_slot_of_two_pods_is_nobodys_and_the_others_are_as_they_are() {
        let record = record(&[
            ("u1", "main", "s-0001"),
            ("u2", "main", "s-0001"),
            ("u3", "main", "s-0002"),
        ]);
        let both = [
            listed("a", "main", "s-0001"),
            listed("b", "main", "s-0001"),
            listed("c", "main", "s-0002"),
        ];
        for listed in [None, Some(&both[..])] {
            let snapshot = agreed(&record, listed);
            assert_eq!(
                snapshot.disputed,
                [(SlotId(1), SlotDispute::TwoPods)].into()
            );
            assert_eq!(snapshot.held[&SlotId(2)].pod, "u3");
            assert!(!snapshot.is_complete);
        }
    }

    #[test]
    fn of_two_pods_on_record_the_one_that_is_left_holds_the_slot() {
        let record = record(&[("u1", "main", "s-0001"), ("u2", "main", "s-0001")]);
        let snapshot = agreed(&record, Some(&[listed("a", "main", "s-0001")]));
        assert_eq!(snapshot.held[&SlotId(1)].pod, "u1");
        let unknown = agreed(&record, Some(&[listed("b", "main", "s-0001")]));
        assert_eq!(unknown.disputed[&SlotId(1)], SlotDispute::TwoPods);
    }

    #[test]
    fn the_record_alone_says_who_holds_a_slot_and_not_who_has_left() {
        let snapshot = agreed(&record(&[("u1", "main", "s-0001")]), None);
        assert_eq!(snapshot.held[&SlotId(1)].pod, "u1");
        assert!(!snapshot.is_complete);
    }
}
