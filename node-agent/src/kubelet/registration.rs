//! Registers device plugins with the kubelet, and again after a kubelet restart.
//!
//! A starting kubelet empties its folder of sockets and creates its own again. So whenever its socket has changed,
//! or ours is gone, the plugin is served at a new socket and registered again. The folder is polled four times a
//! second. That costs next to nothing, and works even if something is mounted over the folder, which breaks a watch.
//! It is well within the second that a pod can wait.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use apportion_exit::error_chain;
use apportion_proto::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use apportion_proto::deviceplugin::registration_client::RegistrationClient;
use apportion_proto::deviceplugin::{DevicePluginOptions, RegisterRequest};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tracing::{info, warn};

use super::rival_owner::RivalPresence;
use super::stats::KubeletEvent;
use crate::api::request::AgentRequest;

const POLL_INTERVAL: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(5);
/// The version of the device plugin API.
const VERSION: &str = "v1beta1";

/// A plugin in the kubelet's device-plugins folder.
#[derive(Debug)]
pub(crate) struct PluginRegistration {
    pub(crate) dir: PathBuf,
    /// The resource that the plugin serves.
    pub(crate) resource: &'static str,
    /// The prefix of its sockets' names.
    pub(crate) prefix: &'static str,
    pub(crate) options: DevicePluginOptions,
    /// Whether another plugin serves the same resource. Meanwhile ours is not served.
    pub(crate) yields: Option<watch::Receiver<RivalPresence>>,
}

/// Why the plugin is not registered.
#[derive(Debug, thiserror::Error)]
enum RegisterError {
    #[error("failed to listen on {path}")]
    Listen {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to connect to the kubelet")]
    Connect(#[source] tonic::transport::Error),
    #[error("the kubelet rejected the device plugin: {0}")]
    Refused(String),
    #[error("the kubelet does not answer")]
    Silent,
}

/// A plugin that is served and registered. Dropping this ends both.
#[derive(Debug)]
struct ServedPlugin {
    kubelet: (u64, i64, i64),
    socket: PathBuf,
    server: JoinHandle<()>,
}

impl Drop for ServedPlugin {
    fn drop(&mut self) {
        self.server.abort();
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl PluginRegistration {
    fn folder(&self) -> PathBuf {
        self.dir.join("device-plugins")
    }

    /// Keeps the plugin registered until the agent ends, and reports changes to the agent's loop.
    pub(crate) async fn keep<T: DevicePlugin>(
        self,
        plugin: DevicePluginServer<T>,
        requests: mpsc::Sender<AgentRequest>,
    ) {
        self.sweep();
        let mut last_warning = None;
        let mut served: Option<ServedPlugin> = None;
        let mut problem = None;
        let mut yielded = false;
        loop {
            let yields = self
                .yields
                .as_ref()
                .is_some_and(|there| there.borrow().is_there);
            if yields {
                drop(served.take());
            }
            // The kubelet must see the end of the old stream before the new registration.
            if std::mem::replace(&mut yielded, yields) && !yields {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            let kubelet = identity(&self.folder().join("kubelet.sock"));
            let is_known = knows(served.as_ref(), kubelet);
            if let Some(kubelet) = kubelet.filter(|_| !is_known && !yields) {
                drop(served.take());
                match self.serve(kubelet, plugin.clone()).await {
                    Ok(now) => {
                        info!(resource = self.resource, socket = %now.socket.display(), "Registered with the kubelet");
                        (served, problem) = (Some(now), None);
                    }
                    Err(error) => {
                        let error = error_chain(&error);
                        if problem.as_ref() != Some(&error) {
                            warn!(
                                resource = self.resource,
                                error, "Failed to register with the kubelet"
                            );
                        }
                        problem = Some(error);
                    }
                }
            }
            let is_known = knows(served.as_ref(), kubelet);
            if last_warning.replace(is_known) != Some(is_known) {
                let event = KubeletEvent::Registered(self.resource, is_known);
                let _ = requests.send(AgentRequest::Kubelet(event)).await;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Removes the sockets of killed agents.
    fn sweep(&self) {
        for entry in std::fs::read_dir(self.folder())
            .into_iter()
            .flatten()
            .flatten()
        {
            if entry.file_name().to_string_lossy().starts_with(self.prefix) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    async fn serve<T: DevicePlugin>(
        &self,
        kubelet: (u64, i64, i64),
        plugin: DevicePluginServer<T>,
    ) -> Result<ServedPlugin, RegisterError> {
        // The kubelet may still use the old socket, so each has a unique name.
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let endpoint = format!("{}{}.sock", self.prefix, now.as_millis());
        let socket = self.folder().join(&endpoint);
        let listener = UnixListener::bind(&socket).map_err(|source| RegisterError::Listen {
            path: socket.clone(),
            source,
        })?;
        let incoming = UnixListenerStream::new(listener);
        let server = tokio::spawn(async move {
            let served = Server::builder()
                .add_service(plugin)
                .serve_with_incoming(incoming);
            if let Err(error) = served.await {
                warn!(error = error_chain(&error), "Device plugin server failed");
            }
        });
        // From here on dropping `served` ends the server, also if the kubelet refuses it.
        let served = ServedPlugin {
            kubelet,
            socket,
            server,
        };
        self.announce(endpoint).await.map(|()| served)
    }

    async fn announce(&self, endpoint: String) -> Result<(), RegisterError> {
        let channel = apportion_proto::channel(&self.folder().join("kubelet.sock")).await;
        let mut client = RegistrationClient::new(channel.map_err(RegisterError::Connect)?);
        let registered = client.register(RegisterRequest {
            version: VERSION.to_owned(),
            endpoint,
            resource_name: self.resource.to_owned(),
            options: Some(self.options),
        });
        match tokio::time::timeout(PATIENCE, registered).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(RegisterError::Refused(status.message().to_owned())),
            Err(_) => Err(RegisterError::Silent),
        }
    }
}

/// Whether the running kubelet knows the server that runs now.
fn knows(served: Option<&ServedPlugin>, kubelet: Option<(u64, i64, i64)>) -> bool {
    served.is_some_and(|served| Some(served.kubelet) == kubelet && served.socket.exists())
}

/// Distinguishes a socket from an earlier one of the same name.
fn identity(socket: &Path) -> Option<(u64, i64, i64)> {
    let found = std::fs::metadata(socket).ok()?;
    Some((found.ino(), found.ctime(), found.ctime_nsec()))
}
