//! The connection to an agent: a Unix socket on this machine, or TCP with mutual TLS.
//!
//! Over TCP the certificate must be that of the node's own agent; the address alone proves nothing. Every request
//! carries this scheduler's term. An agent that knows a later term refuses it. Agents are quiet for long, so
//! keep-alive pings detect a peer that vanished.

use std::sync::Arc;
use std::time::Duration;

use apportion_exit::{error_chain, with_causes};
use apportion_proto::identity;
use apportion_proto::v1::agent_client::AgentClient;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Uri;
use tonic::{Request, Status};

use super::certificate_authority::TlsConfigReceiver;

mod connection;

use connection::AgentConnection;

/// How long connecting may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A client of one agent.
pub(crate) type FencedAgentClient = AgentClient<InterceptedService<AgentConnection, FencingToken>>;

/// Adds the term to each request.
#[derive(Clone, Debug)]
pub(crate) struct FencingToken(MetadataValue<Ascii>);

impl Interceptor for FencingToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request
            .metadata_mut()
            .insert(identity::TERM, self.0.clone());
        Ok(request)
    }
}

/// What every connection to an agent needs.
#[derive(Clone, Debug)]
pub(crate) struct AgentConnector {
    tls: TlsConfigReceiver,
    term: FencingToken,
}

impl AgentConnector {
    pub(crate) fn new(tls: TlsConfigReceiver, term: u64) -> Self {
        let term = FencingToken(MetadataValue::from(term));
        Self { tls, term }
    }

    /// The endpoint of a node's agent.
    pub(crate) fn endpoint(&self, node: &str, address: &str) -> AgentEndpoint {
        AgentEndpoint {
            connector: self.clone(),
            node: node.to_owned(),
            address: address.to_owned(),
            cached: Mutex::new(None),
        }
    }
}

#[derive(Debug)]
pub(crate) struct AgentEndpoint {
    connector: AgentConnector,
    node: String,
    address: String,
    /// One connection for all requests. Each costs tens of kilobytes, and there is one per node.
    cached: Mutex<Option<FencedAgentClient>>,
}

impl AgentEndpoint {
    /// The open connection, or a new one.
    pub(crate) async fn client(&self) -> Result<FencedAgentClient, String> {
        let mut cached = self.cached.lock().await;
        match &*cached {
            Some(client) => Ok(client.clone()),
            // Connecting needs much more memory than an open connection. The box frees it afterwards.
            None => Ok(cached.insert(Box::pin(self.connect()).await?).clone()),
        }
    }

    /// Drops the connection. The next `client` opens a new one.
    pub(crate) async fn disconnect(&self) {
        *self.cached.lock().await = None;
    }

    async fn connect(&self) -> Result<FencedAgentClient, String> {
        let wire = match self.address.strip_prefix("unix:") {
            Some(path) => {
                let stream = UnixStream::connect(path).await;
                AgentConnection::over(stream.map_err(|error| transport_error(&error))?).await
            }
            None => AgentConnection::over(self.over_tcp().await?).await,
        };
        let wire = wire.map_err(|error| transport_error(&error))?;
        let wire = InterceptedService::new(wire, self.connector.term.clone());
        // HTTP/2 needs an authority. The peer is already known.
        Ok(AgentClient::with_origin(
            wire,
            Uri::from_static("http://agent"),
        ))
    }

    async fn over_tcp(&self) -> Result<TlsStream<TcpStream>, String> {
        let tls = self.connector.tls.borrow().clone();
        let tls = tls
            .ok_or_else(|| "the scheduler has no certificate yet; hint: see its log".to_owned())?;
        let name = identity::agent(&self.node);
        let name = ServerName::try_from(name);
        let name = name.map_err(|error| {
            format!(
                "node name {} cannot be in a certificate: {error}",
                self.node
            )
        })?;
        let stream = connect(tls, name, &self.address);
        let stream = timeout(PATIENCE, stream).await;
        let stream = stream.map_err(|_| format!("no connection within {PATIENCE:?}"))?;
        stream.map_err(|error| transport_error(&error))
    }
}

async fn connect(
    tls: Arc<ClientConfig>,
    name: ServerName<'static>,
    address: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    TlsConnector::from(tls).connect(name, stream).await
}

/// The error text of a failed connection.
fn transport_error(error: &dyn std::error::Error) -> String {
    with_hint(format!("transport error: {}", error_chain(error)))
}

/// The error text of a gRPC status, with its causes.
pub(crate) fn status_text(status: &Status) -> String {
    let text = with_causes(status.message().to_owned(), status);
    with_hint(text)
}

fn with_hint(problem: String) -> String {
    match identity::hint(&problem) {
        Some(hint) => format!("{problem}; hint: {hint}"),
        None => problem,
    }
}
