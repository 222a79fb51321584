//! Who calls: a local process, identified by the kernel, or a TCP client, identified by its certificate.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use apportion_bounded::{ConnectionLimiter, ConnectionPermit, ConnectionSource};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::UCred;
use tonic::Status;
use tonic::transport::server::Connected;

use crate::api::tenant::{AllowedUsers, TenantUid};

mod authority;

use authority::AuthorityRewriter;

/// The identity of a caller.
#[derive(Clone, Debug)]
pub(crate) enum CallerIdentity {
    /// A process of this machine; `None` if the kernel does not report which.
    Local(Option<UCred>),
    /// A client with the scheduler's certificate.
    Scheduler,
    /// A client with a certificate of our CA that is not the scheduler's, and why not.
    Stranger(String),
}

impl CallerIdentity {
    /// Whether it may call: the agent's own user, root, the scheduler, and all local users if the agent serves all.
    pub(crate) fn admit(&self, users: AllowedUsers) -> Result<(), Status> {
        let refusal = match self {
            Self::Scheduler => return Ok(()),
            Self::Local(Some(_)) if users == AllowedUsers::All || self.tenant().is_none() => {
                return Ok(());
            }
            Self::Local(Some(peer)) => {
                let own = rustix::process::geteuid().as_raw();
                format!("user {} may not use the agent of user {own}", peer.uid())
            }
            Self::Local(None) => {
                "the kernel does not report the user of this connection".to_owned()
            }
            Self::Stranger(why) => why.clone(),
        };
        Err(Status::permission_denied(refusal))
    }

    /// Its user, if that is neither root nor the agent's own.
    pub(crate) fn tenant(&self) -> Option<TenantUid> {
        let own = rustix::process::geteuid().as_raw();
        match self {
            Self::Local(peer) => {
                let user = peer.as_ref()?.uid();
                (user != 0 && user != own).then_some(TenantUid(user))
            }
            Self::Scheduler | Self::Stranger(_) => None,
        }
    }

    /// Its pid, if it is on this machine.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Local(peer) => peer.and_then(|peer| u32::try_from(peer.pid()?).ok()),
            Self::Scheduler | Self::Stranger(_) => None,
        }
    }
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

pub(crate) struct PeerConnection {
    stream: Box<dyn Duplex>,
    /// Rewrites `:authority`, on the Unix socket only.
    authority: Option<AuthorityRewriter>,
    caller: CallerIdentity,
    /// Its place among the limited connections. A newer connection may take it.
    permit: Option<ConnectionPermit>,
}

impl PeerConnection {
    /// A connection over the Unix socket.
    pub(crate) fn local(stream: UnixStream) -> Self {
        let caller = CallerIdentity::Local(stream.peer_cred().ok());
        let authority = Some(AuthorityRewriter::new());
        Self {
            authority,
            ..Self::new(stream, caller)
        }
    }

    /// Counts the connection against the limit: if there are too many, the oldest are closed. Those of root and of
    /// the agent's own user are not counted.
    pub(crate) fn limited_by(mut self, limiter: &ConnectionLimiter) -> Self {
        let user = self.caller.tenant();
        self.permit = user.map(|TenantUid(user)| limiter.take(ConnectionSource::User(user)));
        self
    }

    /// A connection whose caller is known.
    pub(crate) fn new(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        caller: CallerIdentity,
    ) -> Self {
        let stream = Box::new(stream);
        let authority = None;
        Self {
            stream,
            authority,
            caller,
            permit: None,
        }
    }
}

impl Connected for PeerConnection {
    type ConnectInfo = CallerIdentity;

    fn connect_info(&self) -> CallerIdentity {
        self.caller.clone()
    }
}

impl AsyncRead for PeerConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(permit) = &mut self.permit
            && permit.poll_lost(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let arrived = buffer.filled_mut().get_mut(before..);
        if let Some((authority, arrived)) = self.authority.as_mut().zip(arrived) {
            authority.pass(arrived);
        }
        polled
    }
}

impl AsyncWrite for PeerConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
