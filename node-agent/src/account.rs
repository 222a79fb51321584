//! One allocation's account on the agent's side: writes the limits, reads the claims, and frees the slots of dead
//! processes.
//!
//! The programs write `usage` and may corrupt it. Nothing that is read there is used as an index or a length. The
//! agent stops reading files whose size or inode changed. A file that is truncated during a read does no harm: both
//! files are mapped guarded (`apportion_abi::account`).

use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use apportion_abi::account::{
    AccountOpenError, BurstMap, CardCharges, LAYOUT_VERSION, LimitsMap, NewBurst, NewCard,
    RegisteredProcess, ShareSuspension, UsageMap,
};
use apportion_abi::{Bytes, CardUuid, paths};
use apportion_ledger::{AllocationId, ClaimWindow, ProcessId};
use tracing::warn;

use crate::account::access::AccountAccess;
use crate::driver::reserve::ContextCost;
use crate::processes::namespace::{PidNamespaces, ResolvedProcess};
use crate::processes::procfs::{self, MappedFile};

pub(crate) mod access;
pub(crate) mod burst;
pub(crate) mod calls;

/// Why an account could not be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccountError {
    #[error("failed to create account {path}")]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to create {path}")]
    File {
        path: PathBuf,
        #[source]
        source: AccountOpenError,
    },
    #[error(
        "account {path} has layout version {version}, this agent reads {LAYOUT_VERSION}; its programs keep their \
         current limits"
    )]
    Version { path: PathBuf, version: u32 },
}

/// One card of an account that is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccountCard {
    pub(crate) new: NewCard,
    pub(crate) cost: ContextCost,
    pub(crate) burst: NewBurst,
}

/// One process of an account.
#[derive(Debug)]
pub(crate) struct ProcessClaims {
    pub(crate) process: ProcessId,
    /// For each card of the account, in its order.
    pub(crate) claims: Vec<ClaimWindow>,
    /// The current claims, in the same order.
    pub(crate) claimed: Vec<Bytes>,
}

/// The files of one allocation.
#[derive(Debug)]
pub(crate) struct AccountFiles {
    folder: PathBuf,
    cards: Vec<CardUuid>,
    limits: LimitsMap,
    usage: UsageMap,
    /// Where programs ask for more, if the share is elastic and the file is intact.
    burst: Option<BurstMap>,
    identity: Option<[(u64, u64); 2]>,
    usage_file: Option<MappedFile>,
    access: AccountAccess,
    begun: HashMap<(usize, u32), Vec<Bytes>>,
    was_recreated: bool,
    was_grown: bool,
}

impl AccountFiles {
    /// Opens the account in the folder if it names the same cards, else creates it. `asks_about_calls` says whether
    /// programs of a new account publish that they call the driver.
    pub(crate) fn open(
        folder: PathBuf,
        cards: &[AccountCard],
        asks_about_calls: bool,
    ) -> Result<Self, AccountError> {
        if let Some(version) = Self::other_version(&folder) {
            let path = folder;
            return Err(AccountError::Version { path, version });
        }
        let was_there = folder.exists();
        if let Some(account) = Self::adopt(folder.clone()).filter(|account| account.names(cards)) {
            for (place, card) in cards.iter().enumerate() {
                account.set(place, |words| words.set_limit(card.new.limit));
                // An agent that was killed in the middle of a resize may have saved it, and not written it here.
                account.set_range(card.new.uuid, card.burst);
            }
            return Ok(account);
        }
        let mut account = Self::create(folder, cards, asks_about_calls)?;
        account.was_recreated = was_there;
        Ok(account)
    }

    /// The account in a folder, if both of its files are valid.
    pub(crate) fn adopt(folder: PathBuf) -> Option<Self> {
        let limits = LimitsMap::adopt(&c_path(&folder, paths::LIMITS_FILE)?).ok()?;
        let usage = UsageMap::adopt(&c_path(&folder, paths::USAGE_FILE)?).ok()?;
        let is_whole = usage.cards() == limits.cards().len();
        let burst = limits.has_burst().then(|| burst::adopt(&folder, &limits));
        is_whole.then(|| Self::from_parts(folder, limits, usage, burst.flatten()))
    }

    /// The version of the account in a folder, if this agent cannot read it.
    pub(crate) fn other_version(folder: &Path) -> Option<u32> {
        match LimitsMap::adopt(&c_path(folder, paths::LIMITS_FILE)?) {
            Err(AccountOpenError::Version(version)) => Some(version),
            Ok(_) | Err(AccountOpenError::NotAnAccount | AccountOpenError::System(..)) => None,
        }
    }

    fn create(
        folder: PathBuf,
        cards: &[AccountCard],
        asks_about_calls: bool,
    ) -> Result<Self, AccountError> {
        let failed = |source| AccountError::Folder {
            path: folder.clone(),
            source,
        };
        remove(&folder).map_err(failed)?;
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&folder)
            .map_err(failed)?;
        let path = |name: &str| folder.join(name);
        let file = |name: &str, source| AccountError::File {
            path: path(name),
            source,
        };
        let name = |name: &str| c_path(&folder, name).ok_or(AccountOpenError::NotAnAccount);
        let usage = name(paths::USAGE_FILE)
            .and_then(|name| UsageMap::create(&name, cards.len()))
            .map_err(|source| file(paths::USAGE_FILE, source))?;
        let burst = burst::create(&folder, cards)?;
        if burst.is_some() || asks_about_calls {
            burst::create_fifo(&folder)?;
        }
        let new: Vec<_> = cards.iter().map(|card| card.new).collect();
        let make = match burst {
            Some(_) => LimitsMap::create_elastic,
            None => LimitsMap::create,
        };
        let limits = name(paths::LIMITS_FILE)
            .and_then(|name| make(&name, &new))
            .map_err(|source| file(paths::LIMITS_FILE, source))?;
        if asks_about_calls {
            limits.calls().begin_epoch();
        }
        Ok(Self::from_parts(folder, limits, usage, burst))
    }

    fn from_parts(
        folder: PathBuf,
        limits: LimitsMap,
        usage: UsageMap,
        burst: Option<BurstMap>,
    ) -> Self {
        let cards = limits.cards().iter().map(|card| card.card()).collect();
        let identity = identity(&folder);
        let usage_file = procfs::mapped_at(std::process::id(), usage.address());
        let access = AccountAccess::of(&folder.join(paths::USAGE_FILE));
        let begun = HashMap::new();
        Self {
            folder,
            cards,
            limits,
            usage,
            burst,
            identity,
            usage_file,
            access,
            begun,
            was_recreated: false,
            was_grown: false,
        }
    }

    fn names(&self, cards: &[AccountCard]) -> bool {
        self.cards
            .iter()
            .eq(cards.iter().map(|card| &card.new.uuid))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Who may open the usage file.
    pub(crate) fn access(&self) -> &AccountAccess {
        &self.access
    }

    /// Opens the usage file to every user who can see it. Containers need this.
    pub(crate) fn open_to_all(&mut self) -> io::Result<()> {
        self.set_access(AccountAccess::Everybody)
    }

    /// Also lets this user open the usage file. Returns whether that was new.
    pub(crate) fn let_in(&mut self, user: u32) -> io::Result<bool> {
        let mut users = match &self.access {
            AccountAccess::Users(users) if users.contains(&user) => return Ok(false),
            AccountAccess::Users(users) => users.clone(),
            AccountAccess::Everybody => BTreeSet::new(),
        };
        users.insert(user);
        let given = self.set_access(AccountAccess::Users(users));
        if let Err(problem) = given {
            // A file system without ACLs. A program that cannot open its own account is worse than a file that other
            // users can open.
            warn!(folder = %self.folder.display(), %problem, "Account opened to all users");
            self.open_to_all()?;
        }
        Ok(true)
    }

    fn set_access(&mut self, access: AccountAccess) -> io::Result<()> {
        if self.access != access {
            for file in self.written_by_programs() {
                access.apply(&self.folder.join(file))?;
            }
            self.access = access;
        }
        Ok(())
    }

    /// Whether the files are intact and in place, and no process can have an earlier copy of them mapped.
    pub(crate) fn is_sound(&self) -> bool {
        !self.was_recreated && !self.was_grown && self.is_in_place()
    }

    /// The cards with the limits and overheads that the file has.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (CardUuid, Bytes, Bytes)> + '_ {
        self.limits.cards().iter().map(|card| {
            let limits = card.limits();
            (card.card(), limits.limit, limits.overhead)
        })
    }

    /// What a card is charged.
    pub(crate) fn used(&self, card: CardUuid) -> CardCharges {
        let place = self.cards.iter().position(|known| *known == card);
        match place.filter(|_| self.is_in_place()) {
            Some(place) => self.usage.usage().used(place),
            None => CardCharges::default(),
        }
    }

    pub(crate) fn set_limit(&self, card: CardUuid, limit: Bytes) {
        self.set_of(card, |words| words.set_limit(limit));
    }

    /// Whether its programs wait with what they charge.
    pub(crate) fn is_suspended(&self) -> bool {
        self.limits.is_suspended()
    }

    pub(crate) fn set_suspended(&self, suspension: ShareSuspension) {
        if self.is_in_place() {
            self.limits.set_suspended(suspension);
        }
    }

    pub(crate) fn set_overhead(&self, card: CardUuid, overhead: Bytes) {
        self.set_of(card, |words| words.set_overhead(overhead));
    }

    pub(crate) fn set_context_cost(&self, card: CardUuid, cost: ContextCost) {
        self.set_of(card, |words| {
            words.set_context_reserve(cost.first);
            words.set_further_reserve(cost.further);
        });
    }

    /// Whether the process has the usage file mapped, as the programs of the account have.
    pub(crate) fn is_mapped_by(&self, pid: u32) -> bool {
        let file = self.usage_file.as_ref();
        file.is_some_and(|file| procfs::has_mapped(pid, file))
    }

    /// Records all claims before the NVML query.
    pub(crate) fn begin(&mut self) {
        self.begun.clear();
        self.was_grown = self.cut_back() || self.cut_back_burst();
        if !self.is_in_place() {
            return;
        }
        let usage = self.usage.usage();
        for process in usage.processes() {
            for card in 0..self.cards.len() {
                // Resets the high-water mark, so that it shows this round only.
                let _ = usage.take_high(process.owner, card);
            }
            let claimed = (0..self.cards.len()).map(|card| usage.claimed_by(process.owner, card).0);
            let key = (process.owner.slot(), process.owner.pid());
            self.begun.insert(key, claimed.collect());
        }
    }

    /// The live processes with their claims since [`AccountFiles::begin`]. Frees the slots of dead processes.
    pub(crate) fn end(&self, namespaces: &mut PidNamespaces) -> Vec<ProcessClaims> {
        if !self.is_in_place() {
            return Vec::new();
        }
        let usage = self.usage.usage();
        let mut slots = Vec::new();
        for process in usage.processes() {
            match namespaces.resolve(process.registration) {
                ResolvedProcess::Live(live) => slots.push(self.slot(process, live)),
                ResolvedProcess::Dead => drop(usage.retire(process.owner)),
                ResolvedProcess::Unknown => {}
            }
        }
        slots
    }

    /// Frees the slots of processes that ended.
    pub(crate) fn retire_dead(&self, namespaces: &mut PidNamespaces) {
        drop(self.end(namespaces));
    }

    fn slot(&self, process: RegisteredProcess, live: ProcessId) -> ProcessClaims {
        let usage = self.usage.usage();
        let key = (process.owner.slot(), process.owner.pid());
        let begun = self.begun.get(&key);
        let claimed: Vec<_> = (0..self.cards.len())
            .map(|card| usage.claimed_by(process.owner, card).0)
            .collect();
        let claims = claimed
            .iter()
            .enumerate()
            .map(|(card, now)| {
                // A process that entered since then had claimed nothing.
                let before = begun
                    .and_then(|begun| begun.get(card))
                    .copied()
                    .unwrap_or_default();
                let highest = usage.take_high(process.owner, card).max(before).max(*now);
                ClaimWindow {
                    lowest: before.min(*now),
                    highest,
                }
            })
            .collect();
        ProcessClaims {
            process: live,
            claims,
            claimed,
        }
    }

    /// The position of a card in [`ProcessClaims::claims`].
    pub(crate) fn position(&self, card: CardUuid) -> Option<usize> {
        self.cards.iter().position(|known| *known == card)
    }

    fn set_of(&self, card: CardUuid, change: impl Fn(&apportion_abi::account::CardLimit)) {
        if let Some(place) = self.position(card) {
            self.set(place, change);
        }
    }

    fn set(&self, place: usize, change: impl Fn(&apportion_abi::account::CardLimit)) {
        if let Some(words) = self
            .limits
            .cards()
            .get(place)
            .filter(|_| self.is_in_place())
        {
            change(words);
        }
    }

    /// Truncates a usage file that programs have extended: its pages are host memory. Returns whether it was
    /// extended.
    fn cut_back(&self) -> bool {
        let path = self.folder.join(paths::USAGE_FILE);
        let (Some([_, (inode, size)]), Ok(found)) = (self.identity, fs::metadata(&path)) else {
            return false;
        };
        let is_grown = found.ino() == inode && found.len() > size;
        is_grown
            && fs::File::options()
                .write(true)
                .open(path)
                .is_ok_and(|file| file.set_len(size).is_ok())
    }

    /// A changed file is ignored for good, even if it is changed back.
    fn is_in_place(&self) -> bool {
        let is_damaged = self.limits.is_damaged() || self.usage.is_damaged();
        !is_damaged && self.identity.is_some() && identity(&self.folder) == self.identity
    }
}

/// Removes an account's folder, if it exists. Refuses if the name is not an allocation id, or if the folder holds
/// anything but an account's files: then it is not ours.
pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    let name = folder.file_name().and_then(|name| name.to_str());
    if name.and_then(AllocationId::parse).is_none() {
        return Err(io::Error::other("its name is no id"));
    }
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let own = [
        paths::LIMITS_FILE,
        paths::USAGE_FILE,
        paths::BURST_FILE,
        paths::WAKE_FIFO,
    ];
    for entry in entries {
        let entry = entry?;
        let is_own = own.iter().any(|own| entry.file_name() == *own);
        if !is_own || entry.file_type()?.is_dir() {
            return Err(io::Error::other("it holds what is no account's"));
        }
    }
    for own in own {
        match fs::remove_file(folder.join(own)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::remove_dir(folder)
}

/// Inode and size of both files.
fn identity(folder: &Path) -> Option<[(u64, u64); 2]> {
    let of = |name| {
        fs::metadata(folder.join(name))
            .ok()
            .map(|found| (found.ino(), found.len()))
    };
    Some([of(paths::LIMITS_FILE)?, of(paths::USAGE_FILE)?])
}

fn c_path(folder: &Path, name: &str) -> Option<CString> {
    CString::new(folder.join(name).as_os_str().as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_that_is_an_account_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str, files: &[&str]| {
            let folder = dir.path().join(name);
            fs::create_dir(&folder).unwrap();
            for file in files {
                fs::write(folder.join(file), "").unwrap();
            }
            folder
        };
        for files in [&["limits", "usage", "burst", "wake"][..], &["usage"], &[]] {
            let account = folder("4d-1", files);
            remove(&account).unwrap();
            assert!(!account.exists());
            remove(&account).unwrap();
        }
        let important = folder("important", &["limits", "usage"]);
        let mixed = folder("4d-2", &["limits", "usage", "thesis.tex"]);
        let nested = folder("4d-3", &[]);
        fs::create_dir(nested.join("usage")).unwrap();
        for folder in [&important, &mixed, &nested] {
            assert!(remove(folder).is_err());
        }
        assert_eq!(fs::read_dir(important).unwrap().count(), 2);
        assert_eq!(fs::read_dir(mixed).unwrap().count(), 3);
        assert_eq!(fs::read_dir(nested).unwrap().count(), 1);
    }
}
