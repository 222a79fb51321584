//! Health and metrics over plain HTTP/1: one small request and one answer for each connection.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::Text;
use crate::limiter::{ConnectionLimiter, ConnectionLimits, ConnectionPermit};

/// How long a client may take to send its request.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// The largest head of a request: the minimum that hyper accepts.
const HEAD: usize = 8 << 10;
/// The limits for connections that have not sent a request yet.
const ASKING: ConnectionLimits = ConnectionLimits {
    total: 32,
    per_source: 16,
};
/// The limits for connections that are being answered, except health checks.
const ANSWERING: ConnectionLimits = ConnectionLimits {
    total: 16,
    per_source: 8,
};
/// The paths that the kubelet requests. The answers fit into a socket's buffer.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];

/// The permits of a listener for health and metrics.
#[derive(Clone, Debug)]
pub struct HttpLimiter {
    asking: ConnectionLimiter,
    answering: ConnectionLimiter,
    time: Duration,
}

impl HttpLimiter {
    /// A limiter that closes a connection whose answer is not read within this time.
    #[must_use]
    pub fn within(time: Duration) -> Self {
        Self {
            asking: ConnectionLimiter::new("metrics, asking", ASKING),
            answering: ConnectionLimiter::new("metrics, answering", ANSWERING),
            time,
        }
    }

    /// How many connections have been dropped for others.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.asking.dropped() + self.answering.dropped()
    }
}

/// The next connection. After a failure it waits and tries again.
///
/// It first yields to the other tasks, so that a connection can send its request before those behind it take its
/// permit.
pub async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        tokio::task::yield_now().await;
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(problem) => {
                // Most likely there are no descriptors left; accepting again at once would only burn time.
                warn!(%problem, "Failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// HTTP/1 with a small head.
#[must_use]
pub fn http1() -> Builder {
    let mut builder = Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEAD);
    builder
}

/// Answers one request on each connection, until dropped.
pub async fn serve<F, A>(listener: TcpListener, answers: HttpLimiter, answer: F)
where
    F: Fn(Request<Incoming>, IpAddr) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<Text>> + Send + 'static,
{
    loop {
        let (stream, from) = accept(&listener).await;
        tokio::spawn(connection(
            stream,
            from.ip(),
            answers.clone(),
            answer.clone(),
        ));
    }
}

/// Answers the one request of a connection. It takes its permit immediately, not when it is first polled.
pub fn connection<S, F, A>(
    stream: S,
    from: IpAddr,
    answers: HttpLimiter,
    answer: F,
) -> impl Future<Output = ()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>, IpAddr) -> A,
    A: Future<Output = Response<Text>>,
{
    let permit = answers.asking.take(from);
    with_permit(stream, from, permit, answers, answer)
}

async fn with_permit<S, F, A>(
    stream: S,
    from: IpAddr,
    mut permit: ConnectionPermit,
    answers: HttpLimiter,
    answer: F,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>, IpAddr) -> A,
    A: Future<Output = Response<Text>>,
{
    let (sit, mut next) = mpsc::channel(1);
    let answering = answers.answering;
    let service = service_fn(move |request: Request<Incoming>| {
        if !HEALTH.contains(&request.uri().path()) {
            // There is room, because it is the only request.
            let _ = sit.try_send(answering.take(from));
        }
        let response = answer(request, from);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let mut http = http1();
    let served = http
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = std::pin::pin!(tokio::time::timeout(PATIENCE + answers.time, served));
    loop {
        tokio::select! {
            ended = &mut served => {
                match ended {
                    Ok(Ok(())) => {}
                    Ok(Err(problem)) => debug!(%problem, "Connection ended early"),
                    Err(_) => debug!(%from, "Connection took too long"),
                }
                return;
            }
            () = permit.lost() => return debug!(%from, "Connection dropped for another"),
            Some(taken) = next.recv() => permit = taken,
        }
    }
}
