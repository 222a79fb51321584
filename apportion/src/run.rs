//! `apportion run`: a share of a card, then the command that has it.
//!
//! Everything that can be wrong with the command line is found before anything is started, and everything
//! that can fail on the machine before anything is allocated. The allocation is tied to this process,
//! which becomes the command: whatever ends the command gives the share back.

use std::process;
use std::time::{Duration, Instant};

use apportion_abi::{GpuRequest, place};
use apportion_policy::Refusal;
use apportion_proto::v1::{self, Allocation, ListReply, allocate_reply};
use apportion_runtime_class::{Grant, GrantedCard, Target, edits};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use serde::Serialize;

use crate::agent::{Agent, connect_or_start, connect_to_running};
use crate::ask::Ask;
use crate::failure::Failure;
use crate::instance::Instance;
use crate::options::Run;
use crate::program::Program;
use crate::{block_on, cards};

/// How often a placement is tried again after somebody else took the hole.
const ATTEMPTS: u32 = 5;
/// How long the agent may take to allocate.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `run.command` under a limit; returns only if that fails.
pub(crate) fn run(run: Run, asks_for_simulated: bool) -> Result<(), Failure> {
    let ask = Ask::read(&run)?;
    let program = Program::find(run.command)?;
    let instance = Instance::new(asks_for_simulated)?;
    let library = instance.library(place::PRELOAD_LIBRARY)?;
    let env = instance.driver_env()?;

    let (allocation, list) = block_on(obtain(&instance, &ask, &program))?;
    let id = allocation.id.clone();
    let grant = grant(
        &allocation,
        &list,
        ask.request,
        library.to_string_lossy().into_owned(),
    );
    if run.json {
        let said = serde_json::to_string(&Said::new(&allocation, instance.is_simulated));
        eprintln!(
            "{}",
            said.map_err(|e| Failure::new("failed to write JSON").because(e))?
        );
    }
    let preload = std::env::var("LD_PRELOAD").ok();
    let edits = edits(
        &grant,
        Target::Host {
            preload: preload.as_deref(),
        },
    );
    let edits = edits
        .env
        .into_iter()
        .map(|(name, value)| (name, value.into()));
    let failure = program.become_it(env.into_iter().chain(edits));
    block_on(async { connect_to_running(&instance).await?.release(id).await })?;
    Err(failure)
}

/// Gets what was asked for and ties it to this process.
///
/// A signal that ends us in between waits until the allocation is tied: then it goes with us, where a mere
/// reservation would stay until it expires.
async fn obtain(
    instance: &Instance,
    ask: &Ask,
    program: &Program,
) -> Result<(Allocation, ListReply), Failure> {
    let name = ask
        .name
        .clone()
        .unwrap_or_else(|| format!("{}-{}", program.name(), process::id()));
    let key = format!("run-{}-{}", process::id(), now_nanoseconds());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut agent = connect_or_start(instance).await?;
        let tied = async {
            let (reserved, list) = reserve(&mut agent, ask, &name, &key).await?;
            Ok::<_, Failure>((agent.commit(reserved.id, process::id()).await?, list))
        };
        let held = HeldSignals::hold()?;
        let tied = tokio::time::timeout(PATIENCE, tied)
            .await
            .map_err(|_| slow())?;
        drop(held);
        match tied {
            // The next agent knows from its checkpoint what this one gave under the same key.
            Err(failure) if failure.is_lost() && Instant::now() < deadline => {}
            tied => return tied,
        }
    }
}

fn slow() -> Failure {
    Failure::new("the agent did not answer in time").hint("`apportion doctor` looks at it")
}

/// Signals that end a program, held back until this is dropped.
struct HeldSignals {
    before: SigSet,
}

impl HeldSignals {
    fn hold() -> Result<Self, Failure> {
        let ends = [
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGHUP,
            Signal::SIGQUIT,
        ];
        let ends: SigSet = ends.into_iter().collect();
        let before = ends.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let before = before.map_err(|e| Failure::new("failed to hold signals").because(e))?;
        Ok(Self { before })
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        let _ = self.before.thread_set_mask();
    }
}

/// Chooses cards and reserves them; chooses again when somebody was faster.
async fn reserve(
    agent: &mut Agent,
    ask: &Ask,
    name: &str,
    key: &str,
) -> Result<(Allocation, ListReply), Failure> {
    let mut attempt = 1;
    loop {
        let list = agent.list().await?;
        let candidates = cards::only(cards::for_policy(&list), &ask.cards)?;
        let placement = apportion_policy::place(&ask.request, &candidates);
        let placement = placement.map_err(|refusal| refused(&refusal))?;
        let share = |ask: &apportion_abi::Ask| v1::Share {
            card: printed(&list, ask.card),
            bytes: ask.bytes.0,
        };
        let shares = placement.asks.iter().map(share).collect();
        let key = format!("{key}-{attempt}");
        match agent.allocate(key, name.to_owned(), shares).await?.result {
            Some(allocate_reply::Result::Allocation(allocation)) => return Ok((allocation, list)),
            Some(allocate_reply::Result::Shortfall(shortfall)) if attempt == ATTEMPTS => {
                return Err(Failure::new(shortfall.sentence));
            }
            Some(allocate_reply::Result::Shortfall(_)) => attempt += 1,
            None => return Err(Failure::new("the agent gave no answer to the allocation")),
        }
    }
}

/// Makes the key of an allocation unique beyond the life of a process id.
fn now_nanoseconds() -> u128 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos())
}

/// The UUID as the agent prints it: the bytes do not tell `GPU-` from `MIG-`.
fn printed(list: &ListReply, uuid: apportion_abi::CardUuid) -> String {
    let is_it = |card: &&v1::Card| card.uuid.parse() == Ok(uuid);
    list.cards
        .iter()
        .find(is_it)
        .map_or_else(|| uuid.to_string(), |card| card.uuid.clone())
}

/// A refusal as the last word of a command.
fn refused(refusal: &Refusal) -> Failure {
    let failure = Failure::new(refusal.to_string());
    if refusal.waiting_helps() {
        return failure.hint("ask for less, or wait; `apportion top` shows who holds what");
    }
    failure.hint("`apportion gpus` shows what each card has")
}

fn grant(allocation: &Allocation, list: &ListReply, request: GpuRequest, library: String) -> Grant {
    let card = |grant: &v1::Grant| {
        let card = list.cards.iter().find(|card| card.uuid == grant.card);
        GrantedCard {
            uuid: grant.card.clone(),
            minor: None,
            limit: apportion_abi::Bytes(grant.limit_bytes),
            allocatable: card.map(cards::capacity).map_or_else(
                || apportion_abi::Bytes(grant.limit_bytes),
                |capacity| capacity.allocatable(),
            ),
        }
    };
    Grant {
        account: allocation.account_dir.clone(),
        library,
        share: request.share,
        cards: allocation.grants.iter().map(card).collect(),
    }
}

/// The line of `--json`.
#[derive(Serialize)]
struct Said<'a> {
    id: &'a str,
    name: &'a str,
    pid: u32,
    account_dir: &'a str,
    is_simulated: bool,
    cards: Vec<SaidCard<'a>>,
}

#[derive(Serialize)]
struct SaidCard<'a> {
    uuid: &'a str,
    limit_bytes: u64,
}

impl<'a> Said<'a> {
    fn new(allocation: &'a Allocation, is_simulated: bool) -> Self {
        let card = |grant: &'a v1::Grant| SaidCard {
            uuid: &grant.card,
            limit_bytes: grant.limit_bytes,
        };
        Self {
            id: &allocation.id,
            name: &allocation.name,
            pid: process::id(),
            account_dir: &allocation.account_dir,
            is_simulated,
            cards: allocation.grants.iter().map(card).collect(),
        }
    }
}
