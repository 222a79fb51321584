//! Who is asking: a process of this machine, by the kernel's word, or somebody over TCP, by certificate.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use apportion_bounded::{ConnectionLimiter, ConnectionPermit, ConnectionSource};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::UCred;
use tonic::Status;
use tonic::transport::server::Connected;

use crate::tenant::{AllowedUsers, TenantUid};

mod authority;

use authority::AuthorityRewriter;

/// Who is asking.
#[derive(Clone, Debug)]
pub(crate) enum CallerIdentity {
    /// A process of this machine; nothing where the kernel does not say which.
    Local(Option<UCred>),
    /// Whose certificate is the scheduler's.
    Scheduler,
    /// Whose certificate is of our authority and not the scheduler's; why not.
    Stranger(String),
}

impl CallerIdentity {
    /// Whether it may ask: the agent's own user and root, the scheduler, and others where the agent is for all.
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

    /// Its user, where that is neither root nor the agent's own.
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

    /// Its process, where it is on this machine.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Local(peer) => peer.and_then(|peer| u32::try_from(peer.pid()?).ok()),
            Self::Scheduler | Self::Stranger(_) => None,
        }
    }
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection.
pub(crate) struct PeerConnection {
    stream: Box<dyn Duplex>,
    /// Reads along on the Unix socket.
    authority: Option<AuthorityRewriter>,
    caller: CallerIdentity,
    /// What another connection may take from it.
    seat: Option<ConnectionPermit>,
}

impl PeerConnection {
    /// One over the Unix socket.
    pub(crate) fn local(stream: UnixStream) -> Self {
        let caller = CallerIdentity::Local(stream.peer_cred().ok());
        let authority = Some(AuthorityRewriter::new());
        Self {
            authority,
            ..Self::new(stream, caller)
        }
    }

    /// The same, bounded: where too many connect, the oldest connections end. The agent's own user and root are not
    /// counted.
    pub(crate) fn seated(mut self, seats: &ConnectionLimiter) -> Self {
        let user = self.caller.tenant();
        self.seat = user.map(|TenantUid(user)| seats.take(ConnectionSource::User(user)));
        self
    }

    /// One whose caller is known.
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
            seat: None,
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
        if let Some(seat) = &mut self.seat
            && seat.poll_lost(context).is_ready()
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
