//! Restores the state after a restart: the checkpoint has the allocations, and the accounts show which processes
//! run.

use std::path::Path;

use apportion_abi::BurstTerms;
use apportion_exit::error_chain;
use apportion_ledger::{
    Allocation, AllocationId, AllocationOwner, AllocationPhase, LedgerEvent, SuspensionCause,
    SuspensionPhase,
};
use tracing::{error, warn};

use super::checkpoint::{self, RestoredLedger};
use super::clock::now;
use super::state::AgentState;
use crate::account::{self, AccountFiles};
use crate::processes::procfs;

/// The checkpoint, or an empty one. An unreadable checkpoint is moved aside for an administrator.
pub(super) fn load(path: &Path, boot_id: &str) -> RestoredLedger {
    let fresh = || RestoredLedger {
        epoch: now().0,
        ..RestoredLedger::default()
    };
    match checkpoint::load(path, boot_id) {
        Ok(restored) => restored.unwrap_or_else(fresh),
        Err(problem) => {
            let aside = path.with_extension("unreadable");
            error!(problem = error_chain(&problem), aside = %aside.display(), "Checkpoint unreadable, moved aside");
            let _ = std::fs::rename(path, aside);
            fresh()
        }
    }
}

/// Removes all accounts after a reboot. Their processes are gone, and a new process may have the pid and start time
/// of an old one.
pub(super) fn forget_claims(accounts: &Path) {
    for folder in std::fs::read_dir(accounts).into_iter().flatten().flatten() {
        if let Err(problem) = account::remove(&folder.path()) {
            warn!(folder = %folder.path().display(), %problem, "Failed to remove an old account");
        }
    }
}

/// The prefix of the keys of allocations that were restored from an account alone.
pub(crate) const ORPHAN: &str = "orphan ";

/// Restores the cards, the allocations of the checkpoint, and those that only their accounts tell of.
pub(super) fn resume(state: &mut AgentState, allocations: Vec<Allocation>) {
    let cards = state.cards.all().to_vec();
    for card in cards {
        state.apply_quietly(LedgerEvent::CardFound {
            card: card.uuid,
            capacity: card.capacity,
        });
    }
    adopt(state, allocations);
    adopt_orphans(state);
    state.instance.end_restoring();
    if state.ledger.generation() > 0 {
        state.instance.save(&state.ledger);
    }
    state.show();
}

fn adopt(state: &mut AgentState, allocations: Vec<Allocation>) {
    let mut adopted = Vec::new();
    for mut allocation in allocations {
        let id = allocation.id.clone();
        adopted.push(id.clone());
        // Keep the overhead that is in the account until a sample shows a new one, and the allowance.
        let account = AccountFiles::adopt(state.accounts.folder_of(&id));
        for (card, limit, overhead) in account.iter().flat_map(AccountFiles::limits) {
            for grant in &mut allocation.grants {
                if grant.card == card {
                    grant.overhead = overhead;
                    grant.resume(limit);
                }
            }
        }
        enter(state, allocation);
    }
    take_over(state, &adopted);
}

/// Adopts accounts that the checkpoint does not name if a process uses them, and removes the others.
fn adopt_orphans(state: &mut AgentState) {
    let mut adopted = Vec::new();
    let folders = std::fs::read_dir(state.accounts.folder());
    for folder in folders.into_iter().flatten().flatten() {
        let path = folder.path();
        let name = folder.file_name();
        let Some(id) = name.to_str().and_then(AllocationId::parse) else {
            warn!(folder = %path.display(), "Folder left alone, its name is no id");
            continue;
        };
        if state.accounts.get(&id).is_some() {
            continue;
        }
        if let Some(allocation) = orphan(state, &id) {
            warn!(%id, "Account without a record adopted, its processes are running");
            enter(state, allocation);
            adopted.push(id);
        } else if let Some(version) = AccountFiles::other_version(&path) {
            warn!(%id, version, "Account of another layout version ignored");
        } else if let Err(problem) = account::remove(&path) {
            warn!(folder = %path.display(), %problem, "Unknown folder ignored");
        }
    }
    take_over(state, &adopted);
}

/// What the account alone says about an allocation. The allocation ends with its processes.
fn orphan(state: &mut AgentState, id: &AllocationId) -> Option<Allocation> {
    let account = state.accounts.used_by_processes(id, &mut state.members)?;
    Some(Allocation {
        id: id.clone(),
        key: format!("{ORPHAN}{id}"),
        name: id.0.clone(),
        state: AllocationPhase::Draining,
        created: now(),
        grants: account.grants,
        terms: BurstTerms::default(),
        is_whole: false,
        // Some of its processes may run. NVML shows what they have, and a resume wakes the others.
        suspension: if account.is_suspended {
            SuspensionPhase::Suspended
        } else {
            SuspensionPhase::Running
        },
        // Nothing says who suspended it. Whoever did, only the agent is sure to be there to wake it.
        suspension_cause: SuspensionCause::Guarantee,
        moved: now(),
        idle_after: None,
    })
}

fn enter(state: &mut AgentState, allocation: Allocation) {
    state.publisher.stats().adopted += 1;
    state.apply_quietly(LedgerEvent::Adopted(allocation));
}

/// Finds the members of restored allocations. Each step runs for all of them before the next step, because each step
/// reads every process of the machine.
fn take_over(state: &mut AgentState, ids: &[AllocationId]) {
    state.collect_claims();
    for id in ids {
        let allocation = state.ledger.allocation(id);
        match allocation.map(|allocation| allocation.state.clone()) {
            Some(AllocationPhase::Allocated(AllocationOwner::Process(owner))) => {
                if procfs::is_live(owner) {
                    state.members.join(owner, id)
                } else {
                    state.apply_quietly(LedgerEvent::OwnerGone { id: id.clone() })
                }
            }
            Some(AllocationPhase::Allocated(AllocationOwner::Pod(pod))) => {
                state.members.enter_pods([pod], id)
            }
            Some(AllocationPhase::Allocated(AllocationOwner::Claim(claim))) => {
                state.members.enter_pods(claim.pods.into_keys(), id)
            }
            Some(AllocationPhase::Reserved { .. } | AllocationPhase::Draining) | None => {}
        }
    }
    state.members.follow();
    ids.iter().for_each(|id| state.end_if_empty(id));
}
