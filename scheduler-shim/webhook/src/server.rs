//! The listeners: questions over TLS, health and metrics without.
//!
//! The certificate is looked at for every connection, so that a renewed one is shown from the next connection on
//! and none is cut. Stopping means: take no connection, finish those that are open, within a bound.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use apportion_admission::queue::Queues;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tracing::{debug, warn};

use crate::Readiness;
use crate::judge::{Question, Rules, answer};
use crate::metrics::Metrics;
use crate::review::{Answer, Review};

/// More than the API server sends: an object of 1.5 MiB, as it was and as it will be.
const LARGEST: usize = 8 << 20;
/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long open connections get when the program is to end.
const GRACE: Duration = Duration::from_secs(10);

/// What every connection needs.
pub(crate) struct Service {
    pub(crate) rules: Rules,
    pub(crate) queues: Arc<dyn Queues + Send + Sync>,
    pub(crate) metrics: Metrics,
    pub(crate) is_ready: watch::Receiver<Readiness>,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address}")]
pub struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Listens.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| ListenError { address, source })
}

/// Answers questions until `stop` is over, and then those that were asked.
pub(crate) async fn serve_questions(
    listener: TcpListener,
    configs: watch::Receiver<Option<Arc<ServerConfig>>>,
    service: Arc<Service>,
    stop: impl Future<Output = ()>,
) {
    let open = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let stream = tokio::select! {
            () = &mut stop => break,
            accepted = accept(&listener) => accepted,
        };
        let Some(config) = configs.borrow().clone() else {
            continue;
        };
        let (watcher, service) = (open.watcher(), service.clone());
        tokio::spawn(async move {
            let shaken = tokio::time::timeout(PATIENCE, TlsAcceptor::from(config).accept(stream));
            match shaken.await {
                Ok(Ok(stream)) => {
                    let connection = connection(stream, service);
                    log_early_end(watcher.watch(connection).await);
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

/// Shows health and metrics until it is dropped.
pub(crate) async fn serve_health(listener: TcpListener, service: Arc<Service>) {
    loop {
        let stream = accept(&listener).await;
        let service = service.clone();
        let answer = service_fn(move |request| {
            let response = health(&request, &service);
            async move { Ok::<_, Infallible>(response) }
        });
        tokio::spawn(async move {
            let connection = builder().serve_connection(TokioIo::new(stream), answer);
            log_early_end(connection.await);
        });
    }
}

fn log_early_end(ended: Result<(), hyper::Error>) {
    if let Err(problem) = ended {
        debug!(%problem, "Connection ended early");
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(problem) => {
                // Out of descriptors, most likely; accepting again at once would only burn time.
                warn!(%problem, "Failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(None);
    builder
}

fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    service: Arc<Service>,
) -> impl hyper_util::server::graceful::GracefulConnection<Error = hyper::Error> {
    let answer = service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(question(request, &service).await) }
    });
    builder().serve_connection(TokioIo::new(stream), answer)
}

async fn question(request: Request<Incoming>, service: &Service) -> Response<String> {
    let started = Instant::now();
    let Some(question) = Question::at(request.uri().path()) else {
        return say(
            StatusCode::NOT_FOUND,
            "text/plain",
            "no such path\n".to_owned(),
        );
    };
    if request.method() != Method::POST {
        let what = "use POST\n".to_owned();
        return say(StatusCode::METHOD_NOT_ALLOWED, "text/plain", what);
    }
    let body = Limited::new(request.into_body(), LARGEST).collect();
    let review = match tokio::time::timeout(PATIENCE, body).await {
        Ok(Ok(body)) => read(&body.to_bytes()),
        Ok(Err(problem)) => Err(format!("failed to receive a review: {problem}\n")),
        Err(_) => Err("failed to receive a review in time\n".to_owned()),
    };
    let review = match review {
        Ok(review) => review,
        Err(why) => {
            service
                .metrics
                .count(question.path(), "unreadable", started.elapsed());
            return say(StatusCode::BAD_REQUEST, "text/plain", why);
        }
    };
    let answer = answer(
        question,
        &review.request,
        &service.rules,
        &*service.queues,
        entropy(),
    );
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
    say(StatusCode::OK, "application/json", text)
}

fn read(body: &[u8]) -> Result<Review, String> {
    serde_json::from_slice(body).map_err(|problem| format!("failed to read a review: {problem}\n"))
}

fn word(answer: &Answer) -> &'static str {
    match (&answer.refusal, &answer.patch) {
        (Some(_), _) => "refused",
        (None, Some(_)) => "changed",
        (None, None) => "allowed",
    }
}

/// Different each time; what is named by it is also named after its pod.
fn entropy() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(SystemTime::now())
}

fn health(request: &Request<Incoming>, service: &Service) -> Response<String> {
    let plain = "text/plain; version=0.0.4; charset=utf-8";
    let openly = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => say(StatusCode::OK, openly, service.metrics.render()),
        (&Method::GET, "/healthz") => say(StatusCode::OK, plain, "ok\n".to_owned()),
        (&Method::GET, "/readyz") if *service.is_ready.borrow() == Readiness::Ready => {
            say(StatusCode::OK, plain, "ready\n".to_owned())
        }
        (&Method::GET, "/readyz") => {
            let why = match *service.is_ready.borrow() {
                Readiness::Waiting => "there is no certificate that the API server trusts yet\n",
                Readiness::Ready | Readiness::Ending => "stopping\n",
            };
            say(StatusCode::SERVICE_UNAVAILABLE, plain, why.to_owned())
        }
        _ => {
            let what = "see /metrics, /healthz and /readyz\n".to_owned();
            say(StatusCode::NOT_FOUND, plain, what)
        }
    }
}

fn say(status: StatusCode, kind: &'static str, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
