//! Another device plugin that gives whole cards away, as NVIDIA's does: recognised by its socket in the
//! kubelet's folder, where somebody must be listening, because a plugin that was killed leaves its socket.
//!
//! Two owners give one card away twice. So while there is another, whole cards are not served, and nothing
//! of any card is given: which one the other plugin gives away next is nobody's to know.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

use crate::request::Request;

const LOOK_EVERY: Duration = Duration::from_millis(250);
/// What the sockets of NVIDIA's plugin and of GKE's are called.
const PREFIX: &str = "nvidia";
const ENDING: &str = ".sock";

/// The name of the other plugin's socket.
pub(super) async fn of(folder: &Path) -> Option<String> {
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

/// Tells the agent and the plugin of whole cards when another plugin comes or goes.
pub(super) async fn watch(
    folder: PathBuf,
    requests: mpsc::Sender<Request>,
    there: watch::Sender<bool>,
) {
    let mut known = None;
    loop {
        let rival = of(&folder).await;
        there.send_replace(rival.is_some());
        if rival != known {
            known.clone_from(&rival);
            let told = rival.as_deref().map(sentence);
            if requests.send(Request::Rival(told)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What a person must know.
fn sentence(socket: &str) -> String {
    format!(
        "another device plugin ({socket}) gives GPUs of this node away, so none is given here; turn it off with \
         the node's label nvidia.com/gpu.deploy.device-plugin=false (GPU Operator) or \
         gke-no-default-nvidia-gpu-device-plugin=true (GKE), or serve no whole cards here (--whole-cards off)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[tokio::test]
    async fn a_plugin_is_there_while_it_listens() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nvidia-gpu.sock");
        let other = UnixListener::bind(folder.path().join("kubelet.sock")).unwrap();
        assert_eq!(of(folder.path()).await, None);
        let plugin = UnixListener::bind(&socket).unwrap();
        // It accepts nobody, and must not be waited for.
        for _ in 0..5000 {
            assert_eq!(of(folder.path()).await.as_deref(), Some("nvidia-gpu.sock"));
        }
        drop(plugin);
        assert!(socket.exists());
        assert_eq!(of(folder.path()).await, None);
        drop(other);
    }
}
