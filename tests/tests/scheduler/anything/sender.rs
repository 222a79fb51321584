//! Sends changes to the API server: many at once, but those of one arrival in order.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::invariants::InvariantChecker;
use super::steps::{ArrivalRequest, PodArrival, WorkloadChange};
use crate::cluster::pod;
use crate::objects::take_slot;
use crate::requests::{ApiChange, ApiRequester, resource};

/// How many requests run at once.
const LANES: usize = 8;
/// How many changes may be queued.
const WAITING: u32 = 32;

/// A change and its permit.
type QueuedChange = (WorkloadChange, OwnedSemaphorePermit);

pub(crate) struct ChangeSender {
    lanes: Vec<UnboundedSender<QueuedChange>>,
    free: Arc<Semaphore>,
}

impl ChangeSender {
    /// Starts the sender. A change that fails is reported to the checker.
    pub(crate) fn new(requests: &ApiRequester, witness: &Arc<Mutex<InvariantChecker>>) -> Self {
        Self {
            lanes: (0..LANES)
                .map(|_| {
                    let (sender, turns) = mpsc::unbounded_channel();
                    tokio::spawn(carry(requests.clone(), witness.clone(), turns));
                    sender
                })
                .collect(),
            free: Arc::new(Semaphore::new(WAITING as usize)),
        }
    }

    /// Queues a change, once there is room.
    pub(crate) async fn send(&self, change: WorkloadChange) {
        let turn = self.free.clone().acquire_owned().await;
        let turn = turn.expect("it is never closed");
        let lane = &self.lanes[change.arrival() % LANES];
        lane.send((change, turn)).expect("lanes end with us");
    }

    /// Waits until all changes are made.
    pub(crate) async fn done(&self) {
        let all = self.free.acquire_many(WAITING).await;
        drop(all.expect("it is never closed"));
    }
}

async fn carry(
    requests: ApiRequester,
    witness: Arc<Mutex<InvariantChecker>>,
    mut turns: UnboundedReceiver<QueuedChange>,
) {
    while let Some((change, _turn)) = turns.recv().await {
        if let WorkloadChange::Leave(pod, _) = &change {
            witness.lock().expect("nobody panicked").leaves(&pod.name());
        }
        for request in requests_of(&change) {
            if let Err(problem) = requests.surely(&request).await {
                witness.lock().expect("nobody panicked").wrong.push(problem);
            }
        }
    }
}

fn requests_of(change: &WorkloadChange) -> Vec<ApiChange> {
    match change {
        WorkloadChange::Arrive(arrival) => creations(arrival),
        WorkloadChange::Leave(pod, is_last) => {
            let kind = resource(&json!({"apiVersion": "v1", "kind": "Pod"}));
            let gang = pod.gang().filter(|_| *is_last);
            let gang = gang.map(|name| ApiChange::Delete(resource(&group("")), name));
            let pod = ApiChange::Delete(kind, pod.name());
            std::iter::once(pod).chain(gang).collect()
        }
        WorkloadChange::End(pod, phase) => {
            let ended = json!({"status": {"phase": phase}});
            vec![ApiChange::EditStatus(pod.name(), ended)]
        }
        WorkloadChange::Edit(pod, share) => {
            let asks = json!({"metadata": {"annotations": {"gpu-fraction": share}}});
            vec![ApiChange::Edit(pod.name(), asks)]
        }
    }
}

fn creations(arrival: &PodArrival) -> Vec<ApiChange> {
    let gang = arrival
        .pods
        .first()
        .and_then(super::steps::ArrivalPod::gang);
    let gang = gang.iter().map(|name| group(name));
    let pods = arrival.pods.iter().map(|one| {
        let mut json = pod(&one.name(), json!({}));
        json["metadata"]["labels"]["kai.scheduler/preemptibility"] = "non-preemptible".into();
        let annotations = &mut json["metadata"]["annotations"];
        if let Some(gang) = one.gang() {
            annotations["pod-group-name"] = gang.into();
        }
        match &arrival.ask {
            ArrivalRequest::Whole => {
                json["spec"]["containers"][0]["resources"]["limits"] =
                    json!({"nvidia.com/gpu": "1"});
            }
            ArrivalRequest::Memory => {
                annotations["gpu-memory"] = "1234".into();
                take_slot(&mut json);
            }
            ArrivalRequest::Fraction(share) => {
                annotations["gpu-fraction"] = share.as_str().into();
                take_slot(&mut json);
            }
        }
        json
    });
    gang.chain(pods).map(ApiChange::Create).collect()
}

/// The pod group of an arrival's pods.
fn group(name: &str) -> Value {
    json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMember": 2, "queue": "default-queue", "preemptibility": "non-preemptible"}})
}
