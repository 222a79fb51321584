//! Polls the kubelet: which pod holds which slot now.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use apportion_exit::error_chain;
use apportion_ledger::SlotId;
use apportion_proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use apportion_proto::podresources::{ListPodResourcesRequest, PodResources};
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use super::checkpoint;
use super::dra_claims::{self, Published};
use super::foreign_holders;
use super::merge_sources::{agreed, in_use, on_record, only};
use super::pods::NodePods;
use super::snapshot::{Holder, KubeletPollError, KubeletSnapshot};
use super::stats::KubeletEvent;
use super::whole_card_holders;
use crate::api::request::AgentRequest;

/// How often to poll while nothing happens. The pod-resources API frees the devices of ended pods only when it is
/// called.
const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long after its start a kubelet may not know all of its pods yet.
const SETTLES_IN: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct KubeletPoller {
    dir: PathBuf,
    pods: watch::Receiver<NodePods>,
    /// The GPUs that NVIDIA's DRA driver offers.
    published: watch::Receiver<Published>,
    requests: mpsc::Sender<AgentRequest>,
    /// One poll at a time, so that snapshots arrive in order: an older one after a newer one would remove a grant.
    poll_lock: tokio::sync::Mutex<()>,
}

impl KubeletPoller {
    pub(crate) fn new(
        dir: PathBuf,
        pods: watch::Receiver<NodePods>,
        published: watch::Receiver<Published>,
        requests: mpsc::Sender<AgentRequest>,
    ) -> Self {
        Self {
            dir,
            pods,
            published,
            requests,
            poll_lock: tokio::sync::Mutex::new(()),
        }
    }

    /// Polls, and sends the snapshot to the agent's loop.
    pub(crate) async fn poll(&self) -> Result<KubeletSnapshot, KubeletPollError> {
        let _poll_lock = self.poll_lock.lock().await;
        let polled = self.poll_once().await;
        let event = AgentRequest::Kubelet(KubeletEvent::of(&polled));
        let sent = self.requests.send(event).await;
        sent.map_err(|_| KubeletPollError::Leaving)?;
        let snapshot = polled?;
        let sent = self
            .requests
            .send(AgentRequest::KubeletPolled(snapshot.clone()))
            .await;
        sent.map(|()| snapshot)
            .map_err(|_| KubeletPollError::Leaving)
    }

    async fn poll_once(&self) -> Result<KubeletSnapshot, KubeletPollError> {
        // In this order: a slot that is allocated in between is then missing in the API's list, and not in the
        // checkpoint that says who its holders are.
        let listed = tokio::time::timeout(PATIENCE, list(&self.dir))
            .await
            .ok()
            .flatten();
        let record = checkpoint::read(&self.plugins())?;
        let mut snapshot = agreed(&record, listed.as_deref(), |uid| self.name(uid));
        snapshot.is_complete &= self.is_settled();
        let pods = self.pods.borrow();
        let settled = on_record(&record)
            .into_iter()
            .filter(|(slot, _)| !snapshot.disputed.contains_key(slot));
        for (slot, (pod, containers)) in settled.filter_map(only).collect::<Vec<_>>() {
            // The pod-resources API lists no init containers.
            if pods.are_init(&pod, &containers) {
                let name = pods.get(&pod).map(|pod| pod.name.clone());
                snapshot.held.entry(slot).or_insert(Holder {
                    pod,
                    name,
                    containers,
                });
            }
        }
        snapshot.ended = pods.ended().cloned().collect();
        let over = pods
            .started_for_good()
            .filter(|uid| snapshot.held.values().any(|holder| holder.pod == **uid));
        snapshot.ending = pods.ending().chain(over).cloned().collect();
        snapshot.live = pods.live().cloned().collect();
        let name_of = |uid: &str| Some(pods.get(uid)?.name.clone());
        snapshot.whole =
            whole_card_holders::holders(&record, listed.as_deref(), &snapshot.live, name_of);
        snapshot.others =
            foreign_holders::holders(&record, listed.as_deref(), &snapshot.live, name_of);
        let claimed = listed.as_deref().unwrap_or_default();
        let uid_of = |name: &str| pods.uid_of(name).cloned();
        for (pod, holder) in dra_claims::holders(claimed, &self.published.borrow(), uid_of) {
            let known = snapshot.others.entry(pod).or_default();
            known.cards.extend(holder.cards);
            known.name = known.name.take().or(holder.name);
        }
        snapshot.claims = dra_claims::own(claimed, uid_of);
        Ok(snapshot)
    }

    /// The name of the pod whose running container holds a slot that the kubelet allocates again.
    ///
    /// # A slot that is allocated twice
    /// While the kubelet waits for our `Allocate` of one pod, a device list that it makes for any client forgets
    /// that the slot is taken, and the next pod gets it, too. The refused pod fails at admission and is created
    /// again.
    pub(super) async fn holder_of_given(&self, slot: SlotId) -> Option<String> {
        let record = checkpoint::read(&self.plugins()).ok()?;
        // A slot that is not in the checkpoint is free. For most that are, the pod has ended.
        on_record(&record).get(&slot)?;
        let listed = tokio::time::timeout(PATIENCE, list(&self.dir)).await;
        let holders = in_use(&listed.ok()??).remove(&slot)?;
        holders.into_keys().next()
    }

    /// The name of a pod, if known.
    fn name(&self, uid: &str) -> Option<String> {
        Some(self.pods.borrow().get(uid)?.name.clone())
    }

    /// The mount of a pod that hides our files, if known.
    pub(super) fn covered(&self, uid: &str) -> Option<String> {
        self.pods.borrow().get(uid)?.covered.clone()
    }

    /// The kubelet's device-plugins folder.
    fn plugins(&self) -> PathBuf {
        self.dir.join("device-plugins")
    }

    /// Whether the kubelet has run long enough to know its pods. At its start its list of pods is empty.
    fn is_settled(&self) -> bool {
        let socket = std::fs::metadata(self.plugins().join("kubelet.sock"));
        let since = socket.and_then(|found| found.modified());
        let age = since
            .ok()
            .and_then(|since| SystemTime::now().duration_since(since).ok());
        age.is_some_and(|age| age >= SETTLES_IN)
    }
}

/// Polls until the agent stops.
pub(crate) async fn poll_loop(kubelet: Arc<KubeletPoller>) {
    let mut problem = None;
    let mut disputed = BTreeMap::new();
    let mut contested = BTreeMap::new();
    loop {
        match kubelet.poll().await {
            Ok(snapshot) => {
                problem = None;
                if disputed != snapshot.disputed {
                    for (slot, dispute) in &snapshot.disputed {
                        warn!(%slot, %dispute, "Slot owner unknown");
                    }
                    disputed = snapshot.disputed;
                }
                if contested != snapshot.whole.contested {
                    for (pod, contest) in &snapshot.whole.contested {
                        warn!(pod, %contest, "Whole GPU owner unknown");
                    }
                    contested = snapshot.whole.contested;
                }
            }
            Err(KubeletPollError::Leaving) => return,
            Err(error) => {
                let error = error_chain(&error);
                if problem.as_ref() != Some(&error) {
                    warn!(error, "Failed to read slot owners from the kubelet");
                }
                problem = Some(error);
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
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
            debug!(%status, "Kubelet pod-resources API unavailable");
            None
        }
    }
}
