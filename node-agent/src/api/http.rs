//! Metrics and health over HTTP, for Prometheus and the kubelet. It serves three paths and reads no body. The number
//! of connections is limited, see `apportion-bounded`.

use std::future::ready;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apportion_bounded::{ConnectionLimiter, HttpLimiter, Text};
use apportion_exit::CommandFailure;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::atomic_write;
use crate::options::MetricsAddress;
use crate::telemetry::metrics::{MetricsFormat, ScrapeState};
use crate::telemetry::view::AgentView;

const USUAL_PORT: u16 = 9408;
/// How long a client may take to read a response.
const ANSWERED: Duration = Duration::from_secs(10);
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address} for metrics")]
pub(crate) struct MetricsListenError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Listens where the options say, and writes the address into `file` for clients.
pub(crate) async fn open(
    metrics: MetricsAddress,
    file: &Path,
) -> Result<(Option<TcpListener>, String), CommandFailure> {
    let listener = listen(metrics).await.map_err(|error| {
        CommandFailure::from_error(&error).hint("choose another --metrics-address, or none")
    })?;
    let address = listener
        .as_ref()
        .and_then(|listener| listener.local_addr().ok());
    let address = address
        .map(|address| address.to_string())
        .unwrap_or_default();
    atomic_write::replace(file, address.as_bytes()).map_err(|error| {
        CommandFailure::from_error(&error).hint("the agent needs write access to its folder")
    })?;
    Ok((listener, address))
}

async fn listen(metrics: MetricsAddress) -> Result<Option<TcpListener>, MetricsListenError> {
    let address = match metrics {
        MetricsAddress::Off => return Ok(None),
        MetricsAddress::At(address) => address,
        MetricsAddress::Usual => {
            let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, USUAL_PORT));
            match TcpListener::bind(usual).await {
                Ok(listener) => return Ok(Some(listener)),
                // Another instance has the port. Clients find the address in the instance folder.
                Err(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            }
        }
    };
    let listener = TcpListener::bind(address).await;
    listener
        .map(Some)
        .map_err(|source| MetricsListenError { address, source })
}

/// Serves until it is dropped. The metrics include the connections that `others` dropped.
pub(crate) async fn serve(
    listener: TcpListener,
    views: watch::Receiver<Arc<AgentView>>,
    others: Vec<ConnectionLimiter>,
) {
    let answers = HttpLimiter::within(ANSWERED);
    let scrapes = Arc::new(ScrapeState::new(answers.clone(), others));
    apportion_bounded::serve(listener, answers, move |request, _| {
        ready(answer(&request, &views.borrow(), &scrapes))
    })
    .await;
}

/// The format that the client accepts.
fn format(request: &Request<Incoming>) -> (MetricsFormat, &'static str) {
    let accepted = request.headers().get(ACCEPT).map(HeaderValue::as_bytes);
    let accepted = String::from_utf8_lossy(accepted.unwrap_or_default());
    if accepted.contains("application/openmetrics-text") {
        (MetricsFormat::OpenMetrics, OPEN_METRICS)
    } else {
        (MetricsFormat::Plain, PLAIN)
    }
}

fn answer(
    request: &Request<Incoming>,
    view: &Arc<AgentView>,
    scrapes: &ScrapeState,
) -> Response<Text> {
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {
            let (format, kind) = format(request);
            (StatusCode::OK, kind, scrapes.show(view, format))
        }
        (&Method::GET, "/healthz") => (StatusCode::OK, "text/plain", "ok\n".into()),
        (&Method::GET, "/readyz") if view.is_ready => {
            (StatusCode::OK, "text/plain", "ready\n".into())
        }
        // A node that never gets a driver must not block a rollout.
        (&Method::GET, "/readyz") if view.idle.is_some() => (
            StatusCode::OK,
            "text/plain",
            "idle: no NVIDIA driver\n".into(),
        ),
        (&Method::GET, "/readyz") => (
            StatusCode::SERVICE_UNAVAILABLE,
            "text/plain",
            "the NVIDIA driver does not answer\n".into(),
        ),
        _ => (
            StatusCode::NOT_FOUND,
            "text/plain",
            "see /metrics, /healthz and /readyz\n".into(),
        ),
    };
    let mut response = Response::new(Text::new(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
