//! `apportion run`: allocates a share, then runs the command with it.
//!
//! All mistakes in the command line are found before anything is started, and what can fail on the machine before
//! anything is allocated. The allocation is tied to this process, which becomes the command. So the share is released
//! when the command ends for any reason.

use std::process;

use apportion_abi::{GpuRequest, paths};
use apportion_exit::CommandFailure;
use apportion_proto::v1::{Allocation, ListReply};
use apportion_runtime_class::{EditTarget, Grant, GrantedCard, edits};
use serde::Serialize;

use crate::agent::connect_to_running;
use crate::instance::TargetInstance;
use crate::options::{ConnectionOptions, RunOptions};
use crate::program::ResolvedCommand;
use crate::request::RunRequest;
use crate::{block_on, cards};

mod allocate;

use allocate::obtain;

/// Runs `run.command` with a limit. Returns only if that fails.
pub(crate) fn run(run: RunOptions, address: ConnectionOptions) -> Result<(), CommandFailure> {
    let ask = RunRequest::read(&run)?;
    let program = ResolvedCommand::find(run.command)?;
    let instance = TargetInstance::new(address)?;
    let library = instance.library(paths::PRELOAD_LIBRARY)?;
    let env = instance.driver_env()?;

    let name = ask
        .name
        .clone()
        .unwrap_or_else(|| format!("{}-{}", program.name(), process::id()));
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
        let json = serde_json::to_string(&RunOutput::new(&allocation, instance.is_simulated));
        eprintln!(
            "{}",
            json.map_err(|e| CommandFailure::new("failed to write JSON").because(e))?
        );
    }
    let preload = env
        .iter()
        .find(|(name, _)| *name == "LD_PRELOAD")
        .map(|(_, value)| value.to_string_lossy().into_owned())
        .or_else(|| std::env::var("LD_PRELOAD").ok());
    let edits = edits(
        &grant,
        EditTarget::Host {
            preload: preload.as_deref(),
        },
    );
    let edits = edits
        .env
        .into_iter()
        .map(|(name, value)| (name, value.into()));
    let info = run
        .gpu_memory_info
        .map(|shown| (paths::ENV_MEMORY_INFO, shown.into()));
    let edits = edits.chain(info);
    let failure = program.become_it(env.into_iter().chain(edits));
    block_on(async { connect_to_running(&instance).await?.release(id).await })?;
    Err(failure)
}

fn grant(
    instance: &TargetInstance,
    allocation: &Allocation,
    list: &ListReply,
    request: GpuRequest,
    library: String,
) -> Grant {
    let sees_all = instance.sees_cards(list.cards.len());
    Grant {
        id: allocation.id.clone(),
        account: allocation.account_dir.clone(),
        library,
        share: request.share,
        cards: allocation
            .grants
            .iter()
            .map(|grant| {
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
            })
            .collect(),
        is_elastic: allocation.grants.iter().any(cards::is_elastic),
        driver_limit: None,
    }
}

/// The output line of `--json`.
#[derive(Serialize)]
struct RunOutput<'a> {
    id: &'a str,
    name: &'a str,
    pid: u32,
    account_dir: &'a str,
    is_simulated: bool,
    cards: Vec<RunOutputCard<'a>>,
}

#[derive(Serialize)]
struct RunOutputCard<'a> {
    uuid: &'a str,
    guaranteed_bytes: u64,
    limit_bytes: u64,
}

impl<'a> RunOutput<'a> {
    fn new(allocation: &'a Allocation, is_simulated: bool) -> Self {
        Self {
            id: &allocation.id,
            name: &allocation.name,
            pid: process::id(),
            account_dir: &allocation.account_dir,
            is_simulated,
            cards: allocation
                .grants
                .iter()
                .map(|grant| RunOutputCard {
                    uuid: &grant.card,
                    guaranteed_bytes: cards::guaranteed(grant).0,
                    limit_bytes: cards::ceiling(grant).0,
                })
                .collect(),
        }
    }
}
