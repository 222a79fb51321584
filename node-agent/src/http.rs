//! Metrics and health over HTTP, for Prometheus and the kubelet. It serves three paths and reads no
//! body.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::durable;
use crate::failure::Failure;
use crate::metrics::{Format, Scrapes};
use crate::options::Metrics;
use crate::view::View;

/// The port where nobody chose one.
const USUAL_PORT: u16 = 9408;
/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address} for metrics")]
pub(crate) struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Listens where the options say, and writes the address into `file` for who looks for it.
pub(crate) async fn open(
    metrics: Metrics,
    file: &Path,
) -> Result<(Option<TcpListener>, String), Failure> {
    let listener = listen(metrics)
        .await
        .map_err(|error| Failure::running(&error, "choose another --metrics-address, or none"))?;
    let address = listener
        .as_ref()
        .and_then(|listener| listener.local_addr().ok());
    let address = address
        .map(|address| address.to_string())
        .unwrap_or_default();
    durable::replace(file, address.as_bytes())
        .map_err(|error| Failure::running(&error, "the agent needs write access to its folder"))?;
    Ok((listener, address))
}

async fn listen(metrics: Metrics) -> Result<Option<TcpListener>, ListenError> {
    let address = match metrics {
        Metrics::Off => return Ok(None),
        Metrics::At(address) => address,
        Metrics::Usual => {
            let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, USUAL_PORT));
            match TcpListener::bind(usual).await {
                Ok(listener) => return Ok(Some(listener)),
                // Another instance's agent has it; who looks finds the address in the instance folder.
                Err(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            }
        }
    };
    let listener = TcpListener::bind(address).await;
    listener
        .map(Some)
        .map_err(|source| ListenError { address, source })
}

/// Serves until it is dropped.
pub(crate) async fn serve(listener: TcpListener, views: watch::Receiver<Arc<View>>) {
    let scrapes = Arc::new(Scrapes::default());
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(problem) => {
                // Out of descriptors, most likely; accepting again at once would only burn time.
                warn!(%problem, "Failed to accept a connection for metrics");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (views, scrapes) = (views.clone(), scrapes.clone());
        let answer = service_fn(move |request| {
            let response = answer(&request, &views.borrow(), &scrapes);
            async move { Ok::<_, Infallible>(response) }
        });
        tokio::spawn(async move {
            let mut server = http1::Builder::new();
            server
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE);
            if let Err(problem) = server.serve_connection(TokioIo::new(stream), answer).await {
                debug!(%problem, "Connection for metrics ended early");
            }
        });
    }
}

/// What the client understands.
fn format(request: &Request<Incoming>) -> (Format, &'static str) {
    let accepted = request.headers().get(ACCEPT).map(HeaderValue::as_bytes);
    let accepted = String::from_utf8_lossy(accepted.unwrap_or_default());
    match accepted.contains("application/openmetrics-text") {
        true => (Format::OpenMetrics, OPEN_METRICS),
        false => (Format::Plain, PLAIN),
    }
}

fn answer(request: &Request<Incoming>, view: &Arc<View>, scrapes: &Scrapes) -> Response<String> {
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {
            let (format, kind) = format(request);
            (StatusCode::OK, kind, scrapes.render(view, format))
        }
        (&Method::GET, "/healthz") => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
        (&Method::GET, "/readyz") if view.is_ready => {
            (StatusCode::OK, "text/plain", "ready\n".to_owned())
        }
        (&Method::GET, "/readyz") => (
            StatusCode::SERVICE_UNAVAILABLE,
            "text/plain",
            "the NVIDIA driver does not answer\n".to_owned(),
        ),
        _ => (
            StatusCode::NOT_FOUND,
            "text/plain",
            "see /metrics, /healthz and /readyz\n".to_owned(),
        ),
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
