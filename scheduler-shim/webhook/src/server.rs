//! The listeners: reviews over TLS, health and metrics without.
//!
//! Every connection takes the current certificate. So a renewed one is shown from the next connection on, and no
//! connection is cut. Stopping means: accept no more connections, and finish the open ones within a time limit.
//!
//! Anybody may connect unless the CA of the API server's client certificate is configured. So the number of
//! connections, the size of a review and the size of all reviews together are bounded. A connection that has sent one
//! review may wait for its next as long as nobody else needs its place. If it were closed while the API server writes
//! to it, a pod would be refused for no reason.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use apportion_admission::queue::QueueLookup;
use apportion_bounded::{ConnectionLimiter, ConnectionLimits, ConnectionPermit, HttpLimiter, Text};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tracing::{debug, warn};

use crate::WebhookReadiness;
use crate::judge::{AdmissionRules, ReviewKind, answer};
use crate::metrics::WebhookMetrics;
use crate::review::{AdmissionResponse, AdmissionReview};

/// The API server's own limit for a request.
const LARGEST: usize = 3 << 20;
/// The maximum size of all reviews in progress, in units of 1 KiB. A client that sends more waits.
const TOGETHER: usize = 16 << 10;
/// Connections that do their TLS handshake or wait for their next review.
const ASKING: ConnectionLimits = ConnectionLimits {
    total: 128,
    per_source: 64,
};
/// Connections with a review in progress. An API server is one source, and sends many at once.
const ANSWERING: ConnectionLimits = ConnectionLimits {
    total: 256,
    per_source: 128,
};
/// How long a client may take to send its first review.
const PATIENCE: Duration = apportion_bounded::PATIENCE;
/// How many changes of its permit a connection may have before they are handled.
const SEATS: usize = 4;
/// How long open connections get at shutdown.
const GRACE: Duration = Duration::from_secs(10);

/// What every connection needs.
pub(crate) struct WebhookContext {
    pub(crate) rules: AdmissionRules,
    pub(crate) queues: Arc<dyn QueueLookup + Send + Sync>,
    pub(crate) metrics: WebhookMetrics,
    pub(crate) is_ready: watch::Receiver<WebhookReadiness>,
    pub(crate) asking: ConnectionLimiter,
    pub(crate) answering: ConnectionLimiter,
    /// How much of [`TOGETHER`] is left.
    pub(crate) bodies: Semaphore,
}

impl WebhookContext {
    pub(crate) fn new(
        rules: AdmissionRules,
        queues: Arc<dyn QueueLookup + Send + Sync>,
        is_ready: watch::Receiver<WebhookReadiness>,
    ) -> Self {
        Self {
            rules,
            queues,
            metrics: WebhookMetrics::new(),
            is_ready,
            asking: ConnectionLimiter::new("questions, asking", ASKING),
            answering: ConnectionLimiter::new("questions, answering", ANSWERING),
            bodies: Semaphore::new(TOGETHER),
        }
    }
}

/// Why an address could not be used.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address}")]
pub struct WebhookListenError {
    address: SocketAddr,
    source: std::io::Error,
}

pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, WebhookListenError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| WebhookListenError { address, source })
}

/// Answers reviews until `stop` is done, and then finishes those in progress.
pub(crate) async fn serve_questions(
    listener: TcpListener,
    configs: watch::Receiver<Option<Arc<ServerConfig>>>,
    service: Arc<WebhookContext>,
    stop: impl Future<Output = ()>,
) {
    let open = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let (stream, from) = tokio::select! {
            () = &mut stop => break,
            accepted = apportion_bounded::accept(&listener) => accepted,
        };
        let Some(config) = configs.borrow().clone() else {
            continue;
        };
        let (watcher, service) = (open.watcher(), service.clone());
        tokio::spawn(async move {
            let mut permit = service.asking.take(from.ip());
            let shaken = tokio::time::timeout(PATIENCE, TlsAcceptor::from(config).accept(stream));
            let shaken = tokio::select! {
                shaken = shaken => shaken,
                () = permit.lost() => return service.metrics.count_dropped(),
            };
            match shaken {
                Ok(Ok(stream)) => {
                    let (sit, seats) = mpsc::channel(SEATS);
                    let connection = connection(stream, from.ip(), sit, service.clone());
                    watch(watcher.watch(connection), permit, seats, &service).await;
                }
                Ok(Err(problem)) => debug!(%problem, "TLS handshake failed"),
                Err(_) => debug!("TLS handshake timed out"),
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(GRACE, open.shutdown()).await.is_err() {
        warn!("Open connections closed at shutdown");
    }
}

/// Serves a connection until it ends, loses its permit to another, or sends nothing in time.
async fn watch(
    connection: impl Future<Output = Result<(), hyper::Error>>,
    mut permit: ConnectionPermit,
    mut seats: mpsc::Receiver<ConnectionPermit>,
    service: &WebhookContext,
) {
    let mut connection = std::pin::pin!(connection);
    let mut silence = std::pin::pin!(tokio::time::sleep(PATIENCE));
    let mut has_asked = false;
    loop {
        tokio::select! {
            ended = &mut connection => return log_early_end(ended),
            () = permit.lost() => return service.metrics.count_dropped(),
            Some(next) = seats.recv() => (permit, has_asked) = (next, true),
            () = &mut silence, if !has_asked => return debug!("Connection did not ask in time"),
        }
    }
}

/// Serves health and metrics until it is dropped.
pub(crate) async fn serve_health(listener: TcpListener, service: Arc<WebhookContext>) {
    let answers = HttpLimiter::within(PATIENCE);
    apportion_bounded::serve(listener, answers, move |request, _| {
        ready(health(&request, &service))
    })
    .await;
}

fn log_early_end(ended: Result<(), hyper::Error>) {
    if let Err(problem) = ended {
        debug!(%problem, "Connection ended early");
    }
}

fn builder() -> http1::Builder {
    let mut builder = apportion_bounded::http1();
    builder.header_read_timeout(None);
    builder
}

fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    from: IpAddr,
    sit: mpsc::Sender<ConnectionPermit>,
    service: Arc<WebhookContext>,
) -> impl hyper_util::server::graceful::GracefulConnection<Error = hyper::Error> {
    let answer = service_fn(move |request| {
        let (service, sit) = (service.clone(), sit.clone());
        async move {
            // If the channel is full, a permit that is on its way bounds the connection as well.
            let _ = sit.try_send(service.answering.take(from));
            let response = question(request, &service).await;
            let _ = sit.try_send(service.asking.take(from));
            Ok::<_, Infallible>(response)
        }
    });
    builder().serve_connection(TokioIo::new(stream), answer)
}

async fn question(request: Request<Incoming>, service: &WebhookContext) -> Response<Text> {
    let started = Instant::now();
    let Some(question) = ReviewKind::at(request.uri().path()) else {
        return response(
            StatusCode::NOT_FOUND,
            "text/plain",
            "no such path\n".to_owned(),
        );
    };
    if request.method() != Method::POST {
        let what = "use POST\n".to_owned();
        return response(StatusCode::METHOD_NOT_ALLOWED, "text/plain", what);
    }
    let mut held = None;
    let body = receive(request.into_body(), &service.bodies, &mut held);
    let review = match tokio::time::timeout(PATIENCE, body).await {
        Ok(Ok(body)) => read(&body, question).map_err(|why| (StatusCode::BAD_REQUEST, why)),
        Ok(Err(wrong)) => Err(wrong),
        Err(_) => {
            let why = "failed to receive a review in time\n".to_owned();
            Err((StatusCode::BAD_REQUEST, why))
        }
    };
    let review = match review {
        Ok(review) => review,
        Err((status, why)) => {
            service
                .metrics
                .count(question.path(), "unreadable", started.elapsed());
            return response(status, "text/plain", why);
        }
    };
    let answer = match &review.refusal {
        Some(why) => AdmissionResponse::refused(why),
        None => answer(
            question,
            &review.request,
            &service.rules,
            &*service.queues,
            entropy(),
        ),
    };
    service
        .metrics
        .count(question.path(), word(&answer), started.elapsed());
    if let Some(why) = &answer.refusal {
        debug!(
            path = question.path(),
            namespace = review.request.namespace,
            why,
            "Object refused"
        );
    }
    let text = answer.review(&review.request.uid).to_string();
    response(StatusCode::OK, "application/json", text)
}

/// Receives a body, and takes permits for its size from what all bodies may use.
async fn receive<'a>(
    mut body: Incoming,
    bodies: &'a Semaphore,
    held: &mut Option<SemaphorePermit<'a>>,
) -> Result<Vec<u8>, (StatusCode, String)> {
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(LARGEST);
    let mut received = Vec::with_capacity(expected.min(LARGEST));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|problem| {
            let why = format!("failed to receive a review: {problem}\n");
            (StatusCode::BAD_REQUEST, why)
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let length = received.len() + data.len();
        if length > LARGEST {
            let why = format!(
                "a review may have {} MiB, and this one has more\n",
                LARGEST >> 20
            );
            return Err((StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        let needed = u32::try_from(length.div_ceil(1024)).unwrap_or(u32::MAX);
        let has = held
            .as_ref()
            .map_or(0, |held| u32::try_from(held.num_permits()).unwrap_or(0));
        // The semaphore is never closed.
        if let Some(more) = needed.checked_sub(has).filter(|more| *more > 0)
            && let Ok(more) = bodies.acquire_many(more).await
        {
            match held {
                Some(held) => held.merge(more),
                None => *held = Some(more),
            }
        }
        received.extend_from_slice(&data);
    }
    Ok(received)
}

fn read(body: &[u8], question: ReviewKind) -> Result<AdmissionReview, String> {
    AdmissionReview::read(body, question)
        .map_err(|problem| format!("failed to read a review: {problem}\n"))
}

fn word(answer: &AdmissionResponse) -> &'static str {
    match (&answer.refusal, &answer.patch) {
        (Some(_), _) => "refused",
        (None, Some(_)) => "changed",
        (None, None) => "allowed",
    }
}

/// Different on each call. Names that contain it also contain their pod's name.
fn entropy() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(SystemTime::now())
}

fn health(request: &Request<Incoming>, service: &WebhookContext) -> Response<Text> {
    let plain = "text/plain; version=0.0.4; charset=utf-8";
    let openly = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => response(StatusCode::OK, openly, service.metrics.render()),
        (&Method::GET, "/healthz") => response(StatusCode::OK, plain, "ok\n".to_owned()),
        (&Method::GET, "/readyz") if *service.is_ready.borrow() == WebhookReadiness::Ready => {
            response(StatusCode::OK, plain, "ready\n".to_owned())
        }
        (&Method::GET, "/readyz") => {
            let why = match *service.is_ready.borrow() {
                WebhookReadiness::Waiting => {
                    "there is no certificate that the API server trusts yet\n"
                }
                WebhookReadiness::Ready | WebhookReadiness::Ending => "stopping\n",
            };
            response(StatusCode::SERVICE_UNAVAILABLE, plain, why.to_owned())
        }
        _ => {
            let what = "see /metrics, /healthz and /readyz\n".to_owned();
            response(StatusCode::NOT_FOUND, plain, what)
        }
    }
}

fn response(status: StatusCode, kind: &'static str, text: String) -> Response<Text> {
    let mut response = Response::new(Text::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
