//! The agent's TCP listener, for the scheduler only: mutual TLS with certificates of the scheduler's CA.
//!
//! Until the agent has a certificate it drops connections. A failed handshake is logged once, with a hint. Each
//! handshake has its own task and timeout, so it does not delay others. The number of handshakes is limited, and the
//! oldest of the source with the most makes room.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apportion_bounded::{ConnectionLimiter, ConnectionLimits};
use apportion_exit::{CommandFailure, error_chain};
use apportion_proto::identity;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::server::ParsedCertificate;
use tracing::{debug, warn};

use crate::api::caller::{CallerIdentity, PeerConnection};
use crate::options::TcpOptions;

mod certificate_request;
mod credentials;
mod renewal;

/// How long a handshake may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many handshakes may be in progress.
const AT_ONCE: ConnectionLimits = ConnectionLimits {
    total: 64,
    per_source: 16,
};

/// The current TLS configuration; `None` until there is a certificate.
type Configs = watch::Receiver<Option<Arc<ServerConfig>>>;

pub(crate) struct TcpServer {
    /// The address to publish.
    pub(crate) address: String,
    pub(crate) limiter: ConnectionLimiter,
    listener: TcpListener,
    configs: Configs,
}

impl TcpServer {
    /// Listens if configured, and from now on keeps a valid certificate in this file.
    pub(crate) async fn open(
        options: &TcpOptions,
        node: Option<String>,
        file: PathBuf,
    ) -> Result<Option<Self>, CommandFailure> {
        let Some((address, node)) = options.listen.zip(node) else {
            return Ok(None);
        };
        let failed = |error: io::Error| {
            let text = format!("failed to listen on {address}: {error}");
            CommandFailure::from_error(&io::Error::other(text))
                .hint("choose another address with --listen")
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let (show, configs) = watch::channel(None);
        tokio::spawn(renewal::keep(node, file, show));
        Ok(Some(Self {
            address: options.advertised(bound),
            limiter: ConnectionLimiter::new("scheduler", AT_ONCE),
            listener,
            configs,
        }))
    }

    /// Accepts connections, and passes on those with a valid certificate, until nobody serves them.
    pub(crate) async fn accept(self, connections: mpsc::Sender<io::Result<PeerConnection>>) {
        let last_warning = Arc::new(Mutex::new(String::new()));
        loop {
            let (stream, from) = tokio::select! {
                () = connections.closed() => return,
                accepted = apportion_bounded::accept(&self.listener) => accepted,
            };
            let Some(config) = self.configs.borrow().clone() else {
                debug!(%from, "No certificate yet, connection dropped");
                continue;
            };
            let (last_warning, connections) = (last_warning.clone(), connections.clone());
            let mut permit = self.limiter.take(from.ip());
            tokio::spawn(async move {
                let shaken = tokio::select! {
                    shaken = shake(stream, config) => shaken,
                    () = permit.lost() => return debug!(%from, "Too many TLS handshakes, connection dropped"),
                };
                drop(permit);
                match shaken {
                    Ok(peer) => drop(connections.send(Ok(peer)).await),
                    Err(problem) => warn_once(&last_warning, from, problem),
                }
            });
        }
    }
}

/// Logs a problem unless it is the same as the last one.
fn warn_once(last_warning: &Mutex<String>, from: SocketAddr, problem: String) {
    let mut last_warning = last_warning.lock().unwrap_or_else(PoisonError::into_inner);
    if *last_warning != problem {
        let hint = identity::hint(&problem);
        warn!(from = %from.ip(), problem, hint, "TLS connection rejected");
        *last_warning = problem;
    }
}

async fn shake(stream: TcpStream, config: Arc<ServerConfig>) -> Result<PeerConnection, String> {
    let _ = stream.set_nodelay(true);
    let shaken = tokio::time::timeout(PATIENCE, TlsAcceptor::from(config).accept(stream))
        .await
        .map_err(|_| format!("the TLS handshake took longer than {PATIENCE:?}"))?;
    let stream = shaken.map_err(|error| error_chain(&error))?;
    let (_, connection) = stream.get_ref();
    let caller = match connection.peer_certificates().and_then(<[_]>::first) {
        Some(certificate) => caller(certificate),
        None => CallerIdentity::Stranger("the caller sent no certificate".to_owned()),
    };
    Ok(PeerConnection::new(stream, caller))
}

/// Whom a certificate of our CA was issued for.
fn caller(certificate: &CertificateDer<'_>) -> CallerIdentity {
    let name = ServerName::try_from(identity::SCHEDULER);
    let name = name.expect("a constant that is a DNS name");
    let verified = ParsedCertificate::try_from(certificate)
        .and_then(|certificate| verify_server_name(&certificate, &name));
    match verified {
        Ok(()) => CallerIdentity::Scheduler,
        Err(error) => CallerIdentity::Stranger(format!(
            "only {} may connect here: {error}",
            identity::SCHEDULER
        )),
    }
}

#[cfg(test)]
mod tests;
