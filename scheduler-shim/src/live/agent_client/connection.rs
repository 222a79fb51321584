//! One HTTP/2 connection to an agent, without queues and without reconnects.
//!
//! A `tonic` channel queues requests until it is connected, and reconnects by itself. Hyper's client has a queue with
//! room for 32 requests. Here the caller sends requests one after the other, and
//! [`AgentEndpoint::disconnect`](super::AgentEndpoint::disconnect) drops a lost connection. So both would only cost
//! memory: twenty kilobytes per node of the cluster.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::client::{Builder, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Bytes, Frame};
use hyper::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tonic::body::Body;
use tower::Service;
use tracing::debug;

/// Interval of the keep-alive pings, and how long their answer may take.
const TRIED: Duration = Duration::from_secs(10);

/// How much an agent may send before it is read: far more than the status of any node, so that it never waits.
const WINDOW: u32 = 2 << 20;

/// The largest header list that is accepted.
const HEADERS: u32 = 16 << 10;

type AnyError = Box<dyn Error + Send + Sync>;

/// The connection. It closes when its last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct AgentConnection {
    requests: SendRequest<Bytes>,
    /// Held for its `Drop`.
    _task: Arc<ConnectionTask>,
}

/// The task that reads and writes the stream. It ends when this is dropped.
#[derive(Debug)]
struct ConnectionTask(AbortHandle);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl AgentConnection {
    /// Starts HTTP/2 on a connected stream.
    pub(super) async fn over<S>(stream: S) -> Result<Self, h2::Error>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut settings = Builder::new();
        settings
            .enable_push(false)
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_header_list_size(HEADERS);
        let (requests, mut connection) = settings.handshake(stream).await?;
        let pings = connection.ping_pong();
        let task = tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(problem) = ended {
                    debug!(%problem, "Connection to an agent ended");
                },
                problem = unanswered(pings) => debug!(problem, "Connection to an agent ended"),
            }
        });
        let _task = Arc::new(ConnectionTask(task.abort_handle()));
        Ok(Self { requests, _task })
    }
}

/// Sends pings until one is not answered.
async fn unanswered(pings: Option<PingPong>) -> &'static str {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    loop {
        sleep(TRIED).await;
        match timeout(TRIED, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return "it is closed",
            Err(_) => return "the agent does not answer pings",
        }
    }
}

impl Service<Request<Body>> for AgentConnection {
    type Response = Response<AgentResponseBody>;
    type Error = AnyError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, AnyError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), AnyError>> {
        self.requests.poll_ready(context).map_err(AnyError::from)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let requests = self.requests.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            // Each request to an agent is one message of a few hundred bytes.
            let body = body.collect().await?.to_bytes();
            let mut requests = requests.ready().await?;
            let (response, mut upload) =
                requests.send_request(Request::from_parts(head, ()), false)?;
            upload.send_data(body, true)?;
            Ok(response.await?.map(AgentResponseBody::new))
        })
    }
}

/// The body of a response, as it arrives.
#[derive(Debug)]
pub(crate) struct AgentResponseBody {
    stream: RecvStream,
    /// Whether only the trailers are left.
    has_all_data: bool,
}

impl AgentResponseBody {
    fn new(stream: RecvStream) -> Self {
        let has_all_data = false;
        Self {
            stream,
            has_all_data,
        }
    }
}

impl HttpBody for AgentResponseBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.has_all_data {
            match ready!(self.stream.poll_data(context)) {
                Some(Ok(data)) => {
                    // Lets the agent send as much again.
                    let released = self.stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(released.map(|()| Frame::data(data))));
                }
                // The agent has answered and does not want the rest of the request (RFC 9113, 8.1).
                Some(Err(end)) if end.reason() == Some(Reason::NO_ERROR) => {
                    return Poll::Ready(None);
                }
                Some(Err(problem)) => return Poll::Ready(Some(Err(problem))),
                None => self.has_all_data = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(context));
        Poll::Ready(trailers.map(|found| found.map(Frame::trailers)).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}

#[cfg(test)]
mod tests;
