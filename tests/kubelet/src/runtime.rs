//! A container runtime that answers queries about its name, its version and its configuration, over a real socket.

use std::collections::HashMap;
use std::path::Path;

use apportion_proto::cri::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use apportion_proto::cri::{StatusRequest, StatusResponse, VersionRequest, VersionResponse};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// A runtime. Dropping this ends it.
#[derive(Debug)]
pub struct Runtime(JoinHandle<()>);

/// The runtime's name, version and configuration.
#[derive(Clone, Debug)]
struct RuntimeIdentity {
    name: &'static str,
    version: &'static str,
    config: &'static str,
}

impl Runtime {
    /// A runtime at `socket` with this name and version, and with `config` as JSON.
    ///
    /// # Panics
    /// If the socket cannot be created.
    #[must_use]
    pub fn listen(
        socket: &Path,
        name: &'static str,
        version: &'static str,
        config: &'static str,
    ) -> Self {
        let listener = UnixListener::bind(socket).expect("the path is short enough");
        let said = RuntimeIdentity {
            name,
            version,
            config,
        };
        let server = Server::builder().add_service(RuntimeServiceServer::new(said));
        Self(tokio::spawn(async move {
            let _ = server
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await;
        }))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[tonic::async_trait]
impl RuntimeService for RuntimeIdentity {
    async fn version(
        &self,
        _: Request<VersionRequest>,
    ) -> Result<Response<VersionResponse>, Status> {
        Ok(Response::new(VersionResponse {
            runtime_name: self.name.to_owned(),
            runtime_version: self.version.to_owned(),
            ..VersionResponse::default()
        }))
    }

    async fn status(
        &self,
        asked: Request<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        let config = ("config".to_owned(), self.config.to_owned());
        let told = asked.into_inner().verbose.then_some(config);
        let info: HashMap<_, _> = told.into_iter().collect();
        Ok(Response::new(StatusResponse { info }))
    }
}
