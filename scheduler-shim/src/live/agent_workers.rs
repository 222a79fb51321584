//! One worker per agent: a task that follows the agent's status, and a task that sends requests in order.
//!
//! An agent publishes its address in its `GpuNode`. An annotation of the node, which only people write, takes
//! precedence. Requests to one agent are sent one after the other, so a release and a new reservation never overtake
//! each other. Every `Allocate` is answered by an event, also when the agent is away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::names::ANNOTATION_AGENT;
use apportion_abi::{Bytes, OvercommitFactor};
use apportion_groups::ObjectView;
use apportion_proto::v1::{self, holder::Kind, watch_reply::Item};
use serde_json::Value;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::agent_client::{AgentConnector, AgentEndpoint, status_text};
use super::agents::{
    AgentAllocation, AgentAllocationState, AgentCard, AgentStatus, ShareSuspension,
};
use super::event::{AgentRequest, SchedulerEvent};
use super::heartbeats;
use apportion_model::cards::CardShare;

mod requests;

use requests::{answer, resize_answer, send_request, suspension_answer};

/// Indices into the addresses of a node. The first address that is set wins.
const NODE: usize = 0;
const AGENT: usize = 1;
/// How long an agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an agent may take to move the memory of a pod. It gives up earlier.
const COPY_PATIENCE: Duration = Duration::from_secs(600);
/// How long until a lost connection is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// The workers of all agents.
#[derive(Debug)]
pub(crate) struct AgentWorkers {
    agents: BTreeMap<String, AgentWorker>,
    /// Addresses by node: from the node's annotation, and from its `GpuNode`.
    addresses: BTreeMap<String, [Option<String>; 2]>,
    events: UnboundedSender<SchedulerEvent>,
    /// How to connect; `None` until this scheduler leads.
    connector: Option<AgentConnector>,
}

#[derive(Debug)]
struct AgentWorker {
    address: String,
    /// Boxed: a channel allocates room for many messages at once, and there is one channel per node.
    requests: UnboundedSender<Box<AgentRequest>>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for AgentWorker {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl AgentWorkers {
    pub(crate) fn new(events: UnboundedSender<SchedulerEvent>) -> Self {
        Self {
            agents: BTreeMap::new(),
            addresses: BTreeMap::new(),
            events,
            connector: None,
        }
    }

    /// Connects to all known agents.
    pub(crate) fn connect_all(&mut self, connector: AgentConnector) {
        for (node, addresses) in &self.addresses {
            if let Some(address) = addresses.iter().flatten().next() {
                let link = AgentWorker::new(node, address, &self.events, &connector);
                self.agents.insert(node.clone(), link);
            }
        }
        self.connector = Some(connector);
    }

    /// The nodes that have an agent.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.agents.keys()
    }

    /// Updates the agents' addresses from an event.
    pub(crate) fn take(&mut self, event: &SchedulerEvent) {
        if let SchedulerEvent::Listed(kind, objects) = event
            && let Some(whose) = whose(kind)
        {
            self.listed(objects, whose);
        } else if let SchedulerEvent::Applied(json) = event
            && let Some(whose) = whose(ObjectView::new(json).kind())
        {
            self.applied(ObjectView::new(json), whose);
        } else if let SchedulerEvent::Gone(json) = event
            && let Some(whose) = whose(ObjectView::new(json).kind())
        {
            self.set(ObjectView::new(json).name(), whose, None);
        }
    }

    fn listed(&mut self, objects: &[Value], whose: usize) {
        let here = |node: &&String| {
            let mut objects = objects.iter().map(ObjectView::new);
            objects.any(|object| object.name() == *node)
        };
        let gone: Vec<String> = (self.addresses.keys())
            .filter(|node| !here(node))
            .cloned()
            .collect();
        for node in gone {
            self.set(&node, whose, None);
        }
        for json in objects {
            self.applied(ObjectView::new(json), whose);
        }
    }

    fn applied(&mut self, object: ObjectView<'_>, whose: usize) {
        let published = object.json().pointer("/status/agentAddress");
        let address = match whose {
            NODE => object.annotation(ANNOTATION_AGENT),
            _ => published.and_then(Value::as_str),
        };
        self.set(object.name(), whose, address);
    }

    /// Sets or clears one address of a node. If the address in effect changes, replaces the worker.
    fn set(&mut self, node: &str, whose: usize, address: Option<&str>) {
        let addresses = self.addresses.entry(node.to_owned()).or_default();
        addresses[whose] = address.map(str::to_owned);
        let address = addresses.iter().flatten().next().cloned();
        if address.is_none() {
            self.addresses.remove(node);
        }
        let Some(connector) = &self.connector else {
            return;
        };
        let known = self.agents.get(node).map(|known| &known.address);
        if known == address.as_ref() {
            return;
        }
        let link = address.map(|address| AgentWorker::new(node, &address, &self.events, connector));
        let before = match link {
            Some(link) => self.agents.insert(node.to_owned(), link),
            None => self.agents.remove(node),
        };
        // The model then forgets the old agent's status, and takes unanswered requests as refused.
        if before.is_some() {
            let _ = self.events.send(SchedulerEvent::AgentGone(node.to_owned()));
        }
    }

    /// Queues a request to a node's agent.
    pub(crate) fn send(&self, node: &str, request: AgentRequest) {
        let unsent = match self.agents.get(node) {
            Some(worker) => worker
                .requests
                .send(Box::new(request))
                .err()
                .map(|error| *error.0),
            None => Some(request),
        };
        let why = || "the node no longer has an agent".to_owned();
        let answer = match unsent {
            Some(AgentRequest::Allocate { pod, .. }) => SchedulerEvent::Refused(pod, why()),
            Some(AgentRequest::Resize { pod, .. }) => SchedulerEvent::NotResized(pod, why()),
            Some(AgentRequest::Suspend { pod, .. }) => SchedulerEvent::NotSuspended(pod, why()),
            Some(AgentRequest::Resume { pod, .. }) => SchedulerEvent::NotResumed(pod, why()),
            _ => return,
        };
        let _ = self.events.send(answer);
    }
}

/// The index of the address that objects of this kind hold.
fn whose(kind: &str) -> Option<usize> {
    match kind {
        "Node" => Some(NODE),
        heartbeats::KIND => Some(AGENT),
        _ => None,
    }
}

impl AgentWorker {
    fn new(
        node: &str,
        address: &str,
        events: &UnboundedSender<SchedulerEvent>,
        connector: &AgentConnector,
    ) -> Self {
        let (requests, requested) = mpsc::unbounded_channel();
        let to = Arc::new(connector.endpoint(node, address));
        let follow_status = follow_status(node.to_owned(), to.clone(), events.clone());
        let send_requests = send_requests(to, requested, events.clone());
        Self {
            address: address.to_owned(),
            requests,
            tasks: [tokio::spawn(follow_status), tokio::spawn(send_requests)],
        }
    }
}

/// Forwards an agent's statuses as events, and reconnects.
async fn follow_status(
    node: String,
    to: Arc<AgentEndpoint>,
    events: UnboundedSender<SchedulerEvent>,
) {
    let mut known = String::new();
    loop {
        match watch_status(&node, &to, &events, &mut known).await {
            Ok(()) => debug!(node, "Agent disconnected"),
            // Log the same problem only once.
            Err(problem) if problem != known => {
                warn!(node, problem, "Agent unreachable");
                known = problem;
            }
            Err(_) => {}
        }
        to.disconnect().await;
        if events
            .send(SchedulerEvent::AgentLost(node.clone()))
            .is_err()
        {
            return;
        }
        sleep(AGAIN).await;
    }
}

async fn watch_status(
    node: &str,
    to: &AgentEndpoint,
    events: &UnboundedSender<SchedulerEvent>,
    known: &mut String,
) -> Result<(), String> {
    let mut client = timeout(PATIENCE, to.client())
        .await
        .map_err(|_| format!("the agent did not answer within {PATIENCE:?}"))??;
    // Boxed for the same reason as requests.
    let watched = Box::pin(client.watch(v1::WatchRequest {})).await;
    let mut stream = watched.map_err(|status| status_text(&status))?.into_inner();
    while let Some(reply) = stream
        .message()
        .await
        .map_err(|status| status_text(&status))?
    {
        if let Some(Item::List(list)) = reply.item {
            known.clear();
            let _ = events.send(SchedulerEvent::AgentReported(
                node.to_owned(),
                agent_status(list),
            ));
        }
    }
    Ok(())
}

fn agent_status(list: v1::ListReply) -> AgentStatus {
    let card = |card: v1::Card| AgentCard {
        is_healthy: card.health() == v1::CardHealth::Healthy,
        allocatable: Bytes(card.allocatable_bytes),
        unmanaged: Bytes(card.unmanaged_bytes),
        burst: burst(&card),
        uuid: card.uuid,
    };
    let node = list.node.unwrap_or_default();
    AgentStatus {
        overcommit: OvercommitFactor::from_hundredths(node.overcommit_hundredths),
        can_suspend: node.can_suspend,
        cards: fitted(list.cards.into_iter().map(card)),
        held: fitted(list.allocations.into_iter().map(agent_allocation)),
    }
}

/// What is used of a card above what was guaranteed, rounded up: it changes all the time, and each change is a round.
fn burst(card: &v1::Card) -> Bytes {
    const STEP: u64 = 256 << 20;
    let others = card.unmanaged_bytes + card.granted_bytes + card.free_bytes;
    let above = card.allocatable_bytes.saturating_sub(others);
    Bytes(above).rounded_up(STEP)
}

/// A `Vec` as small as its content. Collecting in place would keep the room of the larger protobuf messages.
fn fitted<T>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut fitted: Vec<T> = items.collect();
    fitted.shrink_to_fit();
    fitted
}

fn agent_allocation(allocation: v1::Allocation) -> AgentAllocation {
    let stage = match allocation.state() {
        v1::AllocationState::Allocated => AgentAllocationState::Allocated,
        v1::AllocationState::Draining => AgentAllocationState::Draining,
        v1::AllocationState::Reserved | v1::AllocationState::Unspecified => {
            AgentAllocationState::Reserved
        }
    };
    let suspension = share_suspension(&allocation);
    let uid = match allocation.holder.and_then(|holder| holder.kind) {
        Some(Kind::PodUid(uid)) => Some(uid),
        Some(Kind::Pid(_) | Kind::Claim(_)) => None,
        // The key is the pod's UID, for one container followed by `/` and its name.
        None => allocation
            .idempotency_key
            .split('/')
            .next()
            .map(str::to_owned),
    };
    let share = |grant: v1::Grant| {
        // Older agents do not say what is guaranteed.
        let bytes = match grant.guaranteed_bytes {
            0 => grant.limit_bytes,
            guaranteed => guaranteed,
        };
        CardShare {
            card: grant.card,
            bytes: Bytes(bytes),
            limit: Some(Bytes(grant.ceiling_bytes)).filter(|limit| limit.0 > bytes),
        }
    };
    AgentAllocation {
        id: allocation.id,
        uid,
        name: allocation.name,
        stage,
        suspension,
        shares: fitted(allocation.grants.into_iter().map(share)),
    }
}

fn share_suspension(allocation: &v1::Allocation) -> ShareSuspension {
    match allocation.suspension() {
        _ if allocation.called_in || allocation.idle => ShareSuspension::Awake,
        v1::SuspensionState::Suspending => ShareSuspension::FallingAsleep,
        v1::SuspensionState::Suspended => ShareSuspension::Asleep,
        // One that is being woken holds its memory again.
        v1::SuspensionState::Running
        | v1::SuspensionState::Resuming
        | v1::SuspensionState::Unspecified => ShareSuspension::Awake,
    }
}

/// Lets an agent suspend or resume a pod, and sends the answer as an event.
async fn move_programs(
    to: Arc<AgentEndpoint>,
    request: AgentRequest,
    events: UnboundedSender<SchedulerEvent>,
) {
    let done = timeout(COPY_PATIENCE, Box::pin(send_request(&to, &request))).await;
    let done =
        done.unwrap_or_else(|_| Err(format!("the agent did not answer within {COPY_PATIENCE:?}")));
    if let Some(answer) = suspension_answer(request, done) {
        let _ = events.send(answer);
    }
}

/// Sends requests one after the other.
async fn send_requests(
    to: Arc<AgentEndpoint>,
    mut requests: UnboundedReceiver<Box<AgentRequest>>,
    events: UnboundedSender<SchedulerEvent>,
) {
    while let Some(request) = requests.recv().await {
        if matches!(
            *request,
            AgentRequest::Suspend { .. } | AgentRequest::Resume { .. }
        ) {
            // It takes as long as the copy of the memory, and nothing that is asked for later depends on it.
            tokio::spawn(move_programs(to.clone(), *request, events.clone()));
            continue;
        }
        // A request needs much more memory than a worker that waits for one. The box frees it afterwards.
        let done = timeout(PATIENCE, Box::pin(send_request(&to, &request))).await;
        let done =
            done.unwrap_or_else(|_| Err(format!("the agent did not answer within {PATIENCE:?}")));
        if done.is_err() {
            to.disconnect().await;
        }
        match (*request, done) {
            (AgentRequest::Allocate { pod, .. }, done) => {
                let _ = events.send(answer(pod, done));
            }
            (AgentRequest::Resize { pod, .. }, done) => {
                let _ = events.send(resize_answer(pod, done));
            }
            (request, Err(problem)) => warn!(?request, problem, "Agent request failed"),
            (_, Ok(_)) => {}
        }
    }
}
