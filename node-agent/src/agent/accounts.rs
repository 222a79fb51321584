//! The accounts of all allocations, and what their processes claim in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use apportion_abi::account::{NewBurst, ShareSuspension};
use apportion_abi::{Bytes, CardUuid, ContainerRef};
use apportion_ledger::{
    AccountSample, Allocation, AllocationId, AllocationOwner, AllocationPhase, BurstRange,
    CardGrant, ClaimWindow, Ledger, ProcessId, SuspensionPhase,
};
use apportion_proto::v1;
use tracing::{info, warn};

use crate::account::access::AccountAccess;
use crate::account::{self, AccountCard, AccountFiles, ProcessClaims};
use crate::driver::CardReading;
use crate::driver::reserve::ContextCost;
use crate::processes::members::AllocationMembers;
use crate::processes::namespace::PidNamespaces;
use crate::processes::procfs;

/// The numbers of an elastic grant, as its account has them.
pub(super) fn new_burst(range: BurstRange) -> NewBurst {
    NewBurst {
        guaranteed: range.guaranteed,
        ceiling: range.ceiling,
    }
}

/// How many processes that claim membership are looked up for each account in one round.
const STRANGERS: usize = 16;

/// The accounts that the agent has open.
pub(super) struct AccountTable {
    folder: PathBuf,
    files: BTreeMap<AllocationId, AccountFiles>,
    /// What the processes of each account claimed when the accounts were last read.
    claims: BTreeMap<AllocationId, Vec<ProcessClaims>>,
    namespaces: PidNamespaces,
    /// Where the next round of checking membership claims continues.
    next_checked: usize,
}

/// An account that processes use, without an allocation.
pub(super) struct UsedAccount {
    pub(super) grants: Vec<CardGrant>,
    pub(super) is_suspended: bool,
}

impl AccountTable {
    /// The accounts of this folder; none is open yet.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            files: BTreeMap::new(),
            claims: BTreeMap::new(),
            namespaces: PidNamespaces::new(),
            next_checked: 0,
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn folder_of(&self, id: &AllocationId) -> PathBuf {
        self.folder.join(&id.0)
    }

    pub(super) fn get(&self, id: &AllocationId) -> Option<&AccountFiles> {
        self.files.get(id)
    }

    /// Opens an account with these cards.
    pub(super) fn open(
        &mut self,
        id: &AllocationId,
        cards: &[AccountCard],
        asks_about_calls: bool,
    ) -> Result<(), account::AccountError> {
        let account = AccountFiles::open(self.folder_of(id), cards, asks_about_calls)?;
        for card in cards {
            account.set_context_cost(card.new.uuid, card.cost);
        }
        self.files.insert(id.clone(), account);
        Ok(())
    }

    /// Closes an account. Its files stay until [`Self::remove_files`].
    pub(super) fn close(&mut self, id: &AllocationId) {
        self.files.remove(id);
        self.claims.remove(id);
    }

    /// Removes the files of a closed account.
    pub(super) fn remove_files(&self, id: &AllocationId) {
        let folder = self.folder_of(id);
        if let Err(problem) = account::remove(&folder) {
            warn!(folder = %folder.display(), %problem, "Failed to remove an account");
        }
    }

    pub(super) fn set_limit(&self, id: &AllocationId, card: CardUuid, limit: Bytes) {
        if let Some(account) = self.files.get(id) {
            account.set_limit(card, limit);
        }
    }

    pub(super) fn set_range(&self, id: &AllocationId, card: CardUuid, range: BurstRange) {
        if let Some(account) = self.files.get(id) {
            account.set_range(card, new_burst(range));
        }
    }

    /// Lets the programs of the account wait with what they charge, or go on.
    pub(super) fn set_suspended(&self, id: &AllocationId, suspension: ShareSuspension) {
        if let Some(account) = self.files.get(id) {
            account.set_suspended(suspension);
        }
    }

    pub(super) fn set_overhead(&self, id: &AllocationId, card: CardUuid, overhead: Bytes) {
        if let Some(account) = self.files.get(id) {
            account.set_overhead(card, overhead);
        }
    }

    /// Sets what contexts on this card cost, in every account.
    pub(super) fn set_context_cost(&self, card: CardUuid, cost: ContextCost) {
        for account in self.files.values() {
            account.set_context_cost(card, cost);
        }
    }

    /// Frees the slots of the account's dead processes.
    pub(super) fn retire_dead(&mut self, id: &AllocationId) {
        if let Some(account) = self.files.get(id) {
            account.retire_dead(&mut self.namespaces);
        }
    }

    /// Begins to read the accounts. What a process claims at any time until [`Self::read`] counts for the sample.
    pub(super) fn begin(&mut self) {
        self.files.values_mut().for_each(AccountFiles::begin);
    }

    /// Notes processes that use a card, so that their claims can be resolved.
    pub(super) fn meet(&mut self, users: impl IntoIterator<Item = ProcessId>) {
        self.namespaces.meet(users.into_iter().collect());
    }

    /// Reads the claims of all accounts.
    pub(super) fn read(&mut self) {
        let mut claims = BTreeMap::new();
        for (id, account) in &self.files {
            claims.insert(id.clone(), account.end(&mut self.namespaces));
        }
        self.claims = claims;
    }

    /// The processes with claims that are no members yet, a few of each account in each round: programs can write
    /// anything there, and each look-up is expensive.
    pub(super) fn strangers(
        &mut self,
        members: &AllocationMembers,
    ) -> Vec<(AllocationId, ProcessId)> {
        let mut found = Vec::new();
        for (id, claims) in &self.claims {
            self.next_checked = self.next_checked.wrapping_add(STRANGERS);
            let processes = claims.iter().map(|claims| claims.process);
            let mut strangers: Vec<_> = processes
                .filter(|process| !members.contains(*process))
                .collect();
            let first = self.next_checked % strangers.len().max(1);
            strangers.rotate_left(first);
            strangers.truncate(STRANGERS);
            found.extend(strangers.into_iter().map(|process| (id.clone(), process)));
        }
        found
    }

    /// Whether the process has mapped the account. The agent itself has every account mapped.
    pub(super) fn is_mapped_by(&self, id: &AllocationId, process: ProcessId) -> bool {
        process.pid != std::process::id()
            && (self.files.get(id)).is_some_and(|account| account.is_mapped_by(process.pid))
    }

    /// Opens the account to the users of its allocation. Until these are known, only the agent may open it. Returns
    /// who may open it.
    pub(super) fn give(&mut self, allocation: &Allocation) -> Option<AccountAccess> {
        let id = &allocation.id;
        let account = self.files.get_mut(id)?;
        let is_of_pod = ContainerRef::of(&allocation.name).is_some();
        let given = match &allocation.state {
            AllocationPhase::Allocated(AllocationOwner::Process(owner)) => {
                match procfs::users(owner.pid) {
                    Some((_, user)) => account.let_in(user).map(drop),
                    None => Ok(()),
                }
            }
            AllocationPhase::Allocated(AllocationOwner::Pod(_) | AllocationOwner::Claim(_)) => {
                account.open_to_all()
            }
            AllocationPhase::Reserved { .. } | AllocationPhase::Draining if is_of_pod => {
                account.open_to_all()
            }
            AllocationPhase::Reserved { .. } | AllocationPhase::Draining => Ok(()),
        };
        if let Err(problem) = given {
            warn!(%id, %problem, "Failed to give the account to its user");
        }
        Some(account.access().clone())
    }

    /// Opens accounts to the users that their processes run as by now: a program that is started as another user
    /// must have the limit, too. A process that only claims membership is no member.
    pub(super) fn let_users_in(&mut self, members: &mut AllocationMembers) {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        for (process, id) in members.all() {
            let Some(account) = self.files.get_mut(id) else {
                continue;
            };
            let Some((_, user)) = procfs::users(process.pid) else {
                continue;
            };
            if account.access().admits(user) {
                continue;
            }
            match account.let_in(user) {
                Ok(_) => {
                    info!(%id, user, pid = process.pid, "Account opened to another user of the allocation")
                }
                Err(problem) => {
                    warn!(%id, user, %problem, "Failed to open the account to its user")
                }
            }
        }
        for (id, account) in &self.files {
            members.restrict(id, account.access().clone());
        }
    }

    /// The account of every allocation, as the ledger compares it. If an account could not be opened, this agent does
    /// not enforce its limit.
    pub(super) fn samples(&self, ledger: &Ledger) -> Vec<AccountSample> {
        let mut samples = Vec::new();
        for (id, account) in &self.files {
            let limits = account.limits();
            samples.push(AccountSample {
                id: id.clone(),
                is_sound: account.is_sound(),
                claimed: limits
                    .map(|(card, _, _)| (card, account.used(card).claimed))
                    .collect(),
            });
        }
        for allocation in ledger.allocations() {
            if !self.files.contains_key(&allocation.id) {
                samples.push(AccountSample {
                    id: allocation.id.clone(),
                    is_sound: false,
                    claimed: Vec::new(),
                });
            }
        }
        samples
    }

    /// The claims of processes that the driver does not list on the card.
    ///
    /// The tenant writes its claims. They explain no more memory than is held for the allocation, so that a forged
    /// claim cannot hide the memory of others.
    pub(super) fn unlisted(&self, reading: &CardReading, ledger: &Ledger) -> Bytes {
        let claimed = |(id, claims): (&AllocationId, &Vec<ProcessClaims>)| {
            let position = self.files.get(id)?.position(reading.uuid)?;
            let allocation = ledger.allocation(id)?;
            if allocation.suspension != SuspensionPhase::Running {
                // Its processes claim what may be in the host now.
                return None;
            }
            let grant = allocation.grant(reading.uuid)?;
            let unlisted = claims
                .iter()
                .filter(|claims| !reading.processes.contains_key(&claims.process.pid));
            let claims = unlisted.filter_map(|claims| claims.claimed.get(position).copied());
            Some(claims.sum::<Bytes>().min(grant.held))
        };
        self.claims.iter().filter_map(claimed).sum()
    }

    /// What a process of the allocation claimed on the card while the driver was asked.
    pub(super) fn window(
        &self,
        id: &AllocationId,
        process: ProcessId,
        card: CardUuid,
        nvml: Option<Bytes>,
    ) -> Option<ClaimWindow> {
        let Some(account) = self.files.get(id) else {
            // The account may be of another layout version. Its claims are unknown, so the process is taken to be
            // honest.
            return Some(ClaimWindow {
                lowest: Bytes::ZERO,
                highest: nvml.unwrap_or_default(),
            });
        };
        let position = account.position(card)?;
        self.claims_of(id, process)?.claims.get(position).copied()
    }

    /// What a process uses of one card; `None` if nothing.
    pub(super) fn process_use(
        &self,
        id: &AllocationId,
        process: ProcessId,
        reading: &CardReading,
    ) -> Option<v1::ProcessUse> {
        let position = (self.files.get(id)).and_then(|account| account.position(reading.uuid));
        let claims = self.claims_of(id, process);
        let claimed = claims
            .zip(position)
            .and_then(|(claims, at)| claims.claimed.get(at).copied())
            .unwrap_or_default();
        let nvml = reading.processes.get(&process.pid).copied();
        if claimed == Bytes::ZERO && nvml.is_none() {
            return None;
        }
        let loads = reading.loads.as_ref();
        Some(v1::ProcessUse {
            card: reading.uuid.to_string(),
            claimed_bytes: claimed.0,
            nvml_bytes: nvml.unwrap_or(Some(Bytes::ZERO)).map(|bytes| bytes.0),
            utilisation_percent: loads
                .map(|loads| loads.get(&process.pid).copied().unwrap_or_default()),
        })
    }

    /// What an account of an earlier agent tells, if processes use it.
    pub(super) fn used_by_processes(
        &mut self,
        id: &AllocationId,
        members: &mut AllocationMembers,
    ) -> Option<UsedAccount> {
        let account = AccountFiles::adopt(self.folder_of(id))?;
        if account.end(&mut self.namespaces).is_empty() && !members.search(id) {
            return None;
        }
        let grants = account.limits().map(|(card, limit, overhead)| {
            let mut grant = CardGrant::new(card, limit);
            grant.overhead = overhead;
            grant
        });
        Some(UsedAccount {
            grants: grants.collect(),
            is_suspended: account.is_suspended(),
        })
    }

    /// Whether a process has entered the account, as every program with the library has that uses a card.
    pub(super) fn has_entered(&self, id: &AllocationId, process: ProcessId) -> bool {
        self.claims_of(id, process).is_some()
    }

    /// What one process claims on all cards.
    pub(super) fn claimed_by(&self, id: &AllocationId, process: ProcessId) -> Bytes {
        let claims = self.claims_of(id, process);
        claims.map_or(Bytes::ZERO, |of| of.claimed.iter().copied().sum())
    }

    fn claims_of(&self, id: &AllocationId, process: ProcessId) -> Option<&ProcessClaims> {
        let claims = self.claims.get(id)?;
        claims.iter().find(|claims| claims.process == process)
    }
}
