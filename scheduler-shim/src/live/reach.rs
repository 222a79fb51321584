//! The way to an agent: its Unix socket on this machine, or TCP with mutual TLS.
//!
//! Over TCP the certificate must be that of the node's own agent; the address alone says nothing. Every
//! request carries the term of this scheduler, so that an agent that heard of a later one refuses it. A
//! connection whose other end vanished without a word is noticed, because agents are quiet for long.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apportion_proto::v1::agent_client::AgentClient;
use apportion_proto::{channel, identity};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status};
use tower::service_fn;

use super::authority::Tls;
use super::nodes::chain;

/// How long connecting may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a quiet connection is tried, and how long the answer may take.
const TRIED: Duration = Duration::from_secs(10);

/// A client of one agent.
pub(crate) type Client = AgentClient<InterceptedService<Channel, Term>>;

/// Adds the term to each request.
#[derive(Clone, Debug)]
pub(crate) struct Term(MetadataValue<Ascii>);

impl Interceptor for Term {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request
            .metadata_mut()
            .insert(identity::TERM, self.0.clone());
        Ok(request)
    }
}

/// What is needed to speak with any agent.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    tls: Tls,
    term: Term,
}

impl Reach {
    pub(crate) fn new(tls: Tls, term: u64) -> Self {
        let term = Term(MetadataValue::from(term));
        Self { tls, term }
    }

    /// The agent of a node.
    pub(crate) fn to(&self, node: &str, address: &str) -> Agent {
        Agent {
            reach: self.clone(),
            node: node.to_owned(),
            address: address.to_owned(),
            kept: Mutex::new(None),
        }
    }
}

/// One agent.
#[derive(Debug)]
pub(crate) struct Agent {
    reach: Reach,
    node: String,
    address: String,
    /// One connection for all that is asked: each costs tens of kilobytes, and there are as many as nodes.
    kept: Mutex<Option<Client>>,
}

impl Agent {
    /// The connection; a new one where there is none.
    pub(crate) async fn reach(&self) -> Result<Client, String> {
        let mut kept = self.kept.lock().await;
        match &*kept {
            Some(client) => Ok(client.clone()),
            // Connecting needs far more room than being connected: it is given back.
            None => Ok(kept.insert(Box::pin(self.connect()).await?).clone()),
        }
    }

    /// Gives up the connection: who reaches next connects anew.
    pub(crate) async fn part(&self) {
        *self.kept.lock().await = None;
    }

    async fn connect(&self) -> Result<Client, String> {
        let channel = match self.address.strip_prefix("unix:") {
            Some(path) => channel(Path::new(path)).await,
            None => self.over_tcp().await?,
        };
        let channel = channel.map_err(|error| hinted(chain(&error)))?;
        Ok(AgentClient::with_interceptor(
            channel,
            self.reach.term.clone(),
        ))
    }

    async fn over_tcp(&self) -> Result<Result<Channel, tonic::transport::Error>, String> {
        let tls = self.reach.tls.borrow().clone();
        let tls = tls.ok_or_else(|| {
            "the scheduler has no certificate yet; hint: its log says why".to_owned()
        })?;
        let name = identity::agent(&self.node);
        let name = ServerName::try_from(name);
        let name = name.map_err(|error| format!("{} can't be verified: {error}", self.node))?;
        let address = self.address.clone();
        let connect = service_fn(move |_: Uri| {
            let (tls, name, address) = (tls.clone(), name.clone(), address.clone());
            async move { connect(tls, name, &address).await }
        });
        // The address is a placeholder that HTTP/2 asks for: the connector above does not look at it.
        let endpoint = Endpoint::from_static("http://agent")
            .connect_timeout(PATIENCE)
            .http2_keep_alive_interval(TRIED)
            .keep_alive_timeout(TRIED)
            .keep_alive_while_idle(true);
        Ok(endpoint.connect_with_connector(connect).await)
    }
}

async fn connect(
    tls: Arc<ClientConfig>,
    name: ServerName<'static>,
    address: &str,
) -> std::io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let stream = TlsConnector::from(tls).connect(name, stream).await?;
    Ok(TokioIo::new(stream))
}

/// What an agent, or the way to it, says is wrong.
pub(crate) fn told(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut next = std::error::Error::source(status);
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    hinted(text)
}

fn hinted(problem: String) -> String {
    match identity::hint(&problem) {
        Some(hint) => format!("{problem}; hint: {hint}"),
        None => problem,
    }
}
