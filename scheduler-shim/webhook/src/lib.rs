//! The admission webhook: the rules of `apportion-admission` behind HTTPS.
//!
//! It decides nothing. The API server sends reviews over TLS, and the rules answer them. This crate does what the rules
//! must not do: listen, store certificates, follow queues, count. It sends the API server no request while it answers,
//! so a busy cluster can neither slow it down nor make it fail.
//!
//! ## Which objects are reviewed
//! While the webhook is down, whatever would be reviewed is refused, so it must review little. The configurations in
//! the chart have match conditions that the API server evaluates itself. Only a pod of our schedulers that mentions
//! shares of cards is sent here. Such a pod is refused while nobody answers: admitted without a slot, it would start
//! without its limit.
#![forbid(unsafe_code)]

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apportion_admission::queue::QueueLookup;
use apportion_exit::error_chain;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;
use tracing::{info, warn};

pub mod certificate;
mod certificate_store;
pub mod judge;
mod metrics;
mod object;
mod queues;
pub mod review;
mod server;
mod tls;

pub use certificate_store::CertificateStoreError;
pub use judge::AdmissionRules;
pub use server::WebhookListenError;

use certificate_store::{CertificateStore, SecretCertificateStore, ServingCertificate};
use server::WebhookContext;

/// How often to check for a new certificate.
const LOOK: Duration = Duration::from_secs(5);

/// How long reviews are still answered after a stop was requested. By then every API server knows that it must ask
/// another replica.
const LINGER: Duration = Duration::from_secs(3);

/// Whether reviews should be sent here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WebhookReadiness {
    /// Not yet: there is no certificate.
    Waiting,
    Ready,
    Ending,
}

impl WebhookReadiness {
    fn begin(&mut self) -> bool {
        let begins = *self == Self::Waiting;
        if begins {
            *self = Self::Ready;
        }
        begins
    }
}

/// Where to listen, and with which certificate and rules.
pub struct WebhookOptions {
    /// Where reviews are answered, over TLS.
    pub listen: SocketAddr,
    /// Where health and metrics are served.
    pub health: SocketAddr,
    /// Where the certificate comes from.
    pub certificates: CertificateSource,
    /// The CA of the API server's client certificate, as a PEM file: only its clients may connect. `None`: everybody
    /// may.
    pub client_ca: Option<PathBuf>,
    /// The rules, and which of them are on.
    pub rules: AdmissionRules,
}

/// Where the certificate comes from.
pub enum CertificateSource {
    /// `tls.crt` and `tls.key` in this folder; somebody else renews them.
    Files(PathBuf),
    /// Our own, stored in a Secret.
    Own {
        /// The Secret's namespace.
        namespace: String,
        /// The Secret's name.
        secret: String,
        /// The names under which the API server calls the webhook.
        names: Vec<String>,
        /// The name of the webhook configurations that must trust our CA.
        configurations: String,
    },
}

/// Why the webhook ended.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// An address is in use.
    #[error(transparent)]
    Listen(#[from] WebhookListenError),
    /// There is no configuration for the API server.
    #[error("failed to find a cluster configuration")]
    Client(#[source] Box<kube::Error>),
}

/// The addresses in use, with the ports that the system chose.
#[derive(Clone, Copy, Debug)]
pub struct ListenAddresses {
    /// Where the API server sends its reviews.
    pub questions: SocketAddr,
    /// For health and metrics.
    pub health: SocketAddr,
}

/// Serves until `stop` is done; `started` gets the addresses.
///
/// # Errors
/// Serving could not begin.
pub async fn run(
    options: WebhookOptions,
    started: impl FnOnce(ListenAddresses),
    stop: impl Future<Output = ()>,
) -> Result<(), WebhookError> {
    let listener = server::listen(options.listen).await?;
    let health = server::listen(options.health).await?;
    let address = |listener: &TcpListener, asked| listener.local_addr().unwrap_or(asked);
    started(ListenAddresses {
        questions: address(&listener, options.listen),
        health: address(&health, options.health),
    });
    let (certificate_store, queues) = certificate_store(options.certificates).await?;
    let (ready, is_ready) = watch::channel(WebhookReadiness::Waiting);
    let ready = Arc::new(ready);
    let (show, shown) = watch::channel(None);
    let service = Arc::new(WebhookContext::new(options.rules, queues, is_ready));
    let health = tokio::spawn(server::serve_health(health, service.clone()));
    let renewing = tokio::spawn(keep_showing(
        certificate_store,
        options.client_ca,
        show,
        ready.clone(),
        service.clone(),
    ));
    let stop = async {
        stop.await;
        info!("Webhook stopping");
        ready.send_replace(WebhookReadiness::Ending);
        tokio::time::sleep(LINGER).await;
    };
    server::serve_questions(listener, shown, service, stop).await;
    renewing.abort();
    health.abort();
    Ok(())
}

type SharedQueueLookup = Arc<dyn QueueLookup + Send + Sync>;

async fn certificate_store(
    certificates: CertificateSource,
) -> Result<(CertificateStore, SharedQueueLookup), WebhookError> {
    match certificates {
        CertificateSource::Files(folder) => {
            Ok((CertificateStore::Files(folder), Arc::new(|_: &str| None)))
        }
        CertificateSource::Own {
            namespace,
            secret,
            names,
            configurations,
        } => {
            let client = Client::try_default()
                .await
                .map_err(|error| WebhookError::Client(Box::new(error)))?;
            let queues = queues::follow(client.clone());
            let certificate_store = SecretCertificateStore {
                client,
                namespace,
                name: secret,
                names,
                configurations,
            };
            Ok((
                CertificateStore::Secret(Box::new(certificate_store)),
                queues,
            ))
        }
    }
}

/// Loads each new certificate and shows it.
async fn keep_showing(
    certificate_store: CertificateStore,
    client_ca: Option<PathBuf>,
    show: watch::Sender<Option<Arc<ServerConfig>>>,
    ready: Arc<watch::Sender<WebhookReadiness>>,
    service: Arc<WebhookContext>,
) {
    let mut last: Option<ServingCertificate> = None;
    loop {
        match certificate_store.current(client_ca.as_deref()).await {
            Ok(current) if last.as_ref() == Some(&current) => {}
            Ok(current) => match tls::config(
                &current.certificate,
                &current.key,
                current.client_ca.as_deref(),
            ) {
                Ok(config) => {
                    if let Some(end) = certificate::ends(&current.certificate) {
                        service.metrics.certificate_ends(end);
                    }
                    show.send_replace(Some(config));
                    ready.send_if_modified(WebhookReadiness::begin);
                    info!(is_first = last.is_none(), "Certificate loaded");
                    last = Some(current);
                }
                Err(problem) => fail(&problem, &service),
            },
            Err(problem) => fail(&problem, &service),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The last certificate stays in use; the next attempt may succeed.
fn fail(problem: &dyn std::error::Error, service: &WebhookContext) {
    service.metrics.count_useless();
    warn!(error = error_chain(problem), "Failed to get a certificate");
}
