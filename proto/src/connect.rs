//! Connects to an agent or to the kubelet: a Unix socket, as a gRPC channel.
//!
//! Connecting has a timeout, because an agent that is stopped still has a socket that accepts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Error, Uri};
use tower::service_fn;

/// A client of one agent.
pub type AgentClient = crate::v1::agent_client::AgentClient<Channel>;

/// The timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to the agent that listens at `socket`.
///
/// # Errors
///
/// The source of the error is the socket's `std::io::Error`: not found if no agent ever ran, connection refused if
/// one ran and exited, permission denied if it belongs to another user.
pub async fn connect(socket: &Path) -> Result<AgentClient, Error> {
    channel(socket).await.map(AgentClient::new)
}

/// A channel to the server that listens at `socket`.
///
/// # Errors
///
/// As [`connect`].
pub async fn channel(socket: &Path) -> Result<Channel, Error> {
    let socket: PathBuf = socket.to_owned();
    // The address is a placeholder that HTTP/2 requires; the connector below ignores it.
    Endpoint::from_static("http://localhost")
        .connect_timeout(CONNECT_TIMEOUT)
        .connect_with_connector(service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
        .await
}
