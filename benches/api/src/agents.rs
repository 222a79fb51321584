//! Stand-ins for node agents: an agent's service on a Unix socket, with a ledger and no cards.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context, Result};
use apportion_proto::v1;
use apportion_proto::v1::agent_server::{Agent, AgentServer};
use apportion_proto::v1::watch_reply::Item;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::stand_in_ledger;

#[derive(Clone, Debug)]
pub(crate) struct StandInAgent {
    ledger: Arc<watch::Sender<v1::ListReply>>,
}

impl StandInAgent {
    /// Serves a node in the background. Returns the stand-in and its socket.
    pub(crate) fn serve(folder: &Path, node: usize, cards: usize) -> Result<(Self, PathBuf)> {
        let path = folder.join(format!("agent-{node}.sock"));
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("failed to listen on {}", path.display()))?;
        let (ledger, _) = watch::channel(stand_in_ledger::idle(node, cards));
        let stand_in = Self {
            ledger: Arc::new(ledger),
        };
        let service = AgentServer::new(stand_in.clone());
        let server = Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        Ok((stand_in, path))
    }

    /// The ledger now and after each change.
    pub(crate) fn ledger(&self) -> watch::Receiver<v1::ListReply> {
        self.ledger.subscribe()
    }

    fn change<T>(&self, change: impl FnOnce(&mut v1::ListReply) -> T) -> Result<T, Status> {
        let mut answer = None;
        self.ledger
            .send_modify(|ledger| answer = Some(change(ledger)));
        answer.ok_or_else(|| Status::internal("the book was not changed"))
    }
}

#[tonic::async_trait]
impl Agent for StandInAgent {
    async fn node_state(
        &self,
        _: Request<v1::NodeStateRequest>,
    ) -> Result<Response<v1::NodeStateReply>, Status> {
        Err(Status::unimplemented("the scheduler does not ask this"))
    }

    async fn allocate(
        &self,
        request: Request<v1::AllocateRequest>,
    ) -> Result<Response<v1::AllocateReply>, Status> {
        let ask = request.into_inner();
        let reply = self.change(|ledger| stand_in_ledger::allocate(ledger, ask))?;
        Ok(Response::new(reply))
    }

    async fn commit(
        &self,
        request: Request<v1::CommitRequest>,
    ) -> Result<Response<v1::CommitReply>, Status> {
        let ask = request.into_inner();
        let found = self.change(|ledger| stand_in_ledger::commit(ledger, ask))?;
        let allocation = Some(found.ok_or_else(|| Status::not_found("it is not in the book"))?);
        Ok(Response::new(v1::CommitReply { allocation }))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseReply>, Status> {
        let v1::ReleaseRequest { id } = request.into_inner();
        self.change(|ledger| stand_in_ledger::release(ledger, &id))?;
        Ok(Response::new(v1::ReleaseReply { gone: true }))
    }

    async fn resize(
        &self,
        _: Request<v1::ResizeRequest>,
    ) -> Result<Response<v1::ResizeReply>, Status> {
        Err(Status::unimplemented("the scheduler does not ask this"))
    }

    async fn suspend(
        &self,
        _: Request<v1::SuspendRequest>,
    ) -> Result<Response<v1::SuspendReply>, Status> {
        Err(Status::unimplemented("the scheduler does not ask this"))
    }

    async fn resume(
        &self,
        _: Request<v1::ResumeRequest>,
    ) -> Result<Response<v1::ResumeReply>, Status> {
        Err(Status::unimplemented("the scheduler does not ask this"))
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListReply>, Status> {
        Ok(Response::new(self.ledger.borrow().clone()))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::WatchReply, Status>> + Send>>;

    async fn watch(
        &self,
        _: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let lists = WatchStream::new(self.ledger.subscribe());
        let replies = lists.map(|list| {
            let item = Some(Item::List(list));
            Ok(v1::WatchReply { item })
        });
        Ok(Response::new(Box::pin(replies)))
    }
}
