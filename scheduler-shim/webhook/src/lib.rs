//! The admission webhook: the rules of `apportion-admission` behind HTTPS.
//!
//! It decides nothing. The API server asks over TLS, the rules answer, and what the rules must not do (listen, keep
//! certificates, follow queues, count) is done here. It asks the API server for nothing while it answers, so
//! that it can neither be slow nor fail because the cluster is busy.
//!
//! ## Who is asked about
//! A webhook that is down refuses whatever it is asked about, so it must be asked about little: the configuration in
//! the chart has conditions that the API server checks by itself, and only a pod of our schedulers that
//! says something about shares of cards ever waits for us. Such a pod is refused while nobody answers: let in
//! without a slot, it would start without its limit.
#![forbid(unsafe_code)]

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apportion_admission::queue::QueueLookup;
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

/// How often the certificate is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// How long questions are still taken after the end was asked for: until then every API server has heard that
/// it must ask another replica.
const LINGER: Duration = Duration::from_secs(3);

/// Whether questions should come here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WebhookReadiness {
    /// Not yet: there is no certificate.
    Waiting,
    /// They should.
    Ready,
    /// No longer.
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

/// Where to listen, and with which certificate.
pub struct WebhookOptions {
    /// Where questions are answered, over TLS.
    pub listen: SocketAddr,
    /// Where health and metrics are shown.
    pub health: SocketAddr,
    /// Whose certificate is shown.
    pub certificates: CertificateSource,
    /// Whose clients may ask, as PEM: the authority of the API server's client certificate. Nothing: everybody may.
    pub client_ca: Option<PathBuf>,
    /// Which rules are on.
    pub rules: AdmissionRules,
}

/// Whose certificate is shown.
pub enum CertificateSource {
    /// `tls.crt` and `tls.key` in this folder; somebody else renews them.
    Files(PathBuf),
    /// Our own, in a Secret.
    Own {
        /// Where the Secret is.
        namespace: String,
        /// Its name.
        secret: String,
        /// The names under which the API server calls.
        names: Vec<String>,
        /// The name of the configurations that are to trust us.
        configurations: String,
    },
}

/// Why the webhook ended.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// An address is taken.
    #[error(transparent)]
    Listen(#[from] WebhookListenError),
    /// There is no way to the API server.
    #[error("failed to find a cluster configuration")]
    Client(#[source] Box<kube::Error>),
}

/// Where it turned out to listen.
#[derive(Clone, Copy, Debug)]
pub struct ListenAddresses {
    /// For questions.
    pub questions: SocketAddr,
    /// For health and metrics.
    pub health: SocketAddr,
}

/// Answers until `stop` is over; `started` hears where.
///
/// # Errors
/// It could not begin.
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
    let (keeper, queues) = keeper(options.certificates).await?;
    let (ready, is_ready) = watch::channel(WebhookReadiness::Waiting);
    let ready = Arc::new(ready);
    let (show, shown) = watch::channel(None);
    let service = Arc::new(WebhookContext::new(options.rules, queues, is_ready));
    let health = tokio::spawn(server::serve_health(health, service.clone()));
    let renewing = tokio::spawn(keep_showing(
        keeper,
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

async fn keeper(
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
            let client = Client::try_default().await;
            let client = client.map_err(|error| WebhookError::Client(Box::new(error)))?;
            let queues = queues::follow(client.clone());
            let keeper = SecretCertificateStore {
                client,
                namespace,
                name: secret,
                names,
                configurations,
            };
            Ok((CertificateStore::Secret(Box::new(keeper)), queues))
        }
    }
}

/// Looks for a new certificate, and shows it.
async fn keep_showing(
    keeper: CertificateStore,
    client_ca: Option<PathBuf>,
    show: watch::Sender<Option<Arc<ServerConfig>>>,
    ready: Arc<watch::Sender<WebhookReadiness>>,
    service: Arc<WebhookContext>,
) {
    let mut last: Option<ServingCertificate> = None;
    loop {
        match keeper.current(client_ca.as_deref()).await {
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

/// What was shown is shown further; the next look may find better.
fn fail(problem: &dyn std::error::Error, service: &WebhookContext) {
    service.metrics.count_useless();
    warn!(error = chain(problem), "Failed to get a certificate");
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
