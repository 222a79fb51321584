//! The way to an agent, or to the kubelet: a Unix socket, as a gRPC channel.
//!
//! Connecting is bounded in time, because an agent that is stopped still has a socket that accepts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Error, Uri};
use tower::service_fn;

/// A client of one agent.
pub type AgentClient = crate::v1::agent_client::AgentClient<Channel>;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to the agent that listens at `socket`.
///
/// # Errors
///
/// The source of the error is the `std::io::Error` of the socket: not found where no agent ever ran,
/// connection refused where one ran and left, permission denied where it is another user's.
pub async fn connect(socket: &Path) -> Result<AgentClient, Error> {
    channel(socket).await.map(AgentClient::new)
}

/// A channel to whoever listens at `socket`.
///
/// # Errors
///
/// As [`connect`].
pub async fn channel(socket: &Path) -> Result<Channel, Error> {
    let socket: PathBuf = socket.to_owned();
    // The address is a placeholder that HTTP/2 asks for: the connector below never looks at it.
    Endpoint::from_static("http://localhost")
        .connect_timeout(CONNECT_TIMEOUT)
        .connect_with_connector(service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
        .await
}
