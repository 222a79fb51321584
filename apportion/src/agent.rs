//! A client of an instance's agent.
//!
//! Each call has a deadline. If the agent refuses a call with a status, that becomes a [`CommandFailure`] that says
//! what was requested. A shortfall is not a failure here, but a value that the command prints.

use std::error::Error;
use std::io;
use std::time::Duration;

use apportion_exit::CommandFailure;
use apportion_proto::v1::{
    AllocateReply, AllocateRequest, Allocation, CommitRequest, Holder, ListReply, ListRequest,
    NodeStateRequest, ReleaseRequest, ResizeReply, ResizeRequest, ResumeReply, ResumeRequest,
    Share, SuspendReply, SuspendRequest, WatchReply, WatchRequest, holder::Kind,
};
use apportion_proto::{AgentClient, connect};
use tonic::{Code, Status, Streaming};

use crate::instance::TargetInstance;

mod deadline;
mod start;

use deadline::CallDeadline;

pub(crate) use start::connect_or_start;

/// How long a reservation waits for its commit. Ours is committed at once or never.
const RESERVATION_MS: u64 = 10_000;

/// The hint if the agent does not accept us.
const HEARS: &str =
    "this agent accepts only its own user and root; ask root to start one with --users all";

/// A connection to an agent.
pub(crate) struct ConnectedAgent {
    client: AgentClient,
    deadline: CallDeadline,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum AgentUnreachable {
    /// Nobody listens: no agent ever started, or it has exited.
    Absent,
    /// An agent listens but does not answer in time.
    Silent(CommandFailure),
    /// Another error, which starting an agent does not fix.
    Failed(CommandFailure),
}

/// Connects to the agent of `instance` and makes one call, because an agent that is exiting still accepts
/// connections.
pub(crate) async fn try_connect(
    instance: &TargetInstance,
) -> Result<ConnectedAgent, AgentUnreachable> {
    let socket = instance.agent_socket();
    let what = format!("failed to reach the agent at {}", socket.display());
    let deadline = CallDeadline::new(instance);
    let connected = deadline.keep(connect(&socket)).await;
    let mut client = match connected.map_err(AgentUnreachable::Silent)? {
        Ok(client) => client,
        Err(error) => return Err(not_connected(what, error)),
    };
    let state = deadline.keep(client.node_state(NodeStateRequest {})).await;
    match state.map_err(AgentUnreachable::Silent)? {
        Ok(_) => Ok(ConnectedAgent { client, deadline }),
        Err(status) if is_broken(status.code()) => Err(AgentUnreachable::Absent),
        Err(status) => {
            let failure = CommandFailure::new(what).because(reason(&status));
            Err(AgentUnreachable::Failed(failure.hint(HEARS)))
        }
    }
}

fn not_connected(what: String, error: tonic::transport::Error) -> AgentUnreachable {
    match io_cause(&error) {
        Some(cause) if is_absence(cause.kind()) => AgentUnreachable::Absent,
        Some(cause) => {
            let bare = io::Error::from(cause.kind());
            let bare = cause
                .raw_os_error()
                .map_or(bare, io::Error::from_raw_os_error);
            let is_refused = cause.kind() == io::ErrorKind::PermissionDenied;
            let hint = if is_refused {
                HEARS
            } else {
                "run `apportion doctor`"
            };
            AgentUnreachable::Failed(CommandFailure::new(what).because(bare).hint(hint))
        }
        None => AgentUnreachable::Failed(CommandFailure::new(what).because(error)),
    }
}

/// Whether a request was lost with its connection. An agent's own answers have other codes.
fn is_broken(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::Unknown | Code::Cancelled)
}

/// Connects to the agent of `instance`. Fails if none runs.
pub(crate) async fn connect_to_running(
    instance: &TargetInstance,
) -> Result<ConnectedAgent, CommandFailure> {
    try_connect(instance)
        .await
        .map_err(|unreachable| match unreachable {
            AgentUnreachable::Failed(failure) | AgentUnreachable::Silent(failure) => failure,
            AgentUnreachable::Absent => {
                let what = format!(
                    "no agent is running at {}",
                    instance.agent_socket().display()
                );
                let hint = "`apportion run` starts one; add --sim for simulated GPUs";
                CommandFailure::new(what).hint(hint)
            }
        })
}

impl ConnectedAgent {
    /// How long a call may take.
    pub(crate) fn patience(&self) -> Duration {
        self.deadline.patience()
    }

    /// Calls the agent again, to see whether it answers.
    pub(crate) async fn greet(&mut self) -> Result<(), CommandFailure> {
        let request = NodeStateRequest {};
        let reply = self.deadline.keep(self.client.node_state(request)).await?;
        reply.map(drop).map_err(refused("go on serving"))
    }

    /// All cards and allocations.
    pub(crate) async fn list(&mut self) -> Result<ListReply, CommandFailure> {
        let reply = self.deadline.keep(self.client.list(ListRequest {})).await?;
        reply
            .map(tonic::Response::into_inner)
            .map_err(refused("list its GPUs"))
    }

    /// The list now and after each change.
    pub(crate) async fn watch(&mut self) -> Result<Streaming<WatchReply>, CommandFailure> {
        let reply = self
            .deadline
            .keep(self.client.watch(WatchRequest {}))
            .await?;
        reply
            .map(tonic::Response::into_inner)
            .map_err(refused("watch its GPUs"))
    }

    /// Reserves what the request says. Its key makes a repeated call harmless. `may_wait` says that the agent may first
    /// suspend programs that use more than their guarantee.
    pub(crate) async fn allocate(
        &mut self,
        request: AllocateRequest,
        may_wait: bool,
    ) -> Result<AllocateReply, CommandFailure> {
        let request = AllocateRequest {
            ttl_ms: RESERVATION_MS,
            ..request
        };
        let deadline = if may_wait {
            self.deadline.of_guarantee_call()
        } else {
            self.deadline.of_allocation()
        };
        let reply = deadline.keep(self.client.allocate(request)).await?;
        reply
            .map(tonic::Response::into_inner)
            .map_err(refused("allocate"))
    }

    /// Ties the allocation to the process `pid`.
    pub(crate) async fn commit(
        &mut self,
        id: String,
        pid: u32,
    ) -> Result<Allocation, CommandFailure> {
        let holder = Some(Holder {
            kind: Some(Kind::Pid(pid)),
        });
        let request = CommitRequest { id, holder };
        let reply = self.deadline.keep(self.client.commit(request)).await?;
        let reply = reply
            .map_err(refused("commit the allocation"))?
            .into_inner();
        reply
            .allocation
            .ok_or_else(|| CommandFailure::new("the agent's answer to the commit is empty"))
    }

    pub(crate) async fn release(&mut self, id: String) -> Result<(), CommandFailure> {
        let request = ReleaseRequest { id };
        let reply = self.deadline.keep(self.client.release(request)).await?;
        reply.map(drop).map_err(refused("release the allocation"))
    }

    /// Changes the limits of an allocation.
    pub(crate) async fn resize(
        &mut self,
        id: String,
        shares: Vec<Share>,
    ) -> Result<ResizeReply, CommandFailure> {
        let request = ResizeRequest { id, shares };
        let reply = self.deadline.keep(self.client.resize(request)).await?;
        reply
            .map(tonic::Response::into_inner)
            .map_err(refused("resize the allocation"))
    }

    /// Puts the processes of an allocation to sleep.
    pub(crate) async fn suspend(&mut self, id: String) -> Result<SuspendReply, CommandFailure> {
        let request = SuspendRequest { id };
        let deadline = self.deadline.of_suspension();
        let reply = deadline.keep(self.client.suspend(request)).await?;
        reply
            .map(tonic::Response::into_inner)
            .map_err(refused("suspend the allocation"))
    }

    /// Wakes the processes of an allocation.
    pub(crate) async fn resume(&mut self, id: String) -> Result<ResumeReply, CommandFailure> {
        let request = ResumeRequest { id };
        let deadline = self.deadline.of_suspension();
        let reply = deadline.keep(self.client.resume(request)).await?;
        reply
            .map(tonic::Response::into_inner)
            .map_err(refused("resume the allocation"))
    }
}

/// Adds to a status what was requested, which the status itself does not say.
pub(crate) fn refused(what: &'static str) -> impl Fn(Status) -> CommandFailure {
    move |status| {
        let failure = CommandFailure::new(format!("the agent did not {what}"));
        failure
            .because(reason(&status))
            .lost(is_broken(status.code()))
    }
}

fn reason(status: &Status) -> String {
    match status.message() {
        "" => status.code().description().to_owned(),
        message => message.to_owned(),
    }
}

/// The socket error behind a transport error.
fn io_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref() {
            return Some(io);
        }
        cause = error.source();
    }
    None
}

/// Whether a connection error means that there is no agent.
fn is_absence(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
    )
}
