//! Serves the plugin, and lets the kubelet find it.
//!
//! The kubelet watches a folder for sockets, asks each who it is, and then calls the plugin at the socket that it names.
//! A kubelet that restarts finds the socket again, so the agent only makes sure that both sockets are its own.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apportion_abi::names::DRA_DRIVER;
use apportion_exit::error_chain;
use apportion_proto::dra::dra_plugin_server::DraPluginServer;
use apportion_proto::dra_beta::dra_plugin_server::DraPluginServer as BetaPluginServer;
use apportion_proto::pluginregistration::registration_server::{Registration, RegistrationServer};
use apportion_proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use super::plugin::ClaimPlugin;
use crate::api::request::AgentRequest;
use crate::kubelet::stats::KubeletEvent;

const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The socket of the plugin, below the kubelet's folder.
const ENDPOINT: &str = "plugins/apportion/dra.sock";
/// The folder that the kubelet watches.
const REGISTRY: &str = "plugins_registry";
/// The kubelet's word for a DRA driver, and for the versions of its API.
const KIND: &str = "DRAPlugin";
const VERSIONS: [&str; 2] = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];

/// Who the plugin is.
#[derive(Clone, Debug)]
struct PluginIdentity {
    endpoint: PathBuf,
    requests: mpsc::Sender<AgentRequest>,
}

/// A server with its socket. Dropping this ends both.
struct ServedSocket {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    server: JoinHandle<()>,
}

impl ServedSocket {
    fn serve(path: PathBuf, server: Router) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let incoming = UnixListenerStream::new(UnixListener::bind(&path)?);
        let identity = identity(&path);
        let server = tokio::spawn(async move {
            if let Err(error) = server.serve_with_incoming(incoming).await {
                warn!(error = error_chain(&error), "DRA plugin server failed");
            }
        });
        Ok(Self {
            path,
            identity,
            server,
        })
    }

    /// Whether the socket is still this server's.
    fn is_there(&self) -> bool {
        self.identity.is_some() && identity(&self.path) == self.identity
    }
}

impl Drop for ServedSocket {
    fn drop(&mut self) {
        self.server.abort();
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Serves and registers the plugin as long as the agent runs.
pub(super) async fn keep(dir: &Path, plugin: ClaimPlugin, requests: mpsc::Sender<AgentRequest>) {
    let who = PluginIdentity {
        endpoint: dir.join(ENDPOINT),
        requests,
    };
    let mut served: Option<(ServedSocket, ServedSocket)> = None;
    let mut told = None;
    loop {
        let is_served = served
            .as_ref()
            .is_some_and(|(plugin, registry)| plugin.is_there() && registry.is_there());
        if !is_served {
            drop(served.take());
            match serve(dir, &who, &plugin) {
                Ok(both) => {
                    info!(driver = DRA_DRIVER, socket = %who.endpoint.display(), "DRA plugin offered to the kubelet");
                    (served, told) = (Some(both), None);
                }
                Err(error) => {
                    let problem = error.to_string();
                    if told.as_ref() != Some(&problem) {
                        warn!(problem, "Failed to serve the DRA plugin, retrying");
                    }
                    told = Some(problem);
                }
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn serve(
    dir: &Path,
    who: &PluginIdentity,
    plugin: &ClaimPlugin,
) -> io::Result<(ServedSocket, ServedSocket)> {
    let calls = Server::builder()
        .add_service(DraPluginServer::new(plugin.clone()))
        .add_service(BetaPluginServer::new(plugin.clone()));
    let calls = ServedSocket::serve(who.endpoint.clone(), calls)?;
    // The kubelet's gRPC client sends the socket's path, escaped, as the HTTP/2 authority. Our server takes escaped
    // characters only before an `@`, as the name of a user.
    let name = format!("{DRA_DRIVER}-reg@localhost.sock");
    let registry = Server::builder().add_service(RegistrationServer::new(who.clone()));
    // The kubelet connects as soon as it sees this socket, so it comes last.
    let registry = ServedSocket::serve(dir.join(REGISTRY).join(name), registry)?;
    Ok((calls, registry))
}

#[tonic::async_trait]
impl Registration for PluginIdentity {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: KIND.to_owned(),
            name: DRA_DRIVER.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: VERSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus {
            plugin_registered,
            error,
        } = request.into_inner();
        if plugin_registered {
            info!(driver = DRA_DRIVER, "Registered with the kubelet");
        } else {
            warn!(
                driver = DRA_DRIVER,
                error, "The kubelet rejected the DRA plugin"
            );
        }
        let news = KubeletEvent::Registered(DRA_DRIVER, plugin_registered);
        let _ = self.requests.send(AgentRequest::Kubelet(news)).await;
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
