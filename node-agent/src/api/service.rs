//! The gRPC service. Requests that change something go to the agent's loop, and those that read are answered from
//! the latest view. The caller is identified by the kernel on the Unix socket, and by certificate over TCP. A
//! scheduler that lost the lease is refused.

use std::io;
use std::sync::Arc;

use apportion_bounded::{ConnectionLimiter, ConnectionLimits};
use apportion_ledger::AllocationId;
use apportion_proto::v1::agent_server::{Agent, AgentServer};
use apportion_proto::v1::watch_reply::Item;
use apportion_proto::{identity, v1};
use tokio::net::UnixListener;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::api::caller::{CallerIdentity, PeerConnection};
use crate::api::fencing::FencingTokenStore;
use crate::api::request::{self, Answer, NewcomerPatience, SuspensionCaller};
use crate::api::request_tracker::RequestTracker;
use crate::api::tcp::TcpServer;
use crate::api::tenant::{AllowedUsers, TenantUid};
use crate::api::wire;
use crate::telemetry::view::AgentHandle;
use crate::telemetry::view::AgentView;

/// How many replies a slow watcher may leave unread before the relay waits for it.
const UNREAD: usize = 8;

/// How many connections other local users may have to the Unix socket.
pub(crate) const OF_USERS: ConnectionLimits = ConnectionLimits {
    total: 256,
    per_source: 64,
};

pub(crate) struct AgentService {
    pub(crate) requests: mpsc::Sender<request::AgentRequest>,
    pub(crate) agent: AgentHandle,
    pub(crate) contact: Arc<RequestTracker>,
    pub(crate) users: AllowedUsers,
}

/// Serves on the latest of the Unix sockets, and over TCP if configured, until `shutdown`. Then it waits for open
/// requests.
pub(crate) async fn serve(
    service: AgentService,
    listeners: mpsc::Receiver<UnixListener>,
    limiter: ConnectionLimiter,
    remote: Option<TcpServer>,
    fencing: FencingTokenStore,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let (fencing, users) = (Arc::new(fencing), service.users);
    let service =
        AgentServer::with_interceptor(service, move |request| authorise(request, users, &fencing));
    let (connections, incoming) = mpsc::channel(1);
    if let Some(remote) = remote {
        tokio::spawn(remote.accept(connections.clone()));
    }
    tokio::spawn(accept(listeners, limiter, connections));
    Server::builder()
        .add_service(service)
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), shutdown)
        .await
}

/// Accepts connections until nobody serves them.
async fn accept(
    mut listeners: mpsc::Receiver<UnixListener>,
    limiter: ConnectionLimiter,
    connections: mpsc::Sender<io::Result<PeerConnection>>,
) {
    let Some(mut current) = listeners.recv().await else {
        return;
    };
    loop {
        let accepted = tokio::select! {
            () = connections.closed() => return,
            Some(next) = listeners.recv() => {
                current = next;
                continue;
            }
            accepted = current.accept() => accepted,
        };
        let accepted =
            accepted.map(|(stream, _)| PeerConnection::local(stream).limited_by(&limiter));
        if connections.send(accepted).await.is_err() {
            return;
        }
    }
}

/// Accepts a request of an allowed caller, unless the caller's term is over.
fn authorise(
    request: Request<()>,
    users: AllowedUsers,
    fencing: &FencingTokenStore,
) -> Result<Request<()>, Status> {
    caller(&request)
        .ok_or_else(|| Status::permission_denied("the caller is unknown"))?
        .admit(users)?;
    // The term of a user who is no scheduler would lock the scheduler out.
    if let Some(term) = request.metadata().get(identity::TERM)
        && is_scheduler(&request)
    {
        let number = term.to_str().ok().and_then(|text| text.parse().ok());
        fencing.check_term(number.ok_or_else(|| {
            Status::invalid_argument(format!("{} is not a number", identity::TERM))
        })?)?;
    }
    Ok(request)
}

fn tenant<T>(request: &Request<T>) -> Option<TenantUid> {
    caller(request).and_then(CallerIdentity::tenant)
}

/// Whether a scheduler asks: only schedulers send their term, and none runs as another user than root or the agent's.
fn is_scheduler<T>(request: &Request<T>) -> bool {
    request.metadata().contains_key(identity::TERM) && tenant(request).is_none()
}

fn caller<T>(request: &Request<T>) -> Option<&CallerIdentity> {
    request.extensions().get::<CallerIdentity>()
}

impl AgentService {
    async fn ask<T>(
        &self,
        request: impl FnOnce(Answer<T>) -> request::AgentRequest,
    ) -> Result<Response<T>, Status> {
        let _open = self.contact.open();
        let leaving = || Status::unavailable("the agent is stopping");
        let (answer, answered) = oneshot::channel();
        self.requests
            .send(request(answer))
            .await
            .map_err(|_| leaving())?;
        answered.await.map_err(|_| leaving())?.map(Response::new)
    }

    /// Whether the caller may change the allocation.
    fn may_change(&self, tenant: Option<TenantUid>, id: &AllocationId) -> Result<(), Status> {
        let Some(tenant) = tenant else {
            return Ok(());
        };
        let view = self.agent.views.borrow().clone();
        let mut all = view.list.allocations.iter();
        let found = all.find(|allocation| allocation.id == id.0);
        tenant.may_change(id, found.map(|found| found.idempotency_key.as_str()))
    }

    fn list_now(&self) -> v1::ListReply {
        let _open = self.contact.open();
        self.agent.views.borrow().list.clone()
    }
}

#[tonic::async_trait]
impl Agent for AgentService {
    async fn node_state(
        &self,
        _: Request<v1::NodeStateRequest>,
    ) -> Result<Response<v1::NodeStateReply>, Status> {
        let v1::ListReply { node, cards, .. } = self.list_now();
        Ok(Response::new(v1::NodeStateReply { node, cards }))
    }

    async fn allocate(
        &self,
        request: Request<v1::AllocateRequest>,
    ) -> Result<Response<v1::AllocateReply>, Status> {
        let tenant = tenant(&request);
        // A scheduler must answer for other pods meanwhile.
        let patience = if is_scheduler(&request) {
            NewcomerPatience::AsksAgain
        } else {
            NewcomerPatience::Waits
        };
        let mut proposal = wire::proposal(request.into_inner())?;
        if let Some(tenant) = tenant {
            proposal = tenant.proposal(proposal)?;
        }
        self.ask(|answer| request::AgentRequest::Allocate(proposal, patience, answer))
            .await
    }

    async fn commit(
        &self,
        request: Request<v1::CommitRequest>,
    ) -> Result<Response<v1::CommitReply>, Status> {
        let (caller, tenant) = (
            caller(&request).and_then(CallerIdentity::pid),
            tenant(&request),
        );
        let v1::CommitRequest { id, holder } = request.into_inner();
        let (id, owner) = (wire::id(id), wire::owner(holder, caller)?);
        self.may_change(tenant, &id)?;
        if let Some(tenant) = tenant {
            tenant.may_own(&owner)?;
        }
        self.ask(|answer| request::AgentRequest::Commit(id, owner, answer))
            .await
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseReply>, Status> {
        let tenant = tenant(&request);
        let id = wire::id(request.into_inner().id);
        self.may_change(tenant, &id)?;
        self.ask(|answer| request::AgentRequest::Release(id, answer))
            .await
    }

    async fn resize(
        &self,
        request: Request<v1::ResizeRequest>,
    ) -> Result<Response<v1::ResizeReply>, Status> {
        let tenant = tenant(&request);
        let v1::ResizeRequest { id, shares } = request.into_inner();
        let (id, sizes) = (wire::id(id), wire::new_sizes(&shares)?);
        self.may_change(tenant, &id)?;
        self.ask(|answer| request::AgentRequest::Resize(id, sizes, answer))
            .await
    }

    async fn suspend(
        &self,
        request: Request<v1::SuspendRequest>,
    ) -> Result<Response<v1::SuspendReply>, Status> {
        let tenant = tenant(&request);
        let caller = if is_scheduler(&request) {
            SuspensionCaller::Scheduler
        } else {
            SuspensionCaller::Client
        };
        let id = wire::id(request.into_inner().id);
        self.may_change(tenant, &id)?;
        self.ask(|answer| request::AgentRequest::Suspend(id, caller, answer))
            .await
    }

    async fn resume(
        &self,
        request: Request<v1::ResumeRequest>,
    ) -> Result<Response<v1::ResumeReply>, Status> {
        let tenant = tenant(&request);
        let id = wire::id(request.into_inner().id);
        self.may_change(tenant, &id)?;
        self.ask(|answer| request::AgentRequest::Resume(id, answer))
            .await
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListReply>, Status> {
        Ok(Response::new(self.list_now()))
    }

    type WatchStream = ReceiverStream<Result<v1::WatchReply, Status>>;

    async fn watch(
        &self,
        _: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (replies, unread) = mpsc::channel(UNREAD);
        let (views, events) = (self.agent.views.clone(), self.agent.events.subscribe());
        let contact = self.contact.clone();
        tokio::spawn(async move {
            let _open = contact.open();
            relay(views, events, replies).await;
        });
        Ok(Response::new(ReceiverStream::new(unread)))
    }
}

/// Sends the list at once and after each change, and each event, until either side leaves.
async fn relay(
    mut views: watch::Receiver<Arc<AgentView>>,
    mut events: broadcast::Receiver<v1::Event>,
    replies: mpsc::Sender<Result<v1::WatchReply, Status>>,
) {
    views.mark_changed();
    loop {
        let item = tokio::select! {
            biased;
            () = replies.closed() => return,
            event = events.recv() => match event {
                Ok(event) => Item::Event(event),
                // The next list reflects the missed events.
                Err(RecvError::Lagged(_)) => continue,
                Err(RecvError::Closed) => return,
            },
            changed = views.changed() => match changed {
                Ok(()) => Item::List(views.borrow_and_update().list.clone()),
                Err(_) => return,
            },
        };
        if replies
            .send(Ok(v1::WatchReply { item: Some(item) }))
            .await
            .is_err()
        {
            return;
        }
    }
}
