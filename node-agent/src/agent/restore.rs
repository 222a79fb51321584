//! Restores the state after a restart: the checkpoint has the allocations, and the accounts show which processes
//! run.

use std::path::Path;

use super::*;
use crate::account;
use crate::agent::checkpoint::RestoredLedger;
use apportion_ledger::{AllocationOwner, CardGrant};

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

impl NodeAgent {
    pub(super) fn find_cards(&mut self) {
        for card in self.driver.cards.clone() {
            self.apply_quietly(LedgerEvent::CardFound {
                card: card.uuid,
                capacity: card.capacity,
            });
        }
    }

    pub(super) fn adopt(&mut self, allocations: Vec<Allocation>) {
        let mut taken = Vec::new();
        for mut allocation in allocations {
            let id = allocation.id.clone();
            taken.push(id.clone());
            // Keep the overhead that is in the account until a sample shows a new one.
            let account = AccountFiles::adopt(self.account_folder(&id));
            let overheads: Vec<_> = account.iter().flat_map(AccountFiles::limits).collect();
            for (card, _, overhead) in overheads {
                let grants = allocation.grants.iter_mut();
                grants
                    .filter(|grant| grant.card == card)
                    .for_each(|grant| grant.overhead = overhead);
            }
            self.enter(allocation);
        }
        self.take_over(&taken);
    }

    /// Adopts accounts that the checkpoint does not name if a process uses them, and removes the others.
    pub(super) fn adopt_orphans(&mut self) {
        let mut taken = Vec::new();
        let folders = std::fs::read_dir(self.instance.path(place::ACCOUNTS));
        for folder in folders.into_iter().flatten().flatten() {
            let path = folder.path();
            let name = folder.file_name();
            let Some(id) = name.to_str().and_then(AllocationId::parse) else {
                warn!(folder = %path.display(), "Folder left alone, its name is no id");
                continue;
            };
            if self.accounts.contains_key(&id) {
                continue;
            }
            match self.orphan(&id) {
                Some(allocation) => {
                    warn!(%id, "Account without a record adopted, its processes are running");
                    self.enter(allocation);
                    taken.push(id);
                }
                None => match AccountFiles::other_version(&path) {
                    Some(version) => {
                        warn!(%id, version, "Account of another layout version ignored")
                    }
                    None => {
                        if let Err(problem) = account::remove(&path) {
                            warn!(folder = %path.display(), %problem, "Unknown folder ignored");
                        }
                    }
                },
            }
        }
        self.take_over(&taken);
    }

    /// What the account alone says about an allocation. The allocation ends with its processes.
    fn orphan(&mut self, id: &AllocationId) -> Option<Allocation> {
        let account = AccountFiles::adopt(self.account_folder(id))?;
        let is_used = !account.end(&mut self.namespaces).is_empty() || self.members.search(id);
        let grant = |(card, limit, overhead)| {
            let mut grant = CardGrant::new(card, limit);
            grant.overhead = overhead;
            grant
        };
        is_used.then(|| Allocation {
            id: id.clone(),
            key: format!("{ORPHAN}{id}"),
            name: id.0.clone(),
            state: AllocationPhase::Draining,
            created: now(),
            grants: account.limits().map(grant).collect(),
            is_whole: false,
        })
    }

    fn enter(&mut self, allocation: Allocation) {
        self.counts.adopted += 1;
        self.apply_quietly(LedgerEvent::Adopted(allocation));
    }

    /// Finds the members of restored allocations. Each step runs for all of them before the next step, because each
    /// step reads every process of the machine.
    fn take_over(&mut self, ids: &[AllocationId]) {
        self.collect_slots();
        for id in ids {
            let allocation = self.ledger.allocation(id);
            match allocation.map(|allocation| allocation.state.clone()) {
                Some(AllocationPhase::Allocated(AllocationOwner::Process(owner))) => {
                    if crate::processes::procfs::is_live(owner) {
                        self.members.join(owner, id)
                    } else {
                        self.apply_quietly(LedgerEvent::OwnerGone { id: id.clone() })
                    }
                }
                Some(AllocationPhase::Allocated(AllocationOwner::Pod(pod))) => {
                    self.members.enter_pod(pod, id)
                }
                Some(AllocationPhase::Reserved { .. } | AllocationPhase::Draining) | None => {}
            }
        }
        self.members.follow();
        ids.iter().for_each(|id| self.end_if_empty(id));
    }
}
