//! The agents of the nodes: one task each, which listens to what the agent says and asks it in order.
//!
//! A node says in an annotation where its agent listens. Requests to one agent are made one after the
//! other, so that giving back and asking anew never overtake each other. Every request is answered by an
//! event, also when the agent is away.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use apportion_abi::Bytes;
use apportion_groups::Object;
use apportion_proto::v1::{self, allocate_reply, holder::Kind, watch_reply::Item};
use apportion_proto::{AgentClient, connect};
use serde_json::Value;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::agents::{Card, Held, Said, Stage};
use super::event::{Effect, Event, PodRef};

/// The annotation of a node that says where its agent listens.
pub(crate) const ADDRESS: &str = "apportion.dev/agent-address";
/// How long an agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long until an agent that is away is tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a reservation waits for its pod to be bound.
const RESERVED_MS: u64 = 60_000;

/// The agents that the nodes name.
#[derive(Debug)]
pub(crate) struct Nodes {
    agents: BTreeMap<String, Link>,
    events: UnboundedSender<Event>,
}

#[derive(Debug)]
struct Link {
    address: String,
    requests: UnboundedSender<Effect>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Nodes {
    pub(crate) fn new(events: UnboundedSender<Event>) -> Self {
        let agents = BTreeMap::new();
        Self { agents, events }
    }

    /// The nodes that have an agent.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.agents.keys()
    }

    /// Takes in all nodes.
    pub(crate) fn listed(&mut self, objects: &[Value]) {
        let names: Vec<&str> = objects
            .iter()
            .map(|json| Object::new(json).name())
            .collect();
        let known: Vec<String> = self.agents.keys().cloned().collect();
        for gone in known
            .iter()
            .filter(|known| !names.contains(&known.as_str()))
        {
            self.gone(gone);
        }
        objects.iter().for_each(|json| self.applied(json));
    }

    /// Takes in a node.
    pub(crate) fn applied(&mut self, json: &Value) {
        let node = Object::new(json);
        let address = node.annotation(ADDRESS);
        let known = self.agents.get(node.name());
        if known.map(|known| known.address.as_str()) == address {
            return;
        }
        self.gone(node.name());
        if let Some(address) = address {
            let link = Link::new(node.name(), address, &self.events);
            self.agents.insert(node.name().to_owned(), link);
        }
    }

    /// Forgets a node.
    pub(crate) fn gone(&mut self, node: &str) {
        if self.agents.remove(node).is_some() {
            let _ = self.events.send(Event::AgentGone(node.to_owned()));
        }
    }

    /// Asks a node's agent.
    pub(crate) fn perform(&self, effect: Effect) {
        let link = match &effect {
            Effect::Allocate { node, .. }
            | Effect::Commit { node, .. }
            | Effect::Release { node, .. } => self.agents.get(node),
            Effect::Bind { .. }
            | Effect::Evict(_)
            | Effect::Tell { .. }
            | Effect::Silent { .. } => None,
        };
        let unsent = match link {
            Some(link) => link.requests.send(effect).err().map(|error| error.0),
            None => Some(effect),
        };
        if let Some(Effect::Allocate { pod, .. }) = unsent {
            let why = "the node has no agent any more".to_owned();
            let _ = self.events.send(Event::Refused(pod, why));
        }
    }
}

impl Link {
    fn new(node: &str, address: &str, events: &UnboundedSender<Event>) -> Self {
        let (requests, requested) = mpsc::unbounded_channel();
        let listen = listen(node.to_owned(), address.to_owned(), events.clone());
        let ask = ask(address.to_owned(), requested, events.clone());
        Self {
            address: address.to_owned(),
            requests,
            tasks: [tokio::spawn(listen), tokio::spawn(ask)],
        }
    }
}

/// Connects to an agent.
async fn reach(address: &str) -> Result<AgentClient, String> {
    let path = address.strip_prefix("unix:").ok_or_else(|| {
        format!("{address} is not an address such as unix:/run/apportion/agent.sock")
    })?;
    let connected = connect(Path::new(path)).await;
    connected.map_err(|error| chain(&error))
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// Passes on all that an agent says.
async fn listen(node: String, address: String, events: UnboundedSender<Event>) {
    loop {
        match heard(&node, &address, &events).await {
            Ok(()) => debug!(node, "Agent left"),
            Err(problem) => debug!(node, problem, "Agent is away"),
        }
        if events.send(Event::AgentLost(node.clone())).is_err() {
            return;
        }
        sleep(AGAIN).await;
    }
}

async fn heard(node: &str, address: &str, events: &UnboundedSender<Event>) -> Result<(), String> {
    let mut client = timeout(PATIENCE, reach(address))
        .await
        .map_err(|late| late.to_string())??;
    let watched = client.watch(v1::WatchRequest {}).await;
    let mut stream = watched
        .map_err(|status| status.message().to_owned())?
        .into_inner();
    while let Some(reply) = stream
        .message()
        .await
        .map_err(|status| status.message().to_owned())?
    {
        if let Some(Item::List(list)) = reply.item {
            let _ = events.send(Event::AgentSaid(node.to_owned(), said(list)));
        }
    }
    Ok(())
}

fn said(list: v1::ListReply) -> Said {
    let card = |card: v1::Card| Card {
        is_healthy: card.health() == v1::CardHealth::Healthy,
        uuid: card.uuid,
        allocatable: Bytes(card.allocatable_bytes),
        unmanaged: Bytes(card.unmanaged_bytes),
    };
    Said {
        cards: list.cards.into_iter().map(card).collect(),
        held: list.allocations.into_iter().map(held).collect(),
    }
}

fn held(allocation: v1::Allocation) -> Held {
    let stage = match allocation.state() {
        v1::AllocationState::Allocated => Stage::Allocated,
        v1::AllocationState::Draining => Stage::Draining,
        v1::AllocationState::Reserved | v1::AllocationState::Unspecified => Stage::Reserved,
    };
    let uid = match allocation.holder.and_then(|holder| holder.kind) {
        Some(Kind::PodUid(uid)) => Some(uid),
        Some(Kind::Pid(_)) => None,
        // Whoever asks for one container of a pod adds its name.
        None => allocation
            .idempotency_key
            .split('/')
            .next()
            .map(str::to_owned),
    };
    let share = |grant: v1::Grant| (grant.card, grant.limit_bytes);
    Held {
        id: allocation.id,
        uid,
        name: allocation.name,
        stage,
        shares: allocation.grants.into_iter().map(share).collect(),
    }
}

/// Asks one thing after the other.
async fn ask(
    address: String,
    mut requests: UnboundedReceiver<Effect>,
    events: UnboundedSender<Event>,
) {
    let mut client = None;
    while let Some(request) = requests.recv().await {
        let done = timeout(PATIENCE, one(&address, &mut client, &request)).await;
        let done =
            done.unwrap_or_else(|_| Err(format!("the agent did not answer in {PATIENCE:?}")));
        if done.is_err() {
            client = None;
        }
        match (request, done) {
            (Effect::Allocate { pod, .. }, done) => {
                let _ = events.send(answer(pod, done));
            }
            (request, Err(problem)) => warn!(?request, problem, "Agent did not do it"),
            (_, Ok(_)) => {}
        }
    }
}

fn answer(pod: PodRef, done: Result<Result<String, String>, String>) -> Event {
    match done {
        Ok(Ok(id)) => Event::Accepted(pod, id),
        Ok(Err(why)) | Err(why) => Event::Refused(pod, why),
    }
}

/// The id, or why not; an error where the connection is at fault.
async fn one(
    address: &str,
    client: &mut Option<AgentClient>,
    request: &Effect,
) -> Result<Result<String, String>, String> {
    let agent = match client {
        Some(agent) => agent,
        None => client.insert(reach(address).await?),
    };
    let done = match request {
        Effect::Allocate { pod, shares, .. } => return allocate(agent, pod, shares).await,
        Effect::Commit { id, pod, .. } => {
            let kind = Some(Kind::PodUid(pod.uid.clone()));
            let holder = Some(v1::Holder { kind });
            let id = id.clone();
            agent
                .commit(v1::CommitRequest { id, holder })
                .await
                .map(|_| ())
        }
        Effect::Release { id, .. } => {
            let id = id.clone();
            agent.release(v1::ReleaseRequest { id }).await.map(|_| ())
        }
        Effect::Bind { .. } | Effect::Evict(_) | Effect::Tell { .. } | Effect::Silent { .. } => {
            Ok(())
        }
    };
    done.map(|()| Ok(String::new()))
        .map_err(|status| status.message().to_owned())
}

async fn allocate(
    agent: &mut AgentClient,
    pod: &PodRef,
    shares: &[(String, u64)],
) -> Result<Result<String, String>, String> {
    let share = |(card, bytes): &(String, u64)| v1::Share {
        card: card.clone(),
        bytes: *bytes,
    };
    let request = v1::AllocateRequest {
        idempotency_key: pod.uid.clone(),
        name: pod.full(),
        shares: shares.iter().map(share).collect(),
        ttl_ms: RESERVED_MS,
    };
    let reply = agent
        .allocate(request)
        .await
        .map_err(|status| status.message().to_owned())?;
    Ok(match reply.into_inner().result {
        Some(allocate_reply::Result::Allocation(allocation)) => Ok(allocation.id),
        Some(allocate_reply::Result::Shortfall(shortfall)) => Err(shortfall.sentence),
        None => Err("it said nothing".to_owned()),
    })
}
