//! Taking over: the checkpoint says what was promised, the accounts say what goes on.

use std::path::Path;

use super::*;
use crate::checkpoint::Restored;
use apportion_ledger::{Grant, Owner};

/// The checkpoint, or an empty one: a checkpoint that cannot be read is set aside for a person to see.
pub(super) fn load(path: &Path, boot_id: &str) -> Restored {
    let fresh = || Restored {
        epoch: now().0,
        ..Restored::default()
    };
    match checkpoint::load(path, boot_id) {
        Ok(restored) => restored.unwrap_or_else(fresh),
        Err(problem) => {
            let aside = path.with_extension("unreadable");
            error!(problem = chain(&problem), aside = %aside.display(), "Checkpoint unreadable, moved aside");
            let _ = std::fs::rename(path, aside);
            fresh()
        }
    }
}

/// Takes away what processes claimed before the machine was restarted: nobody of them is left, and a process
/// of today may have the pid and the start time of one of then.
pub(super) fn forget_claims(accounts: &Path) {
    for folder in std::fs::read_dir(accounts).into_iter().flatten().flatten() {
        if let Err(problem) = std::fs::remove_dir_all(folder.path()) {
            warn!(folder = %folder.path().display(), %problem, "Failed to remove an old account");
        }
    }
}

/// What the keys of allocations begin with that were made of an account alone.
pub(crate) const ORPHAN: &str = "orphan ";

impl Agent {
    pub(super) fn find_cards(&mut self) {
        for card in self.driver.cards.clone() {
            self.apply_quietly(Event::CardFound {
                card: card.uuid,
                capacity: card.capacity,
            });
        }
    }

    pub(super) fn adopt(&mut self, allocations: Vec<Allocation>) {
        for mut allocation in allocations {
            let id = allocation.id.clone();
            // The overhead stays what the programs are held to until a sample says better.
            let account = Account::adopt(self.account_folder(&id));
            let overheads: Vec<_> = account.iter().flat_map(Account::limits).collect();
            for (card, _, overhead) in overheads {
                let grants = allocation.grants.iter_mut();
                grants
                    .filter(|grant| grant.card == card)
                    .for_each(|grant| grant.overhead = overhead);
            }
            self.take_over(allocation);
        }
    }

    /// Accounts that no checkpoint names: adopted while a process is in them, removed otherwise.
    pub(super) fn adopt_orphans(&mut self) {
        let folders = std::fs::read_dir(self.instance.path(place::ACCOUNTS));
        for folder in folders.into_iter().flatten().flatten() {
            let Ok(name) = folder.file_name().into_string() else {
                continue;
            };
            let id = AllocationId(name);
            if self.accounts.contains_key(&id) {
                continue;
            }
            match self.orphan(&id) {
                Some(allocation) => {
                    warn!(%id, "Account without a record adopted, its processes are running");
                    self.take_over(allocation);
                }
                None => match Account::other_version(&folder.path()) {
                    Some(version) => {
                        warn!(%id, version, "Account of another layout version ignored")
                    }
                    None => drop(std::fs::remove_dir_all(folder.path())),
                },
            }
        }
    }

    /// What can be told of an allocation from its account alone. It ends with its processes.
    fn orphan(&mut self, id: &AllocationId) -> Option<Allocation> {
        let account = Account::adopt(self.account_folder(id))?;
        let is_used = !account.end(&mut self.namespaces).is_empty() || self.members.search(id);
        let grant = |(card, limit, overhead)| {
            let mut grant = Grant::new(card, limit);
            grant.overhead = overhead;
            grant
        };
        is_used.then(|| Allocation {
            id: id.clone(),
            key: format!("{ORPHAN}{id}"),
            name: id.0.clone(),
            state: State::Draining,
            created: now(),
            grants: account.limits().map(grant).collect(),
            is_whole: false,
        })
    }

    fn take_over(&mut self, allocation: Allocation) {
        let id = allocation.id.clone();
        self.counts.adopted += 1;
        self.apply_quietly(Event::Adopted(allocation));
        self.collect_slots();
        let state = self
            .ledger
            .allocation(&id)
            .map(|allocation| allocation.state.clone());
        match state {
            Some(State::Allocated(Owner::Process(owner))) => match crate::procfs::is_live(owner) {
                true => self.members.join(owner, &id),
                false => self.apply_quietly(Event::OwnerGone { id: id.clone() }),
            },
            Some(State::Allocated(Owner::Pod(pod))) => self.members.enter_pod(pod, &id),
            Some(State::Reserved { .. } | State::Draining) | None => {}
        }
        self.members.follow();
        self.end_if_empty(&id);
    }
}
