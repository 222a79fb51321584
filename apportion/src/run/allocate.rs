//! Gets a share from the agent, even if the agent exits meanwhile.
//!
//! A proposal has an idempotency key, for which the agent allocates once. If the answer was lost, the same proposal
//! is sent again, to the same agent or to its successor, which knows the earlier allocations from the checkpoint.

use std::process;
use std::time::{Duration, Instant};

use apportion_abi::{BurstHolders, Bytes};
use apportion_exit::CommandFailure;
use apportion_policy::{CandidateCard, PlacementRefusal};
use apportion_proto::v1::{self, AllocateRequest, Allocation, ListReply, allocate_reply};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::agent::{ConnectedAgent, connect_or_start};
use crate::cards;
use crate::instance::TargetInstance;
use crate::request::RunRequest;

/// How many times cards are chosen again after another command took them.
const ATTEMPTS: u32 = 5;
/// After this time the agent has polled the GPUs again. Its view of other programs may be as old as its last poll,
/// and may include a program that has just exited.
const NEXT_LOOK: Duration = Duration::from_millis(600);
/// For how long a request that was lost with its agent is repeated.
const PATIENCE: Duration = Duration::from_secs(10);

/// Allocates the request and ties the allocation to this process. Also returns the agent's list from before.
///
/// A fatal signal meanwhile waits until the allocation is tied to this process. Then the allocation ends with the
/// process; a mere reservation would stay until it expires.
pub(super) async fn obtain(
    instance: &TargetInstance,
    ask: &RunRequest,
    name: &str,
) -> Result<(Allocation, ListReply), CommandFailure> {
    let deadline = Instant::now() + PATIENCE;
    let mut proposal = None;
    loop {
        let mut agent = connect_or_start(instance).await?;
        let held = BlockedSignals::reserve_lock()?;
        let tied = tie(&mut agent, ask, name, &mut proposal).await;
        drop(held);
        match tied {
            Err(failure) if failure.is_lost() && Instant::now() < deadline => {}
            tied => return tied,
        }
    }
}

/// Blocks fatal signals until dropped.
struct BlockedSignals {
    before: SigSet,
}

impl BlockedSignals {
    fn reserve_lock() -> Result<Self, CommandFailure> {
        let ends = [
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGHUP,
            Signal::SIGQUIT,
        ];
        let ends: SigSet = ends.into_iter().collect();
        let before = ends.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let before =
            before.map_err(|e| CommandFailure::new("failed to block signals").because(e))?;
        Ok(Self { before })
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        let _ = self.before.thread_set_mask();
    }
}

/// A proposal to the agent.
struct ShareProposal {
    key: String,
    shares: Vec<v1::Share>,
    /// Whether it fits only if programs that use more than their guarantee are suspended.
    calls_in: bool,
}

impl ShareProposal {
    /// Chooses cards from `list`: those where it fits, or else those where it would if no program used more than its
    /// guarantee, if the agent suspends such programs.
    fn choose(ask: &RunRequest, list: &ListReply) -> Result<Self, CommandFailure> {
        let suspends_bursts = list.node.as_ref().is_some_and(|node| node.suspends_bursts);
        let chosen = Self::choose_fitting(ask, list);
        if chosen.is_ok() || !suspends_bursts {
            return chosen;
        }
        let called_in = Self::choose_fitting(ask, &cards::without_bursts(list));
        let called_in = called_in.map(|proposal| Self {
            calls_in: true,
            ..proposal
        });
        called_in.or(chosen)
    }

    fn choose_fitting(ask: &RunRequest, list: &ListReply) -> Result<Self, CommandFailure> {
        let candidates = cards::only(cards::for_policy(list), &ask.cards)?;
        let wanted: Vec<_> = list
            .cards
            .iter()
            .filter(|card| {
                let uuid = card.uuid.parse();
                ask.cards.is_empty() || uuid.is_ok_and(|uuid| ask.cards.contains(&uuid))
            })
            .collect();
        if let Some(card) = wanted
            .first()
            .filter(|_| wanted.iter().all(|card| card.allocatable_bytes == 0))
        {
            return Err(sizeless(card));
        }
        let candidates = large_enough(candidates, ask.limit)?;
        let placement = apportion_policy::place(&ask.request, &candidates)
            .map_err(|refusal| refused(&refusal, list))?;
        let limit = ask.limit.unwrap_or_default();
        let key = format!("run-{}-{}", process::id(), now_nanoseconds());
        Ok(Self {
            key,
            calls_in: false,
            shares: placement
                .asks
                .iter()
                .map(|ask| v1::Share {
                    card: printed(list, ask.card),
                    bytes: ask.bytes.0,
                    limit_bytes: limit.0,
                })
                .collect(),
        })
    }
}

/// Sends the open proposal, or a new one, until one is accepted and tied to this process.
async fn tie(
    agent: &mut ConnectedAgent,
    ask: &RunRequest,
    name: &str,
    open: &mut Option<ShareProposal>,
) -> Result<(Allocation, ListReply), CommandFailure> {
    let mut refusals = 0;
    let mut has_waited = false;
    loop {
        let list = agent.list().await?;
        let proposal = match open
            .take()
            .map_or_else(|| ShareProposal::choose(ask, &list), Ok)
        {
            Err(_) if !has_waited && may_be_free_soon(&list) => {
                has_waited = true;
                tokio::time::sleep(NEXT_LOOK).await;
                continue;
            }
            proposal => proposal?,
        };
        let may_wait = list.node.as_ref().is_some_and(|node| node.suspends_bursts);
        let proposal = open.insert(proposal);
        let calls_in = proposal.calls_in;
        let (key, shares) = (proposal.key.clone(), proposal.shares.clone());
        let request = AllocateRequest {
            idempotency_key: key,
            name: name.to_owned(),
            shares,
            ttl_ms: 0,
            suspend_when_idle_ms: milliseconds(ask.suspend_when_idle),
            burst_weight_thousandths: Some(ask.weight.thousandths()),
            burst_priority: None,
        };
        let asked_ms = request.suspend_when_idle_ms;
        match agent.allocate(request, may_wait).await?.result {
            Some(allocate_reply::Result::Allocation(reserved)) => {
                if reserved.suspend_when_idle_ms != asked_ms {
                    agent.release(reserved.id).await?;
                    return Err(CommandFailure::new(
                        "the agent that runs is older and does not know --suspend-when-idle",
                    ));
                }
                return Ok((agent.commit(reserved.id, process::id()).await?, list));
            }
            Some(allocate_reply::Result::Shortfall(shortfall)) => {
                *open = None;
                refusals += 1;
                // The agent has tried for as long as it does, and says why it could not.
                if refusals == ATTEMPTS || calls_in || shortfall.has_waited {
                    return Err(CommandFailure::new(shortfall.sentence));
                }
            }
            None => {
                return Err(CommandFailure::new(
                    "the agent's answer to the allocation is empty",
                ));
            }
        }
    }
}

/// Whether the next sample may show more free memory: other programs may have ended, and programs that use more than
/// their guarantee may use less.
fn may_be_free_soon(list: &ListReply) -> bool {
    let mut grants = list.allocations.iter().flat_map(|of| &of.grants);
    list.cards.iter().any(|card| card.unmanaged_bytes > 0) || grants.any(cards::is_elastic)
}

/// The cards of which programs can get as much as the limit.
fn large_enough(
    candidates: Vec<CandidateCard>,
    limit: Option<Bytes>,
) -> Result<Vec<CandidateCard>, CommandFailure> {
    let limit = limit.unwrap_or_default();
    let sizes = candidates.iter().map(|card| card.capacity.allocatable());
    let largest = sizes.max().unwrap_or_default();
    if limit > largest && !candidates.is_empty() {
        let why = format!(
            "a limit of {limit} is above the {largest} that programs can get of the largest GPU"
        );
        return Err(CommandFailure::new(why).hint("`apportion gpus` shows the memory of each GPU"));
    }
    let mut candidates = candidates;
    candidates.retain(|card| card.capacity.allocatable() >= limit);
    Ok(candidates)
}

fn milliseconds(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    })
}

/// The time, which keeps an allocation's key unique if a process id is reused.
fn now_nanoseconds() -> u128 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos())
}

/// The UUID as the agent prints it. The bytes do not distinguish `GPU-` from `MIG-`.
fn printed(list: &ListReply, uuid: apportion_abi::CardUuid) -> String {
    list.cards
        .iter()
        .find(|card| card.uuid.parse() == Ok(uuid))
        .map_or_else(|| uuid.to_string(), |card| card.uuid.clone())
}

/// The failure for a card whose memory size is unknown.
fn sizeless(card: &v1::Card) -> CommandFailure {
    let v1::Card { uuid, model, .. } = card;
    let why = format!("{uuid} ({model}) does not report its memory size, so it cannot be shared");
    CommandFailure::new(why).hint(format!(
        "set APPORTION_CARD_MEMORY=\"{model}=MIB\" in the agent's environment"
    ))
}

/// The failure for a refusal.
fn refused(refusal: &PlacementRefusal, list: &ListReply) -> CommandFailure {
    let bursts = match refusal {
        PlacementRefusal::Shortfall(_) => cards::bursts(list),
        PlacementRefusal::TooFewCards { .. } | PlacementRefusal::TooLittle(_) => Vec::new(),
    };
    let failure = CommandFailure::new(format!("{refusal}{}", BurstHolders(&bursts)));
    if refusal.waiting_helps() {
        return failure.hint("ask for less, or wait; `apportion top` shows who holds the memory");
    }
    failure.hint("`apportion gpus` shows the memory of each GPU")
}
