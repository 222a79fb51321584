//! Another owner that gives whole cards away: a device plugin, as NVIDIA's, or NVIDIA's DRA driver. A plugin is
//! recognised by what the kubelet has of it to give, whatever its socket and the resource are called; and, where the
//! kubelet does not say, by its socket in the kubelet's folder, where somebody must be listening, because a plugin that
//! was killed leaves its socket. The DRA driver is recognised by the GPUs that it offers in `ResourceSlices`.
//!
//! Two owners give one card away twice, whatever the settings of this one are. So while there is another, whole cards
//! are not served, and nothing of any card is given: which one the other gives away next is not known here.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apportion_proto::podresources::AllocatableResourcesRequest;
use apportion_proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

use super::dra_claims::{self, Published};
use super::foreign_holders;
use crate::request::AgentRequest;

const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long the kubelet's answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// What the sockets of NVIDIA's plugin and of GKE's are called.
const PREFIX: &str = "nvidia";
const ENDING: &str = ".sock";

/// How another owner was recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RivalOwner {
    /// A device plugin, by its socket's name.
    Socket(String),
    /// A device plugin, by the resource whose devices are cards.
    Resource(String),
    /// NVIDIA's DRA driver, by the cards that it offers.
    Dra,
}

/// What a person must know.
impl fmt::Display for RivalOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Socket(name) => name.clone(),
            Self::Resource(name) => format!("the one of {name}"),
            Self::Dra => {
                return write!(
                    f,
                    "NVIDIA's DRA driver ({}) allocates GPUs of this node, so this agent grants none; turn its GPUs off \
                     with its Helm value resources.gpus.enabled=false, or keep this agent off the node",
                    dra_claims::DRIVER
                );
            }
        };
        write!(
            f,
            "another device plugin ({name}) allocates GPUs of this node, so this agent grants none; turn that plugin off \
             with the node's label nvidia.com/gpu.deploy.device-plugin=false (GPU Operator) or \
             gke-no-default-nvidia-gpu-device-plugin=true (GKE), or keep this agent off the node"
        )
    }
}

/// The other plugin at the kubelet whose folder this is.
pub(crate) async fn of_plugins(kubelet: &Path) -> Option<RivalOwner> {
    if let Some(name) = socket(&kubelet.join("device-plugins")).await {
        return Some(RivalOwner::Socket(name));
    }
    let offered = tokio::time::timeout(PATIENCE, offered(kubelet)).await;
    offered.ok().flatten().map(RivalOwner::Resource)
}

/// The name of the other plugin's socket.
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

/// Whether somebody listens there, also one who answers nobody.
async fn is_listening(socket: &Path) -> bool {
    match UnixStream::connect(socket).await {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

/// The resource of which the kubelet has another plugin's cards to give.
async fn offered(kubelet: &Path) -> Option<String> {
    let socket = kubelet.join("pod-resources/kubelet.sock");
    let channel = apportion_proto::channel(&socket).await.ok()?;
    let asked = PodResourcesListerClient::new(channel)
        .get_allocatable_resources(AllocatableResourcesRequest {})
        .await;
    // A kubelet that does not tell is no sign of one.
    let devices = asked.ok()?.into_inner().devices;
    foreign_holders::offered(&devices).map(str::to_owned)
}

/// The other owners of this node's cards.
pub(super) struct RivalWatcher {
    kubelet: PathBuf,
    published: watch::Receiver<Published>,
    known: Option<RivalOwner>,
}

impl RivalWatcher {
    /// `known` is what the agent has been told of.
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

    /// Tells the agent and the plugin of whole cards when another owner comes or goes.
    pub(super) async fn watch(
        mut self,
        requests: mpsc::Sender<AgentRequest>,
        there: watch::Sender<bool>,
    ) {
        loop {
            let is_published = !self.published.borrow().is_empty();
            let dra = is_published.then_some(RivalOwner::Dra);
            let rival = of_plugins(&self.kubelet).await.or(dra);
            there.send_replace(rival.is_some());
            if rival != self.known {
                self.known.clone_from(&rival);
                if requests.send(AgentRequest::Rival(rival)).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    #[tokio::test]
    async fn a_plugin_is_there_while_it_listens() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nvidia-gpu.sock");
        let other = UnixListener::bind(folder.path().join("kubelet.sock")).unwrap();
        assert_eq!(super::socket(folder.path()).await, None);
        let plugin = UnixListener::bind(&socket).unwrap();
        // It accepts nobody, and must not be waited for.
        for _ in 0..5000 {
            assert_eq!(
                super::socket(folder.path()).await.as_deref(),
                Some("nvidia-gpu.sock")
            );
        }
        drop(plugin);
        assert!(socket.exists());
        // A process that another test starts has the socket too, until it runs its program.
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
