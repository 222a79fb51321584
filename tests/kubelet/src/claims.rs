//! The kubelet's side of dynamic resource allocation: it finds the driver's socket, asks who it is, and prepares claims.

use std::path::{Path, PathBuf};

use apportion_proto::channel;
use apportion_proto::dra::dra_plugin_client::DraPluginClient;
use apportion_proto::dra::{
    Claim, Device, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};
use apportion_proto::dra_beta;
use apportion_proto::pluginregistration::registration_client::RegistrationClient;
use apportion_proto::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::FakeKubelet;

fn claim(uid: &str, name: &str) -> Claim {
    Claim {
        namespace: "team".to_owned(),
        uid: uid.to_owned(),
        name: name.to_owned(),
    }
}

impl FakeKubelet {
    /// Registers the DRA driver if its socket is there and answers.
    ///
    /// # Errors
    /// If there is none yet.
    pub async fn register_driver(&self) -> Result<PluginInfo, Status> {
        let absent = |_| Status::unavailable("no driver is registered");
        let registry = self.dir().join("plugins_registry");
        let sockets = std::fs::read_dir(registry).map_err(absent)?.flatten();
        let socket = sockets
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|kind| kind == "sock"));
        let socket = socket.ok_or_else(|| Status::unavailable("no driver is registered"))?;
        let dialed = dial(&socket).await.map_err(Status::unavailable)?;
        let mut client = RegistrationClient::new(dialed);
        let info = client.get_info(InfoRequest {}).await?.into_inner();
        let status = RegistrationStatus {
            plugin_registered: true,
            error: String::new(),
        };
        client.notify_registration_status(status).await?;
        Ok(info)
    }

    /// Prepares a claim of the namespace `team`.
    ///
    /// # Errors
    /// The driver's sentence, if it refuses, or if no driver answers.
    pub async fn prepare(&self, uid: &str, name: &str) -> Result<Vec<Device>, String> {
        let PluginInfo { endpoint, .. } = self.driver().await?;
        let mut client = DraPluginClient::new(connected(endpoint).await?);
        let claims = vec![claim(uid, name)];
        let reply = client
            .node_prepare_resources(NodePrepareResourcesRequest { claims })
            .await;
        let mut reply = reply
            .map_err(|status| status.message().to_owned())?
            .into_inner();
        let answer = reply.claims.remove(uid).ok_or("the claim has no answer")?;
        if answer.error.is_empty() {
            Ok(answer.devices)
        } else {
            Err(answer.error)
        }
    }

    /// The same over the older version of the API. Returns the CDI devices.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub async fn prepare_beta(&self, uid: &str, name: &str) -> Result<Vec<String>, String> {
        let PluginInfo { endpoint, .. } = self.driver().await?;
        let channel = connected(endpoint).await?;
        let mut client = dra_beta::dra_plugin_client::DraPluginClient::new(channel);
        let Claim {
            namespace,
            uid: known,
            name,
        } = claim(uid, name);
        let claims = vec![dra_beta::Claim {
            namespace,
            uid: known,
            name,
        }];
        let request = dra_beta::NodePrepareResourcesRequest { claims };
        let reply = client.node_prepare_resources(request).await;
        let mut reply = reply
            .map_err(|status| status.message().to_owned())?
            .into_inner();
        let answer = reply.claims.remove(uid).ok_or("the claim has no answer")?;
        if !answer.error.is_empty() {
            return Err(answer.error);
        }
        Ok(answer
            .devices
            .into_iter()
            .flat_map(|device| device.cdi_device_ids)
            .collect())
    }

    /// Unprepares a claim.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub async fn unprepare(&self, uid: &str, name: &str) -> Result<(), String> {
        let PluginInfo { endpoint, .. } = self.driver().await?;
        let mut client = DraPluginClient::new(connected(endpoint).await?);
        let claims = vec![claim(uid, name)];
        let reply = client
            .node_unprepare_resources(NodeUnprepareResourcesRequest { claims })
            .await;
        let mut reply = reply
            .map_err(|status| status.message().to_owned())?
            .into_inner();
        let answer = reply.claims.remove(uid).ok_or("the claim has no answer")?;
        if answer.error.is_empty() {
            Ok(())
        } else {
            Err(answer.error)
        }
    }

    async fn driver(&self) -> Result<PluginInfo, String> {
        let info = self.register_driver().await;
        info.map_err(|status| status.message().to_owned())
    }
}

/// Connects as the kubelet does to a registration socket: its gRPC client sends the path, escaped, as the authority.
async fn dial(socket: &Path) -> Result<Channel, String> {
    let path = socket.display().to_string();
    let authority = path.replace('/', "%2F");
    let origin = format!("http://{authority}").parse();
    let origin = origin.map_err(|error| format!("{authority}: {error}"))?;
    let endpoint = Endpoint::try_from(format!("unix:{path}")).map_err(|error| error.to_string())?;
    let connected = endpoint.origin(origin).connect().await;
    connected.map_err(|error| error.to_string())
}

async fn connected(endpoint: String) -> Result<Channel, String> {
    channel(&PathBuf::from(endpoint))
        .await
        .map_err(|error| error.to_string())
}
