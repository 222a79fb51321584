//! Detects another owner that allocates whole cards: a device plugin such as NVIDIA's, or NVIDIA's DRA driver. A
//! plugin is recognized by the devices that the kubelet can allocate, whatever its socket and resource are called.
//! If the kubelet does not report these, it is recognized by its socket in the kubelet's folder. Somebody must
//! listen there, because a killed plugin leaves its socket behind. The DRA driver is recognized by the GPUs that it
//! offers in `ResourceSlices`.
//!
//! Two owners would allocate a card twice, whatever the settings of this one. So while there is another, whole cards
//! are not served and nothing is allocated: the agent does not know which card the other one allocates next.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apportion_proto::podresources::AllocatableResourcesRequest;
use apportion_proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

use super::dra_claims::Published;
use super::foreign_holders;
use super::rival_owner::{RivalOwner, RivalPresence};
use crate::api::request::AgentRequest;

const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How long the kubelet may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The common prefix of the sockets of NVIDIA's and GKE's plugins.
const PREFIX: &str = "nvidia";
const ENDING: &str = ".sock";
/// The kubelet's own socket.
const KUBELET: &str = "kubelet.sock";
/// The common prefix of this agent's sockets.
const OURS: &str = "apportion-";

/// Another device plugin that is registered with this kubelet.
pub(crate) async fn of_plugins(kubelet: &Path) -> Option<RivalOwner> {
    if let Some(name) = socket(&kubelet.join("device-plugins")).await {
        return Some(RivalOwner::Socket(name));
    }
    let offered = tokio::time::timeout(PATIENCE, offered(kubelet)).await;
    offered.ok().flatten().map(RivalOwner::Resource)
}

/// The name of the other plugin's socket, if somebody listens there.
async fn socket(folder: &Path) -> Option<String> {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_meant = name.starts_with(PREFIX) && name.ends_with(ENDING);
        if is_meant && is_listening(&entry.path()).await {
            return Some(name);
        }
    }
    None
}

/// The sockets of other plugins: those of cards that somebody listens at, and all others that exist.
async fn sockets(folder: &Path) -> BTreeSet<String> {
    let mut sockets = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_other = name.ends_with(ENDING) && name != KUBELET && !name.starts_with(OURS);
        let is_of_cards = name.starts_with(PREFIX);
        if is_other && (!is_of_cards || is_listening(&entry.path()).await) {
            sockets.insert(name);
        }
    }
    sockets
}

/// Whether somebody listens there, even if it accepts no connection.
async fn is_listening(socket: &Path) -> bool {
    match UnixStream::connect(socket).await {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

/// The resource with which another plugin offers cards.
async fn offered(kubelet: &Path) -> Option<String> {
    let socket = kubelet.join("pod-resources/kubelet.sock");
    let channel = apportion_proto::channel(&socket).await.ok()?;
    let asked = PodResourcesListerClient::new(channel)
        .get_allocatable_resources(AllocatableResourcesRequest {})
        .await;
    // A kubelet that does not answer proves nothing.
    let devices = asked.ok()?.into_inner().devices;
    foreign_holders::offered(&devices).map(str::to_owned)
}

/// Watches for other owners of this node's cards.
pub(super) struct RivalWatcher {
    kubelet: PathBuf,
    published: watch::Receiver<Published>,
    known: Option<RivalOwner>,
}

impl RivalWatcher {
    /// `known` is the owner that the agent already knows of.
    pub(super) const fn new(
        kubelet: PathBuf,
        published: watch::Receiver<Published>,
        known: Option<RivalOwner>,
    ) -> Self {
        Self {
            kubelet,
            published,
            known,
        }
    }

    /// Notifies the agent's loop and the whole-card plugin when another owner comes or goes.
    ///
    /// Newer kubelets (kubernetes/kubernetes#135437) know several plugins of one resource. If one leaves, they keep its
    /// devices for as long as another one's stream is open, which may be ours. So where a socket has gone and the devices
    /// have not, our stream has to end before the kubelet tells the truth.
    pub(super) async fn watch(
        mut self,
        requests: mpsc::Sender<AgentRequest>,
        there: watch::Sender<RivalPresence>,
    ) {
        let mut listening = BTreeSet::new();
        loop {
            let before = listening;
            listening = sockets(&self.kubelet.join("device-plugins")).await;
            let is_published = !self.published.borrow().is_empty();
            let dra = is_published.then_some(RivalOwner::Dra);
            let rival = of_plugins(&self.kubelet).await.or(dra);
            let has_departed = matches!(rival, Some(RivalOwner::Resource(_)))
                && before.difference(&listening).next().is_some();
            let departures = there.borrow().departures + u32::from(has_departed);
            there.send_replace(RivalPresence {
                is_there: rival.is_some(),
                departures,
            });
            if rival != self.known {
                self.known.clone_from(&rival);
                if requests.send(AgentRequest::Rival(rival)).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    #[tokio::test]
    async fn a_killed_plugin_of_cards_and_a_removed_socket_count_as_gone() {
        let folder = tempfile::tempdir().unwrap();
        let bind = |name: &str| UnixListener::bind(folder.path().join(name)).unwrap();
        let killed = bind("nvidia-gpu.sock");
        let _others = ["kubelet.sock", "apportion-whole-1.sock", "rdma.sock"].map(bind);
        let names = ["nvidia-gpu.sock".to_owned(), "rdma.sock".to_owned()];
        assert_eq!(super::sockets(folder.path()).await, names.into());
        drop(killed);
        let gone = async {
            while super::sockets(folder.path()).await.len() > 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(
            tokio::time::timeout(Duration::from_secs(10), gone)
                .await
                .is_ok()
        );
        std::fs::remove_file(folder.path().join("rdma.sock")).unwrap();
        assert!(super::sockets(folder.path()).await.is_empty());
    }

    #[tokio::test]
    async fn a_plugin_is_there_while_it_listens() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nvidia-gpu.sock");
        let other = UnixListener::bind(folder.path().join("kubelet.sock")).unwrap();
        assert_eq!(super::socket(folder.path()).await, None);
        let plugin = UnixListener::bind(&socket).unwrap();
        // It accepts no connection, and the check must not wait for it.
        for _ in 0..5000 {
            assert_eq!(
                super::socket(folder.path()).await.as_deref(),
                Some("nvidia-gpu.sock")
            );
        }
        drop(plugin);
        assert!(socket.exists());
        // A process that another test forks has the socket, too, until it calls exec.
        let gone = async {
            while super::socket(folder.path()).await.is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let gone = tokio::time::timeout(Duration::from_secs(10), gone).await;
        assert!(gone.is_ok());
        drop(other);
    }
}
