//! Looking at the kubelet: which slot is held by which pod, now.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use apportion_abi::names::RESOURCE_SLOT;
use apportion_ledger::{SlotId, WholeId};
use apportion_proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use apportion_proto::podresources::{ListPodResourcesRequest, PodResources};
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use super::checkpoint::{self, CheckpointError, Record};
use super::counts::News;
use super::pods::Pods;
use super::wholes::{self, WholeHolder};
use crate::failure::chain;
use crate::request::Request;

/// How often the kubelet is asked while nothing happens. The service frees the devices of pods that have
/// ended when it is asked and not before.
const LOOK_EVERY: Duration = Duration::from_millis(400);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long after its start a kubelet may not yet know all of its pods.
const SETTLES_IN: Duration = Duration::from_secs(30);

/// The kubelet, to be looked at.
#[derive(Debug)]
pub(crate) struct Kubelet {
    dir: PathBuf,
    pods: Option<watch::Receiver<Pods>>,
    requests: mpsc::Sender<Request>,
    /// What was seen first is told first: an older look after a newer one would take a grant away.
    turn: tokio::sync::Mutex<()>,
}

/// The holder of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The pod's UID.
    pub(crate) pod: String,
    /// Namespace and name, where the kubelet said them.
    pub(crate) name: Option<String>,
    /// The containers; an init container leaves its slot to another one.
    pub(crate) containers: BTreeSet<String>,
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) held: BTreeMap<SlotId, Holder>,
    /// Whether the kubelet's service spoke, beside its record.
    pub(crate) is_listed: bool,
    /// The pods with whole cards, by UID.
    pub(crate) whole: BTreeMap<String, WholeHolder>,
    /// Whether a slot that is not there is held by nobody.
    pub(crate) is_complete: bool,
    /// The pods that the API server says have ended or are no more.
    pub(crate) ended: BTreeSet<String>,
    /// The pods of which, the API server says, nothing starts any more: they are being deleted, or hold a
    /// slot and have started for good.
    pub(crate) ending: BTreeSet<String>,
    /// The pods that the API server says have not ended.
    pub(crate) live: BTreeSet<String>,
}

/// Why it cannot be said who holds a slot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("the kubelet's checkpoint gives slot {0} to two pods")]
    TwoPods(SlotId),
    #[error("the kubelet's checkpoint gives whole GPU {0} to two pods")]
    TwoPodsWhole(WholeId),
    #[error("the kubelet's checkpoint and its pod resources disagree on who holds slot {0}")]
    Disagree(SlotId),
    #[error("apportion's agent is leaving")]
    Leaving,
}

impl Kubelet {
    pub(crate) fn new(
        dir: PathBuf,
        pods: Option<watch::Receiver<Pods>>,
        requests: mpsc::Sender<Request>,
    ) -> Self {
        Self {
            dir,
            pods,
            requests,
            turn: tokio::sync::Mutex::new(()),
        }
    }

    /// Looks, and tells the agent what was seen.
    pub(crate) async fn look(&self) -> Result<Seen, LookError> {
        let _turn = self.turn.lock().await;
        let looked = self.look_once().await;
        let news = Request::Kubelet(News::of(&looked));
        let told = self.requests.send(news).await;
        told.map_err(|_| LookError::Leaving)?;
        let seen = looked?;
        let told = self.requests.send(Request::Seen(seen.clone())).await;
        told.map(|()| seen).map_err(|_| LookError::Leaving)
    }

    async fn look_once(&self) -> Result<Seen, LookError> {
        // In this order, so that a slot that is given out in between is missing from the list of those who
        // hold slots, and not from the record of who they are.
        let listed = tokio::time::timeout(PATIENCE, list(&self.dir))
            .await
            .ok()
            .flatten();
        let record = checkpoint::read(&self.plugins())?;
        let mut seen = agreed(&record, listed.as_deref())?;
        seen.is_complete &= self.is_settled();
        if let Some(pods) = &self.pods {
            let pods = pods.borrow();
            for (slot, (pod, containers)) in on_record(&record)? {
                // The service lists no container that runs before the others.
                if pods.are_init(&pod, &containers) {
                    let name = pods.get(&pod).map(|pod| pod.name.clone());
                    seen.held.entry(slot).or_insert(Holder {
                        pod,
                        name,
                        containers,
                    });
                }
            }
            seen.ended = pods.ended().cloned().collect();
            let holds = |uid: &&String| seen.held.values().any(|holder| holder.pod == **uid);
            let over = pods.started_for_good().filter(holds);
            seen.ending = pods.ending().chain(over).cloned().collect();
            seen.live = pods.live().cloned().collect();
        }
        seen.whole = wholes::seen(&record, listed.as_deref(), &seen.live)?;
        Ok(seen)
    }

    /// What a pod mounts over our files, as far as the API server has told of it.
    pub(super) fn covered(&self, uid: &str) -> Option<String> {
        let pods = self.pods.as_ref()?.borrow();
        pods.get(uid)?.covered.clone()
    }

    /// The folder of device plugins.
    fn plugins(&self) -> PathBuf {
        self.dir.join("device-plugins")
    }

    /// Whether the kubelet has run long enough to know its pods: after a start its list of pods is empty.
    fn is_settled(&self) -> bool {
        let socket = std::fs::metadata(self.plugins().join("kubelet.sock"));
        let since = socket.and_then(|found| found.modified());
        let age = since
            .ok()
            .and_then(|since| SystemTime::now().duration_since(since).ok());
        age.is_some_and(|age| age >= SETTLES_IN)
    }
}

/// Tells the agent what is so, until the agent leaves.
pub(crate) async fn keep_looking(kubelet: Arc<Kubelet>) {
    let mut problem = None;
    loop {
        match kubelet.look().await {
            Ok(_) => problem = None,
            Err(LookError::Leaving) => return,
            Err(error) => {
                let error = chain(&error);
                if problem.as_ref() != Some(&error) {
                    warn!(error, "The kubelet does not say who holds which slot");
                }
                problem = Some(error);
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn list(dir: &Path) -> Option<Vec<PodResources>> {
    let socket = dir.join("pod-resources/kubelet.sock");
    let channel = apportion_proto::channel(&socket).await.ok()?;
    let asked = PodResourcesListerClient::new(channel)
        .list(ListPodResourcesRequest {})
        .await;
    match asked {
        Ok(reply) => Some(reply.into_inner().pod_resources),
        Err(status) => {
            debug!(%status, "The kubelet does not list its pods");
            None
        }
    }
}

/// What both of the kubelet's voices say; the record alone where the service does not speak.
fn agreed(record: &Record, listed: Option<&[PodResources]>) -> Result<Seen, LookError> {
    let on_record = on_record(record)?;
    let Some(listed) = listed else {
        let held = on_record.into_iter().map(|(slot, (pod, containers))| {
            let name = None;
            (
                slot,
                Holder {
                    pod,
                    name,
                    containers,
                },
            )
        });
        return Ok(Seen {
            held: held.collect(),
            ..Seen::default()
        });
    };
    let mut held = BTreeMap::new();
    for (slot, name, containers) in in_use(listed) {
        // One that is not on record yet is still being given out.
        if let Some((pod, known)) = on_record.get(&slot) {
            if !containers.is_subset(known) {
                return Err(LookError::Disagree(slot));
            }
            let (pod, name) = (pod.clone(), Some(name));
            held.insert(
                slot,
                Holder {
                    pod,
                    name,
                    containers,
                },
            );
        }
    }
    Ok(Seen {
        held,
        is_listed: true,
        is_complete: true,
        ..Seen::default()
    })
}

type Recorded = BTreeMap<SlotId, (String, BTreeSet<String>)>;

/// Each slot with its pod's UID and its containers. An init container leaves its slot to another one.
fn on_record(record: &Record) -> Result<Recorded, LookError> {
    let mut slots = Recorded::new();
    let ours = record
        .entries
        .iter()
        .filter(|entry| entry.resource == RESOURCE_SLOT);
    for entry in ours {
        for slot in entry.devices().filter_map(|id| id.parse().ok()) {
            let (pod, containers) = slots
                .entry(slot)
                .or_insert_with(|| (entry.pod.clone(), BTreeSet::new()));
            if *pod != entry.pod {
                return Err(LookError::TwoPods(slot));
            }
            containers.insert(entry.container.clone());
        }
    }
    Ok(slots)
}

/// Each slot with its pod's name and the containers that hold it.
fn in_use(listed: &[PodResources]) -> Vec<(SlotId, String, BTreeSet<String>)> {
    let mut all: BTreeMap<SlotId, (String, BTreeSet<String>)> = BTreeMap::new();
    for pod in listed {
        for container in &pod.containers {
            let ours = container
                .devices
                .iter()
                .filter(|of| of.resource_name == RESOURCE_SLOT);
            for slot in ours
                .flat_map(|of| &of.device_ids)
                .filter_map(|id| id.parse().ok())
            {
                let name = format!("{}/{}", pod.namespace, pod.name);
                let (_, containers) = all.entry(slot).or_insert_with(|| (name, BTreeSet::new()));
                containers.insert(container.name.clone());
            }
        }
    }
    let flat = all
        .into_iter()
        .map(|(slot, (name, containers))| (slot, name, containers));
    flat.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_proto::podresources::{ContainerDevices, ContainerResources};

    fn record(entries: &[(&str, &str, &str)]) -> Record {
        let entry = |(pod, container, slot): &(&str, &str, &str)| {
            serde_json::from_value(serde_json::json!({
                "PodUID": pod, "ContainerName": container, "ResourceName": RESOURCE_SLOT,
                "DeviceIDs": {"-1": [slot]},
            }))
            .unwrap()
        };
        Record {
            entries: entries.iter().map(entry).collect(),
            ..Record::default()
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
        let seen = agreed(&record, Some(&[listed("a", "main", "s-0001")])).unwrap();
        let holder = Holder {
            pod: "u1".into(),
            name: Some("team/a".into()),
            containers: ["main".to_owned()].into(),
        };
        assert_eq!(seen.held, [(SlotId(1), holder)].into());
        assert!(seen.is_complete);
    }

    #[test]
    fn a_name_that_was_given_to_another_pod_is_not_taken_for_the_old_one() {
        let record = record(&[("u1", "main", "s-0001")]);
        let other = agreed(&record, Some(&[listed("a", "trainer", "s-0001")]));
        assert!(matches!(other, Err(LookError::Disagree(SlotId(1)))));
    }

    #[test]
    fn one_slot_of_two_pods_is_nobodys() {
        let record = record(&[("u1", "main", "s-0001"), ("u2", "main", "s-0001")]);
        assert!(matches!(
            agreed(&record, None),
            Err(LookError::TwoPods(SlotId(1)))
        ));
    }

    #[test]
    fn the_record_alone_says_who_holds_a_slot_and_not_who_has_left() {
        let seen = agreed(&record(&[("u1", "main", "s-0001")]), None).unwrap();
        assert_eq!(seen.held[&SlotId(1)].pod, "u1");
        assert!(!seen.is_complete);
    }
}
