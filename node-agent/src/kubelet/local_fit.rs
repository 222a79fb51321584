//! Places a pod that our scheduler did not place on this node, where it already is.
//!
//! This is a client like any other: it reads the free memory of the cards and proposes a placement, and the agent
//! accepts or refuses it. Among the cards that the pod fits on it takes the fullest, so that large gaps stay large.

use std::time::{Duration, Instant};

use apportion_abi::names::{ANNOTATION_FRACTION_LIMIT, ANNOTATION_MEMORY_LIMIT};
use apportion_abi::{
    BurstTerms, Bytes, CardCapacity, CardRequest, CardUuid, GpuRequest, Share, whole_units,
};
use apportion_kubernetes::Quantity;
use apportion_ledger::{AllocationId, AllocationOwner, AllocationRefusal, PlacementProposal};
use apportion_proto::v1;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

use super::pods::{NodePods, PodFacts};
use super::snapshot::Holder;
use crate::api::request::{AgentRequest, Answer, NewcomerPatience};
use crate::telemetry::view::AgentHandle;

/// How long to wait for the specification of a pod that the kubelet already has.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a reservation waits for its commit, which follows at once.
const TTL: Duration = Duration::from_secs(10);

/// How long a pod waits here while memory is called in for it. The kubelet waits for 30 seconds.
const CALLED_WITHIN: Duration = Duration::from_secs(20);
/// How often it asks meanwhile.
const ASKED_AGAIN: Duration = Duration::from_millis(200);

/// Places pods on this node.
#[derive(Debug)]
pub(crate) struct LocalFit {
    pods: watch::Receiver<NodePods>,
    agent: AgentHandle,
    requests: mpsc::Sender<AgentRequest>,
    /// One pod at a time, so that each sees what the one before left.
    placement_lock: tokio::sync::Mutex<()>,
}

impl LocalFit {
    pub(crate) fn new(
        pods: watch::Receiver<NodePods>,
        agent: AgentHandle,
        requests: mpsc::Sender<AgentRequest>,
    ) -> Self {
        Self {
            pods,
            agent,
            requests,
            placement_lock: tokio::sync::Mutex::new(()),
        }
    }

    /// Reserves the pod's request and commits it to the pod.
    pub(crate) async fn allocate(&self, holder: &Holder) -> Result<(), Status> {
        let facts = self.facts(&holder.pod).await?;
        let begun = Instant::now();
        loop {
            let refused = match self.reserve(holder, &facts).await? {
                Ok(id) => {
                    let owner = AllocationOwner::Pod(holder.pod.clone());
                    let committed = self.ask(|answer| AgentRequest::Commit(id, owner, answer));
                    return committed.await.map(drop);
                }
                Err(refused) => refused,
            };
            // The kubelet tries again later, and the agent keeps the call open until then.
            if !refused.called_in || begun.elapsed() >= CALLED_WITHIN {
                let sentence = format!("pod {}: {}", facts.name, refused.sentence);
                return Err(Status::resource_exhausted(sentence));
            }
            tokio::time::sleep(ASKED_AGAIN).await;
        }
    }

    /// Proposes a placement, and returns the reservation.
    async fn reserve(
        &self,
        holder: &Holder,
        facts: &PodFacts,
    ) -> Result<Result<AllocationId, v1::Shortfall>, Status> {
        let (request, limit) = (request(facts)?, limit(facts)?);
        let _placement_lock = self.placement_lock.lock().await;
        let list = self.agent.views.borrow().list.clone();
        let (cards, node) = (list.cards, list.node.unwrap_or_default());
        let mut chosen = choose(&cards, request);
        if chosen.is_err() && node.suspends_bursts {
            chosen = choose(&without_bursts(&cards), request).or(chosen);
        }
        let asks = chosen
            .map_err(|why| Status::resource_exhausted(format!("pod {}: {why}", facts.name)))?;
        let proposal = PlacementProposal {
            key: holder.pod.clone(),
            name: facts.name.clone(),
            ceilings: limit.map_or_else(Vec::new, |limit| ceilings(&cards, &asks, limit)),
            asks,
            terms: BurstTerms::default(),
            ttl: TTL,
            idle_after: None,
        };
        let reply = self
            .ask(|answer| AgentRequest::Allocate(proposal, NewcomerPatience::AsksAgain, answer))
            .await?;
        match reply.result {
            Some(v1::allocate_reply::Result::Allocation(allocation)) => {
                Ok(Ok(AllocationId(allocation.id)))
            }
            Some(v1::allocate_reply::Result::Shortfall(shortfall)) => Ok(Err(shortfall)),
            None => Err(Status::internal("the agent's answer is empty")),
        }
    }

    async fn facts(&self, uid: &str) -> Result<PodFacts, Status> {
        let unknown = || {
            let why = "apportion-scheduler did not place it, and neither the kubelet nor the API server reports its request";
            Status::failed_precondition(format!("pod {uid}: {why}"))
        };
        let mut pods = self.pods.clone();
        let known = pods.wait_for(|pods| pods.get(uid).is_some());
        let known = tokio::time::timeout(PATIENCE, known).await;
        let pods = known.map_err(|_| unknown())?.map_err(|_| unknown())?;
        pods.get(uid)
            .map(|facts| facts.as_ref().clone())
            .ok_or_else(unknown)
    }

    async fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> AgentRequest) -> Result<T, Status> {
        let leaving = || Status::unavailable("the apportion agent is stopping");
        let (answer, answered) = oneshot::channel();
        self.requests
            .send(request(answer))
            .await
            .map_err(|_| leaving())?;
        answered.await.map_err(|_| leaving())?
    }
}

fn request(facts: &PodFacts) -> Result<GpuRequest, Status> {
    let PodFacts {
        name,
        memory,
        fraction,
        devices,
        ..
    } = facts;
    if memory.is_none() && fraction.is_none() {
        let text =
            format!("pod {name} has a GPU slot but neither annotation gpu-memory nor gpu-fraction");
        return Err(Status::failed_precondition(text));
    }
    GpuRequest::parse(memory.as_deref(), fraction.as_deref(), devices.as_deref())
        .map_err(|error| Status::failed_precondition(format!("pod {name}: {error}")))
}

/// How much of each card the pod may use, if that is more than its request.
fn limit(facts: &PodFacts) -> Result<Option<Share>, Status> {
    let wrong = |key: &str, text: &str| {
        let why = format!("pod {}: {key} {text:?} is no limit for a share", facts.name);
        Status::failed_precondition(why)
    };
    match (&facts.memory_limit, &facts.fraction_limit) {
        (Some(text), _) if facts.memory.is_some() => {
            let bytes = text.parse::<Quantity>().ok().and_then(Quantity::whole);
            let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
            let bytes = bytes.ok_or_else(|| wrong(ANNOTATION_MEMORY_LIMIT, text))?;
            Ok(Some(Share::Memory(Bytes(bytes))))
        }
        (_, Some(text)) if facts.fraction.is_some() => match text.parse() {
            Ok(fraction) => Ok(Some(Share::Fraction(fraction))),
            Err(_) => Err(wrong(ANNOTATION_FRACTION_LIMIT, text)),
        },
        _ => Ok(None),
    }
}

/// The limit on each card on which it is above what is asked for. It is never more than the card has.
fn ceilings(cards: &[v1::Card], asks: &[CardRequest], limit: Share) -> Vec<CardRequest> {
    let above = asks.iter().filter_map(|ask| {
        let card = cards
            .iter()
            .find(|card| card.uuid.parse() == Ok(ask.card))?;
        let capacity = capacity(card);
        let most = whole_units(capacity.allocatable());
        let bytes = limit.bytes_of(capacity).min(most);
        (bytes > ask.bytes).then_some(CardRequest { bytes, ..*ask })
    });
    above.collect()
}

fn capacity(card: &v1::Card) -> CardCapacity {
    CardCapacity {
        total: Bytes(card.total_bytes),
        reserved: Bytes(card.reserved_bytes),
    }
}

/// The cards as they would be if nobody used more than its guarantee.
fn without_bursts(cards: &[v1::Card]) -> Vec<v1::Card> {
    let mut cards = cards.to_vec();
    for card in &mut cards {
        let taken = card.unmanaged_bytes.saturating_add(card.granted_bytes);
        card.free_bytes = card.allocatable_bytes.saturating_sub(taken);
    }
    cards
}

/// The fullest cards on which the request fits.
fn choose(cards: &[v1::Card], request: GpuRequest) -> Result<Vec<CardRequest>, String> {
    let mut fitting: Vec<(u64, CardRequest)> =
        cards.iter().filter_map(|card| fit(card, request)).collect();
    fitting.sort_by_key(|(left, ask)| (*left, ask.card));
    let wanted = usize::try_from(request.devices).unwrap_or(usize::MAX);
    if fitting.is_empty()
        && let Some(card) = cards.iter().find(|card| card.total_bytes == 0)
    {
        return Err(sizeless(card));
    }
    if fitting.len() < wanted {
        let most = cards
            .iter()
            .map(|card| Bytes(card.free_bytes))
            .max()
            .unwrap_or_default();
        return Err(format!(
            "{} of {wanted} requested GPUs have {} free; the most free on one GPU is {most}",
            fitting.len(),
            request.share
        ));
    }
    Ok(fitting
        .into_iter()
        .take(wanted)
        .map(|(_, ask)| ask)
        .collect())
}

fn sizeless(card: &v1::Card) -> String {
    match card.uuid.parse() {
        Ok(uuid) => AllocationRefusal::Sizeless(uuid).to_string(),
        Err(_) => format!("{} is not a GPU UUID", card.uuid),
    }
}

/// The memory that would be left on the card, and the request for it.
fn fit(card: &v1::Card, request: GpuRequest) -> Option<(u64, CardRequest)> {
    let uuid: CardUuid = card.uuid.parse().ok()?;
    let bytes = request.share.bytes_of(capacity(card));
    if bytes == Bytes::ZERO {
        return None;
    }
    let left = card.free_bytes.checked_sub(bytes.0)?;
    (card.health() == v1::CardHealth::Healthy).then_some((left, CardRequest { card: uuid, bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::pods::facts;

    fn card(number: u8, free: u64) -> v1::Card {
        v1::Card {
            uuid: CardUuid([number; 16]).to_string(),
            total_bytes: 1000 << 20,
            allocatable_bytes: 1000 << 20,
            free_bytes: free << 20,
            health: v1::CardHealth::Healthy.into(),
            ..v1::Card::default()
        }
    }

    fn chosen(cards: &[v1::Card], memory: &str, devices: &str) -> Result<Vec<u8>, String> {
        let request = GpuRequest::parse(Some(memory), None, Some(devices)).unwrap();
        let asks = choose(cards, request)?;
        Ok(asks.iter().map(|ask| ask.card.0[0]).collect())
    }

    #[test]
    fn the_fullest_card_that_fits_is_taken() {
        let cards = [card(1, 1000), card(2, 300), card(3, 500)];
        assert_eq!(chosen(&cards, "400", "1"), Ok(vec![3]));
        assert_eq!(chosen(&cards, "400", "2"), Ok(vec![3, 1]));
    }

    #[test]
    fn what_is_used_above_guarantees_can_be_called_in() {
        let mut busy = card(1, 100);
        (busy.granted_bytes, busy.unmanaged_bytes) = (500 << 20, 50 << 20);
        assert!(chosen(std::slice::from_ref(&busy), "400", "1").is_err());
        let cards = without_bursts(&[busy]);
        assert_eq!(chosen(&cards, "450", "1"), Ok(vec![1]));
        assert!(chosen(&cards, "452", "1").is_err());
    }

    #[test]
    fn a_card_that_is_ill_is_not_taken() {
        let mut ill = card(1, 500);
        ill.health = v1::CardHealth::Lost.into();
        assert_eq!(chosen(&[ill, card(2, 1000)], "400", "1"), Ok(vec![2]));
    }

    #[test]
    fn what_fits_nowhere_is_refused_with_what_there_is() {
        let why = chosen(&[card(1, 300)], "400", "1").unwrap_err();
        assert!(why.contains("300"), "{why}");
    }

    #[test]
    fn a_card_of_unknown_size_is_refused_by_name_and_another_is_taken() {
        let mut unknown = card(1, 0);
        unknown.total_bytes = 0;
        let why = chosen(std::slice::from_ref(&unknown), "400", "1").unwrap_err();
        assert!(why.contains("does not report its memory size"), "{why}");
        assert_eq!(chosen(&[unknown, card(2, 500)], "400", "1"), Ok(vec![2]));
    }

    /// What is kept of a pod with these annotations and the mark.
    fn bursting(annotations: serde_json::Value) -> PodFacts {
        let mut pod = serde_json::json!({"metadata": {"annotations": annotations}});
        pod["metadata"]["annotations"]["apportion.dev/gpu-memory-burst"] = "true".into();
        facts(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_limit_above_the_request_is_at_most_the_card() {
        let of = |limit: &str| {
            bursting(serde_json::json!({"gpu-memory": "200", "gpu-memory.limit": limit}))
        };
        let cards = [card(1, 1000)];
        let asks = choose(&cards, request(&of("1Gi")).unwrap()).unwrap();
        let most = |text: &str| {
            let limit = limit(&of(text)).unwrap().unwrap();
            let all = ceilings(&cards, &asks, limit);
            all.iter().map(|one| one.bytes.as_mib()).collect::<Vec<_>>()
        };
        assert_eq!(most("600Mi"), [600]);
        assert_eq!(most("12Gi"), [1000]);
        assert!(most("200Mi").is_empty(), "it is a fixed share");
        assert!(limit(&of("lots")).is_err());
        let fraction = serde_json::json!({"gpu-fraction": "0.25", "gpu-fraction.limit": "0.5"});
        let half = Share::Fraction("0.5".parse().unwrap());
        assert_eq!(limit(&bursting(fraction)).unwrap(), Some(half));
    }

    #[test]
    fn a_slot_without_a_request_is_not_taken_for_a_whole_card() {
        assert!(request(&PodFacts::default()).is_err());
    }
}
