//! `apportion run`: a share of a card, then the command that has it.
//!
//! Everything that can be wrong with the command line is found before anything is started, and everything
//! that can fail on the machine before anything is allocated. The allocation is tied to this process,
//! which becomes the command: whatever ends the command gives the share back.

use std::process;

use apportion_abi::{GpuRequest, place};
use apportion_proto::v1::{self, Allocation, ListReply};
use apportion_runtime_class::{Grant, GrantedCard, Target, edits};
use serde::Serialize;

use crate::agent::connect_to_running;
use crate::ask::Ask;
use crate::failure::Failure;
use crate::instance::Instance;
use crate::options::{Address, Run};
use crate::program::Program;
use crate::{block_on, cards};

mod obtain;

use obtain::obtain;

/// Runs `run.command` under a limit; returns only if that fails.
pub(crate) fn run(run: Run, address: Address) -> Result<(), Failure> {
    let ask = Ask::read(&run)?;
    let program = Program::find(run.command)?;
    let instance = Instance::new(address)?;
    let library = instance.library(place::PRELOAD_LIBRARY)?;
    let env = instance.driver_env()?;

    let unnamed = || format!("{}-{}", program.name(), process::id());
    let name = ask.name.clone().unwrap_or_else(unnamed);
    let (allocation, list) = block_on(obtain(&instance, &ask, &name))?;
    let id = allocation.id.clone();
    let grant = grant(
        &instance,
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
    let preload = env
        .iter()
        .find(|(name, _)| *name == "LD_PRELOAD")
        .map(|(_, value)| value.to_string_lossy().into_owned())
        .or_else(|| std::env::var("LD_PRELOAD").ok());
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

fn grant(
    instance: &Instance,
    allocation: &Allocation,
    list: &ListReply,
    request: GpuRequest,
    library: String,
) -> Grant {
    let sees_all = instance.sees_cards(list.cards.len());
    let card = |grant: &v1::Grant| {
        let card = list.cards.iter().find(|card| card.uuid == grant.card);
        GrantedCard {
            uuid: grant.card.clone(),
            minor: None,
            cuda_ordinal: card.filter(|_| sees_all).and_then(|card| card.cuda_ordinal),
            limit: apportion_abi::Bytes(grant.limit_bytes),
            allocatable: card.map(cards::capacity).map_or_else(
                || apportion_abi::Bytes(grant.limit_bytes),
                |capacity| capacity.allocatable(),
            ),
        }
    };
    Grant {
        id: allocation.id.clone(),
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
