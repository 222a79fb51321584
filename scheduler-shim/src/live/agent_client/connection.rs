//! One HTTP/2 connection to an agent, without a queue and without reconnects.
//!
//! A `tonic` channel queues requests until it is connected, and reconnects by itself. Here the caller sends requests
//! one after the other, and [`AgentEndpoint::disconnect`](super::AgentEndpoint::disconnect) drops a lost connection. So both
//! would only cost memory: ten kilobytes per node of the cluster.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::rt::{Read, Write};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tonic::body::Body;
use tower::Service;
use tracing::debug;

/// Interval of the keep-alive pings, and how long their answer may take.
const TRIED: Duration = Duration::from_secs(10);

/// The connection. It closes when its last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct AgentConnection(SendRequest<Body>);

impl AgentConnection {
    /// Starts HTTP/2 on a connected stream.
    pub(super) async fn over<S>(stream: S) -> hyper::Result<Self>
    where
        S: Read + Write + Send + Unpin + 'static,
    {
        let mut settings = Builder::new(TokioExecutor::new());
        settings
            .timer(TokioTimer::new())
            .keep_alive_interval(TRIED)
            .keep_alive_timeout(TRIED)
            .keep_alive_while_idle(true);
        let (requests, connection) = settings.handshake(stream).await?;
        tokio::spawn(async move {
            if let Err(problem) = connection.await {
                debug!(%problem, "Connection to an agent ended");
            }
        });
        Ok(Self(requests))
    }
}

impl Service<Request<Body>> for AgentConnection {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
