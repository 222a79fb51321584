//! A device plugin that gives out whole GPUs, like NVIDIA's: the same socket name, the same resource, UUIDs as ids.

use std::path::PathBuf;
use std::pin::Pin;

use apportion_proto::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use apportion_proto::deviceplugin::registration_client::RegistrationClient;
use apportion_proto::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions,
    Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

const SOCKET: &str = "nvidia-gpu.sock";
const RESOURCE: &str = "nvidia.com/gpu";

/// A registered plugin. Dropping this stops it.
pub(crate) struct RivalPlugin {
    socket: PathBuf,
    runtime: Option<Runtime>,
}

impl Drop for RivalPlugin {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Offers these GPUs to the kubelet with this folder.
pub(crate) fn start(kubelet: &std::path::Path, uuids: Vec<String>) -> RivalPlugin {
    let runtime = Runtime::new().unwrap();
    let folder = kubelet.join("device-plugins");
    let socket = folder.join(SOCKET);
    let _ = std::fs::remove_file(&socket);
    runtime.block_on(async {
        let incoming = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let server =
            Server::builder().add_service(DevicePluginServer::new(RivalPluginService { uuids }));
        tokio::spawn(server.serve_with_incoming(incoming));
        let channel = apportion_proto::channel(&folder.join("kubelet.sock")).await;
        let register = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: SOCKET.to_owned(),
            resource_name: RESOURCE.to_owned(),
            options: Some(DevicePluginOptions::default()),
        };
        let mut kubelet = RegistrationClient::new(channel.unwrap());
        kubelet.register(register).await.unwrap();
    });
    RivalPlugin {
        socket,
        runtime: Some(runtime),
    }
}

struct RivalPluginService {
    uuids: Vec<String>,
}

#[tonic::async_trait]
impl DevicePlugin for RivalPluginService {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let device = |uuid: &String| Device {
            id: uuid.clone(),
            health: "Healthy".to_owned(),
            topology: None,
        };
        let devices = self.uuids.iter().map(device).collect();
        let list = tokio_stream::once(Ok(ListAndWatchResponse { devices }));
        // If the list ends, the kubelet considers the plugin gone.
        let stream = list.chain(tokio_stream::pending());
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("no GPU is preferred"))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let containers = request.into_inner().container_requests.into_iter();
        let container_responses = containers
            .map(|container| {
                let mut response = ContainerAllocateResponse::default();
                let visible = container.devices_ids.join(",");
                response
                    .envs
                    .insert("NVIDIA_VISIBLE_DEVICES".to_owned(), visible);
                response
            })
            .collect();
        Ok(Response::new(AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
